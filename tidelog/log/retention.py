"""Which segments are old enough to go.

Rule 1: a segment goes only as a whole, only from the start, and never past the watermark.
Rule 2: 'any' needs one limit passed; 'hybrid' needs the segment past both the age and the count.
Rule 3: a segment whose batches have no time is as old as the next one that has: clients may send
        none, and a restored hole has none. A log without any time loses nothing by its age.
Rule 4: a segment wholly below the log's start holds deleted records alone, and goes at once.
"""

from collections.abc import Sequence

from tidelog.config import TopicConfig
from tidelog.host import Disk
from tidelog.log.log import Log
from tidelog.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    walk,
)
from tidelog.model import NO_TIMESTAMP, Offset


def load_ages(disk: Disk, segments: list[Segment]) -> None:
    """Read the greatest times of sealed segments that are not known yet. Blocks on the disk."""
    for segment in segments:
        if segment.times is None and segment.max_timestamp_ms == NO_TIMESTAMP:
            if segment.is_timeless:
                continue
            segment.load_max_timestamp(disk)
            if segment.max_timestamp_ms == NO_TIMESTAMP:
                _scan_age(disk, segment)


def _scan_age(disk: Disk, segment: Segment) -> None:
    """Learn the greatest time from the batches: without it, a lost index would stop retention."""
    try:
        file = segment.open(disk)
    except FileNotFoundError:
        return  # the whole segment was deleted meanwhile
    for header, _ in walk(file, 0, segment.size):
        if header.max_timestamp > segment.max_timestamp_ms:
            segment.max_timestamp_ms = header.max_timestamp
            segment.max_timestamp_offset = header.last_offset
    segment.is_timeless = segment.max_timestamp_ms == NO_TIMESTAMP


def has_deleted_segments(log: Log) -> bool:
    """Whether the log has segments wholly below its start."""
    return len(log.segments) > 1 and log.segments[1].base <= log.start


def _times(log: Log) -> Sequence[int]:
    """The greatest time of each segment, or of the next one if its batches have none."""
    times: list[int] = []
    for segment in reversed(log.segments):
        time_ms = segment.max_timestamp_ms
        if time_ms == NO_TIMESTAMP and segment.is_timeless and times:
            time_ms = times[-1]
        times.append(time_ms)
    return times[::-1]


def new_start(log: Log, config: TopicConfig, watermark: Offset, now_ms: int) -> Offset:
    """Where the log should begin now; the caller deletes what lies before.

    It is the base of a segment, or the log's end when even the active segment is too old.
    """
    segments = log.segments
    size = log.size
    start = log.start
    times = _times(log)
    for at, segment in enumerate(segments):
        following = segments[at + 1].base if at + 1 < len(segments) else log.end
        if following > watermark or following <= segment.base:
            break
        too_old = (
            config.retention_ms >= 0
            and times[at] != NO_TIMESTAMP
            and now_ms - times[at] > config.retention_ms
        )
        # A whole segment is above the count or the size when what follows it still reaches it.
        # Only committed records count: the others may yet be lost.
        too_many = config.retention_records >= 0 and watermark - following >= config.retention_records
        too_big = config.retention_bytes >= 0 and size - segment.size >= config.retention_bytes
        if config.retention_mode == "hybrid":
            goes = (too_old and too_many) or too_big
        else:
            goes = too_old or too_many or too_big
        goes = goes or following <= log.start
        is_active = at + 1 == len(segments)
        if not goes or (is_active and not too_old):
            break
        start = following
        size -= segment.size
    return max(start, log.start)


def remove_segments(
    disk: Disk, segments: Sequence[Segment], first_kept: Offset, *, singly: bool = False
) -> None:
    """Remove the files of segments that the log no longer has, and snapshots of their time.

    `singly`: nobody has noted where the log begins now. Each segment, the oldest first, is then
    durably gone before the next one goes, so that a crash leaves no gap.
    """
    directories = {segment.directory: None for segment in segments}
    for segment in segments:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX):
            disk.remove(segment.path(suffix))
        if singly:
            disk.sync_directory(segment.directory)
    for path in directories:
        for name in disk.list(path):
            stem = name.removesuffix(SNAPSHOT_SUFFIX)
            if stem != name and stem.isdigit() and int(stem) < first_kept:
                disk.remove(path / name)
        disk.sync_directory(path)
