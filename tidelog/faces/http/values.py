"""Keys and values in JSON: bytes that are JSON, text or neither.

Rule 1: what came in is stored as it was written: JSON keeps its spaces and the digits of its
        numbers. Nothing is parsed and written anew.
Rule 2: null is the absence of a value, both ways; a value that is the JSON text `null` is shown
        as text.
Rule 3: what is shown says how it is to be read, and sent back like that it is the same bytes.
"""

from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec

from tidelog.faces.http.problems import Problem

JSON: Final = "json"
TEXT: Final = "text"
BASE64: Final = "base64"
AUTO: Final = "auto"

ENCODINGS: Final = (JSON, TEXT, BASE64)
"""How a value may be sent."""
SHOWN: Final = (AUTO, *ENCODINGS)
"""How a value may be asked for. JSON that is none is shown as text, text that is none as base64."""

_encode: Final = msgspec.json.Encoder().encode
_read_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_read_any: Final = msgspec.json.Decoder().decode
_read_string: Final = msgspec.json.Decoder(str | None).decode


def encode_value(value: Any, encoding: str = JSON) -> bytes | None:
    """The bytes of a value that came in JSON, or as `msgspec.Raw` of a body; None for null.

    A Problem if it cannot be that.
    """
    if encoding == JSON:
        data = bytes(value) if isinstance(value, msgspec.Raw) else _encode(value)
        if data == b"null":
            return None
        _text_of(data)
        return data
    if isinstance(value, msgspec.Raw):
        value = _read_text(value)
    if value is None:
        return None
    if not isinstance(value, str):
        raise Problem(400, f"a value in {encoding} is a string; this one is {_kind(value)}")
    if encoding == TEXT:
        return value.encode()
    if encoding == BASE64:
        return _decode_base64(value)
    raise Problem(400, f"encoding is {encoding!r}; it must be {' or '.join(ENCODINGS)}")


def show_value(data: bytes | None, encoding: str = AUTO) -> tuple[Any, str]:
    """A value as an answer holds it, and its encoding. JSON is a `msgspec.Raw` of its bytes."""
    if data is None:
        return None, JSON
    if encoding != BASE64:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            pass
        else:
            if encoding != TEXT and is_json(data) and data.strip() != b"null":
                return msgspec.Raw(data), JSON
            return text, TEXT
    return b64encode(data).decode(), BASE64


def show_key(data: bytes) -> tuple[str, str]:
    """A key as an answer holds it, and its encoding: text, if it is any."""
    try:
        return data.decode(), TEXT
    except UnicodeDecodeError:
        return b64encode(data).decode(), BASE64


def show_stored(data: bytes) -> tuple[Any, str]:
    """A value that is there, as an answer holds it. Where null is a value, too, it is JSON."""
    text, encoding = show_key(data)
    if encoding == TEXT and is_json(data):
        return msgspec.Raw(data), JSON
    return text, encoding


def is_json(data: bytes) -> bool:
    """Whether these bytes, which are UTF-8, are one JSON document."""
    try:
        _read_raw(data)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _read_text(value: msgspec.Raw) -> Any:
    """What a body says; a string or null is the usual case, and is read at once."""
    try:
        return _read_string(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _read_any(_text_of(bytes(value)))


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, f"a value is not UTF-8: {error.reason}") from None


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise Problem(400, f"a value in base64 is not: {error}") from None


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"
