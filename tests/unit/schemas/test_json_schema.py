"""Values of JSON Schema as JSON and as columns."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest

from tests.unit.schemas.double import registry_double
from tidelog.errors import ConfigError
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.framing import frame
from tidelog.schemas.json_schema import JsonSchemaCodec
from tidelog.schemas.problems import DoesNotFit, SchemaProblem
from tidelog.schemas.registry import Reference, Registry, Schema
from tidelog.schemas.table import FORMATS, Reading
from tidelog.schemas.values import ValueReader, ValueWriter
from tidelog.spark.registered import part_reader

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
EVERY = {
    "$schema": DRAFT_7,
    "$id": "http://shop/order.json",
    "type": "object",
    "required": ["id", "must"],
    "properties": {
        "id": {"type": "string"},
        "n": {"type": "integer"},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "data": {"type": "string", "contentEncoding": "base64"},
        "size": {"enum": ["S", "M", None]},
        "must": {"type": ["string", "null"]},
        "either": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/line"}]},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
        "tags": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
        "both": {"allOf": [{"$ref": "#/definitions/line"}, {"properties": {"m": {"const": 1}}}]},
    },
    "definitions": {"line": {"type": "object", "properties": {"sku": {"type": "string"}}}},
}
ROW = {
    "id": "a",
    "n": 2**60,
    "price": 0.5,
    "paid": True,
    "at": datetime.datetime(1969, 1, 1, microsecond=5, tzinfo=datetime.UTC),
    "day": datetime.date(2026, 1, 2),
    "data": b"\xff",
    "size": "S",
    "must": None,
    "either": {"sku": "e"},
    "lines": [{"sku": "s"}, {"sku": None}],
    "tags": [("k", 1), ("l", None)],
    "both": {"m": 1, "sku": "b"},
}


def codec(document, **reading):
    return JsonSchemaCodec(Schema("JSON", json.dumps(document)), None, Reading(**reading))


def of(kind, **more):
    return codec({"type": "object", "properties": {"a": {"type": kind, **more}}})


def read(made, *payloads, writer=None):
    pieces, reasons = made.read([one.encode() for one in payloads], writer or made)
    return pa.concat_arrays(pieces).to_pylist(), reasons


def test_every_type_becomes_one_of_spark_and_comes_back():
    made = codec(EVERY)
    (payload,) = made.write(pa.array([ROW], made.arrow_type()))
    document = json.loads(payload)
    assert document["at"] == "1969-01-01T00:00:00.000005Z" and document["must"] is None
    assert document["lines"] == [{"sku": "s"}, {}], "what may be absent and not null is left out"
    assert read(made, payload.decode()) == ([ROW], {})


def test_json_is_kept_as_it_was_typed():
    made = of("number")
    line = b'{"b": 1.10, "a": 1e2}'
    assert made.payload(line) == line and made.text(line) == line
    assert made.text(b'{"a":\n 1.10}') == b'{"a":1.10}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"id": 1, "must": ""}', 'id: 1 is not of type "string"'),
        (b'{"id": "a"}', "must"),
        (b'{"id": "a", "must": null, "lines": [{"sku": 1}]}', r"lines\[0\].sku"),
        (b'{"id": "a", "must": null, "at": "soon"}', "date-time"),
        (b"{", "no JSON"),
        (b'{"id": "a", "must": null, "price": NaN}', "no JSON"),
        (b"\xff", "UTF-8"),
        (b'{"id": "a", "id": "b", "must": null}', "twice"),
        (b"[" * 100_000, "deep"),
    ],
)
def test_json_that_the_schema_does_not_allow_is_refused(line, words):
    with pytest.raises(DoesNotFit, match=words):
        codec(EVERY).payload(line)
    if b'"id": "b"' not in line:
        with pytest.raises(DoesNotFit, match=words):
            codec(EVERY).text(line)


def test_a_string_needs_no_quotes():
    made = codec({"type": "string"})
    assert [made.payload(one) for one in (b"k", b"1.10", b'"q"')] == [b'"k"', b'"1.10"', b'"q"']


@pytest.mark.parametrize(
    ("kind", "value", "found"), [("integer", "1.0", 1), ("number", "3", 3.0), ("number", "1e2", 100.0)]
)
def test_numbers_are_read_by_their_value(kind, value, found):
    assert read(of(kind), f'{{"a": {value}}}') == ([{"a": found}], {})


@pytest.mark.parametrize(
    ("kind", "more", "value"),
    [
        ("integer", {}, str(2**63)),
        ("number", {}, str(2**60 + 1)),
        ("number", {}, "1e400"),
        ("number", {}, "1" * 400),
        ("string", {"format": "date-time"}, '"2026-01-01T00:00:00.1234567Z"'),
        ("string", {"format": "date-time"}, '"2026-12-31T23:59:60Z"'),
        ("string", {"contentEncoding": "base64"}, '"%%"'),
    ],
)
def test_a_value_that_spark_has_not_is_refused(kind, more, value):
    good = '{"a": null}'
    made = codec({"type": "object", "properties": {"a": {"type": [kind, "null"], **more}}})
    found, reasons = read(made, good, f'{{"a": {value}}}')
    assert found == [{"a": None}, None] and list(reasons) == [1]


def test_records_are_checked_by_the_schema_they_were_written_with_unless_told_not_to():
    strict = of("integer", maximum=5)
    lenient = codec({"properties": {"a": {"type": "integer", "maximum": 5}}}, validates=False)
    wanted = of("integer")
    assert "6 is greater than the maximum of 5" in read(wanted, '{"a": 6}', writer=strict)[1][0]
    assert read(wanted, '{"a": 6}', writer=lenient) == ([{"a": 6}], {})
    assert "no integer" in read(wanted, '{"a": true}', writer=lenient)[1][0]


def test_a_reader_takes_the_properties_that_it_knows():
    writer = codec({"type": "object"})
    assert read(of("string"), '{"a": "x", "b": 1}', "{}", writer=writer)[0] == [{"a": "x"}, {"a": None}]
    assert "no string" in read(of("string"), '{"a": 1}', writer=writer)[1][0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"id": None}, "id is null"),
        ({"nope": 1}, "no field nope"),
        ({"n": 1.5}, "cast it"),
        ({"price": float("nan")}, "JSON has no nan"),
        ({"size": "XL"}, "size"),
    ],
)
def test_a_row_that_the_schema_cannot_say_is_refused(row, words):
    with pytest.raises(DoesNotFit, match=words):
        codec(EVERY).write(pa.array([{"id": "a", "must": None} | row]))


def test_a_decimal_keeps_its_digits():
    column = pa.array([{"a": decimal.Decimal("1.10")}], pa.struct([("a", pa.decimal128(10, 2))]))
    assert of("number").write(column) == [b'{"a":1.10}']


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (True, "may be anything"),
        ({}, "says no type"),
        ({"type": ["string", "integer"]}, "several"),
        ({"type": "object"}, "object of anything"),
        ({"type": "array"}, "array whose items"),
        ({"$schema": DRAFT_7, "type": "array", "items": [{"type": "string"}]}, "array whose items"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "one of several"),
        ({"$ref": "#"}, "inside of itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "a is inside of itself"),
        ({"type": "object", "properties": {"a": {"allOf": [{"$ref": "#"}]}}}, "inside of itself"),
        ({"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "string"}}}, "anchor"),
    ],
)
def test_what_spark_has_no_type_for_is_told(document, words):
    with pytest.raises(ConfigError, match=words):
        codec(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}
            if isinstance(document, dict)
            else document
        ).arrow_type()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON Schema"),
        ('{"type": "nope"}', "no JSON Schema"),
        ("[" * 50_000, "no JSON"),
        ('{"$ref": "#/nowhere"}', "no JSON Schema"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "no JSON Schema"),
        ('{"$ref": "http://127.0.0.1:1/x.json"}', "neither in the schema nor among"),
        ('{"$ref": "file:///etc/passwd"}', "neither in the schema nor among"),
        ('{"type": "string", "pattern": "("}', "no JSON Schema"),
    ],
)
def test_a_text_that_is_no_schema_is_told(text, words):
    with pytest.raises(SchemaProblem, match=words):
        FORMATS["json-schema"].codec(Schema("JSON", text), None)


def test_no_address_is_ever_asked():
    with registry_double() as double:
        for reference in (f"{double.url}/schemas/ids/1", f"{double.url}/x#/definitions/a"):
            with pytest.raises(SchemaProblem, match="among its references"):
                codec({"$ref": reference})
        assert double.asked == []


@pytest.mark.timeout(20)
def test_a_pattern_that_takes_for_ever_does_not():
    made = of("string", pattern="^(a+)+$")
    with pytest.raises(DoesNotFit):
        made.document(json.dumps({"a": "a" * 5000 + "!"}).encode())


def test_references_are_found_among_the_registry_s_schemas():
    with registry_double() as double:
        registry = Registry(double.url)
        registry.register("place", Schema("JSON", '{"$defs": {"x": {"type": "integer"}}}'))
        middle = {"type": "object", "properties": {"x": {"$ref": "place.json#/$defs/x"}}}
        registry.register("way", Schema("JSON", json.dumps(middle), (Reference("place.json", "place", 1),)))
        outer = {
            "$id": "http://geo/v/visit.json",
            "type": "object",
            "properties": {"way": {"$ref": "way.json"}},
        }
        schema = Schema("JSON", json.dumps(outer), (Reference("way.json", "way", 1),))
        number = registry.register("visits-value", schema)
        form = PartFormat(part="value", name="json-schema", url=double.url)
        data = ValueWriter(form, "visits", None).bytes_of(b'{"way": {"x": 3}}')
        assert data == frame(number, b'{"way": {"x": 3}}')
        assert ValueReader(form).document(data) == {"way": {"x": 3}}
        found, _ = part_reader(form, "visits").read(pa.array([data]))
        assert found.to_pylist() == [{"way": {"x": 3}}]


def test_columns_become_a_schema():
    kind = pa.struct(
        [
            ("id", pa.string()),
            ("n", pa.int16()),
            ("at", pa.timestamp("us", "UTC")),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
            ("data", pa.binary()),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("day", pa.date32()),
            ("ok", pa.bool_()),
        ]
    )
    made = codec(json.loads(FORMATS["json-schema"].schema_text(kind, "orders_value")))
    row = {
        "id": None,
        "n": 1,
        "at": ROW["at"],
        "lines": [{"sku": "a"}, None],
        "data": b"x",
        "m": [("k", 0.5)],
        "day": ROW["day"],
        "ok": None,
    }
    (payload,) = made.write(pa.array([row], kind))
    assert read(made, payload.decode()) == ([row], {})
    with pytest.raises(ConfigError, match="no type for decimal"):
        FORMATS["json-schema"].schema_text(pa.struct([("a", pa.decimal128(9, 2))]), "r")


def test_members_that_come_twice_are_refused_when_they_are_read_too():
    made = of("integer")
    rows, reasons = read(made, '{"a": 1, "a": 2}', '{"a": 3}')
    assert rows == [None, {"a": 3}] and "'a' twice" in reasons[0]
    with pytest.raises(DoesNotFit, match="'a' twice"):
        made.text(b'{"a": 1, "a": 2}')


def test_a_number_that_no_double_has_is_not_checked_as_null():
    made = codec({"type": ["null", "integer"], "maximum": 10})
    for use in (made.text, made.payload):
        with pytest.raises(DoesNotFit, match="too large"):
            use(b"1e400")


@pytest.mark.parametrize("value", ["9007199254740993.0", "9007199254740993e0", "-1e16"])
def test_an_integer_is_not_rounded(value):
    _, reasons = read(of("integer"), f'{{"a": {value}}}')
    assert "exact" in reasons[0]


@pytest.mark.parametrize("words", ["2026-01-01T00:00:00,1234567Z", "2026-01-01T00:00:00.5+00:00:00.1234567"])
def test_no_part_of_a_time_is_cut(words):
    made = of("string", format="date-time")
    _, reasons = read(made, json.dumps({"a": words}), writer=codec({}))
    assert "parts of a microsecond" in reasons[0]


def test_a_line_end_before_what_is_no_unicode_is_one_line():
    assert codec({"type": "object"}).text(b'{\n"\\ud800":\n 1}') == b'{"\\ud800":1}'


def test_of_references_the_one_with_the_whole_name_is_meant():
    with registry_double() as double:
        registry = Registry(double.url)
        registry.register("number", Schema("JSON", '{"type": "integer"}'))
        registry.register("text", Schema("JSON", '{"type": "string"}'))
        names = (Reference("place.json", "number", 1), Reference("common/place.json", "text", 1))
        schema = Schema("JSON", '{"$ref": "common/place.json"}', names)
        made = FORMATS["json-schema"].codec(schema, registry)
        assert made.arrow_type() == pa.string() and made.text(b'"x"') == b'"x"'


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("items", "payload"),
    [
        ({"type": "array", "items": {"$ref": "#"}}, b"[" * 30 + b"1" + b"]" * 30),
        ({"type": "array", "items": {"type": "null"}}, b"[" + b"1," * 200_000 + b"1]"),
    ],
)
def test_it_does_not_take_for_ever_to_say_what_is_wrong(items, payload):
    made = codec({"anyOf": [items, {**items, "minItems": 0}, {**items, "minItems": 1}]})
    with pytest.raises(DoesNotFit, match="too long to say why"):
        made.text(payload)


def test_properties_beside_a_reference_or_a_choice_are_columns():
    more = {"properties": {"b": {"type": "integer"}}}
    own = {"properties": {"a": {"type": "integer"}}}
    made = codec({**own, "$defs": {"x": more}, "$ref": "#/$defs/x"})
    assert sorted(one.name for one in made.arrow_type()) == ["a", "b"]
    assert [one.name for one in codec({**own, "anyOf": [more]}).arrow_type()] == ["a"]


def test_a_schema_that_becomes_too_many_columns_is_refused():
    def two(one):
        below = {"$ref": f"#/$defs/a{one}"}
        return {"type": "object", "properties": {"x": below, "y": below}}

    tree = {f"a{one}": two(one + 1) for one in range(40)}
    with pytest.raises(ConfigError, match="more than 10000 places"):
        codec({"$defs": {**tree, "a40": {"type": "integer"}}, "$ref": "#/$defs/a0"}).arrow_type()


def doubling(levels: int, *, in_members: bool = False) -> dict[str, object]:
    """A schema of so many parts, each of which asks for the next one twice, of the same value."""

    def twice(name: str) -> dict[str, object]:
        one = {"$ref": f"#/definitions/{name}"}
        if in_members:
            return {"properties": {"x": one}, "anyOf": [{"properties": {"x": one}}]}
        return {"anyOf": [one, one]}

    parts = {f"p{at}": twice(f"p{at + 1}") for at in range(levels)}
    return {"definitions": {**parts, f"p{levels}": {"type": "string"}}, "$ref": "#/definitions/p0"}


@pytest.mark.parametrize("levels", [25, 60])
def test_a_schema_that_asks_for_ever_more_checks_is_refused_before_it_is_checked(levels):
    made = codec(doubling(levels))

    with pytest.raises(DoesNotFit, match="would take more than 1000100 steps"):
        made.document(b"1")


def test_choices_that_double_with_each_member_are_refused_where_the_value_is_deep():
    made = codec(doubling(60, in_members=True))

    assert made.document(b'{"x":{"x":{"y":1}}}') == {"x": {"x": {"y": 1}}}
    with pytest.raises(DoesNotFit, match="steps"):
        made.document(b'{"x":' * 40 + b"1" + b"}" * 40)


def test_choices_of_a_schema_that_is_inside_of_itself_double_nothing():
    itself = {"$ref": "#"}
    made = codec({"properties": {"x": itself}, "anyOf": [{"properties": {"x": itself}}, {"type": "null"}]})

    deep = b'{"x":' * 40 + b"1" + b"}" * 40
    assert made.text(deep) == deep


def test_a_tree_of_any_depth_is_checked_though_its_schema_is_inside_of_itself():
    itself = {"$ref": "#"}
    made = codec(
        {"type": "object", "properties": {"left": itself, "right": itself, "n": {"type": "integer"}}}
    )
    tree: dict[str, object] = {"n": 0}
    for at in range(10):
        tree = {"left": tree, "right": dict(tree), "n": at}

    assert made.document(json.dumps(tree).encode()) == tree
    with pytest.raises(DoesNotFit, match=r"left\.left\.n"):
        made.document(b'{"left":{"left":{"n":"one"}}}')
