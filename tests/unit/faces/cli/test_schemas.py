"""`consume` and `produce` with a schema registry."""

import json

import pytest

from tests.unit.schemas.double import registry_double
from tidelog.faces.cli.common import Format
from tidelog.faces.cli.consume import Show
from tidelog.records import Record
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.values import ValueReader

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "data", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "total", "type": MONEY},
    ],
}
VALUE = {
    "id": "a",
    "data": {"base64": "/w=="},
    "at": "2026-01-02T03:04:05+00:00",
    "note": None,
    "total": "1.50",
}


@pytest.fixture
def registry(monkeypatch):
    with registry_double() as made:
        monkeypatch.setenv("TIDELOG_SCHEMA_REGISTRY", made.url)
        yield made


def test_what_is_produced_by_a_schema_is_consumed_as_it_was_typed(tidelog, broker, registry, tmp_path):
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(ORDER))
    key = tmp_path / "key.avsc"
    key.write_text('"string"')
    avro = ("--value-format", "avro", "--key-format", "avro")

    made = tidelog(
        "produce",
        "orders",
        "--key",
        "k",
        *avro,
        "--value-schema",
        schema,
        "--key-schema",
        key,
        stdin=json.dumps(VALUE).encode(),
    )
    assert made.code == 0, made.err
    again = tidelog("produce", "orders", "--key", "k", "--tombstone", *avro)
    assert again.code == 0, again.err

    raw = tidelog("consume", "orders", "--no-follow", "--format", "hex").out
    shown = tidelog("consume", "orders", "--no-follow", "--json", *avro).out.splitlines()
    first, second = map(json.loads, shown)
    assert raw.startswith("0000000002")
    assert (first["key"], first["value"]) == ("k", VALUE)
    assert (second["key"], second["value"]) == ("k", None)
    assert tidelog("consume", "orders", "--no-follow", "--max", 1, *avro[:2]).out.startswith('{"id":"a"')
    assert list(registry.subjects) == ["orders-key", "orders-value"]


def test_what_does_not_fit_is_told_with_its_line_and_the_fix(tidelog, broker, registry, tmp_path):
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(ORDER))
    avro = ("--value-format", "avro")

    none = tidelog("produce", "orders", *avro, stdin=b"{}")
    assert none.code == 1 and "orders-value" in none.err and "404" in none.err
    wrong = tidelog("produce", "orders", *avro, "--value-schema", schema, stdin=b'{"ide": 1}')
    assert wrong.code == 1 and "line 1: the schema has no field 'ide'" in wrong.err
    tidelog("produce", "orders", stdin=b"plain")
    plain = tidelog("consume", "orders", "--no-follow", *avro)
    assert plain.code == 1 and "orders-0 at 0: it begins with 70 6c" in plain.err


def test_a_format_needs_a_registry(tidelog, broker):
    result = tidelog("consume", "orders", "--value-format", "avro")
    assert result.code != 0 and "needs --schema-registry" in result.err


def test_what_comes_before_a_record_that_cannot_be_read_is_printed(tidelog, broker, registry, tmp_path):
    schema = tmp_path / "text.avsc"
    schema.write_text('"string"')
    avro = ("--value-format", "avro")
    tidelog("produce", "orders", *avro, "--value-schema", schema, stdin=b"x")
    tidelog("produce", "orders", stdin=b"plain")
    found = tidelog("consume", "orders", "--no-follow", *avro)
    assert found.code == 1 and "orders-0 at 1" in found.err
    assert found.out == '"x"\n'


def test_a_file_that_is_no_schema_is_told_and_not_registered(tidelog, broker, registry, tmp_path):
    schema = tmp_path / "order.avsc"
    for content, words in ((b"\xff\xfe", "no UTF-8"), (b'{"type": "nope"}', "no Avro schema")):
        schema.write_bytes(content)
        made = tidelog("produce", "orders", "--value-format", "avro", "--value-schema", schema)
        assert made.code == 1 and words in made.err and "bug" not in made.err
    assert registry.subjects == {}


PROTO = """
syntax = "proto3";
message First { int32 n = 1; }
message Order { string id = 1; bytes data = 2; uint64 total = 3; }
"""
JSON = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "number"}}}


@pytest.mark.parametrize(
    ("name", "text", "value", "more"),
    [
        (
            "protobuf",
            PROTO,
            {"id": "a", "data": "/w==", "total": "18446744073709551615"},
            ("--value-message", "Order"),
        ),
        ("json-schema", json.dumps(JSON), {"id": "a", "n": 1.5}, ()),
    ],
)
def test_other_formats_are_produced_and_consumed_the_same_way(
    tidelog, broker, registry, tmp_path, name, text, value, more
):
    schema = tmp_path / "schema"
    schema.write_text(text)
    key = tmp_path / "key"
    key.write_text('{"type": "string"}')
    formats = ("--value-format", name, "--key-format", "json-schema")
    made = tidelog(
        "produce",
        "orders",
        "--key",
        "k",
        *formats,
        "--value-schema",
        schema,
        "--key-schema",
        key,
        *more,
        stdin=json.dumps(value).encode(),
    )
    assert made.code == 0, made.err

    shown = tidelog("consume", "orders", "--no-follow", "--json", *formats)
    found = json.loads(shown.out)
    assert (found["key"], found["value"]) == ("k", value)
    wrong = tidelog("produce", "orders", "--key", "k", *formats, *more, stdin=b'{"id": 1}')
    assert wrong.code == 1 and "line 1: the" in wrong.err and "id" in wrong.err
    other = tidelog("consume", "orders", "--no-follow", "--value-format", "avro")
    assert other.code == 1 and f"set valueFormat={name}" in other.err


def test_a_message_needs_its_format(tidelog, broker):
    result = tidelog("produce", "orders", "--value-message", "Order", "--value", "x")
    assert result.code != 0 and "--value-message needs --value-format protobuf" in result.err


def test_json_of_a_schema_keeps_its_digits():
    class Reader(ValueReader):
        def text_of(self, data):
            return data

    show = Show(form=Format.JSON, readers={"value": Reader(PartFormat(part="value"))})
    record = Record(key=b"k", value=b'{"a":12345678901234567890.123}')
    line = show.line(record, "t", 0)
    assert b'"value": {"a":12345678901234567890.123}' in line and json.loads(line)["key"] == "k"
