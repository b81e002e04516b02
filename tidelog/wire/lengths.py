"""Whether the lengths in a request can be true, asked before anything is made of them.

Rule 1: kio's native reader sets memory aside for as many items as an array claims to hold, and
        the whole process ends when there is not so much. So no request reaches it unchecked.
Rule 2: an array is believed only if its smallest items would fit the bytes that are left, and a
        request only up to `ITEMS_MAX` of them: two bytes can become an object of a hundred.
"""

# tags are there in flexible versions: count: uvarint, (tag: uvarint, size: uvarint, bytes)*

import dataclasses
import functools
import struct
import typing
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kio.index import load_request_schema

from tidelog.errors import TidelogError
from tidelog.wire import own

ITEMS_MAX: Final = 100_000
"""Items of all arrays of one request: as many partitions as one fetch may name."""

TAGS_MAX: Final = 1000
"""Tagged fields of one struct; Kafka itself has fewer than ten anywhere."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

_FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uuid": 16,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
}


class MessageDamaged(TidelogError):
    """A message does not have its version's shape; the connection is closed."""


def read_uvarint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and what follows it."""
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MessageDamaged("a length is cut off or absurd")


def skip_tags(data: bytes | bytearray | memoryview, at: int) -> int:
    """Where the tagged fields at `at` end; none of them matters here."""
    if at < len(data) and data[at] == 0:
        return at + 1
    count, at = read_uvarint(data, at)
    if count > TAGS_MAX:
        raise MessageDamaged(f"{count} tagged fields; at most {TAGS_MAX} are taken")
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
        if at > len(data):
            raise MessageDamaged("a tagged field is longer than the request")
    return at


class ItemCount:
    """How many items a request has had so far."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = 0

    def add(self, count: int, item_bytes: int, bytes_left: int) -> None:
        """Believe an array of `count` items of at least `item_bytes` each, or refuse it."""
        self._items += count
        if count * item_bytes > bytes_left:
            raise MessageDamaged(f"an array of {count} items does not fit the request")
        if self._items > ITEMS_MAX:
            raise MessageDamaged(f"over {ITEMS_MAX} items in one request")


Walk: TypeAlias = Callable[[memoryview, int, ItemCount], int]
"""From where a field begins to where it ends."""


def check_lengths(api_key: int, version: int, request: memoryview, at: int) -> None:
    """Raise MessageDamaged, IndexError or struct.error if a length in the request is a lie."""
    _request_walk(api_key, version)(request, at, ItemCount())


@functools.cache
def _request_walk(api_key: int, version: int) -> Walk:
    ours = own.REQUESTS.get(api_key)
    kind = load_request_schema(api_key, version) if ours is None else ours[version]
    fixed, walk = _struct(kind)
    return walk if walk is not None else lambda data, at, items: at + fixed


def _struct(entity: Any) -> tuple[int, Walk | None]:
    """The least size of a struct, and how to walk it; None if its size never differs."""
    least = 0
    pending = 0  # bytes of fixed fields in a row, passed in one step
    walks: list[tuple[int, Walk]] = []
    hints = typing.get_type_hints(entity)
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            assert not _holds_array(hints[field.name]), "tagged fields are passed over unread"
            continue
        size, walk = _field(field, hints[field.name], entity.__flexible__)
        least += size
        if walk is None:
            pending += size
        else:
            walks.append((pending, walk))
            pending = 0
    if entity.__flexible__:
        least += 1
        walks.append((pending, _tags))
        pending = 0
    if not walks:
        return least, None
    if len(walks) == 1 and not pending:
        before, only = walks[0]
        return least, lambda data, at, items: only(data, at + before, items)

    def walk_all(data: memoryview, at: int, items: ItemCount) -> int:
        for before, walk in walks:
            at = walk(data, at + before, items)
        return at + pending

    return least, walk_all


def _field(field: "dataclasses.Field[Any]", hint: Any, flexible: bool) -> tuple[int, Walk | None]:
    nested = _nested(hint)
    if nested is not None:
        size, walk = _struct(nested)
        if not _is_array(hint):
            assert type(None) in typing.get_args(hint), "a struct alone is in no request yet"
            return 1, _nullable_struct(size, walk)
    else:
        size, walk = _primitive(str(field.metadata["kafka_type"]), flexible)
    if _is_array(hint):
        nullable = type(None) in typing.get_args(hint)
        return (1 if flexible else 4), _array(size, walk, flexible, nullable)
    return size, walk


def _nullable_struct(size: int, walk: Walk | None) -> Walk:
    """A struct that may be missing: its first byte is negative then (KIP-893)."""

    def walk_it(data: memoryview, at: int, items: ItemCount) -> int:
        if data[at] >= 0x80:
            return at + 1
        return at + 1 + size if walk is None else walk(data, at + 1, items)

    return walk_it


def _primitive(kafka_type: str, flexible: bool) -> tuple[int, Walk | None]:
    if kafka_type in _FIXED_BYTES:
        return _FIXED_BYTES[kafka_type], None
    if flexible:
        return 1, _compact_bytes
    return (2, _string) if kafka_type == "string" else (4, _bytes)


def _array(item_bytes: int, item: Walk | None, flexible: bool, nullable: bool) -> Walk:
    def walk(data: memoryview, at: int, items: ItemCount) -> int:
        if flexible:
            count, at = read_uvarint(data, at)
            count -= 1
        else:
            count = _INT32.unpack_from(data, at)[0]
            at += 4
        if count <= 0:
            if count < 0 and not nullable:  # kio would make it None, which no handler expects
                raise MessageDamaged("an array is null that must not be")
            return at
        items.add(count, item_bytes, len(data) - at)
        if item is None:
            return at + count * item_bytes
        for _ in range(count):
            at = item(data, at, items)
        return at

    return walk


def _string(data: memoryview, at: int, items: ItemCount) -> int:
    size: int = _INT16.unpack_from(data, at)[0]
    return at + 2 + max(size, 0)


def _bytes(data: memoryview, at: int, items: ItemCount) -> int:
    size: int = _INT32.unpack_from(data, at)[0]
    return at + 4 + max(size, 0)


def _compact_bytes(data: memoryview, at: int, items: ItemCount) -> int:
    size, at = read_uvarint(data, at)
    return at + max(size - 1, 0)


def _tags(data: memoryview, at: int, items: ItemCount) -> int:
    return skip_tags(data, at)


def _is_array(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple or any(
        typing.get_origin(argument) is tuple for argument in typing.get_args(hint)
    )


def _holds_array(hint: Any) -> bool:
    nested = _nested(hint)
    return _is_array(hint) or (
        nested is not None and any(map(_holds_array, typing.get_type_hints(nested).values()))
    )


def _nested(hint: Any) -> Any:
    """The entity inside of `X`, `tuple[X, ...]` or `X | None`, if any."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for a in typing.get_args(hint) if (found := _nested(a))), None)
