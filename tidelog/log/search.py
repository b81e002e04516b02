"""Offsets by time. Blocks on the disk: call it from the disk's threads.

Rule 1: only this search and the tools unpack records; the time of a single record is nowhere else.
Rule 2: a producer may write anything into a batch, and no broker looks. A header's time is a claim:
        one that no record bears out counts for nothing.
Rule 3: a batch that cannot be unpacked is taken for one record, its first, with the header's time.
        So a reader who begins there misses nothing. It is the newest only if no other can be read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.host import Disk
from tidelog.log.log import Log
from tidelog.log.segment import Segment, read_settled, walk
from tidelog.model import NO_TIMESTAMP, Epoch, Offset
from tidelog.records import BatchHeader, iterate_times

_UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024
_UNPACKED_TIMES_MAX: Final = 16
"""What a batch may grow to when it is unpacked: so much, or so many times its size. Producers
limit a batch before they compress it, so an honest one is far smaller."""
_CLAIMS_MAX: Final = 256
"""Batches that may hold the newest record: remembered so long before one is unpacked."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record's place and time."""

    offset: Offset
    timestamp_ms: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest record so far, and the first batch that cannot be unpacked."""

    found: Found | None = None
    unreadable: Found | None = None

    def is_beaten_by(self, time_ms: int, offset: Offset) -> bool:
        """Whether a record of that time is newer, or as new and earlier in the log."""
        best = self.found
        return best is None or (time_ms, -offset) > (best.timestamp_ms, -best.offset)


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
        best = _Newest()
        claims = [
            (-read_settled(segment, partial(self._newest, disk)), segment.base, segment)
            for segment in self.segments
        ]
        for claim, _, segment in sorted(claims, key=lambda each: each[:2]):
            if best.is_beaten_by(-claim, segment.base):
                best = read_settled(segment, partial(self._newest_in, disk, best))
        return best.found or best.unreadable

    def _newest_in(self, disk: Disk, best: "_Newest", segment: Segment) -> "_Newest":
        """`best`, or what is better of a segment.

        Claims are remembered, and the greatest is looked into when there are many: if it is true,
        most others are settled with it. So one batch is unpacked for many, and for each lie.
        """
        claims: list[tuple[BatchHeader, int]] = []
        for header, position in self._batches(disk, segment, segment.base):
            if best.is_beaten_by(header.max_timestamp, header.base_offset):
                claims.append((header, position))
                if len(claims) >= _CLAIMS_MAX:
                    best, claims = self._settle(disk, segment, best, claims)
        while claims:
            best, claims = self._settle(disk, segment, best, claims)
        return best

    def _settle(
        self, disk: Disk, segment: Segment, best: "_Newest", claims: list[tuple[BatchHeader, int]]
    ) -> tuple["_Newest", list[tuple[BatchHeader, int]]]:
        """Look into the batch with the greatest claim; what is left of the others."""
        at = max(range(len(claims)), key=lambda each: claims[each][0].max_timestamp)
        header, position = claims[at]
        try:
            times = self._times(disk, segment, header, position)
            greatest = max(((time_ms, -offset) for offset, time_ms in times), default=None)
        except CorruptMessage:
            best = replace(best, unreadable=best.unreadable or self._as_one(header))
        else:
            if greatest is not None and best.is_beaten_by(greatest[0], -greatest[1]):
                best = replace(best, found=Found(-greatest[1], greatest[0], header.leader_epoch))
        left = [*claims[:at], *claims[at + 1 :]]
        return best, [c for c in left if best.is_beaten_by(c[0].max_timestamp, c[0].base_offset)]

    def _newest(self, disk: Disk, segment: Segment) -> int:
        if segment.times is None and segment.max_timestamp_ms == NO_TIMESTAMP:
            segment.load_max_timestamp(disk)
        # Without an index the times are not known: look inside.
        return segment.max_timestamp_ms if segment.max_timestamp_ms != NO_TIMESTAMP else 2**63 - 1

    def _batches(self, disk: Disk, segment: Segment, offset: Offset) -> Iterator[tuple[BatchHeader, int]]:
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
        try:
            for offset, time_ms in self._times(disk, segment, header, position):
                if time_ms >= timestamp_ms:
                    return Found(offset, time_ms, header.leader_epoch)
        except CorruptMessage:
            return self._as_one(header)
        return None

    def _as_one(self, header: BatchHeader) -> Found:
        """What is known of a batch that cannot be unpacked."""
        offset = max(header.base_offset, self.start)
        return Found(offset, header.max_timestamp, header.leader_epoch)

    def _times(
        self, disk: Disk, segment: Segment, header: BatchHeader, position: int
    ) -> Iterator[tuple[Offset, int]]:
        """Offset and time of the records of a batch that count."""
        batch = segment.open(disk).read(position, header.size)
        size_max = max(_UNPACKED_BYTES_MAX, _UNPACKED_TIMES_MAX * len(batch))
        for offset, time_ms in iterate_times(batch, size_max=size_max):
            if self.start <= offset < self.limit:
                yield offset, time_ms
