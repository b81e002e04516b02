"""Which replicas there are, how far each may be read, and how the work is cut.

Rule 1: a partition is audited from the latest start that one of its replicas has: what retention
        has taken from one, another need not have.
Rule 2: each replica is read up to the watermark that it knows itself. It holds everything below
        that, so whatever is not there is missing.
Rule 3: a replica that cannot say how far it may be read is noted, and not read.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.client.admin import AdminClient, Resource
from tidelog.client.cluster import ADVICE, Refused, TopicInfo
from tidelog.client.wire import ConnectionFailed
from tidelog.errors import TidelogError
from tidelog.model import NodeId, Offset, TopicPartition
from tidelog.spark.audit.replica import PAUSE_SECONDS_MAX, broker_of, probe
from tidelog.spark.audit.walk import Answer, Stretch

PATIENCE_SECONDS: Final = 10.0
STRETCH_OFFSETS_MIN: Final = 50_000
"""A task costs some milliseconds: so many offsets should be worth one."""
TASKS_PER_CORE: Final = 8
NO_ANSWER: Final = "its broker is not there"


class CannotAudit(TidelogError):
    """There is nothing that could be compared; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a partition; from `start` to `end` it is audited."""

    topic: str
    partition: int
    node: NodeId
    is_leader: bool
    is_in_sync: bool
    start: Offset = 0
    end: Offset = 0
    problem: str = ""
    """Why it is not read."""

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """What is audited, as it was when the audit began."""

    cluster_id: str
    replicas: tuple[Replica, ...]
    compacted: frozenset[str]
    """The topics whose replicas are compared by record."""
    ids: Mapping[str, UUID | None] = field(default_factory=dict)
    """Of the topics: one that is made anew under its name is another."""

    @property
    def offsets(self) -> int:
        """How many offsets are read, over all replicas."""
        return sum(replica.end - replica.start for replica in self.replicas)

    def stretches(self, cores: int) -> list[Stretch]:
        """The work, in parts; about TASKS_PER_CORE for each core if there is enough of it."""
        size = max(STRETCH_OFFSETS_MIN, -(-self.offsets // max(1, cores * TASKS_PER_CORE)))
        alone = _alone(self.replicas)
        return [
            Stretch(
                topic=one.topic,
                partition=one.partition,
                replica=one.node,
                start=start,
                end=min(start + size, one.end),
                is_first=start == one.start,
                is_compacted=one.topic in self.compacted,
                is_alone=one.place in alone,
            )
            for one in self.replicas
            for start in range(one.start, one.end, size)
        ]


async def make_plan(
    client: AdminClient, topics: Sequence[str] = (), *, patience_seconds: float = PATIENCE_SECONDS
) -> AuditPlan:
    """Ask the cluster; all topics unless some are named. CannotAudit if no replica can be read."""
    cluster = await client.cluster()
    found = await _topics(client, topics)
    replicas = [
        Replica(
            topic=topic.name,
            partition=partition.partition,
            node=node,
            is_leader=node == partition.leader,
            is_in_sync=node in partition.in_sync,
        )
        for topic in found
        for partition in topic.partitions
        for node in partition.replicas
    ]
    if not replicas:
        raise CannotAudit("there are no topics to audit")
    compacted = await _compacted(client, found)
    bounded = bound(replicas, await _probe_all(client, replicas, patience_seconds))
    if all(replica.problem for replica in bounded):
        raise CannotAudit(f"no replica can be read: {bounded[0].problem}")
    return AuditPlan(
        cluster_id=cluster.cluster_id or "",
        replicas=tuple(bounded),
        compacted=compacted,
        ids={topic.name: topic.id for topic in found},
    )


async def still_there(client: AdminClient, plan: AuditPlan) -> frozenset[tuple[str, int, NodeId]]:
    """The replicas that the cluster has now, of the topics that were planned."""
    return frozenset(
        (topic.name, partition.partition, node)
        for topic in await client.topics()
        if topic.name in plan.ids and plan.ids[topic.name] == topic.id
        for partition in topic.partitions
        for node in partition.replicas
    )


async def later_stretches(
    client: AdminClient,
    plan: AuditPlan,
    wanted: Collection[tuple[str, int, NodeId]],
    *,
    patience_seconds: float = PATIENCE_SECONDS,
) -> list[Stretch]:
    """What these replicas have behind their ends by now."""
    chosen = [one for one in plan.replicas if (one.topic, one.partition, one.node) in wanted]
    told = await _probe_all(client, chosen, patience_seconds)
    return [
        Stretch(
            topic=one.topic,
            partition=one.partition,
            replica=one.node,
            start=one.end,
            end=answer.high_watermark,
            is_first=True,
            is_compacted=True,
        )
        for one in chosen
        if isinstance(answer := told[one.node, one.place], Answer) and answer.high_watermark > one.end
    ]


async def _topics(client: AdminClient, names: Sequence[str]) -> list[TopicInfo]:
    if not names:
        return await client.topics()
    for name in names:
        client.forget(name)
    return [await client.topic(name) for name in dict.fromkeys(names)]


async def _compacted(client: AdminClient, topics: Iterable[TopicInfo]) -> frozenset[str]:
    found = set()
    for topic in topics:
        for config in await client.describe_configs(Resource.TOPIC, topic.name):
            if config.name == "cleanup.policy" and "compact" in (config.value or ""):
                found.add(topic.name)
    return frozenset(found)


async def _probe_all(
    client: AdminClient, replicas: Iterable[Replica], patience_seconds: float
) -> dict[tuple[NodeId, TopicPartition], Answer | str]:
    """What each replica's broker says of it, or why it says nothing."""
    wanted: dict[NodeId, list[TopicPartition]] = {}
    for replica in replicas:
        wanted.setdefault(replica.node, []).append(replica.place)
    told = await asyncio.gather(
        *(_probe(client, node, places, patience_seconds) for node, places in wanted.items())
    )
    return {
        (node, place): answer
        for node, answers in zip(wanted, told, strict=True)
        for place, answer in answers.items()
    }


async def _probe(
    client: AdminClient, node: NodeId, places: list[TopicPartition], patience_seconds: float
) -> dict[TopicPartition, Answer | str]:
    """A broker that has just started, or just begun to follow, is asked again for a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    told: dict[TopicPartition, Answer | str] = {}
    left = places
    while True:
        try:
            told |= await probe(await broker_of(client, node), left)
        except Refused:
            return dict.fromkeys(places, NO_ANSWER)
        except ConnectionFailed as error:
            told |= dict.fromkeys(left, f"{NO_ANSWER}: {error}")
        left = [place for place in left if _why_not(told[place])]
        if not left or loop.time() >= deadline:
            return told
        await asyncio.sleep(PAUSE_SECONDS_MAX)


def _why_not(told: Answer | str) -> str:
    """Why a replica cannot be read; empty if it can."""
    if isinstance(told, str):
        return told
    if told.error not in (ErrorCode.none, ErrorCode.offset_out_of_range):
        return ADVICE.get(told.error) or ErrorCode(told.error).name.replace("_", " ")
    return "" if told.high_watermark >= 0 else "it does not know yet what is committed"


def bound(
    replicas: Iterable[Replica], told: dict[tuple[NodeId, TopicPartition], Answer | str]
) -> list[Replica]:
    """The replicas with their bounds, or with what keeps them from being read."""
    starts: dict[TopicPartition, Offset] = {}
    for (_, place), answer in told.items():
        if isinstance(answer, Answer) and not _why_not(answer):
            starts[place] = max(starts.get(place, 0), answer.log_start)
    bounded = []
    for one in replicas:
        answer = told[one.node, one.place]
        if isinstance(answer, str) or _why_not(answer):
            bounded.append(replace(one, problem=_why_not(answer)))
        else:
            start = starts[one.place]
            bounded.append(replace(one, start=start, end=max(start, answer.high_watermark)))
    return bounded


def _alone(replicas: Iterable[Replica]) -> set[TopicPartition]:
    counts: dict[TopicPartition, int] = {}
    for replica in replicas:
        counts[replica.place] = counts.get(replica.place, 0) + 1
    return {place for place, count in counts.items() if count == 1}
