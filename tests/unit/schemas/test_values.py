"""Single values of a schema registry as JSON that people type."""

import decimal
import json

import pytest

from tests.unit.schemas.double import registry_double
from tidelog.errors import ConfigError
from tidelog.schemas import documents, framing
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.problems import DoesNotFit, SchemaProblem
from tidelog.schemas.registry import Reference, Registry, Schema
from tidelog.schemas.table import FORMATS
from tidelog.schemas.values import ValueReader, ValueWriter

MS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 1}


def record(**fields):
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


@pytest.fixture(scope="module")
def double():
    with registry_double() as made:
        yield made


@pytest.fixture
def written(double):
    """Write a text by a schema, and read it back."""
    form = PartFormat(part="value", name="avro", url=double.url)

    def write(schema, line):
        data = ValueWriter(form, "orders", json.dumps(schema)).bytes_of(line)
        return ValueReader(form).document(data)

    return write


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ("int", b"1.5"),
        ("int", b"true"),
        ("int", b"99999999999"),
        ("double", b"1e400"),
        ("float", b"1e39"),
        ("boolean", b'"false"'),
        ("boolean", b"1"),
        ("null", b"0"),
        ("bytes", b'{"base64": "!!!"}'),
        ("bytes", b'{"base64": 1}'),
        ("bytes", b'{"base64": "a"}'),
        ("bytes", b'"\\ud800"'),
        ("string", b"\xff\xfe"),
        ({"type": "string", "logicalType": "uuid"}, b"no-uuid"),
        ({"type": "array", "items": "string"}, b'"abc"'),
        (record(a="string"), b'{"a": 1}'),
        (record(a=["null", "string"]), b'{"a": {"string": "x"}}'),
        (record(a="int"), b'{"a": 1, "a": 2}'),
        (MONEY, b'"1e100000"'),
        (MONEY, b'"NaN"'),
        (MONEY, b"1.234"),
        (MS, b'"2026-01-01T00:00:00.123456Z"'),
        (MS, b"1.5"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, b'"2026-01-01T00:00+02:00"'),
        ({"type": "int", "logicalType": "time-millis"}, b'"10:00:00+02:00"'),
        (record(n=["null", "R"]), b'{"n": ' * 20_000 + b"null" + b"}" * 20_000),
    ],
)
def test_what_the_schema_cannot_say_as_it_is_is_refused(written, schema, line):
    with pytest.raises(DoesNotFit):
        written(schema, line)


@pytest.mark.parametrize(
    ("schema", "line", "found"),
    [
        ("string", b"1.10", "1.10"),
        ("string", b"1e5", "1e5"),
        ("string", b'{"a":1}', '{"a":1}'),
        ("string", b'"quoted"', "quoted"),
        ("string", b"null", "null"),
        (["null", "string"], b"null", None),
        (["null", "string"], b"1.10", "1.10"),
        ("double", b"-0.0", -0.0),
        ("double", b"Infinity", float("inf")),
        ("double", b"3", 3.0),
        (MONEY, b"12345678901234567890.12", decimal.Decimal("12345678901234567890.12")),
        (["long", "bytes"], b'{"base64": "/w=="}', b"\xff"),
        (["int", "double"], b"1.0", 1.0),
        (
            record(a=["null", FIXED], b="F"),
            b'{"b": {"base64": "/w=="}, "a": null}',
            {"a": None, "b": b"\xff"},
        ),
    ],
)
def test_a_value_is_written_as_it_was_typed(written, schema, line, found):
    assert repr(written(schema, line)) == repr(found)


def test_schemas_that_are_referred_to_by_others_that_are_referred_to_are_found(double):
    registry = Registry(double.url)
    inner = {"type": "enum", "name": "Size", "symbols": ["S", "M"]}
    registry.register("size", Schema("AVRO", json.dumps(inner)))
    middle = Schema("AVRO", json.dumps(record(size="Size")), (Reference("Size", "size", 1),))
    registry.register("middle", middle)
    outer = {**record(it="R"), "name": "Outer"}
    registry.register("nested-value", Schema("AVRO", json.dumps(outer), (Reference("R", "middle", 1),)))
    form = PartFormat(part="value", name="avro", url=double.url)
    data = ValueWriter(form, "nested", None).bytes_of(b'{"it": {"size": "M"}}')
    assert ValueReader(form).document(data) == {"it": {"size": "M"}}


def test_a_decimal_with_more_digits_than_its_schema_has_is_refused_not_rounded(double):
    form = PartFormat(part="value", name="avro", url=double.url)
    small = MONEY | {"precision": 4}
    wide, narrow = (ValueWriter(form, topic, json.dumps(one)) for topic, one in (("w", MONEY), ("n", small)))
    written = wide.bytes_of(b"123.45")
    assert written is not None
    data = framing.frame(narrow.schema_id, framing.unframe(written)[1])
    with pytest.raises(DoesNotFit, match="more than 4 digits"):
        ValueReader(form).document(data)


@pytest.mark.parametrize("wrong", [{"precision": None}, {"precision": "9"}, {"scale": 31}])
def test_a_decimal_that_does_not_say_its_digits_is_no_schema(written, wrong):
    with pytest.raises(SchemaProblem, match="a decimal has precision"):
        written(MONEY | wrong, b"1")


def test_many_references_of_a_schema_are_refused(double):
    known = Registry(double.url)
    known.register("other", Schema("AVRO", '"string"'))
    many = tuple(Reference(f"r{one}", "other", 1) for one in range(1000))
    with pytest.raises(SchemaProblem, match="more than 200 others"):
        FORMATS["avro"].codec(Schema("AVRO", '"string"', many), known)


def test_text_that_is_no_unicode_is_told(written):
    with pytest.raises(DoesNotFit, match=r"\\ud800"):
        written(record(a="int"), b'{"a": {"b": "\\ud800"}}')


def test_a_zero_with_a_large_exponent_is_zero(written):
    assert written(MONEY, b'"0e99999999"') == written(MONEY, b"0") == 0


def test_a_schema_that_becomes_too_many_columns_is_refused():
    node = record(a="int") | {"name": "M40"}
    for one in reversed(range(40)):
        node = record(a=node, b=f"M{one + 1}") | {"name": f"M{one}"}
    made = FORMATS["avro"].codec(Schema("AVRO", json.dumps(node)), None)
    with pytest.raises(ConfigError, match="more than 10000 places"):
        made.arrow_type()


LONG = "n" * 256


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("avro", json.dumps(record(**{LONG: "int"}))),
        ("avro", json.dumps(record(a={"type": "enum", "name": "E", "symbols": [LONG]}))),
        ("protobuf", f'syntax = "proto3"; message M {{ int32 {LONG} = 1; }}'),
        ("protobuf", f'syntax = "proto3"; enum E {{ {LONG} = 0; }} message M {{ repeated E e = 1; }}'),
    ],
)
def test_a_name_that_one_byte_stands_for_has_a_length(name, text):
    row = FORMATS[name]
    row.codec(Schema(row.kind, text.replace(LONG, LONG[1:])), None)
    with pytest.raises(SchemaProblem, match="a name of 256 characters; 255 are allowed"):
        row.codec(Schema(row.kind, text), None)


def test_a_record_that_is_too_long_as_json_is_refused_before_it_is_written(monkeypatch):
    monkeypatch.setattr(documents, "TEXT_BYTES_MAX", 4 * 1024 * 1024)
    items = {"type": "array", "items": record(**{LONG[1:]: "int"})}
    codec = FORMATS["avro"].codec(Schema("AVRO", json.dumps(items)), None)
    short, long = b"\x80\xfa\x01" + b"\x02" * 16_000 + b"\x00", b"\xc0\xb8\x02" + b"\x02" * 20_000 + b"\x00"

    assert len(codec.text(short)) > 4_000_000, "short payloads are not looked at"
    with pytest.raises(DoesNotFit, match="as JSON it has more than 4 MiB"):
        codec.text(long)
    assert len(codec.document(long)) == 20_000


def test_a_name_is_a_text():
    with pytest.raises(SchemaProblem, match="no text: 5"):
        FORMATS["avro"].codec(
            Schema("AVRO", json.dumps(record()).replace("[]", '[{"name": 5, "type": "int"}]')), None
        )
