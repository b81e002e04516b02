"""JSON as tokens, read as leniently as Spark's parser reads it, and written as it writes them.

Rule: whole numbers are `int`, others keep their text: what they are worth is for their type to say.
"""

import json
import re
from decimal import Decimal
from typing import Any, Final

DIGITS_MAX: Final = 1000
"""Of one number: more are refused, as by Spark's parser."""
NOT_FINITE: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}


class Number(str):
    """A number that is not whole, as it was written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of an object, in order; names may come twice."""

    __slots__ = ()


def _whole(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise ValueError("a number is too long")
    return int(text)


_DECODER: Final = json.JSONDecoder(
    parse_int=_whole, parse_float=Number, parse_constant=Number, object_pairs_hook=Members
)


def parse(document: bytes) -> Any:
    """The first value of a text; what follows it is left alone, as Spark does."""
    text = document.decode().lstrip(" \t\r\n")
    try:
        return _DECODER.raw_decode(text)[0]
    except ValueError:
        return _Lenient(text).value(0)[0]


class _Lenient:
    """JSON with what Spark's parser allows beyond it: single quotes, +INF and the like."""

    _TOKEN: Final = re.compile(
        r"[ \t\r\n]*(?:(?P<mark>[{}\[\]:,])|(?P<constant>true|false|null)"
        r"|(?P<strange>NaN|[+-]?Infinity|[+-]INF)|(?P<number>-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?)"
        r"|(?P<text>\"(?:[^\"\\\x00-\x1f]|\\.)*\"|'(?:[^'\\\x00-\x1f]|\\.)*'))",
        re.ASCII,
    )
    _CONSTANTS: Final = {"true": True, "false": False, "null": None}

    def __init__(self, text: str) -> None:
        self._text = text

    def _token(self, at: int) -> tuple[str, str, int]:
        found = self._TOKEN.match(self._text, at)
        if found is None:
            raise ValueError("no JSON")
        kind = found.lastgroup
        if kind is None:  # a part of a number was the last group
            kind = "number"
        return kind, found[kind], found.end()

    def value(self, at: int) -> tuple[Any, int]:
        kind, text, at = self._token(at)
        match kind:
            case "constant":
                return self._CONSTANTS[text], at
            case "strange":
                return Number(text), at
            case "number":
                return (Number(text) if re.search("[.eE]", text) else _whole(text)), at
            case "text":
                return self._string(text), at
        if text == "[":
            return self._array(at)
        if text == "{":
            return self._object(at)
        raise ValueError("no JSON")

    def _string(self, text: str) -> str:
        inner = text[1:-1]
        if text[0] == "'":
            inner = re.sub(r"\\(.)|\"", lambda m: "'" if m[1] == "'" else m[0] if m[1] else '\\"', inner)
        found: str = json.loads(f'"{inner}"')
        return found

    def _array(self, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        _, text, after = self._mark(at)
        if text == "]":
            return items, after
        while True:
            item, at = self.value(at)
            items.append(item)
            kind, text, at = self._token(at)
            if (kind, text) == ("mark", "]"):
                return items, at
            if (kind, text) != ("mark", ","):
                raise ValueError("no JSON")

    def _object(self, at: int) -> tuple[Members, int]:
        members = Members()
        _, text, after = self._mark(at)
        if text == "}":
            return members, after
        while True:
            kind, text, at = self._token(at)
            if kind != "text":
                raise ValueError("no JSON")
            name = self._string(text)
            kind, text, at = self._token(at)
            if (kind, text) != ("mark", ":"):
                raise ValueError("no JSON")
            value, at = self.value(at)
            members.append((name, value))
            kind, text, at = self._token(at)
            if (kind, text) == ("mark", "}"):
                return members, at
            if (kind, text) != ("mark", ","):
                raise ValueError("no JSON")

    def _mark(self, at: int) -> tuple[str, str, int]:
        return self._token(at)


# Tokens as text again, as Jackson writes them.


def java_double(number: float) -> str:
    """A number as Java writes a double: with an exponent from ten million on, and below 0.001."""
    if number != number:
        return '"NaN"'
    if number in (float("inf"), float("-inf")):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    kept = "".join(map(str, digits)).rstrip("0")
    power = len(digits) + exponent - 1
    return f"{'-' * sign}{kept[0]}.{kept[1:] or '0'}E{power}"


def rendered(token: Any) -> str:
    """A token as the text that Spark's parser makes of it for a column of strings."""
    if token is None:
        return "null"
    if type(token) is bool:
        return "true" if token else "false"
    if type(token) is int:
        return str(token)
    if type(token) is Number:
        return java_double(NOT_FINITE[token] if token in NOT_FINITE else float(token))
    if type(token) is str:
        return _quoted_bytes(token)
    if type(token) is Members:
        return "{" + ",".join(f"{_quoted_bytes(n)}:{rendered(item)}" for n, item in token) + "}"
    return "[" + ",".join(map(rendered, token)) + "]"


_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_WIDE: Final = re.compile("[\U00010000-\U0010ffff\ud800-\udfff]")
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def quoted(text: str) -> str:
    """A text in quotes, with as few escapes as may be."""
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _quoted_bytes(text: str) -> str:
    """The same, as Jackson does where it writes bytes: with escapes for what takes two chars."""
    return _WIDE.sub(_escape_wide, quoted(text))


def _escape_wide(found: re.Match[str]) -> str:
    pair = found[0].encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{pair[at : at + 4]}" for at in range(0, len(pair), 4))


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}"
