"""How large the messages of a payload would be, told before a parser makes them.

Two bytes can be a message of a thousand fields, for each of which a parser sets memory aside. It
knows no bound for that, and has taken the memory before anybody can count the messages.

Rule 1: a payload that cannot become large costs nothing but a comparison of its length.
Rule 2: any other is gone over byte by byte, and is refused where its messages have too many fields.
        Each message counts as often as it comes, with all of its fields.
Rule 3: nothing that the parser takes is refused for another reason.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidelog.schemas.problems import DoesNotFit

FREE_MAX: Final = 10_000
"""How many values of messages in lists a record may have, beside ten for each of its bytes."""
FREE_PER_BYTE: Final = 10
LARGE: Final = 4_000_000
"""Values for which a parser sets some 64 MiB aside."""
WIRE_BYTES_MIN: Final = 2
"""What a message takes in a payload: the number of its field, and its length."""
VARINT, FIXED64, DELIMITED, GROUP, GROUP_END, FIXED32 = range(6)


class Shape:
    """The messages inside of a message, by the numbers of their fields, and how many fields it has."""

    __slots__ = ("inside", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.inside: dict[int, Shape] = {}


UNKNOWN: Final = Shape(0)


class Sizes:
    """What can be told of all payloads of one message."""

    def __init__(self, descriptor: Any, inside: Sequence[Any]) -> None:
        self._shape = _shapes(inside)[descriptor.full_name]
        self._widest = max((len(one.fields) + 1 for one in _often(descriptor, inside)), default=0)

    def pieces(self, payloads: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """The payloads in their order, in pieces that are not large unless one payload is."""
        begins, bytes_max = 0, self._bytes_max()
        size = 0
        for at, payload in enumerate(payloads):
            size += len(payload)
            if size > bytes_max and at > begins:
                yield payloads[begins:at]
                begins, size = at, len(payload)
        if begins < len(payloads) or not payloads:
            yield payloads[begins:]

    def check(self, payload: bytes) -> None:
        """DoesNotFit, if the payload's messages have too many fields for its size."""
        if len(payload) > self._bytes_max():
            # Twice what may be read: an entry of a map is counted with its value and without it.
            _count(payload, self._shape, 2 * (FREE_MAX + FREE_PER_BYTE * len(payload)))

    def _bytes_max(self) -> float:
        """How long payloads may be that cannot be large, whatever is in them."""
        if self._widest <= WIRE_BYTES_MIN * FREE_PER_BYTE:
            return float("inf")
        return LARGE * WIRE_BYTES_MIN / self._widest


def _often(descriptor: Any, inside: Sequence[Any]) -> list[Any]:
    """Messages that a payload can have any number of: those in lists, or all if they form a tree
    without an end, or one that is large by itself."""
    if _fields(descriptor, {}, set()) > FREE_MAX:
        return list(inside)
    found: dict[str, Any] = {}
    left = [
        field.message_type
        for one in inside
        for field in one.fields
        if field.is_repeated and field.message_type
    ]
    while left:
        one = left.pop()
        if one.full_name not in found:
            found[one.full_name] = one
            left += [field.message_type for field in one.fields if field.message_type is not None]
    return list(found.values())


def _fields(descriptor: Any, known: dict[str, int], around: set[str]) -> int:
    """How many fields a message has if each message in it is there once; more than FREE_MAX, if it
    is inside of itself without a list in between."""
    name = descriptor.full_name
    if name in around:
        return FREE_MAX + 1
    if name not in known:
        around.add(name)
        inner = [one.message_type for one in descriptor.fields if one.message_type and not one.is_repeated]
        found = len(descriptor.fields)
        for one in inner:
            found = min(found + _fields(one, known, around), FREE_MAX + 1)
        around.discard(name)
        known[name] = found
    return known[name]


def _shapes(inside: Sequence[Any]) -> dict[str, Shape]:
    shapes = {one.full_name: Shape(len(one.fields) + 1) for one in inside}
    for one in inside:
        shape = shapes[one.full_name]
        shape.inside = {it.number: shapes[it.message_type.full_name] for it in one.fields if it.message_type}
        if one.GetOptions().map_entry:  # which has a value, also where the payload has none
            shape.width += sum(it.width for it in shape.inside.values())
    return shapes


def _count(data: bytes, shape: Shape, most: int) -> None:
    left = most
    spans = [(0, len(data), shape)]
    while spans:
        at, end, shape = spans.pop()
        around: list[Shape] = []
        while at < end:
            key, at = _varint(data, at)
            kind, inner = key & 7, shape.inside.get(key >> 3, UNKNOWN)
            size = 0
            if kind == DELIMITED:
                size, at = _varint(data, at)
                if inner is not UNKNOWN:
                    spans.append((at, min(at + size, end), inner))
            elif kind == VARINT:
                _, at = _varint(data, at)
            elif kind == GROUP:
                around.append(shape)
                shape = inner
            elif kind == GROUP_END and around:
                shape = around.pop()
            elif kind == FIXED64:
                size = 8
            elif kind == FIXED32:
                size = 4
            else:
                raise _cut_off()
            at += size
            if at > end:
                raise _cut_off()
            if kind in (DELIMITED, GROUP):
                left -= inner.width
                if left < 0:
                    raise DoesNotFit(
                        f"the messages in it have more than {most} fields, too many for its size"
                    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _cut_off()
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _cut_off() -> DoesNotFit:
    return DoesNotFit("it is no Protobuf: its bytes end within a field, or are none")
