"""Messages that only wait for their turn, in little memory: numbers in arrays, the oldest first.

Rule 1: rows come in the order of their sequences, and of their offsets with them.
Rule 2: a row costs 16 bytes, 24 where some have keys. What is known of it beyond that, the log has.
Rule 3: a segment of rows without one left is freed.
"""

# segment := the numbers of its first row, and of each row how far it is from these (uint32):
#            sequence, offset, time, beside its size (uint32) and the number of its key (uint64)

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.model import Offset
from tidelog.queues.message import NO_KEY

_ROWS_MAX: Final = 4096
_FAR: Final = 2**32 - 1
_GONE: Final = _FAR
"""Instead of the offset of a row that was removed."""


class Row(NamedTuple):
    """A message that waits for its turn."""

    sequence: int
    offset: Offset
    made_ms: int
    size: int
    key: int = NO_KEY


class _Segment:
    __slots__ = ("keys", "left", "made_ms", "offset", "offsets", "sequence", "sequences", "sizes", "times")

    def __init__(self, first: Row) -> None:
        self.sequence, self.offset, self.made_ms = first.sequence, first.offset, first.made_ms
        self.sequences, self.offsets = array("I"), array("I")
        self.times, self.sizes = array("I"), array("I")
        self.keys: array[int] | None = None
        self.left = 0

    def fits(self, row: Row) -> bool:
        return (
            len(self.offsets) < _ROWS_MAX
            and row.sequence - self.sequence < _FAR
            and row.offset - self.offset < _FAR
            and row.made_ms - self.made_ms < _FAR
        )

    def append(self, row: Row) -> None:
        self.sequences.append(row.sequence - self.sequence)
        self.offsets.append(row.offset - self.offset)
        # A clock that was put back makes a message look a little younger, and no more.
        self.times.append(max(row.made_ms - self.made_ms, 0))
        self.sizes.append(min(row.size, _FAR))
        if row.key != NO_KEY and self.keys is None:
            self.keys = array("Q", bytes(8 * (len(self.offsets) - 1)))
        if self.keys is not None:
            self.keys.append(row.key)
        self.left += 1

    def row(self, at: int) -> Row:
        return Row(
            self.sequence + self.sequences[at],
            self.offset + self.offsets[at],
            self.made_ms + self.times[at],
            self.sizes[at],
            NO_KEY if self.keys is None else self.keys[at],
        )

    def remove(self, at: int) -> None:
        self.offsets[at] = _GONE
        self.left -= 1


class Backlog:
    """Rows in order; the first can be taken, and any be removed by its sequence.

    Invariant: no segment is without a row that is left, and `_bases` are their first sequences.
    """

    __slots__ = ("_at", "_bases", "_length", "_segments")

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._bases: list[int] = []
        self._length = 0
        self._at = 0
        """In the first segment; what lies before is gone."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Row]:
        for segment in self._segments:
            for at, offset in enumerate(segment.offsets):
                if offset != _GONE:
                    yield segment.row(at)

    def append(self, row: Row) -> None:
        """Add a row behind all others."""
        if not self._segments or not self._segments[-1].fits(row):
            self._segments.append(_Segment(row))
            self._bases.append(row.sequence)
        self._segments[-1].append(row)
        self._length += 1

    def first(self) -> Row | None:
        """The oldest row."""
        if not self._length:
            return None
        segment = self._segments[0]
        while segment.offsets[self._at] == _GONE:
            self._at += 1
        return segment.row(self._at)

    def pop(self) -> Row | None:
        """Take the oldest row out."""
        row = self.first()
        if row is not None:
            self._remove(0, self._at)
        return row

    def pop_below(self, sequence: int) -> Row | None:
        """Take the oldest row out, if its sequence is below this."""
        row = self.first()
        if row is None or row.sequence >= sequence:
            return None
        self._remove(0, self._at)
        return row

    def remove(self, sequence: int) -> Row | None:
        """Take the row of this sequence out, if it is there."""
        number = bisect_right(self._bases, sequence) - 1
        if number < 0:
            return None
        segment = self._segments[number]
        at = bisect_left(segment.sequences, sequence - segment.sequence)
        if at == len(segment.sequences) or segment.offsets[at] == _GONE:
            return None
        row = segment.row(at)
        if row.sequence != sequence:
            return None
        self._remove(number, at)
        return row

    def _remove(self, number: int, at: int) -> None:
        segment = self._segments[number]
        segment.remove(at)
        self._length -= 1
        if not segment.left:
            del self._segments[number], self._bases[number]
            if number == 0:
                self._at = 0
