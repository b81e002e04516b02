"""One file of a log, with its indexes.

Rule 1: only the last segment of a log grows. When the next one is made, everything before it is
        whole and synced, indexes included; so after a crash only the last one can be torn.
Rule 2: the indexes of a sealed segment stay in their files and are searched there; memory is
        spent only on the active one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from tidelog.errors import StorageError
from tidelog.host import Bytes, Disk, File, Path
from tidelog.log.index import OFFSET_ENTRY, RELATIVE_MAX, TIME_ENTRY, OffsetIndex, TimeIndex
from tidelog.model import NO_TIMESTAMP, Offset
from tidelog.records import (
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
    batch_size_at,
    crc_matches,
    read_header,
)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
"""Of the files of one segment; a snapshot is of all that came before."""
_WALK_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


def file_stem(offset: Offset) -> str:
    """Kafka's file name for an offset: twenty digits, so that names sort as numbers."""
    return f"{offset:020d}"


class Segment:
    """The batches from `base` up to the next segment's base.

    `size` counts the bytes appended, some of which may still wait to be written. The indexes are
    None once the segment is sealed. `replaced_by` is set when a compacted segment takes its place,
    before the first of the old files goes.
    """

    __slots__ = (
        "_bytes_since_index",
        "base",
        "directory",
        "file",
        "first_timestamp_ms",
        "is_timeless",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offsets",
        "replaced_by",
        "size",
        "times",
    )

    def __init__(self, directory: Path, base: Offset, *, size: int = 0) -> None:
        self.directory = directory
        self.base = base
        self.size = size
        self.file: File | None = None
        self.offsets: OffsetIndex | None = OffsetIndex()
        self.times: TimeIndex | None = TimeIndex()
        self.first_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base
        self.is_timeless = False
        """Whether its batches were looked at, once it was sealed, and none has a time."""
        self.replaced_by: Segment | None = None
        self._bytes_since_index = 0

    def __repr__(self) -> str:
        return f"<Segment {self.base} of {self.directory.name}, {self.size} bytes>"

    def path(self, suffix: str = LOG_SUFFIX) -> Path:
        return self.directory / (file_stem(self.base) + suffix)

    def open(self, disk: Disk) -> File:
        """The segment's file, opened once."""
        if self.file is None:
            self.file = disk.open(self.path())
        return self.file

    def can_index(self, last_offset: Offset) -> bool:
        return last_offset - self.base <= RELATIVE_MAX

    def note(self, header: BatchHeader, base_offset: Offset, interval_bytes: int) -> None:
        """Index a batch that now lies at the end of the file, and count its bytes."""
        assert self.offsets is not None, "a sealed segment never grows"
        assert self.times is not None
        last_offset = base_offset + header.last_offset_delta
        timestamp_ms = header.max_timestamp
        if self.first_timestamp_ms == NO_TIMESTAMP:
            self.first_timestamp_ms = timestamp_ms
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index > interval_bytes:
            self.offsets.add(last_offset - self.base, self.size)
            self.times.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base)
            self._bytes_since_index = 0
        size = PREFIX_BYTES + header.length
        self.size += size
        self._bytes_since_index += size

    def note_block(
        self,
        places: Sequence[int],
        ends: Sequence[Offset],
        max_timestamps: Sequence[int],
        interval_bytes: int,
    ) -> None:
        """As `note` of each batch. `places` tells where they begin, and where the last one ends.

        `ends` are their next offsets.
        """
        assert self.offsets is not None, "a sealed segment never grows"
        assert self.times is not None
        if self.first_timestamp_ms == NO_TIMESTAMP:
            self.first_timestamp_ms = next((t for t in max_timestamps if t != NO_TIMESTAMP), NO_TIMESTAMP)
        at, count = 0, len(places) - 1
        while at < count:
            # An entry is due at the first batch that has more than `interval_bytes` before it.
            due = bisect_right(places, places[at] + interval_bytes - self._bytes_since_index, at, count)
            noted = max_timestamps[at : due + 1]
            if (timestamp_ms := max(noted)) > self.max_timestamp_ms:
                self.max_timestamp_ms = timestamp_ms
                self.max_timestamp_offset = ends[at + noted.index(timestamp_ms)] - 1
            if due < count:
                self.offsets.add(ends[due] - 1 - self.base, self.size + places[due] - places[0])
                self.times.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base)
                self._bytes_since_index = 0
                at = due
            following = min(due + 1, count)
            self._bytes_since_index += places[following] - places[at]
            at = following
        self.size += places[-1] - places[0]

    def index_contents(self) -> tuple[bytes, bytes]:
        """The index files as they should be now.

        The last time entry is the segment's greatest time, so that retention reads nothing else.
        """
        assert self.offsets is not None
        assert self.times is not None
        if self.max_timestamp_ms != NO_TIMESTAMP:
            self.times.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base)
        return self.offsets.encode(), self.times.encode()

    def seal(self) -> tuple[bytes, bytes]:
        """Stop growing; the contents of the index files, which no longer take memory."""
        contents = self.index_contents()
        self.offsets = self.times = None
        return contents

    # Searching. These block on the disk for sealed segments: call them from its threads.

    def position_before(self, disk: Disk, offset: Offset) -> int:
        """A batch's position before the one that holds `offset`, unless that is the first."""
        relative = min(max(offset - self.base, 0), RELATIVE_MAX)
        if (offsets := self.offsets) is not None:  # looked up once: the loop may seal meanwhile
            return offsets.position_before(relative)
        with_index = _IndexFile.open(disk, self.path(INDEX_SUFFIX), OFFSET_ENTRY.size)
        if with_index is None:
            return 0  # the file is lost: walk the segment
        at = bisect_right(with_index, relative, key=lambda e: OFFSET_ENTRY.unpack(e)[0]) - 2
        position: int = OFFSET_ENTRY.unpack(with_index[at])[1] if at >= 0 else 0
        return position if self._begins_by(disk, position, offset) else 0

    def _begins_by(self, disk: Disk, position: int, offset: Offset) -> bool:
        """Whether a batch lies at `position` that begins at or before `offset`.

        No checksum covers an index. Were rot in it believed, a log with gaps would seem to have
        another one, and a reader would be led past records.
        """
        found = self.open(disk).read(position, HEADER_BYTES) if position < self.size else b""
        if len(found) < HEADER_BYTES or not batch_size_at(found, 0, len(found)):
            return False
        header = read_header(found)
        return header.magic == MAGIC and self.base <= header.base_offset <= offset

    def offset_before(self, disk: Disk, timestamp_ms: int) -> Offset:
        """An offset at or before the first record with `timestamp_ms` or later."""
        if (times := self.times) is not None:
            return self.base + times.offset_before(timestamp_ms)
        with_index = _IndexFile.open(disk, self.path(TIME_INDEX_SUFFIX), TIME_ENTRY.size)
        if with_index is None:
            return self.base
        at = bisect_left(with_index, timestamp_ms, key=lambda e: TIME_ENTRY.unpack(e)[0]) - 1
        found = self._time_at(disk, with_index, at)
        return self.base if found is None else found[1]

    def _time_at(self, disk: Disk, with_index: "_IndexFile", at: int) -> tuple[int, Offset] | None:
        """Time and offset of an entry of the time index, if a batch bears them out."""
        if at < 0:
            return None
        timestamp_ms, relative = TIME_ENTRY.unpack(with_index[at])
        offset = self.base + relative
        try:
            position = self.position_before(disk, offset)
            found = find_batch(self.open(disk), position, self.size, offset)
        except FileNotFoundError:
            return None  # the whole segment was deleted meanwhile
        if found is None:
            return None
        header = found[1]
        is_true = (header.last_offset, header.max_timestamp) == (offset, timestamp_ms)
        return (timestamp_ms, offset) if is_true else None

    def load_max_timestamp(self, disk: Disk) -> None:
        """Read the greatest time of a sealed segment from the end of its time index."""
        with_index = _IndexFile.open(disk, self.path(TIME_INDEX_SUFFIX), TIME_ENTRY.size)
        found = with_index and self._time_at(disk, with_index, len(with_index) - 1)
        if found:
            self.max_timestamp_ms, self.max_timestamp_offset = found


class _IndexFile:
    """An index file as a sequence of entries, each read when it is asked for."""

    def __init__(self, file: File, entry_bytes: int) -> None:
        self._file = file
        self._entry_bytes = entry_bytes
        self._count = file.size() // entry_bytes

    @classmethod
    def open(cls, disk: Disk, path: Path, entry_bytes: int) -> "_IndexFile | None":
        try:
            return cls(disk.open(path), entry_bytes)
        except FileNotFoundError:
            return None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> bytes:
        if not 0 <= at < self._count:
            raise IndexError(at)
        return self._file.read(at * self._entry_bytes, self._entry_bytes)


def read_settled(segment: Segment, read: Callable[[Segment], T]) -> T:
    """What `read` finds in `segment`, or in the compacted one that takes its place meanwhile.

    New files bear old names, so a read during a swap may have mixed the two.
    """
    while True:
        try:
            found = read(segment)
        except (FileNotFoundError, StorageError):
            if (newer := segment.replaced_by) is None:
                raise
        else:
            if (newer := segment.replaced_by) is None:
                return found
        segment = newer


def find_batch(file: File, position: int, end: int, offset: Offset) -> tuple[int, BatchHeader] | None:
    """Walk from the batch at `position` to the first one that ends after `offset`.

    Returns its position and header, or None when the bytes up to `end` hold none (or nonsense).
    Nonsense is also a batch that begins before the one in front of it ends: its offset has rotted.
    """
    expected = 0
    while position < end:
        chunk = file.read(position, min(_WALK_BYTES, end - position))
        at = 0
        while len(chunk) - at >= HEADER_BYTES:
            size = batch_size_at(chunk, at, len(chunk))
            if not size:
                return None
            header = read_header(chunk, at)
            if header.base_offset < expected or header.last_offset_delta < 0:
                return None
            if header.last_offset >= offset:
                return position + at, header
            expected = header.next_offset
            at += size
        if at == 0:
            return None
        position += at
    return None


def is_walkable(file: File, position: int, end: int) -> bool:
    """Whether there is one batch after another from `position` to `end`, by their headers."""
    expected = 0
    while position < end:
        chunk = file.read(position, min(_WALK_BYTES, end - position))
        at = 0
        while len(chunk) - at >= HEADER_BYTES:
            size = batch_size_at(chunk, at, len(chunk))
            if not size:
                return False
            header = read_header(chunk, at)
            if header.magic != MAGIC or not expected <= header.base_offset <= header.last_offset:
                return False
            expected = header.next_offset
            at += size
        if at == 0:
            return False
        position += at
    return position == end


def read_batches(
    file: File, position: int, end: int, *, bytes_max: int, first_bytes: int, limit: Offset | None
) -> Bytes:
    """Whole batches from `position`: up to `bytes_max`, but at least the first, of `first_bytes`.

    With a `limit`, only batches below it.
    """
    size = min(max(bytes_max, first_bytes), end - position)
    cached = file.read_cached(position, size)
    chunk: Bytes = file.read(position, size) if cached is None else cached
    at = 0
    while batch := batch_size_at(chunk, at, len(chunk)):
        if at + batch > len(chunk):
            break
        if limit is not None and int.from_bytes(chunk[at : at + 8], "big") >= limit:
            break
        at += batch
    return chunk if at == len(chunk) else memoryview(chunk)[:at]


def walk(
    file: File, position: int, end: int, *, base: Offset = 0, check: bool = False, has_gaps: bool = False
) -> Iterator[tuple[BatchHeader, int]]:
    """Every batch from `position` on with where it lies, until the bytes stop making sense.

    With `check`, also its checksum, and that it follows the one before without a gap; where there
    may be gaps, that the next one, if any, follows it.
    """
    expected = base
    chunk, chunk_at = b"", position
    while position < end:
        at = position - chunk_at
        size = batch_size_at(chunk, at, len(chunk))
        if len(chunk) - at < HEADER_BYTES or at + size > len(chunk):
            # Read on from here, at least a whole batch once its size is known.
            wanted = min(max(size, _CHUNK_BYTES), end - position)
            chunk, chunk_at, at = file.read(position, wanted), position, 0
            size = batch_size_at(chunk, 0, len(chunk))
            if size > len(chunk) and size <= end - position:
                chunk = file.read(position, size)
        if not size or at + size > len(chunk) or len(chunk) - at < HEADER_BYTES:
            return
        header = read_header(chunk, at)
        if check:
            batch = memoryview(chunk)[at : at + size]
            if not is_next(file, position, batch, header, expected, has_gaps=has_gaps):
                return
        elif not _rises(header, expected):
            return
        yield header, position
        expected = header.next_offset
        position += size


def _rises(header: BatchHeader, expected: Offset) -> bool:
    return header.magic == MAGIC and header.base_offset >= expected and header.last_offset_delta >= 0


def is_next(
    file: File, position: int, batch: Bytes, header: BatchHeader, expected: Offset, *, has_gaps: bool
) -> bool:
    """Whether the batch at `position` is sound, and follows one that ends before `expected`."""
    return (
        _rises(header, expected)
        # The base offset is not under the checksum, but a leader leaves no gaps. Were a
        # flipped bit in it believed, all that follows would look torn, and be cut.
        and (header.base_offset == expected or (has_gaps and _is_followed(file, position, header)))
        and crc_matches(batch, header)
    )


def _is_followed(file: File, position: int, header: BatchHeader) -> bool:
    """Whether what lies behind a batch does not contradict the offset that it claims to have."""
    after = file.read(position + header.size, HEADER_BYTES)
    if len(after) < HEADER_BYTES:
        return True
    following = read_header(after)
    return following.magic != MAGIC or following.base_offset >= header.next_offset
