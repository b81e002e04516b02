"""Topics that are there when a backup is restored: what becomes of them.

Rule 1: a topic is held while it is restored, and known by that when the restore is gone on with.
Rule 2: a restore lets topics go when everything is in its place. So one that is not held, and has
        all of its records, is done, and the cluster's own by now.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.backup.cluster_requests import BackupClient
from tidelog.backup.manifest import TopicBackup
from tidelog.backup.problems import BackupError
from tidelog.client.admin import Resource
from tidelog.config.topic import NEVER

_MARKS: Final[Mapping[str, str]] = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "retention.records": "-1",
    "retention.mode": "any",
    "min.compaction.lag.ms": str(NEVER),
    "max.compaction.lag.ms": str(NEVER),
}
"""By which a topic that is held is known, whichever version holds it."""
HOLD: Final[Mapping[str, str]] = {**_MARKS, "cleanup.policy": "delete"}
"""What a topic is made with, so that nothing goes before it was looked at. Nor does anything come:
a topic that is not compacted is no bucket, so none of its keys expires. And DeleteRecords, which
makes the log begin where it began, is refused where nothing but compaction deletes."""


async def is_unused(client: BackupClient, name: str, topic: TopicBackup) -> bool:
    """Whether a topic of the cluster's own is there, and nothing was ever written to it."""
    if not topic.is_internal:
        return False
    return not any([await client.committed_end(name, one.partition) for one in topic.partitions])


class Begun(NamedTuple):
    """A topic that a restore which was cut off has made, or that is empty."""

    is_let_go: bool
    may_lack: bool


async def look_at_begun(client: BackupClient, name: str, topic: TopicBackup) -> Begun:
    """How far a topic has come: it is held as a restore holds it, is empty, or was let go.

    One that was let go has all that a restore would bring, and what the cluster has written since.
    """
    found = {one.name: one.value for one in await client.describe_configs(Resource.TOPIC, name)}
    if all(found.get(key) == value for key, value in _MARKS.items()):
        return Begun(is_let_go=False, may_lack=False)
    ends = [await client.committed_end(name, one.partition) for one in topic.partitions]
    if not any(ends):
        return Begun(is_let_go=False, may_lack=False)
    if any(end < one.end for end, one in zip(ends, topic.partitions, strict=True)):
        raise BackupError(
            f"topic {name!r} is no restore that was cut off: it has other settings than those "
            "have, and ends before the backup does; delete it, or restore under another name with "
            "--into PREFIX"
        )
    return Begun(is_let_go=True, may_lack="compact" in (found["cleanup.policy"] or ""))


def already_there(topic: TopicBackup, name: str) -> str:
    """Why a restore does not begin."""
    if topic.is_internal:
        return (
            "this cluster has queues already; restore into one that has none, leave them out by "
            "naming topics with --topic, or go on with a restore by --resume"
        )
    return (
        f"topic {name!r} exists; delete it, restore under another name with --into PREFIX, or go "
        "on with a restore that was cut off by --resume"
    )


def other_partitions(topic: TopicBackup, name: str, count: int, needed: int) -> str:
    """Why it can never be."""
    if topic.is_internal:
        return (
            f"this cluster keeps queues in {count} partitions, the backup has {needed}; restore "
            "into a cluster that has never had a queue"
        )
    return f"topic {name!r} exists and has {count} partitions, not {needed}; delete it first"
