"""Where logs begin and end, asked of those who lead them; a part of other verbs."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from tidelog.broker.broker import Broker
from tidelog.broker.offset_search import EARLIEST, LATEST, find_offset
from tidelog.errors import LeaderNotAvailable, UnknownTopicOrPartition
from tidelog.model import NO_NODE, NodeId, Offset, TopicPartition
from tidelog.operators.values import Place
from tidelog.operators.verbs import DESCRIBE_CLUSTER, Verb

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk


class FindOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The first offsets since a time, or the ends, of partitions that one node leads."""

    places: list[Place]
    time_ms: int


class OffsetsFound(msgspec.Struct, frozen=True, kw_only=True):
    offsets: list[int]
    """In the order of the places; -1 where no record is that young."""


async def find_here(desk: "Desk", asked: FindOffsets) -> OffsetsFound:
    broker = desk.broker
    found = []
    for place in asked.places:
        partition = broker.partition(place.topic, place.partition)
        found.append((await find_offset(broker, partition, asked.time_ms, False)).offset)
    return OffsetsFound(offsets=found)


async def find(desk: "Desk", places: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, Offset]:
    """The first offset since a time, or an end, of each partition; whoever leads them is asked."""
    wanted = list(places)

    async def attempt(deadline: float) -> dict[TopicPartition, Offset]:
        by_leader: dict[NodeId, list[TopicPartition]] = {}
        for name in wanted:
            by_leader.setdefault(leader_of(desk.broker, name), []).append(name)
        answers = await asyncio.gather(
            *(desk.send(node, FIND, _question(some, time_ms), deadline) for node, some in by_leader.items())
        )
        return {
            name: offset
            for some, answer in zip(by_leader.values(), answers, strict=True)
            for name, offset in zip(some, answer.offsets, strict=True)
        }

    return await desk.patiently(attempt)


async def earliest(desk: "Desk", places: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
    return await find(desk, places, EARLIEST)


async def latest(desk: "Desk", places: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
    return await find(desk, places, LATEST)


def _question(names: Iterable[TopicPartition], time_ms: int) -> FindOffsets:
    places = [Place(topic=name.topic, partition=name.partition) for name in names]
    return FindOffsets(places=places, time_ms=time_ms)


def leader_of(broker: Broker, name: TopicPartition) -> NodeId:
    """Who leads a partition; LeaderNotAvailable if nobody does."""
    topic = broker.image.topics.get(name.topic)
    if topic is None or not 0 <= name.partition < len(topic.partitions):
        raise UnknownTopicOrPartition(name)
    leader = topic.partitions[name.partition].leader
    if leader == NO_NODE:
        raise LeaderNotAvailable(f"{name} has no leader now")
    return leader


FIND: Final = Verb(
    name="offsets.find",
    is_internal=True,
    do=find_here,
    permission=DESCRIBE_CLUSTER,
    summary="Where logs that this node leads begin, end, or have the first record since a time.",
)
VERBS: Final = (FIND,)
