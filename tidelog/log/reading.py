"""What a log has from an offset on: in memory, or in files that a disk's thread reads.

Rule 1: `Log.read` and `Partition.read` touch memory only, and answer with a `Read`. Who has one does this:
        - `cold` is None: take its `buffers`.
        - `cold` is there: have a disk's thread `load` it.
        - There is nothing, though its offset is below `limit`: compaction took all that was there.
          Go on at `limit`.
        - OffsetNotAvailable: the file has gone, to retention or to compaction. Look again.
        - StorageError of a `load`: the disk has not kept what was written. Say so to whoever heals.
Rule 2: what is loaded begins with a sound batch. Of those behind it only where they begin is
        checked, which their checksums do not cover: a reader that does not look at checksums
        itself loads those that are `sound`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from tidelog.errors import OffsetNotAvailable, StorageError
from tidelog.host import Bytes, Disk, File
from tidelog.log.epochs import OFFSET_MAX
from tidelog.log.segment import Segment, find_batch, is_walkable, read_batches, read_settled
from tidelog.model import Offset
from tidelog.records import (
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
    crc_matches,
    iterate_batches,
    read_header,
)

_EXTENT: Final = Struct(">qi11xi")
"""Of a batch's header: its first offset, its length, and its last offset as a difference."""
_Place: TypeAlias = tuple[File, int, BatchHeader]
"""A batch in a file: at which byte it begins, and its header."""


@dataclass(frozen=True, slots=True)
class ColdRead:
    """A read that memory cannot answer: `perform` it in a disk's thread."""

    segments: Sequence[Segment]
    """The one that holds `offset`, and those after it up to `limit`."""
    offset: Offset
    bytes_max: int
    limit: Offset
    """Everything below it is in the files."""
    at_least_one: bool

    def perform(self, disk: Disk) -> Bytes:
        """Whole batches of one segment, from the one that holds `offset` on.

        If compaction left a gap there, from the next one on, which may lie in a later segment;
        b"" if there is none below `limit`, or the first does not fit.
        """
        return self._perform(partial(self._read, disk))

    def perform_checked(self, disk: Disk, *, has_gaps: bool) -> Bytes:
        """As `perform`, for a reader who does not say what is wrong with what it got.

        Raises StorageError if what lies at `offset` is not what was written there. Of the batches
        after the first only where they begin is checked, which their checksums do not cover: a
        reader notices all else, stops before one that is damaged, and begins with it next.
        `has_gaps`: offsets may be missing.
        """
        return self._perform(partial(self._read_checked, disk, has_gaps))

    def _perform(self, read: Callable[[Segment], Bytes | None]) -> Bytes:
        for segment in self.segments:
            if (data := read_settled(segment, read)) is not None:
                return data
        return b""

    def _locate(self, disk: Disk, segment: Segment) -> _Place | None:
        """Where the first batch lies that reaches past `offset`; None if none does."""
        file = segment.open(disk)
        end = file.size()
        position = segment.position_before(disk, self.offset)
        found = find_batch(file, position, end, self.offset)
        if found is None and position:  # the index misled us
            found = find_batch(file, 0, end, self.offset)
        return None if found is None else (file, *found)

    def _read_at(self, file: File, position: int, header: BatchHeader) -> Bytes:
        if header.base_offset >= self.limit:
            return b""
        return read_batches(
            file,
            position,
            file.size(),
            bytes_max=self.bytes_max,
            first_bytes=header.size if self.at_least_one else 0,
            limit=self.limit,
        )

    def _read(self, disk: Disk, segment: Segment) -> Bytes | None:
        """What fits of the batches there; None if none lies at or after `offset`."""
        place = self._locate(disk, segment)
        return None if place is None else self._read_at(*place)

    def _read_checked(self, disk: Disk, has_gaps: bool, segment: Segment) -> Bytes | None:
        place = self._locate(disk, segment)
        if place is None:
            data, is_sound = None, has_gaps and self._is_walkable(disk, segment)
        elif data := self._read_at(*place):
            data = self._sound(data, self._base_after(data, place, segment), has_gaps)
            is_sound = bool(data)
        elif self.at_least_one:
            # It would fit: so the next one is said to lie past the limit.
            later = replace(self, limit=OFFSET_MAX)._read_at(*place)
            base_after = self._base_after(later, place, segment)
            is_sound = has_gaps and bool(later and self._sound(later, base_after, has_gaps))
        else:
            is_sound = True
        if not is_sound:
            raise StorageError(f"{segment!r} cannot be read at offset {self.offset}")
        return data

    def _base_after(self, data: Bytes, place: _Place, segment: Segment) -> Offset | None:
        """Where the batch begins that follows `data`, which was read there; None if none does."""
        file, position, _ = place
        position, size = position + len(data), file.size()
        if size - position >= HEADER_BYTES:
            return read_header(file.read(position, HEADER_BYTES)).base_offset
        return next((later.base for later in self.segments if later.base > segment.base), None)

    def _is_walkable(self, disk: Disk, segment: Segment) -> bool:
        file = segment.open(disk)
        end = file.size()
        position = segment.position_before(disk, self.offset)
        return is_walkable(file, position, end) or is_walkable(file, 0, end)

    def _sound(self, data: Bytes, base_after: Offset | None, has_gaps: bool) -> Bytes:
        """The batches of `data` that begin where they say; b"" if the first is not sound.

        Where a batch begins is not under its checksum. So each must end where the next one begins,
        and the last one where `base_after` says.
        """
        header = read_header(data)
        if header.magic != MAGIC or not (has_gaps or header.base_offset <= self.offset):
            return b""
        if not crc_matches(memoryview(data)[: header.size], header):
            return b""
        at, position, end = 0, header.size, header.next_offset
        while position < len(data):
            base, length, last = _EXTENT.unpack_from(data, position)
            if not _follows(base, end, has_gaps):
                return memoryview(data)[:at]
            at, position, end = position, position + PREFIX_BYTES + length, base + last + 1
        if base_after is not None and not _follows(base_after, end, has_gaps):
            return memoryview(data)[:at]
        return data


def _follows(base: Offset, end: Offset, has_gaps: bool) -> bool:
    return base == end or (has_gaps and base > end)


class Read(NamedTuple):
    """Whole batches from the one that holds an offset, or how to get them. See the rules above."""

    buffers: Sequence[Bytes]
    """What memory holds."""
    size: int
    """Of the buffers."""
    limit: Offset
    """Below it there is nothing but what is found now."""
    cold: ColdRead | None = None
    """What a disk's thread must do, if memory does not hold them."""
    has_gaps: bool = False

    @property
    def joined(self) -> Bytes:
        """The buffers as one; a single one is not copied."""
        return self.buffers[0] if len(self.buffers) == 1 else b"".join(self.buffers)

    def load(self, disk: Disk) -> Bytes:
        """The batches, wherever they are; in a disk's thread if they are `cold`."""
        if self.cold is None:
            return self.joined
        try:
            return self.cold.perform_checked(disk, has_gaps=self.has_gaps)
        except FileNotFoundError:
            raise OffsetNotAvailable(f"what lay at offset {self.cold.offset} has moved or gone") from None

    def load_sound(self, disk: Disk) -> Bytes:
        """The batches up to one whose bytes are not what was written. It comes first the next time."""
        data = self.load(disk)
        if self.cold is None:
            return data
        sound = 0
        for header, batch in iterate_batches(data):
            if not crc_matches(batch, header):
                break
            sound += header.size
        return memoryview(data)[:sound]

    def load_unchecked(self, disk: Disk) -> Bytes:
        """The batches as they lie there, for who checks them all. The OSError is the disk's own."""
        return self.joined if self.cold is None else self.cold.perform(disk)
