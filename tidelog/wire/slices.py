"""Answers that grow with the cluster, encoded some of their items at a time.

Rule 1: the bytes are those of the whole answer, encoded at once.
Rule 2: items that are encoded already are taken as they are. The list that has them is where a
        message is cut then.
Rule 3: otherwise a message is cut at its longest list, and an item of that at its own; nothing here knows a
        layout. An encoding without items and one with a single item differ first in the length of
        the list: so that is where the items belong.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidelog.wire.entities import build, encode, nested_type, response_type

ITEMS_AT_ONCE: Final = 50
_SHORT_LENGTH_BYTES: Final = 4


class Encoded(NamedTuple):
    """Items of a list, as they stand one after the other in a message of some version."""

    items: int
    data: bytes


def encode_items(
    api_key: int, version: int, path: Sequence[str], items: Sequence[Mapping[str, Any]]
) -> Encoded:
    """Items of the list that the path leads to; lists within them may hold encoded items."""
    entity = response_type(api_key, version)
    for name in path:
        entity = nested_type(entity, name)
    data = []
    for item in items:
        slices = _slices(entity, item)
        try:
            while True:
                next(slices)
        except StopIteration as ended:
            data.append(ended.value)
    return Encoded(len(items), b"".join(data))


def response_in_slices(api_key: int, version: int, fields: Mapping[str, Any]) -> Generator[None, None, bytes]:
    """The answer's bytes, once it is exhausted; in between others may have their turns."""
    return _slices(response_type(api_key, version), fields)


def _slices(entity: Any, fields: Mapping[str, Any]) -> Generator[None, None, bytes]:
    name = _cut_at(fields)
    nested = None if name is None else nested_type(entity, name)
    if name is None or nested is None:
        return encode(build(entity, fields))
    encoded, count, weight = [], 0, 0
    for item in fields[name]:
        if isinstance(item, Encoded):
            encoded.append(item.data)
            count += item.items
            weight += 1
        else:
            encoded.append((yield from _slices(nested, item)))
            count += 1
            weight += _weight([item])
        if weight >= ITEMS_AT_ONCE:
            weight = 0
            yield
    empty = encode(build(entity, {**fields, name: ()}))
    single = encode(build(entity, {**fields, name: ({},)}))
    at = next(i for i, (one, other) in enumerate(zip(empty, single, strict=False)) if one != other)
    if entity.__flexible__:
        head, rest, length = empty[:at], empty[at + 1 :], _uvarint(count + 1)
    else:
        head, rest = empty[: at + 1 - _SHORT_LENGTH_BYTES], empty[at + 1 :]
        length = count.to_bytes(_SHORT_LENGTH_BYTES, "big")
    return b"".join((head, length, *encoded, rest))


def _cut_at(fields: Mapping[str, Any]) -> str | None:
    """The list that has encoded items, or else the longest; None if all is short."""
    for name, value in fields.items():
        if isinstance(value, list) and any(isinstance(item, Encoded) for item in value):
            return name
    longest = max(fields, key=lambda field: _weight(fields[field]), default=None)
    return longest if longest is not None and _weight(fields[longest]) > ITEMS_AT_ONCE else None


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
