"""Elections that an operator asks for: whom they brought, partition by partition."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.client.admin import AdminClient, Election
from tidelog.client.cluster import PartitionInfo, Refused
from tidelog.model import NO_NODE, NodeId, TopicPartition

ELECTED: Final = "elected"
NOT_NEEDED: Final = "not needed"
REFUSED: Final = "refused"
ASKED_MAX: Final = 10
PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one partition."""

    topic: str
    partition: int
    leader: NodeId | None
    outcome: str
    error: str | None


async def elect(
    client: AdminClient, kind: Election, topic: str | None, numbers: Sequence[int] | None
) -> list[Outcome]:
    """Elect leaders of a topic's partitions, or of all that need one."""
    places = None
    if topic is not None:
        known = [one.partition for one in (await client.topic(topic)).partitions]
        places = [TopicPartition(topic, number) for number in numbers or known]
    before = now = await _partitions(client)
    fates = await client.elect_leaders(kind, places)
    elected = [name for name, fate in fates.items() if fate is None]
    for _ in range(ASKED_MAX):
        now = await _partitions(client)
        if all(_leads_another(before.get(name), now.get(name)) for name in elected):
            break
        await asyncio.sleep(PAUSE_SECONDS)  # the node that tells it hears of it a little late
    return [outcome(name, fate, now) for name, fate in fates.items()]


def _leads_another(before: PartitionInfo | None, now: PartitionInfo | None) -> bool:
    """Whether the partition is known to be led by the one that was elected, or is no more."""
    return now is None or now.leader not in (NO_NODE, NO_NODE if before is None else before.leader)


async def _partitions(client: AdminClient) -> dict[TopicPartition, PartitionInfo]:
    return {
        TopicPartition(topic.name, one.partition): one
        for topic in await client.topics()
        for one in topic.partitions
    }


def outcome(
    name: TopicPartition, fate: Refused | None, now: Mapping[TopicPartition, PartitionInfo]
) -> Outcome:
    """What `fate` means, now that the metadata is this."""
    word = ELECTED
    if fate is not None:
        word = NOT_NEEDED if fate.code == ErrorCode.election_not_needed else REFUSED
    leader = now[name].leader if name in now else NO_NODE
    return Outcome(
        topic=name.topic, partition=name.partition, leader=None if leader == NO_NODE else leader,
        outcome=word, error=str(fate) if word == REFUSED else None,
    )  # fmt: skip
