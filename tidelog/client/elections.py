"""Elections that an operator asks for: whom they brought, partition by partition."""

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
    fates = await client.elect_leaders(kind, places)
    now = {
        TopicPartition(one.name, part.partition): part
        for one in await client.topics()
        for part in one.partitions
    }
    return [outcome(name, fate, now) for name, fate in fates.items()]


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
