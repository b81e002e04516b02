import json

import pytest

from tidelog.faces.cli.common import Format, UserError, key_values, plain
from tidelog.faces.cli.lines import decode_text, encode_text, line_parser, record_to_json
from tidelog.records import Record

BYTES = [b"", b"plain", "ümläut ✓".encode(), b"\xff\x00\n", b'{"base64": "QQ=="}']


@pytest.mark.parametrize("form", [Format.TEXT, Format.HEX, Format.BASE64])
@pytest.mark.parametrize("data", BYTES)
def test_what_is_written_is_read_back(form, data):
    assert decode_text(encode_text(data, form), form) == data


@pytest.mark.parametrize("key", [None, *BYTES])
@pytest.mark.parametrize("value", [None, *BYTES])
def test_a_record_survives_json(key, value):
    record = Record(key=key, value=value, headers=(("a", b"\xff"), ("a", None)), timestamp_ms=7, offset=3)
    line = json.dumps(record_to_json(record, "orders", 2)).encode()

    parse = line_parser(Format.JSON, key=None, separator=None, headers=())
    read, partition = parse(line, 999)

    assert (read.key, read.value, read.headers, read.timestamp_ms, partition) == (
        key,
        value,
        record.headers,
        7,
        2,
    )


def test_json_input_may_be_as_short_as_a_value():
    parse = line_parser(Format.JSON, key=b"k", separator=None, headers=[("h", b"x")])

    record, partition = parse(b'{"value": {"a": [1, 2]}, "headers": {"i": "y"}}', 999)

    assert record.value == b'{"a":[1,2]}'
    assert record.key == b"k"
    assert record.headers == (("h", b"x"), ("i", b"y"))
    assert record.timestamp_ms == 999
    assert partition is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", "not JSON"),
        (b"[1]", "object"),
        (b'{"valu": 1}', "no field 'valu'"),
        (b'{"timestamp": "now"}', "timestamp"),
        (b'{"partition": 1.5}', "partition"),
        (b'{"headers": [1]}', "headers"),
        (b'{"value": {"base64": "?"}}', "base64"),
    ],
)
def test_json_that_is_no_record_is_explained(line, expected):
    parse = line_parser(Format.JSON, key=None, separator=None, headers=())

    with pytest.raises(UserError, match=expected):
        parse(line, 0)


def test_a_key_is_split_off_at_the_first_separator():
    parse = line_parser(Format.TEXT, key=None, separator=b"::", headers=())

    record, _ = parse(b"a::b::c", 0)

    assert (record.key, record.value) == (b"a", b"b::c")
    with pytest.raises(UserError, match="'::'"):
        parse(b"abc", 0)


def test_key_values_are_split_at_the_first_equals_sign():
    assert key_values(["a=b=c", "d=", "a="], "--header") == [("a", "b=c"), ("d", ""), ("a", "")]
    for wrong in ("a", "=b"):
        with pytest.raises(UserError, match="KEY=VALUE"):
            key_values([wrong], "--header")


def test_text_from_outside_cannot_command_a_terminal():
    assert plain("a\x1b[31m\r\nb\u202e ü") == "a\\x1b[31m\\r\\nb\\u202e ü"
    assert plain("\ud800") == "?"
