"""A leader wants another in-sync set: may it have it?

Rule 1: compare and set. A proposal names the leader epoch and the partition epoch that it was made
        on; if either has passed, it is refused, and the leader looks at the metadata.
Rule 2: who joins is there, is not about to stop, and is in the life that the leader saw: a disk
        that came back empty must not be taken for the one that was in sync before (KIP-903).
Rule 3: who joins has told the active controller, in that life, of its replica, and that it is not
        damaged. So only the active controller decides: nobody else has heard for sure.
Rule 4: who leaves while the set is too small to commit anything stays eligible (KIP-966).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog.controller.elections import Electorate, decided, with_in_sync
from tidelog.controller.image import ClusterImage, Place
from tidelog.controller.records import PartitionChanged
from tidelog.errors import (
    BrokerError,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotLeader,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.model import Epoch, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedInSync:
    """What a leader proposes, and what it was looking at."""

    topic_id: UUID
    partition: int
    leader: NodeId
    broker_epoch: int
    """The leader's own."""
    epoch: Epoch
    partition_epoch: int
    in_sync: Mapping[NodeId, int]
    """The members, each with the broker epoch that the leader knows it by."""


def change_in_sync(image: ClusterImage, wanted: WantedInSync, electorate: Electorate) -> PartitionChanged:
    """The record that makes the set so, or the reason why not."""
    topic = image.topics_by_id.get(wanted.topic_id)
    if topic is None:
        raise UnknownTopicId(wanted.topic_id)
    if not 0 <= wanted.partition < len(topic.partitions):
        raise UnknownTopicOrPartition(f"{topic.name}-{wanted.partition}")
    place = Place(topic, wanted.partition)
    partition = place.partition
    _check_life(image, wanted.leader, wanted.broker_epoch)
    if wanted.epoch < partition.epoch:
        raise FencedLeaderEpoch(f"the leader epoch is {partition.epoch}, not {wanted.epoch}")
    if wanted.leader != partition.leader or wanted.epoch != partition.epoch:
        raise NotLeader(leader=partition.leader)
    if wanted.partition_epoch != partition.partition_epoch:
        raise InvalidUpdateVersion(
            f"{place.name} is at partition epoch {partition.partition_epoch}, not {wanted.partition_epoch}"
        )
    if wanted.leader not in wanted.in_sync:
        raise IneligibleReplica(f"{wanted.leader} leads {place.name} and is in sync with itself")
    for node, broker_epoch in wanted.in_sync.items():
        _check_member(image, place, node, broker_epoch)
        if node not in partition.in_sync:
            _check_health(place, node, broker_epoch, electorate)
    return decided(place, with_in_sync(partition, frozenset(wanted.in_sync)), electorate)


def change_many(
    image: ClusterImage, wanted: Sequence[WantedInSync], electorate: Electorate
) -> tuple[list[PartitionChanged], dict[tuple[UUID, int], BrokerError]]:
    """The records for all that may be, and the reasons why the others may not.

    Of several proposals for one partition only the first counts: each was made on what is now.
    """
    changed: dict[tuple[UUID, int], PartitionChanged] = {}
    refused: dict[tuple[UUID, int], BrokerError] = {}
    for one in wanted:
        key = (one.topic_id, one.partition)
        if key not in changed and key not in refused:
            try:
                changed[key] = change_in_sync(image, one, electorate)
            except BrokerError as error:
                refused[key] = error
    return list(changed.values()), refused


def _check_health(place: Place, node: NodeId, broker_epoch: int, electorate: Electorate) -> None:
    """Refuse who is damaged, and who has not said yet that it is not."""
    report = electorate.reports.said_in(broker_epoch, node, place.partition.cluster_id)
    if report is None:
        raise IneligibleReplica(f"{node} has not told the controller of {place.name} yet")
    if report.damaged:
        raise IneligibleReplica(f"{node} is damaged in {place.name}")


def _check_life(image: ClusterImage, node: NodeId, broker_epoch: int) -> None:
    broker = image.brokers.get(node)
    current = -1 if broker is None else broker.broker_epoch
    if broker_epoch != current:
        raise StaleBrokerEpoch(epoch=broker_epoch, current=current)


def _check_member(image: ClusterImage, place: Place, node: NodeId, broker_epoch: int) -> None:
    broker = image.brokers.get(node)
    if node not in place.partition.replicas or broker is None:
        raise IneligibleReplica(f"{node} holds no replica of {place.name}")
    if not broker.is_active:
        raise IneligibleReplica(f"{node} is {'fenced' if broker.fenced else 'about to stop'}")
    if broker_epoch != broker.broker_epoch:
        raise IneligibleReplica(
            f"{node} is in another life: its broker epoch is {broker.broker_epoch}, not {broker_epoch}"
        )
