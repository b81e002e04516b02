"""What json_format would lose or change of a message's JSON, found before it does.

Rule 1: a message that becomes JSON has no more values than a record of its size may cost, counting
        those that are not in the payload: two bytes can be a message of a thousand fields.
Rule 2: JSON that becomes a message is taken as it is, or refused. json_format skips what is no
        base64, takes one of two equal keys, takes whole numbers by way of doubles, and rounds those
        that no double has. A fraction is rounded to the nearest double, as in all JSON.
"""

import base64
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from tidelog.schemas.documents import shown
from tidelog.schemas.problems import DoesNotFit

ANY: Final = "google.protobuf.Any"
JSONS: Final = frozenset(f"google.protobuf.{one}" for one in ("Struct", "Value", "ListValue"))
EXACT_MAX: Final = 2**53
"""Up to this number a double has every integer."""
STRING, BYTES = 9, 12
FLOATS: Final = {1: struct.Struct("d"), 2: struct.Struct("f")}
_NAMES: Final = {1: "double", 2: "float"}
LONGS: Final = frozenset((3, 4, 6, 16, 18))
INTEGERS: Final = LONGS | {5, 7, 13, 15, 17}
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


def is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


class Look:
    """Goes over one message before it becomes JSON.

    Methods are called on classes: a field may have the name of a method.
    """

    def __init__(self, values_max: int, opened: Callable[[Any], Any]) -> None:
        self._left = self._max = values_max
        self._opened = opened
        """The message in an Any, or None if its type is not known."""

    def message(self, message: Any, *, is_inside: bool = False) -> None:
        """DoesNotFit, if the messages in it have too many values, or a string is no text."""
        kind = type(message)
        if is_inside:
            self._take(len(kind.DESCRIPTOR.fields))
        if kind.DESCRIPTOR.full_name == ANY:
            inner = self._opened(message)
            if inner is not None:
                self.message(inner, is_inside=True)
            return
        for field, value in kind.ListFields(message):
            if is_map(field):
                list(value)  # keys that are no text raise
                values, of = value.values(), field.message_type.fields_by_name["value"]
            else:
                values, of = (value if field.is_repeated else (value,)), field
            if of.message_type is None and of.type != STRING:
                continue
            for one in values:
                if of.message_type is not None:
                    self.message(one, is_inside=True)
                elif isinstance(one, bytes):
                    raise DoesNotFit(f"{field.name} is a string that is not UTF-8")

    def _take(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise DoesNotFit(f"the messages in it have more than {self._max} values, too many for its size")


def check(descriptor: Any, document: Any) -> None:
    """DoesNotFit, if a message would not be what a document says."""
    name = descriptor.full_name
    if name in JSONS:
        check_numbers(document)
    elif name == ANY:
        _check_any(descriptor, document)
    elif name.startswith("google.protobuf.") and list(descriptor.fields_by_name) == ["value"]:
        _check_one(descriptor.fields_by_name["value"], document, name)
    elif isinstance(document, dict):
        names = {one.name: one for one in descriptor.fields}
        names |= {one.json_name: one for one in descriptor.fields}
        for key, value in document.items():
            if key in names:
                _check_field(names[key], value, key)


def _check_any(descriptor: Any, document: Any) -> None:
    if not isinstance(document, dict) or not isinstance(document.get("@type"), str):
        return
    name = document["@type"].rpartition("/")[2]
    try:
        inner = descriptor.file.pool.FindMessageTypeByName(name)
    except KeyError:
        return
    is_known = name.startswith("google.protobuf.")
    check(inner, document.get("value") if is_known else document)


def _check_field(field: Any, value: Any, name: str) -> None:
    if is_map(field) and isinstance(value, dict):
        entry = field.message_type.fields_by_name
        if entry["key"].type in INTEGERS:
            _check_keys(value, name)
        for one in value.values():
            _check_one(entry["value"], one, name)
        return
    for one in value if field.is_repeated and isinstance(value, list) else (value,):
        _check_one(field, one, name)


def _check_one(field: Any, value: Any, name: str) -> None:
    if value is None:
        return
    if field.message_type is not None:
        check(field.message_type, value)
    elif field.type == BYTES:
        _check_base64(value, name)
    elif field.type in FLOATS and not _has(FLOATS[field.type], _number(value)):
        raise DoesNotFit(f"{name} is {shown(value)}, which no {_NAMES[field.type]} has")
    elif field.type in LONGS and abs(_number(value)) >= EXACT_MAX and type(_number(value)) is float:
        raise DoesNotFit(f"{name} is {shown(value)}; write it without a point and an exponent")


def _check_keys(value: dict[str, Any], name: str) -> None:
    if any(type(_number(one)) is float for one in value) or (len(set(map(_number, value))) < len(value)):
        raise DoesNotFit(f"{name} has a key twice, or one that is no whole number")


def _number(value: Any) -> float:
    """What json_format takes for a number; 0 for what it refuses."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        return 0
    return value if type(value) in (int, float) else 0


def check_numbers(value: Any) -> None:
    """DoesNotFit, if a value of JSON has numbers that no double has, as those of a Struct are."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            check_numbers(one)
    elif type(value) is int and not _has(FLOATS[1], value):
        raise DoesNotFit(f"no double has {shown(value)}, and numbers of a Struct are doubles")
    elif type(value) is float and value - value != 0:
        raise DoesNotFit("a number in it is too large, or none; a Struct cannot say it")


def _has(kind: struct.Struct, value: float) -> bool:
    """Whether a double or a float is exactly a number, if that is whole; others are rounded."""
    try:
        return type(value) is not int or kind.unpack(kind.pack(value))[0] == value
    except (OverflowError, struct.error):
        return False


def _check_base64(value: Any, name: str) -> None:
    try:
        if isinstance(value, str) and _BASE64.fullmatch(value):
            padded = value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4)
            base64.urlsafe_b64decode(padded.replace("+", "-").replace("/", "_"))
            return
    except ValueError:
        pass
    raise DoesNotFit(f"{name} is {shown(value)}; bytes are a string in base64")
