"""Elections: the first replica of a partition leads, or anybody where nobody does.

Rule: the active controller decides: it alone has heard how the replicas are.
"""

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tidelog.controller.decisions import find_topic
from tidelog.errors import BrokerError, ElectionNotNeeded, InvalidRequest
from tidelog.kafka.admin import elect
from tidelog.model import NO_NODE, NodeId, TopicPartition
from tidelog.operators.values import PartitionNumber, Partitions
from tidelog.operators.verbs import ALTER_CLUSTER, Http, Verb, at_controller

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

ELECTED: Final = "elected"
NOT_NEEDED: Final = "not needed"
REFUSED: Final = "refused"


class ElectionWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who shall lead: the first replica, or with `unclean` anybody, whatever is lost."""

    type: Literal["preferred", "unclean"]
    topic: str | None = None
    partition: PartitionNumber | None = None
    partitions: Partitions | None = None
    """Several, instead of one."""


class Elected(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader: int | None
    outcome: str
    """`elected`, `not needed` or `refused`."""
    error: str | None


class Elections(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[Elected]


async def elect_leaders(desk: "Desk", asked: ElectionWanted) -> Elections:
    broker, numbers = desk.broker, asked.partitions
    if asked.partition is not None:
        numbers = [asked.partition, *(numbers or ())]
    if numbers is not None and asked.topic is None:
        raise InvalidRequest("partition goes with topic; without both, all that need one are elected")
    places = None
    if asked.topic is not None:
        known = find_topic(broker.image, asked.topic)
        places = [TopicPartition(known.name, n) for n in numbers or range(len(known.partitions))]
    fates = await elect(broker, places, is_unclean=asked.type == "unclean")
    topics = broker.image.topics

    def leader(name: TopicPartition) -> NodeId:
        topic = topics.get(name.topic)
        is_there = topic is not None and name.partition < len(topic.partitions)
        return topic.partitions[name.partition].leader if topic is not None and is_there else NO_NODE

    return Elections(partitions=[elected(name, fates[name], leader(name)) for name in sorted(fates)])


def elected(name: TopicPartition, fate: BrokerError | None, leader: NodeId) -> Elected:
    """What became of a partition, which is led by `leader` now."""
    outcome = ELECTED
    if fate is not None:
        outcome = NOT_NEEDED if isinstance(fate, ElectionNotNeeded) else REFUSED
    return Elected(
        topic=name.topic,
        partition=name.partition,
        leader=None if leader == NO_NODE else leader,
        outcome=outcome,
        error=f"{name}: {fate}" if outcome == REFUSED else None,
    )


VERBS: Final = (
    Verb(
        name="elections.hold",
        do=elect_leaders,
        where=at_controller,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Elect leaders: preferred ones, or any for partitions without a leader.",
        http=Http("POST", "/v1/elections", id="moves_elect_leaders", errors={404: "There is no such topic."}),
    ),
)
