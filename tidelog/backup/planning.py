"""Which offsets of a partition are new since the last backup, and which files of it still serve.

Rule 1: nothing here asks anybody; it compares what is there with what was there.
Rule 2: what was backed up counts for a log only if it is the same log: of the same topic, not cut,
        and not deleted beyond the end of what is there. Otherwise it begins anew, and says why.
Rule 3: a compacted log is continued only while it still has every tombstone that was written since
        the last backup. It drops them `delete.retention.ms` after they were first cleaned; a key
        that was deleted between two backups would be back otherwise.
"""

from dataclasses import dataclass

from tidelog.backup.manifest import Chunk, PartitionBackup
from tidelog.model import Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNow:
    """One partition, as its leader tells."""

    start: Offset
    end: Offset
    """The last stable offset."""
    epoch: Epoch
    """The leader's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """One partition, as the last backup of it has it."""

    topic_id: str
    taken_ms: int
    partition: PartitionBackup
    kept_end: Offset | None = None
    """Where the epoch of that backup's leader has ended by now; None if nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a backup takes of one partition: chunks that are there, then offsets to be read."""

    start: Offset
    end: Offset
    epoch: Epoch
    kept: tuple[Chunk, ...] = ()
    read_from: Offset
    why_anew: str | None = None

    @property
    def new_offsets(self) -> int:
        return self.end - self.read_from


def plan(
    topic_id: str, now: LogNow, before: Before | None, *, tombstones_ms: int | None, now_ms: int
) -> Share:
    """What to take of a partition. `tombstones_ms`: how long its log keeps them, if compacted."""
    why = None if before is None else _why_anew(topic_id, now, before, tombstones_ms, now_ms)
    if before is None or why is not None:
        return Share(start=now.start, end=now.end, epoch=now.epoch, read_from=now.start, why_anew=why)
    kept = tuple(chunk for chunk in before.partition.chunks if chunk.end > now.start)
    read_from = before.partition.end if kept else now.start
    return Share(start=now.start, end=now.end, epoch=now.epoch, kept=kept, read_from=read_from)


def _why_anew(
    topic_id: str, now: LogNow, before: Before, tombstones_ms: int | None, now_ms: int
) -> str | None:
    there = before.partition
    if before.topic_id != topic_id:
        return "the topic was deleted and created again since the last backup"
    if now.end < there.end or (before.kept_end is not None and before.kept_end < there.end):
        return f"its log was cut below offset {there.end}, where the last backup ends"
    if now.start > there.end:
        return (
            f"offsets {there.end} to {now.start - 1} were deleted before they were backed up; "
            "make backups more often, or keep records for longer"
        )
    if tombstones_ms is not None and now_ms - before.taken_ms >= tombstones_ms:
        return (
            "the last backup is older than delete.retention.ms, so deletions since then may be compacted away"
        )
    return None
