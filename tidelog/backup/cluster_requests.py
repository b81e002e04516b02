"""What backups ask of a cluster.

Rule: batches are restored by id, never by name: a topic that somebody makes anew meanwhile gets
nothing of them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.backup.manifest import GroupBackup, GroupOffset
from tidelog.backup.planning import LogNow
from tidelog.backup.problems import BackupError
from tidelog.client.admin import AdminClient, Resource, Source
from tidelog.client.cluster import ANSWER_SECONDS, Refused, check
from tidelog.client.kafka import EARLIEST, LATEST, LATEST_SURE, OffsetFound
from tidelog.client.wire import ConnectionFailed
from tidelog.config import TopicConfig
from tidelog.errors import UnsupportedVersion
from tidelog.model import QUEUES_TOPIC, Offset, TopicPartition
from tidelog.records import iterate_batches
from tidelog.wire.apis import Api

AT_ONCE: Final = 16
"""Questions of a kind that are on their way at the same time."""
QUEUES_DELETE_RETENTION_MS: Final = TopicConfig().delete_retention_ms
"""How long the log of the queues keeps tombstones; its settings are the cluster's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNow:
    """A topic, as the cluster has it."""

    name: str
    id: str
    is_internal: bool
    replication: int
    configs: Mapping[str, str]
    """What was set for it alone."""
    tombstones_ms: int | None
    """How long a compacted topic keeps tombstones; None if it is not compacted."""
    logs: Mapping[int, LogNow]


class BackupClient(AdminClient):
    """A cluster that backups are made of, and restored into."""

    # Making.

    async def backed_up_topics(self) -> list[str]:
        """Every topic that a backup of the whole cluster has."""
        return [
            topic.name for topic in await self.topics() if not topic.internal or topic.name == QUEUES_TOPIC
        ]

    async def has_topic(self, name: str, topic_id: str | None = None) -> bool:
        """Whether it is there; with an id, whether it is that one."""
        return any(topic.name == name and topic_id in (None, str(topic.id)) for topic in await self.topics())

    async def look_at(self, name: str) -> TopicNow:
        """A topic and its logs, asked anew."""
        self.forget(name)
        info = await self.topic(name)
        if info.id is None:
            raise BackupError(f"the brokers of {name!r} do not tell its id; they are too old")
        places = [one.partition for one in info.partitions]
        firsts = await self.list_offsets(name, dict.fromkeys(places, EARLIEST), read_committed=True)
        ends = await self._ends(name, places)
        configs: dict[str, str] = {}
        tombstones_ms: int | None = QUEUES_DELETE_RETENTION_MS
        if not info.internal:
            found = {one.name: one for one in await self.describe_configs(Resource.TOPIC, name)}
            configs = {
                one.name: one.value
                for one in found.values()
                if one.source == Source.TOPIC and one.value is not None
            }
            is_compacted = "compact" in (found["cleanup.policy"].value or "")
            tombstones_ms = int(found["delete.retention.ms"].value or 0) if is_compacted else None
        return TopicNow(
            name=name,
            id=str(info.id),
            is_internal=info.internal,
            replication=len(info.partitions[0].replicas),
            configs=configs,
            tombstones_ms=tombstones_ms,
            logs={
                one: LogNow(
                    start=firsts[one].offset,
                    end=max(ends[one].offset, firsts[one].offset),
                    epoch=ends[one].epoch,
                )
                for one in places
            },
        )

    async def _ends(self, name: str, places: Iterable[int]) -> dict[int, OffsetFound]:
        """The last stable offsets, from leaders that nobody can have replaced."""
        places = list(places)
        found = await self.list_offsets(name, dict.fromkeys(places, LATEST_SURE), read_committed=True)
        if any(one.offset < 0 for one in found.values()):  # of brokers that are older than that
            found = await self.list_offsets(name, dict.fromkeys(places, LATEST), read_committed=True)
        return found

    async def end_of(self, name: str, partition: int) -> OffsetFound:
        """Where what is decided of a partition ends by now."""
        return (await self._ends(name, [partition]))[partition]

    async def all_group_offsets(self) -> list[GroupBackup]:
        """What every group has committed."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(group: str) -> GroupBackup:
            async with turn:
                found = await self.group_offsets(group)
            return GroupBackup(
                group=group,
                offsets=tuple(
                    GroupOffset(
                        topic=place.topic,
                        partition=place.partition,
                        offset=committed.offset,
                        metadata=committed.metadata,
                    )
                    for place, committed in found.items()
                ),
            )

        groups = await asyncio.gather(*(one(listed.group) for listed in await self.list_groups()))
        return [group for group in groups if group.offsets]

    # Restoring.

    async def restore(self, topic: str, topic_id: UUID, partition: int, batches: bytes | bytearray) -> None:
        """Append batches at their offsets; wait until they are committed.

        A request whose answer was lost is sent again. Where the log ends by then tells how much of
        it was done the first time: all, nothing, or, if the leader changed meanwhile, as many
        batches as the new one had.
        """
        is_repeat = False
        left = memoryview(batches)

        async def attempt() -> None:
            nonlocal is_repeat, left
            connection = await self.leader(topic, partition)
            while left:
                repeats, is_repeat = is_repeat, True
                answer: Any = await connection.call(
                    Api.RESTORE_BATCHES,
                    timeout_seconds=self._timeout_seconds + ANSWER_SECONDS,
                    topic_id=topic_id,
                    partition=partition,
                    timeout=int(self._timeout_seconds * 1000),
                    records=bytes(left),
                )
                if answer.error_code != ErrorCode.offset_out_of_range:
                    check(answer.error_code, f"{topic}-{partition}", answer.error_message)
                    return
                rest = _after(left, answer.log_end) if repeats else None
                if rest is None:
                    raise BackupError(
                        f"{topic}-{partition} ends at offset {answer.log_end}, where nothing "
                        "should be yet: somebody else writes to it. Stop them, delete the topic, "
                        "and restore again"
                    )
                left = rest

        try:
            await self.retry(attempt)
        except UnsupportedVersion:
            raise BackupError(
                "the cluster's nodes cannot take a backup back; restore into nodes of this "
                "version or a newer one"
            ) from None
        except (Refused, ConnectionFailed) as error:
            raise BackupError(f"{topic}-{partition} could not be restored: {error}") from error

    async def end_restore(self, topic: str, topic_id: UUID, partition: int) -> None:
        """Say that all batches of a partition are there; what is kept in it may be served."""

        async def attempt() -> None:
            connection = await self.leader(topic, partition)
            answer: Any = await connection.call(
                Api.RESTORE_BATCHES,
                timeout_seconds=self._timeout_seconds + ANSWER_SECONDS,
                topic_id=topic_id,
                partition=partition,
                timeout=int(self._timeout_seconds * 1000),
                records=b"",
            )
            check(answer.error_code, f"{topic}-{partition}", answer.error_message)

        await self.retry(attempt)

    async def committed_end(self, topic: str, partition: int) -> Offset:
        """Where what is committed ends."""
        return (await self.list_offsets(topic, {partition: LATEST}))[partition].offset

    async def restore_group(self, group: GroupBackup) -> None:
        """Commit a group's offsets, as it had them."""
        places = {TopicPartition(one.topic, one.partition): one for one in group.offsets}
        await self.commit_offsets(
            group.group,
            {place: one.offset for place, one in places.items()},
            metadata={place: one.metadata for place, one in places.items()},
        )


Connect: TypeAlias = Callable[[str], BackupClient]
"""Makes a client of the addresses to begin with; whoever simulates a cluster gives another."""


def _after(batches: memoryview, log_end: Offset) -> memoryview | None:
    """Those of the batches that follow a log which ends there; None if it ends in none of them."""
    at = 0
    for header, batch in iterate_batches(batches):
        at += len(batch)
        if header.next_offset == log_end:
            return batches[at:]
    return None
