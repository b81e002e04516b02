"""Answers that grow with the cluster, encoded some of their items at a time.

Rule 1: the bytes are those of the whole answer, encoded at once.
Rule 2: a message is cut at its longest list, and an item of that at its own; nothing here knows a
        layout. An encoding without items and one with a single item differ first in the length of
        the list: so that is where the items belong.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final

from tidelog.wire.entities import build, encode, nested_type, response_type

ITEMS_AT_ONCE: Final = 50
_SHORT_LENGTH_BYTES: Final = 4


def response_in_slices(api_key: int, version: int, fields: Mapping[str, Any]) -> Generator[None, None, bytes]:
    """The answer's bytes, once it is exhausted; in between others may have their turns."""
    return _slices(response_type(api_key, version), fields)


def _slices(entity: Any, fields: Mapping[str, Any]) -> Generator[None, None, bytes]:
    name = max(fields, key=lambda field: _weight(fields[field]), default=None)
    nested = None if name is None else nested_type(entity, name)
    if name is None or nested is None or _weight(fields[name]) <= ITEMS_AT_ONCE:
        return encode(build(entity, fields))
    encoded, weight = [], 0
    for item in fields[name]:
        encoded.append((yield from _slices(nested, item)))
        weight += _weight([item])
        if weight >= ITEMS_AT_ONCE:
            weight = 0
            yield
    empty = encode(build(entity, {**fields, name: ()}))
    single = encode(build(entity, {**fields, name: ({},)}))
    at = next(i for i, (one, other) in enumerate(zip(empty, single, strict=False)) if one != other)
    if entity.__flexible__:
        head, rest, length = empty[:at], empty[at + 1 :], _uvarint(len(encoded) + 1)
    else:
        head, rest = empty[: at + 1 - _SHORT_LENGTH_BYTES], empty[at + 1 :]
        length = len(encoded).to_bytes(_SHORT_LENGTH_BYTES, "big")
    return b"".join((head, length, *encoded, rest))


def _weight(value: Any) -> int:
    """How many items there are in a list of messages, and in the lists that these have, if few."""
    if not isinstance(value, list | tuple):
        return 0
    if len(value) > ITEMS_AT_ONCE:
        return len(value)
    return len(value) + sum(
        len(inner)
        for item in value
        if isinstance(item, Mapping)
        for inner in item.values()
        if isinstance(inner, list | tuple)
    )


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
