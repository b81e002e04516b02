"""A segment that is read for rot, and whether it still is the one that was looked at.

Rule: a visit names the partition, the log and the segment. Deletion, compaction and cuts put
      another log or segment in their place, and the visit is over: whoever waited looks first.
"""

from bisect import bisect_right
from typing import NamedTuple

from tidelog.log.log import Log
from tidelog.log.scrub import SegmentScrub
from tidelog.log.segment import Segment
from tidelog.model import Offset
from tidelog.partition.driver import Partition
from tidelog.replication.replicas import Replicas


class Visit(NamedTuple):
    """One segment of one log, being read."""

    partition: Partition
    log: Log
    scrub: SegmentScrub
    is_committed: bool
    """Whether all of the segment is, as far as this node knows."""

    def is_current(self, replicas: Replicas) -> bool:
        """Whether the segment is still what a replica of this node has there."""
        partition, log, segment = self.partition, self.log, self.scrub.segment
        return (
            replicas.holds(partition)
            and partition.log is log
            and log.damaged_at is None
            and not partition.mending.is_busy
            and _segment_at(log, segment.base) is segment
        )


def visit_at(partition: Partition, offset: Offset, *, uncommitted: bool) -> Visit | None:
    """The sealed segment that holds `offset`, or the first after it; None if there is none.

    While nobody changes the partition's files: else a compacted segment's file may be the one before.
    """
    log = partition.log
    if log.damaged_at is not None or partition.mending.is_busy:
        return None  # it is being brought in line, or will be
    at = max(bisect_right(log.segments, offset, key=lambda segment: segment.base) - 1, 0)
    if at + 1 >= len(log.segments):
        return None
    end = log.segments[at + 1].base
    is_committed = end <= partition.high_watermark
    if not is_committed and (not uncommitted or partition.has_gaps):
        return None
    if end > log.synced_end:  # of an idle log nobody else might ever sync the rest
        partition.sync()
        return None
    scrub = SegmentScrub(
        log.segments[at],
        end,
        start=log.start,
        epochs=log.epochs,
        has_gaps=partition.has_gaps,
        checks_epochs=partition.is_copy,
        index_interval_bytes=partition.config.index_interval_bytes,
    )
    return Visit(partition, log, scrub, is_committed)


def _segment_at(log: Log, base: Offset) -> Segment | None:
    at = bisect_right(log.segments, base, key=lambda segment: segment.base) - 1
    return log.segments[at] if at >= 0 else None
