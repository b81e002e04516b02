"""The scan of an active segment after a crash: how far its batches are whole, and what they say.

Rule 1: a batch counts if it is sound, follows the one before, and can be of this log. The first one
        that does not ends the scan.
Rule 2: many small batches are compared at once, column by column, so that the interpreter is not
        asked about each. A block counts as a whole only if each of its batches would; any other
        block is looked at batch by batch.
Rule 3: what the scan has found past the mark has one checksum over all of it. Whoever reads those bytes again
        can tell whether they are the same.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat, starmap
from operator import add
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from tidelog.host import File
from tidelog.log.epochs import OFFSET_MAX, EpochHistory
from tidelog.log.segment import Segment, is_next
from tidelog.model import NO_PRODUCER, Offset
from tidelog.records import (
    CRC_FROM,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
    batch_size_at,
    read_header,
)

CHUNK_BYTES: Final = 4 * 1024 * 1024
_BLOCK_BATCHES: Final = 1024
_LENGTH_AT: Final = 8
_LENGTH: Final = Struct(">i")
_FIELDS: Final = (("q", 0), ("i", 12), ("b", 16), ("I", 17), ("i", 23), ("q", 35), ("q", 43))
"""Where in a header the columns of a block lie."""
_ROW: Final = Struct(">q4xibI2xi8xqq")
"""The same fields of one header."""

_Column: TypeAlias = Sequence[int]


@dataclass(frozen=True, slots=True)
class Before:
    """What a process knows of a log that it opens again.

    Neither offsets nor epochs are under a batch's checksum. A batch that contradicts this is
    rotten.
    """

    synced_end: Offset = 0
    """This process has synced everything below it, so that it need not be written again."""
    end_max: Offset = OFFSET_MAX
    """The log ends here or earlier."""
    epochs: EpochHistory | None = None
    """Who wrote what; None if nobody else could have written it."""

    def allows(self, header: BatchHeader, start: Offset) -> bool:
        """Whether a batch can be of a log that begins at `start`."""
        if header.next_offset > self.end_max:
            return False
        if self.epochs is None or header.next_offset <= start:  # of what is deleted nobody knows
            return True
        return self.epochs.epoch_at(max(header.base_offset, start)) == header.leader_epoch


class Columns(NamedTuple):
    """The fields of a block's batches that a scan looks at."""

    base_offsets: _Column
    epochs: _Column
    magics: _Column
    crcs: _Column
    last_offset_deltas: _Column
    max_timestamps: _Column
    producer_ids: _Column


@dataclass(frozen=True, slots=True)
class Block:
    """Batches that lie one after the other, by their lengths; nothing else of them is checked."""

    chunk: bytes
    chunk_at: int
    """Where the chunk lies in the file."""
    places: Sequence[int]
    """Where in the chunk each batch begins, and where the last one ends. A range if all are of one size."""

    def columns(self) -> Columns:
        chunk, places = self.chunk, self.places
        if isinstance(places, range):
            return Columns(*(_column(chunk, code, places, at) for code, at in _FIELDS))
        return Columns(*zip(*map(_ROW.unpack_from, repeat(chunk), places[:-1]), strict=True))

    def checksums(self) -> Iterator[int]:
        """What the batches' checksums should be."""
        chunk, places = memoryview(self.chunk), self.places
        if isinstance(places, range):
            covered = Struct(f"{CRC_FROM}x{places.step - CRC_FROM}s")
            return starmap(crc32c, covered.iter_unpack(chunk[places[0] : places[-1]]))
        begins = map(add, places[:-1], repeat(CRC_FROM))
        return map(crc32c, map(chunk.__getitem__, map(slice, begins, places[1:])))


def _column(chunk: bytes, code: str, places: range, at: int) -> "array[int]":
    """The number `at` bytes into each batch, gathered byte by byte."""
    column = array(code)
    width = column.itemsize
    gathered = bytearray(width * (len(places) - 1))
    for byte in range(width):  # the last one first: the numbers are big-endian, the array is not
        begin = places[0] + at + (width - 1 - byte if _IS_LITTLE else byte)
        gathered[byte::width] = chunk[begin : places[-1] : places.step]
    column.frombytes(gathered)
    return column


_IS_LITTLE: Final = array("H", [1]).tobytes()[0] == 1


def blocks(file: File, position: int, end: int) -> Iterator[Block]:
    """What lies from `position` on, as far as lengths lead from batch to batch."""
    while position < end:
        chunk = file.read(position, min(CHUNK_BYTES, end - position))
        size = batch_size_at(chunk, 0, len(chunk))
        if len(chunk) < size <= end - position:
            chunk = file.read(position, size)
        at = 0
        while len(places := _places(chunk, at)) > 1:
            yield Block(chunk, position, places)
            at = places[-1]
        if at == 0:
            return
        position += at


def _places(chunk: bytes, at: int) -> Sequence[int]:
    """Where the batches from `at` on begin, and where the last of them ends."""
    end, length_at = len(chunk), _LENGTH.unpack_from
    size = batch_size_at(chunk, at, end)
    if size and (count := min(_BLOCK_BATCHES, (end - at) // size)) > 1:
        uniform = range(at, at + count * size + 1, size)
        if _have_one_length(chunk, uniform):
            return uniform
    places = [at]
    while end - at >= HEADER_BYTES and len(places) <= _BLOCK_BATCHES:
        following = at + PREFIX_BYTES + length_at(chunk, at + _LENGTH_AT)[0]
        if not at + HEADER_BYTES <= following <= end:
            break
        at = following
        places.append(at)
    return places


def _have_one_length(chunk: bytes, places: range) -> bool:
    """Whether the batches that would lie at these places have the length that leads to the next one."""
    begin, count = places[0] + _LENGTH_AT, len(places) - 1
    return all(
        chunk[begin + byte : places[-1] : places.step].count(chunk[begin + byte]) == count
        for byte in (3, 2, 1, 0)
    )


class Scan:
    """What is whole of an active segment; see the rules above.

    Invariant: the segment's size and its indexes, `end` and `epochs` tell of the same batches.
    """

    def __init__(
        self,
        active: Segment,
        *,
        start: Offset,
        mark: Offset,
        interval_bytes: int,
        has_gaps: bool,
        before: Before,
    ) -> None:
        self._active = active
        self._start = start
        self._mark = max(mark, before.synced_end)
        self._interval_bytes = interval_bytes
        self._has_gaps = has_gaps
        self._before = before
        self.end: Offset = active.base
        self.epochs = EpochHistory()
        self.marked_size = 0
        """How many bytes of batches lie below the mark."""
        self.checksum = 0
        """Of the bytes past the mark."""
        self.written_from: int | None = None
        """Where the first batch lies that an idempotent producer wrote, if there is one."""

    def run(self, file: File) -> None:
        """Take what is whole of the file."""
        for block in blocks(file, 0, file.size()):
            begin = self._active.size
            is_whole = self._take_block(block) or self._take_batches(file, block)
            unmarked_from = max(begin, self.marked_size) - block.chunk_at
            taken = memoryview(block.chunk)[unmarked_from : self._active.size - block.chunk_at]
            self.checksum = crc32c(taken, self.checksum)
            if not is_whole:
                return

    def is_still_there(self, file: File) -> bool:
        """Whether the file holds past the mark what it held at the scan."""
        checksum, position, end = 0, self.marked_size, self._active.size
        while position < end and (chunk := file.read(position, min(CHUNK_BYTES, end - position))):
            checksum = crc32c(chunk, checksum)
            position += len(chunk)
        return (position, checksum) == (end, self.checksum)

    def _take_block(self, block: Block) -> bool:
        """Take a whole block if every batch of it would be taken; otherwise nothing."""
        columns, places = block.columns(), block.places
        count = len(places) - 1
        deltas = columns.last_offset_deltas
        ends = list(map(add, columns.base_offsets, map(add, deltas, repeat(1))))
        is_sound = (
            columns.magics.count(MAGIC) == count
            and columns.epochs.count(epoch := columns.epochs[0]) == count
            and epoch >= self.epochs.latest
            and min(deltas) >= 0
            and columns.base_offsets[0] == self.end
            and list(columns.base_offsets[1:]) == ends[:-1]
            and self._is_simple(ends[0], ends[-1])
            and list(columns.crcs) == list(block.checksums())
        )
        if not is_sound:
            return False
        if self.written_from is None and max(columns.producer_ids) > NO_PRODUCER:
            first = next(n for n, producer_id in enumerate(columns.producer_ids) if producer_id > NO_PRODUCER)
            self.written_from = block.chunk_at + places[first]
        self.epochs.assign(columns.epochs[0], self.end)
        self._active.note_block(places, ends, columns.max_timestamps, self._interval_bytes)
        self.end = ends[-1]
        if self.end <= self._mark:
            self.marked_size = self._active.size
        return True

    def _is_simple(self, first_end: Offset, end: Offset) -> bool:
        """Whether batches that end here are on one side of the mark, and nothing else is known of them."""
        before = self._before
        return (
            before.epochs is None and end <= before.end_max and (end <= self._mark or first_end > self._mark)
        )

    def _take_batches(self, file: File, block: Block) -> bool:
        """Take batch by batch what is whole of a block, and say whether all of it is."""
        for at, following in pairwise(block.places):
            batch = memoryview(block.chunk)[at:following]
            header = read_header(batch)
            position = block.chunk_at + at
            if not is_next(file, position, batch, header, self.end, has_gaps=self._has_gaps):
                return False
            if header.leader_epoch < self.epochs.latest:  # torn: it is not under the checksum
                return False
            if not self._before.allows(header, self._start):
                return False
            if header.is_idempotent and self.written_from is None:
                self.written_from = position
            self._active.note(header, header.base_offset, self._interval_bytes)
            self.epochs.assign(header.leader_epoch, self.end)  # before a gap, as `Log.append` does
            self.end = header.next_offset
            if self.end <= self._mark:
                self.marked_size = self._active.size
        return True
