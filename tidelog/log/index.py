"""Sparse indexes of a segment: offset -> position, and time -> offset.

Rule 1: an index only narrows a search; the batches decide. A missing entry costs a longer walk, a
        lost file a scan of its segment.
Rule 2: the active segment's indexes live in memory and reach the disk when it is sealed, in
        Kafka's formats, so that nothing is written twice and nothing half.
"""

# index     := (offset - base: uint32, position: uint32)*          (big-endian, both rising)
# timeindex := (timestamp_ms: int64, offset - base: uint32)*       (both rising)
#              Every record up to `offset` is at most `timestamp_ms` old-wise: the greatest time
#              seen so far, and the last offset of the batch in which it was seen.

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from tidelog.errors import TidelogError
from tidelog.model import Offset

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
RELATIVE_MAX: Final = 2**31 - 1
"""Kafka reads relative offsets as signed; a segment is rolled before one would overflow."""


class IndexDamaged(TidelogError):
    """An index file does not make sense; it is rebuilt from its segment."""


class OffsetIndex:
    """Where batches lie in a segment's file, one entry every few kilobytes."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, relative: int, position: int) -> None:
        """Note that the batch at `position` ends with the offset `relative`."""
        self._offsets.append(relative)
        self._positions.append(position)

    def position_before(self, relative: int) -> int:
        """A position before the batch that holds `relative`, by the entry before the nearest one.

        Whoever walks from there passes a batch that tells whether the next one's offset is right.
        """
        at = bisect_right(self._offsets, relative) - 2
        return self._positions[at] if at >= 0 else 0

    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def encode(self) -> bytes:
        return b"".join(map(OFFSET_ENTRY.pack, self._offsets, self._positions))

    @classmethod
    def decode(cls, data: bytes, *, size_max: int) -> "OffsetIndex":
        """Read a file's content; every position must lie below `size_max`."""
        if len(data) % OFFSET_ENTRY.size:
            raise IndexDamaged(f"{len(data)} bytes are not whole entries")
        numbers = array("I")
        numbers.frombytes(data)
        if sys.byteorder == "little":
            numbers.byteswap()
        index = cls()
        index._offsets, index._positions = numbers[0::2], numbers[1::2]
        if index._positions and (
            index._positions[-1] >= size_max
            or any(map(int.__ge__, index._positions, index._positions[1:]))
            or any(map(int.__ge__, index._offsets, index._offsets[1:]))
        ):
            raise IndexDamaged("the entries do not rise, or point past the segment")
        return index


class TimeIndex:
    """From which offset on records may be as young as a given time."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._timestamps)

    def add(self, timestamp_ms: int, relative: int) -> None:
        """Note the greatest time so far; anything not greater than the last entry adds nothing."""
        if not self._timestamps or timestamp_ms > self._timestamps[-1]:
            self._timestamps.append(timestamp_ms)
            self._offsets.append(relative)

    def offset_before(self, timestamp_ms: int) -> int:
        """A relative offset at or before the first record with `timestamp_ms` or later."""
        at = bisect_left(self._timestamps, timestamp_ms) - 1
        return self._offsets[at] if at >= 0 else 0

    def last(self) -> tuple[int, Offset] | None:
        return (self._timestamps[-1], self._offsets[-1]) if self._timestamps else None

    def encode(self) -> bytes:
        return b"".join(map(TIME_ENTRY.pack, self._timestamps, self._offsets))

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex":
        if len(data) % TIME_ENTRY.size:
            raise IndexDamaged(f"{len(data)} bytes are not whole entries")
        index = cls()
        for timestamp_ms, relative in TIME_ENTRY.iter_unpack(data):
            if index._timestamps and timestamp_ms < index._timestamps[-1]:
                raise IndexDamaged("the times do not rise")
            index.add(timestamp_ms, relative)
        return index
