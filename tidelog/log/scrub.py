"""Reads a sealed segment again, slice by slice, to see whether its bytes are still what they were.

Rule 1: a batch is sound if every byte of it is accounted for. The checksum covers all but the
        first 21 bytes; of these, the offset must follow the batch before, the length must lead to
        the next batch, and the epoch must be the one that the log's history names.
        A history that two replicas' batches contradict is not believed, and nothing is changed.
Rule 2: where compaction has been at work (`has_gaps`) offsets may be missing, and histories of
        replicas differ. There the epoch is not checked, and an offset only has to rise.
Rule 3: what the device does not read is rot, too. Whoever writes it again gives the device the
        chance to put it elsewhere.
Rule 4: the index files are what the batches make of them, or are made again. They may differ though
        nothing rotted: a restart, and another `index.interval.bytes`, space entries otherwise.
Rule 5: batches wholly below the log's start are deleted, and no replica sends them. Rot in them is
        passed over, if the index tells where the first batch lies that is not deleted.
Rule 6: `mend` writes a batch only where Rule 1 says that it belongs, byte for byte, and only if
        the next sound batch in this file follows it, or follows those that come behind it. So
        whatever interrupts it leaves each byte as it was or as it shall be, and sound batches stay.
        One that is sent as it lies there, but for its offset, is not sound: its offset has rotted.
"""

import errno
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from enum import Enum
from typing import Final, NamedTuple

from tidelog.host import Bytes, Disk, File, Path, read_file, replace_file
from tidelog.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment, find_batch
from tidelog.model import NO_EPOCH, Epoch, Offset
from tidelog.records import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    PREFIX_BYTES,
    BatchHeader,
    batch_size_at,
    crc_matches,
    iterate_batches,
    read_header,
)

SLICE_BYTES: Final = 256 * 1024
BATCH_BYTES_MIN: Final = 1024
"""A batch counts for at least so much, and a slice for eight times that: small ones cost, too."""
PAGE_BYTES: Final = 4096
GAP: Final = "offsets are missing"


class Scanned(NamedTuple):
    """What reading a slice has cost."""

    size: int
    charge: int
    """What it counts for, by the pace."""


class Fit(Enum):
    """What came of batches that another replica sent."""

    WHOLE = "whole"
    """What follows them in the file is sound, or nothing follows."""
    MORE = "more"
    """They were put where they belong, and what follows them has to be replaced, too."""
    NONE = "none"
    """They do not belong there."""
    GAP = "gap"
    """The other replica has nothing there, either."""


class SegmentScrub:
    """One sealed segment, and how far it has been read.

    Everything before `position` is sound. `problem` says what is wrong with what lies there.
    """

    __slots__ = (
        "_epochs",
        "_file",
        "_index",
        "_index_interval_bytes",
        "_starts",
        "checks_epochs",
        "end",
        "has_gaps",
        "is_done",
        "is_unread",
        "offset",
        "position",
        "problem",
        "segment",
        "stale_indexes",
        "start",
    )

    def __init__(
        self,
        segment: Segment,
        end: Offset,
        *,
        start: Offset,
        epochs: Iterable[tuple[Epoch, Offset]],
        has_gaps: bool,
        checks_epochs: bool = True,
        index_interval_bytes: int | None = None,
    ) -> None:
        """`end` is where the next segment begins, `start` where the log does.

        Without `index_interval_bytes` the index files are not looked at.
        """
        self.segment = segment
        self.end = end
        self.start = start
        self.has_gaps = has_gaps
        self.checks_epochs = checks_epochs
        history = list(epochs)
        self._epochs = [epoch for epoch, _ in history]
        self._starts = [first for _, first in history]
        self._file: File | None = None
        self.position = 0
        self.offset = segment.base
        self.problem: str | None = None
        self.is_unread = False
        """Whether the problem is that the device did not read it. It may the next time."""
        self.is_done = False
        self._index_interval_bytes = index_interval_bytes or 0
        self._index: Segment | None = None
        """What the batches so far make of the indexes; only if none was passed over."""
        if index_interval_bytes is not None:
            self._index = Segment(segment.directory, segment.base)
        self.stale_indexes: list[tuple[Path, bytes]] = []
        """Once it is done: the index files that are not what they should be, and what they
        should be."""

    def __repr__(self) -> str:
        return f"<SegmentScrub of {self.segment!r} at {self.offset}: {self.problem or 'sound'}>"

    # Reading. These block on the disk.

    def read(self, disk: Disk) -> Scanned:
        """Check the next slice."""
        self.problem, self.is_unread = None, False
        try:
            if self._file is None:
                self._file = disk.open(self.segment.path())
            found = self._check(self._file)
        except FileNotFoundError:
            self.problem, found = "its file is gone", Scanned(0, 0)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.problem, found = f"the device does not read it ({error.strerror})", Scanned(0, 0)
            self.is_unread = True
        if self.problem is not None and self._pass_deleted(disk):
            self.problem = None
        if self.problem is not None or self.is_done:
            self.close()
        if self.is_done and self._index is not None:
            self._compare_indexes(disk, self._index)
        return found

    @property
    def live_offset(self) -> Offset:
        """The first record at `position` that is not deleted: what others can be asked for."""
        return max(self.offset, self.start)

    def _pass_deleted(self, disk: Disk) -> bool:
        """Go on at the batch that holds the log's start; False if that is here, or not found."""
        if self.offset >= self.start:
            return False
        with suppress(OSError):
            file = self._file or disk.open(self.segment.path())
            before = self.segment.position_before(disk, self.start)
            found = find_batch(file, before, file.size(), self.start)
            if found is not None and found[0] > self.position:
                position, header = found
                base = header.base_offset
                if self.offset < base and (base <= self.start or self.has_gaps):
                    self._index = None
                    self.position, self.offset = position, base
                    return True
        return False

    def _compare_indexes(self, disk: Disk, index: Segment) -> None:
        contents = index.index_contents()
        for suffix, content in zip((INDEX_SUFFIX, TIME_INDEX_SUFFIX), contents, strict=True):
            path = self.segment.path(suffix)
            if _content(disk, path) != content:
                self.stale_indexes.append((path, content))

    def write_indexes(self, disk: Disk) -> None:
        """Make the index files that are not what they should be, if that is so still."""
        for path, content in self.stale_indexes:
            if _content(disk, path) != content:
                replace_file(disk, path, content)

    def seek(self, disk: Disk) -> None:
        """Check everything up to the first problem, or to the end."""
        while True:
            self.read(disk)
            if self.problem is not None or self.is_done:
                return

    def skip(self, disk: Disk) -> bool:
        """Go on behind the batch that has the problem; False if nothing sound follows it.

        What follows must lead to the batch behind it: its own offset may have rotted, too.
        """
        self._index = None
        with suppress(OSError):
            file = disk.open(self.segment.path())
            behind = self._sound_behind(file)
            if behind is not None and self._leads_on(file, *behind):
                self.position, self.offset = behind
                self.problem = None
                return True
        return False

    def _sound_behind(self, file: File) -> tuple[int, Offset] | None:
        """Where the next batch lies, by the length of the one at `position`, if that is sound."""
        head = file.read_device(self.position, HEADER_BYTES)
        size = batch_size_at(head, 0, len(head))
        after = self.position + size
        if not size or after >= file.size():
            return None
        following = read_header(file.read_device(after, HEADER_BYTES).ljust(HEADER_BYTES))
        if not self.offset < following.base_offset < self.end:
            return None
        behind = copy(self)
        behind.position, behind.offset = after, following.base_offset
        return (behind.position, behind.offset) if behind._is_sound(file) else None

    def _leads_on(self, file: File, position: int, offset: Offset) -> bool:
        """Whether what lies behind the batch at `position` follows it."""
        header = read_header(file.read_device(position, HEADER_BYTES))
        after, next_offset = position + header.size, offset + header.last_offset_delta + 1
        if after == file.size():
            return self.has_gaps or next_offset == self.end
        base = read_header(file.read_device(after, HEADER_BYTES).ljust(HEADER_BYTES)).base_offset
        return base == next_offset or (self.has_gaps and next_offset < base < self.end)

    def fork(self) -> "SegmentScrub":
        """The same place, for whoever comes back to it later."""
        fork = copy(self)
        fork._file = None
        return fork

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check(self, file: File) -> Scanned:
        size = file.size()
        data = file.read_device(self.position, min(SLICE_BYTES, max(size - self.position, 0)))
        read, at, batches = len(data), 0, 0
        while at < len(data):
            whole = batch_size_at(data, at, len(data))
            left = len(data) - at
            if at and (left < HEADER_BYTES or left < whole <= size - self.position):
                break  # it goes on behind this slice
            if not at and left < whole <= size - self.position:
                data = file.read_device(self.position, whole)
                read += len(data)
                left = len(data)
            if left < HEADER_BYTES or not whole or whole > left:
                self.problem = "its length makes no sense"
                break
            header = read_header(data, at)
            self.problem = self._problem(header, memoryview(data)[at : at + whole])
            if self.problem is not None:
                break
            if self._index is not None:
                self._index.note(header, header.base_offset, self._index_interval_bytes)
            at += whole
            batches += 1
            self.position += whole
            self.offset = header.next_offset
        if self.problem is None and self.position >= size:
            self._end(size)
        charge = max(read, BATCH_BYTES_MIN * max(batches, 8))
        return Scanned(read, charge)

    def _end(self, size: int) -> None:
        if size < self.segment.size:
            self.problem = f"its file is {self.segment.size - size} bytes too short"
        elif self.offset < self.end and not self.has_gaps:
            self.problem = GAP
        else:
            self.is_done = True

    def _problem(self, header: BatchHeader, batch: Bytes) -> str | None:
        """What is wrong with a batch that lies, or shall lie, at `position`."""
        if header.magic != MAGIC or header.last_offset_delta < 0:
            return "there is no batch"
        if not crc_matches(batch, header):
            return "its checksum does not match"
        base, following = header.base_offset, header.next_offset
        if base < self.offset or following > self.end:
            return f"its offset cannot be {base}"
        if self.has_gaps:
            return None
        if base > self.offset:
            return GAP
        if self.checks_epochs and following > self.start:
            epoch = self._epoch_at(max(base, self.start))
            if header.leader_epoch != epoch:
                return f"its epoch is {header.leader_epoch}, by the log's history {epoch}"
        return None

    def _epoch_at(self, offset: Offset) -> Epoch:
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else NO_EPOCH

    def _is_sound(self, file: File) -> bool:
        """Whether the batch at `position` is."""
        try:
            head = file.read_device(self.position, HEADER_BYTES)
            size = batch_size_at(head, 0, len(head))
            if len(head) < HEADER_BYTES or not size or size > file.size() - self.position:
                return False
            batch = file.read_device(self.position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return self._problem(read_header(batch), batch) is None

    # Mending. It blocks on the disk, too.

    def mend(self, disk: Disk, data: Bytes) -> tuple[Fit, int]:
        """Replace what lies at `position` by batches that another replica has at `offset`.

        How they fit, and how many bytes were not what they are. They are durable afterwards.
        """
        assert not self.has_gaps, "where offsets are missing, replicas differ"
        self._index = None
        if not self._ends_with(data):
            return Fit.NONE, 0
        path = self.segment.path()
        is_new = not disk.exists(path)
        file = disk.open(path, create=True)
        fit = Fit.WHOLE if self.offset == self.end else Fit.MORE
        written: list[tuple[int, bytes]] = []
        try:
            if not self._fits_before_sound(file, data):
                return Fit.NONE, 0
            for header, view in iterate_batches(data):
                if header.next_offset <= self.offset:
                    continue
                batch = bytes(view)
                problem = self._problem(header, batch)
                found = self._read_or_none(file, header.size)
                if problem is not None and problem != GAP and found == batch:
                    # Two replicas say the same: it is the history that is wrong.
                    self.checks_epochs = False
                elif problem is not None:
                    is_gap = problem == GAP and self.offset >= self.start
                    fit = Fit.GAP if is_gap else Fit.NONE
                    break
                if found != batch:
                    file.write(self.position, [batch])
                    written.append((self.position, batch))
                self.position += header.size
                self.offset = header.next_offset
                if self.offset == self.end or self._is_sound(file):
                    fit = Fit.WHOLE
                    break
            is_longer = self.offset == self.end and file.size() > self.position
            if is_longer:
                file.truncate(self.position)  # what lay behind belongs to nobody
            if written or is_new or is_longer:
                file.datasync()
            if is_new:
                disk.sync_directory(path.parent)
            if any(file.read_device(at, len(batch)) != batch for at, batch in written):
                return Fit.NONE, 0  # the device does not keep it
        finally:
            file.close()
        self.segment.size = max(self.segment.size, self.position)
        return fit, sum(len(batch) for _, batch in written)

    def _ends_with(self, data: Bytes) -> bool:
        """Whether batches that reach the segment's end fill its file.

        Those of a replica that was compacted once are smaller, and sound ones would go for them.
        """
        position, offset = self.position, self.offset
        for header, _ in iterate_batches(data):
            if header.next_offset > offset:
                position, offset = position + header.size, header.next_offset
        return offset != self.end or offset == self.offset or position >= self.segment.size

    def _fits_before_sound(self, file: File, data: Bytes) -> bool:
        """Whether batches end where the next sound one begins, or come to an end before that.

        Those of a replica that was compacted once are smaller, and would go over it.
        """
        placed = self._placed(data)
        is_other = self._own_offset(file) not in (None, self.offset)
        if placed and is_other and not self._is_at(file, placed, self.position):
            return False  # another batch lies here, and is sound: this is not where `offset` lies
        behind = self._next_sound(file, len(data), placed)
        if behind is None:
            return True
        ends = [(self.position, self.offset)]
        for header, _ in iterate_batches(data):
            position, offset = ends[-1]
            if header.base_offset > offset or offset >= behind[1]:
                break
            if header.next_offset > offset:
                ends.append((position + header.size, header.next_offset))
        if ends[-1] == behind or (ends[-1][0] <= behind[0] and ends[-1][1] < behind[1]):
            return True
        # A length that has rotted may lead to another sound one.
        first = copy(self)
        first.position, first.offset = ends[min(1, len(ends) - 1)]
        return first.offset > self.offset and first._is_sound(file)

    def _placed(self, data: Bytes) -> dict[int, Bytes]:
        """Batches that another replica sent, by where they would lie in the file."""
        placed, position = dict[int, Bytes](), self.position
        for header, batch in iterate_batches(data):
            if header.next_offset > self.offset:
                placed[position] = batch
                position += header.size
        return placed

    def _is_at(self, file: File, placed: Mapping[int, Bytes], position: int) -> bool:
        """Whether the batch that would lie there does, whatever offset and epoch it has there."""
        if (batch := placed.get(position)) is None:
            return False
        there = copy(self)
        there.position = position
        found = there._read_or_none(file, len(batch))
        return found is not None and found[MAGIC_AT:] == batch[MAGIC_AT:]

    def _own_offset(self, file: File) -> Offset | None:
        """The offset that the batch at `position` has by itself, if it is sound there."""
        head = self._read_or_none(file, HEADER_BYTES)
        if head is None or len(head) < HEADER_BYTES:
            return None
        there = copy(self)
        there.offset = read_header(head).base_offset
        is_ours = self.segment.base <= there.offset < self.end and there._is_sound(file)
        return there.offset if is_ours else None

    def _next_sound(self, file: File, size: int, placed: Mapping[int, Bytes]) -> tuple[int, Offset] | None:
        """Where the next sound batch lies: behind this one, or else within so many bytes.

        Not one that is `placed` there with another offset: its offset has rotted.
        """

        def has_rotted(position: int, offset: Offset) -> bool:
            is_there = self._is_at(file, placed, position)
            return is_there and read_header(placed[position]).base_offset != offset

        with suppress(OSError):
            behind = self._sound_behind(file)
            if behind is not None and not has_rotted(*behind):
                return behind
        behind = None
        data = self._readable(file, size + HEADER_BYTES)
        found, other = len(data), copy(self)
        last = bisect_right(self._starts, self.end - 1)
        for epoch in self._epochs[max(bisect_right(self._starts, self.offset) - 1, 0) : last]:
            mark = epoch.to_bytes(MAGIC_AT - PREFIX_BYTES, "big") + bytes([MAGIC])
            at = data.find(mark, PREFIX_BYTES + 1)
            while 0 <= at - PREFIX_BYTES < found:
                base = int.from_bytes(data[at - PREFIX_BYTES : at - PREFIX_BYTES + 8], "big")
                if self.offset < base < self.end:
                    other.position, other.offset = self.position + at - PREFIX_BYTES, base
                    if other._is_sound(file) and not has_rotted(other.position, base):
                        found = at - PREFIX_BYTES
                        behind = other.position, other.offset
                        break
                at = data.find(mark, at + 1)
        return behind

    def _readable(self, file: File, size: int) -> bytes:
        """What lies at `position`; zeros where the device does not read it."""
        size = max(min(size, file.size() - self.position), 0)
        whole = self._read_or_none(file, size)
        if whole is not None:
            return whole
        page, pieces = copy(self), []
        for at in range(0, size, PAGE_BYTES):
            page.position = self.position + at
            length = min(PAGE_BYTES, size - at)
            pieces.append(page._read_or_none(file, length) or bytes(length))
        return b"".join(pieces)

    def _read_or_none(self, file: File, size: int) -> bytes | None:
        try:
            return file.read_device(self.position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None


def _content(disk: Disk, path: Path) -> bytes | None:
    """What the file holds; None if it is gone, or the device does not read it."""
    try:
        return read_file(disk, path)
    except OSError:
        return None
