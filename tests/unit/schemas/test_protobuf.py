"""Messages of Protobuf as JSON and as columns."""

import base64
import datetime
import decimal
import json
import subprocess

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from tests.unit.schemas.double import registry_double
from tidelog.errors import ConfigError
from tidelog.schemas import protobuf_sizes, protoc
from tidelog.schemas.codec import relaxed
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.framing import frame, frame_indexes
from tidelog.schemas.problems import DoesNotFit, SchemaProblem
from tidelog.schemas.protobuf import ProtobufCodec
from tidelog.schemas.registry import Reference, Registry, Schema
from tidelog.schemas.table import FORMATS, Reading
from tidelog.schemas.values import ValueReader, ValueWriter

EVERY = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Size { SMALL = 0; LARGE = 5; }
message Line { string sku = 1; optional int32 n = 2; }
message Order {
  string id = 1; bytes data = 2; bool paid = 3; double price = 4; float rate = 5;
  int32 a = 6; sint64 b = 7; uint32 c = 8; fixed64 d = 9;
  Size size = 10;
  repeated Line lines = 11;
  map<string, Line> by_name = 12;
  map<int32, uint64> counts = 13;
  google.protobuf.Timestamp at = 14;
  google.protobuf.Duration took = 15;
  google.protobuf.Int64Value maybe = 16;
  google.protobuf.Struct more = 17;
  oneof how { string card = 18; Line cash = 19; }
  repeated string tags = 20;
}
"""
ROW = {
    "id": "x",
    "data": b"\xff",
    "paid": True,
    "price": 1.5,
    "rate": 0.5,
    "a": -1,
    "b": -(2**63),
    "c": 2**32 - 1,
    "d": decimal.Decimal(2**64 - 1),
    "size": "LARGE",
    "lines": [{"sku": "s", "n": None}, {"sku": "", "n": 0}],
    "by_name": [("k", {"sku": "m", "n": 3})],
    "counts": [(-7, decimal.Decimal(2**64 - 1))],
    "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=datetime.UTC),
    "took": datetime.timedelta(microseconds=-1_500_000),
    "maybe": 0,
    "more": '{"k":[1.5,null]}',
    "card": None,
    "cash": {"sku": "c", "n": None},
    "tags": ["u", ""],
}


def codec(text, message=None):
    return ProtobufCodec(Schema("PROTOBUF", text), None, Reading(message=message))


def proto(body, name="M"):
    return codec(f'syntax = "proto3"; message {name} {{ {body} }}', name)


def column(made, rows):
    return pa.array(rows, made.arrow_type())


def reread(made, rows, wanted=None):
    payloads = made.write(column(made, rows))
    pieces, reasons = (wanted or made).read(payloads, made)
    found = pa.concat_arrays(pieces)
    found.validate(full=True)
    return found.to_pylist(), reasons


@pytest.fixture(scope="module")
def order():
    return codec(EVERY, "Order")


def test_every_type_becomes_one_of_spark_and_comes_back(order):
    found, reasons = reread(order, [ROW])
    assert found == [ROW] and not reasons


def test_what_is_absent_is_null_where_the_message_can_tell_and_the_default_elsewhere(order):
    ((empty,), _) = reread(
        order,
        [
            {
                "id": "",
                "data": b"",
                "paid": False,
                "price": 0.0,
                "rate": 0.0,
                "a": 0,
                "b": 0,
                "c": 0,
                "d": decimal.Decimal(0),
                "size": "SMALL",
                "lines": [],
                "by_name": [],
                "counts": [],
                "tags": [],
            }
        ],
    )
    for name in ("at", "took", "maybe", "more", "card", "cash"):
        assert empty[name] is None
    assert (empty["size"], empty["lines"], empty["a"]) == ("SMALL", [], 0)


def test_json_is_protobuf_s_own_and_comes_back(order):
    (payload,) = order.write(column(order, [ROW]))
    document = order.document(payload)
    assert document["b"] == str(-(2**63)) and document["size"] == "LARGE"
    assert document["at"] == "1969-12-31T23:59:59.500Z" and document["data"] == "/w=="
    assert order.payload(order.text(payload)) == payload


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"ide": "x"}', "ide"),
        (b'{"a": 1.5}', "a"),
        (b'{"a": 3000000000}', "a"),
        (b'{"data": "!!!!"}', "base64"),
        (b'{"data": "a"}', "base64"),
        (b'{"size": "HUGE"}', "HUGE"),
        (b'{"card": "x", "cash": {}}', "oneof"),
        (b"[]", "no message"),
        (b"{", "no JSON"),
        (b'{"rate": 1e39}', "rate"),
        (b'{"id": "a", "id": "b"}', "twice"),
        (b"\xff", "UTF-8"),
        (b'{"more": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "deep"),
    ],
)
def test_json_that_the_schema_cannot_say_is_refused(order, line, words):
    with pytest.raises(DoesNotFit, match=f"(?i){words}"):
        order.payload(line)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"id": None}, "id is null"),
        ({"lines": None}, "lines is null"),
        ({"lines": [None]}, "null"),
        ({"size": "HUGE"}, "'HUGE'; the schema's enum has SMALL, LARGE"),
        ({"card": "x", "cash": {"sku": "y"}}, "card and cash are of one oneof"),
        ({"c": -1}, "c|range"),
        ({"c": 2**32}, "range"),
        ({"d": decimal.Decimal(2**64)}, "range"),
        ({"more": "{"}, "Expecting"),
    ],
)
def test_a_row_that_the_schema_cannot_say_is_refused(order, row, words):
    kind = pa.struct([pa.field(one, relaxed(order.arrow_type().field(one).type)) for one in row])
    with pytest.raises(DoesNotFit, match=words):
        order.write(pa.array([row], kind))


def test_older_and_newer_writers_are_read_by_the_numbers_of_fields():
    old = proto("int32 n = 1; string gone = 2; float f = 4; int32 was = 5;")
    new = proto(
        "int64 number = 1; string fresh = 3; double f = 4; optional int32 was = 5; repeated int32 "
        "more = 6; optional string none = 7;"
    )
    assert reread(old, [{"n": -7, "gone": "x", "f": 0.5, "was": 0}], new) == (
        [{"number": -7, "fresh": "", "f": 0.5, "was": 0, "more": [], "none": None}],
        {},
    )


@pytest.mark.parametrize(
    ("old", "new", "row", "words"),
    [
        ("int64 n = 1;", "int32 n = 1;", {"n": 2**40}, "no such value"),
        ("double n = 1;", "float n = 1;", {"n": 0.1}, "n was written as"),
        ("string n = 1;", "bytes n = 1;", {"n": "x"}, "n was written as"),
        ("int32 n = 1;", "repeated int32 n = 1;", {"n": 1}, "n was written as one value"),
        ("sint32 n = 1;", "uint64 n = 1;", {"n": -1}, "negative"),
    ],
)
def test_a_field_that_changed_its_kind_is_refused(old, new, row, words):
    found, reasons = reread(proto(old), [row], proto(new))
    assert found == [None] and words in reasons[0]


def test_numbers_of_an_enum_without_a_name_come_back():
    narrow, wide = (proto(f"E e = 1; enum E {{ A = 0; {more} }}") for more in ("", "B = 9;"))
    payloads = wide.write(column(wide, [{"e": "B"}]))
    (found,), _ = narrow.read(payloads, narrow)
    assert found.to_pylist() == [{"e": "9"}]
    assert narrow.write(found) == payloads


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x04\x02",
        b"\x02",
        b"\x01",
        b"\x02\x08",
        b"\xff" * 12,
        b"\x00\x08",
        b"\x00\x0a\x05a",
        b"\x00\x0a\x01\xff",
        b"\x00\x08\x01",
        b"\x00\xff\xff\xff\xff\xff",
        b"\x00\x1a\x01a",
    ],
)
def test_bytes_that_are_no_such_message_are_refused(data):
    made = proto("string id = 1; optional int32 n = 2;")
    with pytest.raises(SchemaProblem):
        made.document(data)
    found, reasons = made.read([made.prefix, data, made.prefix], made)
    assert list(reasons) == [1] and sum(map(len, found)) == 3


def test_fields_that_are_required_must_be_there():
    made = codec('syntax = "proto2"; message M { required string id = 1; optional int32 n = 2; }')
    with pytest.raises(DoesNotFit, match="required"):
        made.document(b"\x00\x10\x01")
    with pytest.raises(DoesNotFit, match="id"):
        made.payload(b'{"n": 1}')


def test_two_bytes_do_not_become_a_thousand_values():
    wide = proto(
        "message W { " + " ".join(f"int32 f{n} = {n};" for n in range(1, 1001)) + " }"
        " repeated W all = 1; map<string, W> named = 2;"
    )
    for payload in (
        b"\x00" + b"\x0a\x00" * 5000,
        b"\x00" + b"".join(b"\x12\x06\x0a\x02" + bytes(divmod(n, 100)) + b"\x12\x00" for n in range(5000)),
    ):
        with pytest.raises(DoesNotFit, match="too many for its size"):
            wide.document(payload)
        _, reasons = wide.read([payload], wide)
        assert "too many for its size" in reasons[0]
    assert len(wide.document(b"\x00\x0a\x00")["all"][0]) == 1000


def test_deep_nesting_is_refused():
    made = proto("M m = 1;")
    with pytest.raises(DoesNotFit):
        made.document(b"\x00" + nested(300))
    with pytest.raises(ConfigError, match="m is a M inside of itself"):
        made.arrow_type()


def nested(depth):
    data = b""
    for _ in range(depth):
        size = len(data)
        length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
        data = b"\x0a" + length + data
    return data


def test_a_time_out_of_protobuf_s_range_is_refused():
    made = codec(
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        "message M { google.protobuf.Timestamp at = 1; }"
    )
    negative = b"\x00\x0a\x0b\x10" + b"\xff" * 9 + b"\x01"
    _, reasons = made.read([b"\x00\x0a\x02\x10\x01", negative], made)
    assert list(reasons) == [1] and "out of range" in reasons[1]
    with pytest.raises(DoesNotFit, match="no google"):
        made.write(pa.array([{"at": 2**62}], pa.struct([("at", pa.timestamp("us", "UTC"))])))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage garbage", "no Protobuf schema"),
        ("Z2FyYmFnZQ==", "no Protobuf schema"),
        ("", "no message"),
        ('syntax = "proto3"; import "other.proto";', "other.proto"),
        ('syntax = "proto3"; import "/etc/passwd";', "passwd"),
        ('syntax = "proto3"; import "../x.proto";', "x.proto"),
        ('syntax = "proto3"; message M { ' + "message N { " * 200 + "}" * 201, "no Protobuf schema"),
        (" " * (2 * 1024 * 1024), "characters"),
    ],
)
def test_a_text_that_is_no_schema_is_told(text, words):
    with pytest.raises(SchemaProblem, match=words):
        FORMATS["protobuf"].codec(Schema("PROTOBUF", text), None)


def test_a_compiler_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(protoc, "COMPILE_SECONDS_MAX", 0)
    with pytest.raises(SchemaProblem, match="to compile"):
        proto("int32 n = 1;")


def test_imports_are_the_schema_s_references_in_text_or_serialized():
    with registry_double() as double:
        registry = Registry(double.url)
        inner = 'syntax = "proto3"; package geo; message Place { int32 x = 1; }'
        registry.register("place", Schema("PROTOBUF", inner))
        middle = 'syntax = "proto3"; package geo; import "geo/place.proto"; message Way { Place a = 1; }'
        registry.register("way", Schema("PROTOBUF", middle, (Reference("geo/place.proto", "place", 1),)))
        outer = 'syntax = "proto3"; import "geo/way.proto"; message Visit { geo.Way way = 1; }'
        ways = (Reference("geo/way.proto", "way", 1),)
        registry.register("visits-value", Schema("PROTOBUF", outer, ways))
        form = PartFormat(part="value", name="protobuf", url=double.url)
        data = ValueWriter(form, "visits", None).bytes_of(b'{"way": {"a": {"x": 3}}}')
        assert ValueReader(form).document(data) == {"way": {"a": {"x": 3}}}

        bad = Schema("PROTOBUF", outer, (Reference("../../geo/way.proto", "way", 1),))
        with pytest.raises(SchemaProblem, match="no relative path"):
            FORMATS["protobuf"].codec(bad, registry)


def test_a_serialized_descriptor_is_read_without_a_compiler(monkeypatch):
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    field = file.message_type.add(name="M").field.add(name="at", number=1, type=11, label=1)
    field.type_name = ".google.protobuf.Timestamp"
    monkeypatch.setattr(protoc, "_compiled", None)
    made = codec(base64.b64encode(file.SerializeToString()).decode())
    assert made.document(b"\x00\x0a\x02\x08\x01") == {"at": "1970-01-01T00:00:01Z"}
    file.dependency.append("tidelog_schema.proto")
    with pytest.raises(SchemaProblem, match="imports itself"):
        codec(base64.b64encode(file.SerializeToString()).decode())


def test_a_schema_cannot_pretend_to_be_a_well_known_type_or_a_map():
    fake = 'syntax = "proto3"; package google.protobuf; message Timestamp { string seconds = 1; }'
    with pytest.raises(SchemaProblem, match="cannot define"):
        codec(fake)
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    outer = file.message_type.add(name="M")
    outer.field.add(name="m", number=1, type=11, label=3, type_name=".M.MEntry")
    entry = outer.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("k", "value"), 1):
        entry.field.add(name=name, number=number, type=9, label=1)
    with pytest.raises(SchemaProblem, match=r"no entry of a map|no Protobuf schema"):
        codec(base64.b64encode(file.SerializeToString()).decode())


def test_records_of_another_message_are_told_apart():
    text = 'syntax = "proto3"; message A { int32 n = 1; } message B { message C { int32 n = 1; } }'
    first, inner = codec(text), codec(text, "C")
    assert inner.prefix == frame_indexes((1, 0))
    (payload,) = inner.write(pa.array([{"n": 1}], pa.struct([("n", pa.int32())])))
    assert first.document(payload) == {"n": 1}
    _, reasons = first.read([payload], first)
    assert "it is a B.C, not a A; set value.message" in reasons[0]
    with pytest.raises(SchemaProblem, match=r"which message is 'X'. The schema has A, B, B\.C"):
        codec(text, "X")


def test_columns_become_a_schema():
    made = codec(
        FORMATS["protobuf"].schema_text(
            pa.struct(
                [
                    ("id", pa.string()),
                    ("n", pa.int16()),
                    ("at", pa.timestamp("us", "UTC")),
                    ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
                    ("m", pa.map_(pa.string(), pa.int64())),
                    ("inner_one", pa.struct([("b", pa.binary())])),
                ]
            ),
            "orders_value",
        )
    )
    row = {"id": None, "n": 1, "at": None, "lines": [{"sku": "a"}], "m": [("k", 1)], "inner_one": {"b": b"x"}}
    assert reread(made, [row]) == ([row], {})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.string(), "write a struct"),
        (pa.struct([("a b", pa.string())]), "no field named"),
        (pa.struct([("a", pa.list_(pa.list_(pa.int32())))]), "no type for list"),
        (pa.struct([("a", pa.decimal128(10, 2))]), "no type for decimal"),
        (pa.struct([("a", pa.map_(pa.float64(), pa.int32()))]), "keys of double"),
    ],
)
def test_columns_that_have_no_schema_are_told(kind, words):
    with pytest.raises(ConfigError, match=words):
        FORMATS["protobuf"].schema_text(kind, "r")


def test_a_broken_record_among_many_is_found():
    made = proto("int32 n = 1;")
    rows = column(made, [{"n": n} for n in range(1, 1001)])
    payloads = made.write(rows)
    payloads[617] = frame(1, b"")
    pieces, reasons = made.read(payloads, made)
    assert list(reasons) == [617]
    found = pa.concat_arrays(pieces).to_pylist()
    assert found[616:619] == [{"n": 617}, None, {"n": 619}]


@pytest.mark.parametrize(
    ("body", "data"),
    [
        # -1 as five bytes is ten when it is written again, and field 2 has five.
        ("int32 a = 1;", b"\x08\xff\xff\xff\xff\x0f\x12\x03abc"),
        # An entry of a map gets its key and value, four bytes; field 2 has four.
        ("map<string, string> m = 1;", b"\x0a\x00\x12\x02ab"),
        # Numbers one by one are packed when they are written again.
        ("repeated int32 a = 1; repeated int32 b = 2;", b"\x08\x01\x10\x01\x18\x01"),
    ],
)
def test_a_payload_that_is_as_long_as_its_message_may_have_unknown_fields(body, data):
    made = proto(body)
    for read in (made.document, lambda payload: made.read_all([payload], made)):
        with pytest.raises(DoesNotFit, match="fields which that message does not have"):
            read(b"\0" + data)


def test_extensions_are_no_columns_and_are_not_dropped():
    made = codec(
        'syntax = "proto2"; message M { optional int32 a = 1; extensions 100 to 200; }'
        "extend M { optional int32 x = 100; }"
    )
    assert made.document(b"\0\x08\x01\xa0\x06\x05") == {"a": 1, "[x]": 5}
    with pytest.raises(ConfigError, match="M has the extension x"):
        made.read_all([b"\0\x08\x01\xa0\x06\x05"], made)


@pytest.mark.parametrize("data", [b"\x0a\x01\xff", b"\x12\x01\xff", b"\x1a\x03\x0a\x01\xff"])
def test_a_string_that_is_not_utf_8_is_refused_before_proto3_too(data):
    made = codec(
        'syntax = "proto2"; message M { optional string a = 1; repeated string b = 2;'
        "map<string, string> c = 3; }"
    )
    for read in (made.document, lambda payload: made.read_all([payload], made)):
        with pytest.raises(DoesNotFit, match=r"(?i)utf-?8"):
            read(b"\0" + data)


@pytest.mark.parametrize("name", ["ByteSize", "HasField", "DiscardUnknownFields", "IsInitialized"])
def test_a_field_may_have_the_name_of_a_method(name):
    made = proto(f"optional int32 {name} = 1; optional int32 b = 2;")
    payloads = made.encode([{name: 7, "b": None}])
    assert made.read_all(payloads, made).to_pylist() == [{name: 7, "b": None}]
    assert made.document(payloads[0]) == {name: 7}


def test_messages_in_messages_in_lists_are_counted_and_those_in_any():
    wide = " ".join(f"int32 f{one} = {one + 1};" for one in range(100))
    made = codec(
        f'syntax = "proto3"; import "google/protobuf/any.proto"; message M {{'
        f"repeated L lines = 1; repeated google.protobuf.Any more = 2; }}"
        f"message L {{ W w = 1; }} message W {{ {wide} }}"
    )
    few, many = b"\x0a\x02\x0a\x00", b"\x12\x04\x0a\x02/W"
    assert len(made.document(b"\0" + few * 50)["lines"]) == 50
    assert len(made.document(b"\0" + many * 50)["more"]) == 50
    for bomb in (few * 1000, many * 1000):
        with pytest.raises(DoesNotFit, match="too many for its size"):
            made.document(b"\0" + bomb)


def varint(number):
    """A number that is not negative as Protobuf writes it."""
    low, rest = number & 127, number >> 7
    return bytes((low | 128,)) + varint(rest) if rest else bytes((low,))


def inside(field, message):
    return bytes((8 * field + 2,)) + varint(len(message)) + message


WIDE = " ".join(f"int64 f{one} = {one};" for one in range(100, 1100))
MANY = 250_000
"""So many messages of a thousand fields take 2 GB in a parser."""


@pytest.mark.parametrize(
    ("body", "bomb"),
    [
        ("repeated M in = 1;", b"\x0a\x00" * MANY),
        (
            "map<int32, M> in = 1;",
            b"".join(inside(1, b"\x08" + varint(one) + b"\x12\x00") for one in range(MANY)),
        ),
        ("map<int32, M> in = 1;", b"".join(inside(1, b"\x08" + varint(one)) for one in range(MANY))),
        ("M in = 1; M more = 2;", b"\x12\x02\x0a\x00" * MANY),
    ],
    ids=["list", "map", "map without values", "inside of itself"],
)
def test_a_payload_is_refused_before_a_parser_takes_memory_for_it(body, bomb, monkeypatch):
    made = proto(f"{body} {WIDE}")
    parser = made.parser(made.way)
    monkeypatch.setattr(parser, "make", None)  # it would parse
    with pytest.raises(DoesNotFit, match=r"too many for its size|no Protobuf"):
        parser.parse(bomb)


def test_groups_are_counted_as_messages_are(monkeypatch):
    fields = WIDE.replace("int64", "optional int64")
    made = codec(f'syntax = "proto2"; message M {{ repeated group G = 1 {{ {fields} }} }}')
    few = made.document(b"\0" + b"\x0b\x0c" * 7)
    assert len(few["g"]) == 7
    parser = made.parser(made.way)
    monkeypatch.setattr(parser, "make", None)
    with pytest.raises(DoesNotFit, match="too many for its size"):
        parser.parse(b"\x0b\x0c" * MANY)


def test_a_message_inside_of_itself_is_no_way_around_the_bound():
    made = proto(f"M left = 1; M right = 2; {WIDE}")
    bomb = b""
    for _ in range(9):
        bomb = inside(1, bomb) + inside(2, bomb)
    with pytest.raises(DoesNotFit, match="too many for its size"):
        made.document(b"\0" + bomb)


def test_large_batches_are_read_in_pieces_and_come_back_whole(monkeypatch):
    monkeypatch.setattr(protobuf_sizes, "LARGE", 2000)
    names = [f"f{one}" for one in range(50)]
    fields = " ".join(f"int64 {name} = {at};" for at, name in enumerate(names, 1))
    made = proto(f"repeated W all = 1; message W {{ {fields} }}")
    rows = [{"all": [{**dict.fromkeys(names, one), "f7": 2**40}]} for one in range(10)]
    assert reread(made, rows) == (rows, {})
    assert made.read([], made)[0][0].to_pylist() == []


def test_one_record_does_not_spend_what_the_others_may():
    wide = " ".join(f"int32 f{one} = {one + 1};" for one in range(100))
    made = codec(f'syntax = "proto3"; message M {{ repeated W w = 1; }} message W {{ {wide} }}')
    payloads = [b"\0", b"\0" + b"\x0a\x00" * 200, b"\0", b"\0" + b"\x0a\x00" * 50]
    pieces, reasons = made.read(payloads, made)
    assert list(reasons) == [1]
    rows = [one for piece in pieces for one in piece.to_pylist()]
    assert [one and len(one["w"]) for one in rows] == [0, None, 0, 50]


def test_unknown_fields_in_an_any_are_refused():
    made = codec(
        'syntax = "proto3"; import "google/protobuf/any.proto";'
        "message M { google.protobuf.Any a = 1; } message B { int32 n = 1; }"
    )
    assert made.document(b"\0\x0a\x08\x0a\x02/B\x12\x02\x08\x03")["a"]["n"] == 3
    with pytest.raises(DoesNotFit, match="fields which that message does not have"):
        made.document(b"\0\x0a\x08\x0a\x02/B\x12\x02\x10\x03")


def test_messages_that_become_too_many_fields_are_refused():
    tree = "".join(f"message M{one} {{ M{one + 1} a = 1; M{one + 1} b = 2; }}" for one in range(40))
    made = codec(f'syntax = "proto3"; {tree} message M40 {{ int32 a = 1; }}')
    with pytest.raises(ConfigError, match="more than 10000 fields"):
        made.arrow_type()


@pytest.mark.parametrize(
    "line",
    [
        b'{"n": 9007199254740993.0}',
        b'{"n": "9007199254740993.0"}',
        b'{"maybe": 9007199254740993e0}',
        b'{"m": {"1": 1, "01": 2}}',
        b'{"m": {"1": 1, "1.0": 2}}',
        b'{"s": {"k": [9007199254740993]}}',
        b'{"v": 9007199254740993}',
        b'{"v": 1e400}',
        b'{"raw": "!!!!"}',
        b'{"any": {"@type": "/B", "data": "!!!!"}}',
        b'{"any": {"@type": "/google.protobuf.Int64Value", "value": 9007199254740993.0}}',
    ],
)
def test_json_is_not_changed_to_fit(line):
    made = codec(
        'syntax = "proto3"; import "google/protobuf/wrappers.proto";'
        'import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";'
        "message M { int64 n = 1; google.protobuf.Int64Value maybe = 2; map<int32, int32> m = 3;"
        "google.protobuf.Struct s = 4; google.protobuf.Value v = 5;"
        "google.protobuf.BytesValue raw = 6; google.protobuf.Any any = 7; }"
        "message B { bytes data = 1; }"
    )
    with pytest.raises(DoesNotFit):
        made.payload(line)


def test_a_column_of_json_is_not_changed_to_fit(order):
    with pytest.raises(DoesNotFit, match="no double has 9007199254740993"):
        order.write(pa.array([{"more": '{"k":9007199254740993}'}]))


def test_white_space_does_not_take_for_ever():
    with pytest.raises(SchemaProblem, match="no Protobuf schema"):
        codec("a" + " " * 500_000 + "!")


def test_a_descriptor_that_lacks_what_it_needs_is_no_schema():
    file = descriptor_pb2.FileDescriptorProto()
    file.message_type.add().name = "M"
    file.options.uninterpreted_option.add().name.add()
    with pytest.raises(SchemaProblem, match="no Protobuf schema"):
        codec(base64.b64encode(file.SerializePartialToString()).decode())


@pytest.mark.parametrize("name", ["./tidelog_schema.proto", "a//b.proto", "a/./b.proto", "."])
def test_an_import_has_one_name(name):
    with registry_double() as double:
        known = Registry(double.url)
        known.register("other", Schema("PROTOBUF", 'syntax = "proto3"; message Other { }'))
        text = 'syntax = "proto3"; message M { int32 a = 1; }'
        schema = Schema("PROTOBUF", text, (Reference(name, "other", 1),))
        with pytest.raises(SchemaProblem, match="no relative path"):
            protoc.file_of(schema, known)


def test_protoc_is_found_where_this_process_has_it_from(monkeypatch):
    """Packages may be elsewhere than in site-packages, as those of one user are."""
    ran = []
    run = subprocess.run

    def watched(command, **more):
        ran.append(command)
        return run([command[0], "-S", *command[1:]], **more)

    monkeypatch.setattr(subprocess, "run", watched)
    assert proto("int32 a = 1;").message.full_name == "M"
    assert len(ran) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"price": 9007199254740993}',
        b'{"price": "9007199254740993"}',
        b'{"rate": 16777217}',
        b'{"rates": {"k": 9007199254740993}}',
        b'{"all": [1, 9007199254740993]}',
        b'{"maybe": 9007199254740993}',
        b'{"price": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_whole_number_that_no_double_has_is_refused_and_not_rounded(line):
    made = codec(
        'syntax = "proto3"; import "google/protobuf/wrappers.proto"; message M { double price = 1;'
        " float rate = 2; map<string, double> rates = 3; repeated double all = 4;"
        " google.protobuf.DoubleValue maybe = 5; }"
    )
    with pytest.raises(DoesNotFit, match=r"which no (double|float) has"):
        made.payload(line)
    exact = {"price": 2.0**60, "rate": 2.0**24, "rates": {"k": 0.1}, "all": [2.0**53, -1.0]}
    assert made.document(made.payload(json.dumps({**exact, "price": 2**60}).encode())) == exact


def test_messages_inside_of_each_other_too_deeply_are_refused_as_any_schema_is():
    chain = "".join(f"message A{at} {{ A{at + 1} a = 1; }}" for at in range(900))
    text = f'syntax = "proto3"; message Plain {{ int32 n = 1; }} {chain} message A900 {{ int32 n = 1; }}'
    row = FORMATS["protobuf"]
    with pytest.raises(SchemaProblem, match="nested too deeply"):
        row.codec(Schema(row.kind, text), None, Reading(message="A0"))
    codec = row.codec(Schema(row.kind, text), None)
    assert codec.document(b"\x00\x08\x07") == {"n": 7}
    with pytest.raises(DoesNotFit, match="nested too deeply"):
        codec.document(b"\x02\x02")
