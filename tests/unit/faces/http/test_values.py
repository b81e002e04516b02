"""Values in JSON, both ways."""

import msgspec
import pytest

from tidelog.faces.http.problems import Problem
from tidelog.faces.http.values import encode_value, show_value


@pytest.mark.parametrize(
    "text", [b'{"a" : [1, 2.0] }', b"12345678901234567890123456789", b'"x"', b"false", b"1e999", b'{"":0}']
)
def test_json_is_stored_and_shown_byte_for_byte(text):
    stored = encode_value(msgspec.Raw(text), "json")

    assert stored == text
    shown, encoding = show_value(stored)
    assert (msgspec.json.encode(shown), encoding) == (text, "json")


def test_a_value_that_was_parsed_is_stored_as_compact_json():
    assert encode_value({"a": [1, None]}) == b'{"a":[1,null]}'


@pytest.mark.parametrize("encoding", ["json", "text", "base64"])
@pytest.mark.parametrize("null", [None, msgspec.Raw(b"null")])
def test_null_is_no_value_in_every_encoding(encoding, null):
    assert encode_value(null, encoding) is None
    assert show_value(None, encoding) == (None, "json")


def test_text_is_stored_raw_and_base64_decoded():
    assert encode_value(msgspec.Raw(b'"gr\\u00fcn"'), "text") == "grün".encode()
    assert encode_value("AP8=", "base64") == b"\x00\xff"


@pytest.mark.parametrize(
    ("value", "encoding", "says"),
    [
        (msgspec.Raw(b"1"), "text", "a number"),
        (True, "base64", "a boolean"),
        ([1], "text", "a list"),
        ({}, "text", "an object"),
        ("A", "base64", "base64"),
        ("A\nA==", "base64", "base64"),
        ("AA==", "hex", "'hex'"),
        (msgspec.Raw(b'"\xff"'), "json", "UTF-8"),
        (msgspec.Raw(b'"\xff"'), "text", "UTF-8"),
    ],
)
def test_a_value_that_is_not_what_it_says_is_refused(value, encoding, says):
    with pytest.raises(Problem, match=says) as refused:
        encode_value(value, encoding)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("data", "asked", "shown"),
    [
        (b"plain words", "auto", ("plain words", "text")),
        (b"plain words", "json", ("plain words", "text")),
        (b"", "auto", ("", "text")),
        (b"12", "text", ("12", "text")),
        (b"null", "auto", ("null", "text")),
        (b" null\n", "json", (" null\n", "text")),
        (b"[" * 5000, "auto", ("[" * 5000, "text")),
        (b"[" * 5000 + b"]" * 5000, "auto", ("[" * 5000 + "]" * 5000, "text")),
        (b"\xef\xbb\xbf1", "auto", ("\ufeff1", "text")),
        (b"\x00\xff", "auto", ("AP8=", "base64")),
        (b"\x00\xff", "text", ("AP8=", "base64")),
        (b'"\xff"', "json", ("Iv8i", "base64")),
        (b"12", "base64", ("MTI=", "base64")),
    ],
)
def test_what_is_shown_says_how_it_is_to_be_read_and_is_the_same_bytes_when_sent_back(data, asked, shown):
    assert show_value(data, asked) == shown
    assert encode_value(*shown) == data
