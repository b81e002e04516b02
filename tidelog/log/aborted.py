"""Which transactions in a log were aborted, in the order of their markers.

Rule 1: an entry is made for a marker that aborts a transaction with batches in the log, and for no
        other. It goes once none of those batches is left.
Rule 2: an entry belongs to the segment of its marker, in whatever segments its batches lie, and
        is kept in the file beside that segment.
Rule 3: `stable` never falls from one entry to the next, so a search ends at the first entry whose
        `stable` lies at or past its range.
"""

# txnindex := entry*                                                (big-endian, last_offset rising)
# entry    := version: int16 = 0, producer_id: int64, first_offset: int64, last_offset: int64,
#             stable: int64
#             The transaction's first batch begins at `first_offset`, its marker is `last_offset`.
#             When that was written, every other transaction that began below `stable` had ended.

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from tidelog.errors import TidelogError
from tidelog.model import Offset, ProducerId

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0
_FIELDS: Final = 4
_LAST_OFFSET: Final = 2


class AbortedIndexDamaged(TidelogError):
    """An index of aborted transactions does not make sense; it is rebuilt from the log."""


class AbortedTransaction(NamedTuple):
    """One transaction that nobody who reads only what is committed may see."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Of its marker."""
    stable: Offset


class AbortedIndex:
    """Aborted transactions, found by offset; four numbers each."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers) // _FIELDS

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self._entry, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbortedIndex) and self._numbers == other._numbers

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<AbortedIndex {list(self)}>"

    def _entry(self, at: int) -> AbortedTransaction:
        return AbortedTransaction._make(self._numbers[_FIELDS * at : _FIELDS * (at + 1)])

    def _place(self, offset: Offset) -> int:
        """The first entry whose marker is at or after `offset`."""
        numbers = self._numbers
        return bisect_left(range(len(self)), offset, key=lambda at: numbers[_FIELDS * at + _LAST_OFFSET])

    # Changing.

    def add(self, entry: AbortedTransaction) -> None:
        """Note a transaction whose marker is the newest."""
        self._numbers.extend(entry)

    def extend(self, other: "AbortedIndex") -> None:
        """Note all of `other`, whose markers follow."""
        self._numbers.extend(other._numbers)

    def drop_before(self, offset: Offset) -> None:
        """Forget transactions that ended below `offset`."""
        if gone := self._place(offset):
            self._numbers = self._numbers[_FIELDS * gone :]  # a snapshot keeps the others

    def remove(self, markers: Collection[Offset]) -> None:
        """Forget the transactions with these markers."""
        if markers:
            kept = array("q")
            for entry in self:
                if entry.last_offset not in markers:
                    kept.extend(entry)
            self._numbers = kept

    # Looking.

    def snapshot(self) -> "AbortedIndex":
        """For whoever reads while others delete or compact: from it nothing is ever removed."""
        same = AbortedIndex()
        same._numbers = self._numbers
        return same

    def between(self, start: Offset, end: Offset) -> "AbortedIndex":
        """A copy of those whose markers lie in [start, end)."""
        found = AbortedIndex()
        found._numbers = self._numbers[_FIELDS * self._place(start) : _FIELDS * self._place(end)]
        return found

    def find(self, start: Offset, end: Offset) -> list[tuple[ProducerId, Offset]]:
        """Producer and first offset of each transaction that touches [start, end)."""
        if not self._numbers:
            return []
        found = []
        for at in range(self._place(start), len(self)):
            producer_id, first, _, stable = self._entry(at)
            if first < end:
                found.append((producer_id, first))
            if stable >= end:
                break
        return found

    # Files.

    def encode(self) -> bytes:
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self)

    @classmethod
    def decode(cls, data: bytes, *, start: Offset, end: Offset) -> "AbortedIndex":
        """Read the file of a segment that spans [start, end)."""
        if len(data) % _ENTRY.size:
            raise AbortedIndexDamaged(f"{len(data)} bytes are not whole entries")
        index = cls()
        last_before, stable_before = start - 1, 0
        for version, producer_id, first, last, stable in _ENTRY.iter_unpack(data):
            if version != _VERSION or producer_id < 0 or not 0 <= first < last:
                raise AbortedIndexDamaged(f"there is no transaction of {producer_id} at {first}")
            if not last_before < last < end or not stable_before <= stable <= last + 1:
                raise AbortedIndexDamaged(f"the entries do not rise, or leave {start}..{end}")
            index._numbers.extend((producer_id, first, last, stable))
            last_before, stable_before = last, stable
        return index


class AbortedLookup:
    """Whether a batch is of an aborted transaction; for one who asks for every batch of a log."""

    __slots__ = ("_spans",)

    def __init__(self, index: AbortedIndex) -> None:
        self._spans: dict[ProducerId, tuple[array[int], array[int]]] = {}
        for producer_id, first, last, _ in index:
            firsts, lasts = self._spans.setdefault(producer_id, (array("q"), array("q")))
            firsts.append(first)
            lasts.append(last)

    def holds(self, producer_id: ProducerId, offset: Offset) -> bool:
        """Whether what the producer wrote in a transaction at `offset` was aborted."""
        if (spans := self._spans.get(producer_id)) is None:
            return False
        at = bisect_right(spans[0], offset) - 1
        return at >= 0 and offset < spans[1][at]
