"""Offsets by time. Blocks on the disk: call it from the disk's threads.

Rule: only this search and the tools unpack records; the time of a single record is nowhere else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.host import Disk
from tidelog.log.log import Log
from tidelog.log.segment import Segment, read_settled, walk
from tidelog.model import NO_TIMESTAMP, Epoch, Offset
from tidelog.records import BatchHeader, iterate_times

_UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024
_UNPACKED_TIMES_MAX: Final = 16
"""What a batch may grow to when it is unpacked: so much, or so many times its size. Producers
limit a batch before they compress it, so an honest one is far smaller."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record's place and time."""

    offset: Offset
    timestamp_ms: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TimeSearch:
    """A search over the segments as they were when it was made, from `start` up to `limit`."""

    segments: list[Segment]
    start: Offset
    limit: Offset

    @classmethod
    def over(cls, log: Log, limit: Offset) -> "TimeSearch":
        return cls(list(log.segments), log.start, limit)

    def first_since(self, disk: Disk, timestamp_ms: int) -> Found | None:
        """The first record with `timestamp_ms` or later."""
        for segment in self.segments:
            if found := read_settled(segment, partial(self._first_in, disk, timestamp_ms)):
                return found
        return None

    def _first_in(self, disk: Disk, timestamp_ms: int, segment: Segment) -> Found | None:
        if self._newest(disk, segment) < timestamp_ms:
            return None
        from_offset = segment.offset_before(disk, timestamp_ms)
        for header, position in self._batches(disk, segment, from_offset):
            if header.max_timestamp >= timestamp_ms and (
                found := self._in_batch(disk, segment, header, position, timestamp_ms)
            ):
                return found
        return None

    def newest(self, disk: Disk) -> Found | None:
        """The first of the records with the greatest time."""
        best: Found | None = None
        for segment in self.segments:
            best = read_settled(segment, partial(self._newest_in, disk, best)) or best
        return best

    def _newest_in(self, disk: Disk, above: Found | None, segment: Segment) -> Found | None:
        """The first of a segment's newest records, if they are newer than `above`."""
        best: tuple[BatchHeader, int] | None = None
        best_ms = above.timestamp_ms if above is not None else NO_TIMESTAMP - 1
        if self._newest(disk, segment) <= best_ms:
            return None
        for header, position in self._batches(disk, segment, segment.base):
            time_ms = header.max_timestamp
            if time_ms <= best_ms:
                continue
            if header.base_offset < self.start or header.next_offset > self.limit:
                # Its newest record may not count; only such a batch must be looked into.
                times = self._times(disk, segment, header, position)
                time_ms = max((t for _, t in times), default=NO_TIMESTAMP)
            if time_ms > best_ms:
                best, best_ms = (header, position), time_ms
        return None if best is None else self._in_batch(disk, segment, *best, best_ms)

    def _newest(self, disk: Disk, segment: Segment) -> int:
        if segment.times is None and segment.max_timestamp_ms == NO_TIMESTAMP:
            segment.load_max_timestamp(disk)
        # Without an index the times are not known: look inside.
        return segment.max_timestamp_ms if segment.max_timestamp_ms != NO_TIMESTAMP else 2**63 - 1

    def _batches(
        self, disk: Disk, segment: Segment, offset: Offset
    ) -> Iterator[tuple[BatchHeader, int]]:
        try:
            file = segment.open(disk)
        except FileNotFoundError:
            return  # nothing was written yet, or it was deleted meanwhile
        position = segment.position_before(disk, offset)
        for header, at in walk(file, position, file.size()):
            if header.base_offset >= self.limit:
                return
            # Compaction leaves batches without a record, which keep their time.
            if header.last_offset >= self.start and header.record_count and not header.is_control:
                yield header, at

    def _in_batch(
        self, disk: Disk, segment: Segment, header: BatchHeader, position: int, timestamp_ms: int
    ) -> Found | None:
        for offset, time_ms in self._times(disk, segment, header, position):
            if time_ms >= timestamp_ms:
                return Found(offset, time_ms, header.leader_epoch)
        return None

    def _times(
        self, disk: Disk, segment: Segment, header: BatchHeader, position: int
    ) -> Iterator[tuple[Offset, int]]:
        """Offset and time of the records of a batch that count."""
        batch = segment.open(disk).read(position, header.size)
        size_max = max(_UNPACKED_BYTES_MAX, _UNPACKED_TIMES_MAX * len(batch))
        for offset, time_ms in iterate_times(batch, size_max=size_max):
            if self.start <= offset < self.limit:
                yield offset, time_ms
