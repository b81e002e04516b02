"""Who leads a partition, and who is in sync, when brokers go and come.

Rule 1: a clean leader is in the in-sync set, or is eligible: it holds all that was committed.
        Nobody else leads unless an operator, or the topic's config, says so.
Rule 2: every change rises the partition epoch, and the leader epoch if the leader is another one
        or becomes nobody. What was proposed on the state before is then known as stale.
Rule 3: the last of an in-sync set stays in it though it is fenced: only it can lead again.
Rule 4: functions here look and answer; `membership` and `registration` say when they are asked.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidelog.config.topic import BY_REPLICAS, enough_in_sync
from tidelog.controller.image import ClusterImage, PartitionImage, Place, TopicImage
from tidelog.controller.records import PartitionChanged
from tidelog.controller.reports import ReplicaReports
from tidelog.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    PreferredLeaderNotAvailable,
)
from tidelog.model import NO_EPOCH, NO_NODE, NO_OFFSET, NodeId

MinInSync: TypeAlias = Callable[[TopicImage], int]
"""The topic's `min.insync.replicas`, its own or the cluster's; BY_REPLICAS where nobody set it."""


def min_in_sync(default: int = BY_REPLICAS) -> MinInSync:
    """What the topic's config says, or else the cluster's."""

    def of(topic: TopicImage) -> int:
        return int(topic.config.get("min.insync.replicas", default))

    return of


@dataclass(frozen=True, slots=True, kw_only=True)
class Electorate:
    """Who can be elected, and what is known of them."""

    active: frozenset[NodeId]
    reports: ReplicaReports
    min_in_sync: MinInSync

    @classmethod
    def of(
        cls, image: ClusterImage, reports: ReplicaReports, min_in_sync: MinInSync
    ) -> "Electorate":
        active = frozenset(image.active_nodes())
        return cls(active=active, reports=reports, min_in_sync=min_in_sync)

    def with_nodes(self, nodes: Iterable[NodeId]) -> "Electorate":
        return replace(self, active=self.active.union(nodes))

    def without_nodes(self, nodes: Iterable[NodeId]) -> "Electorate":
        return replace(self, active=self.active.difference(nodes))

    def minimum(self, topic: TopicImage, partition: PartitionImage) -> int:
        """How many must be in sync for anything to be committed."""
        return enough_in_sync(self.min_in_sync(topic), len(partition.replicas))


def change(place: Place, after: PartitionImage) -> PartitionChanged:
    """The record that makes the partition so, with the epochs that it takes."""
    return PartitionChanged(
        topic=str(place.topic.id), partition=place.number, state=place.partition.then(after).state
    )


# Choosing.


def choose(partition: PartitionImage, electorate: Electorate) -> NodeId | None:
    """Who may lead without losing anything; None if nobody who is there."""
    for among in (partition.in_sync, partition.eligible):
        best = _best(partition, among & electorate.active, electorate.reports)
        if best is not None:
            return best
    return None


def choose_unclean(partition: PartitionImage, electorate: Electorate) -> NodeId | None:
    """Who would lose the least of those who are there."""
    there = electorate.active.intersection(partition.replicas)
    return _best(partition, there, electorate.reports)


def _best(
    partition: PartitionImage, among: Collection[NodeId], reports: ReplicaReports
) -> NodeId | None:
    """The greatest (last epoch, end) that is known of; among equals the first of the replicas."""
    best, most = None, (NO_EPOCH - 1, NO_OFFSET - 1)
    for node in partition.replicas:
        if node in among:
            report = reports.get(node, partition.cluster_id)
            has = (NO_EPOCH, NO_OFFSET) if report is None else (report.last_epoch, report.end)
            if has > most:
                best, most = node, has
    return best


def led_by(partition: PartitionImage, leader: NodeId) -> PartitionImage:
    """The partition under another leader, who is in sync or eligible."""
    if leader in partition.in_sync:
        return partition.edited(leader=leader, lost=())
    # Nothing was committed since it left, so those who stayed hold no more that counts than it.
    assert leader in partition.eligible, "a clean leader is in sync or eligible"
    return partition.edited(
        leader=leader, in_sync=frozenset({leader}), lost=(),
        eligible=(partition.eligible | partition.in_sync) - {leader},
    )  # fmt: skip


def led_anew(partition: PartitionImage, electorate: Electorate) -> PartitionImage:
    """The partition under the best leader that there is, or under nobody."""
    leader = choose(partition, electorate)
    return partition.edited(leader=NO_NODE) if leader is None else led_by(partition, leader)


# Brokers that go.


def without(place: Place, gone: Collection[NodeId], electorate: Electorate) -> PartitionImage:
    """The partition when `gone` can neither lead nor be in sync."""
    assert electorate.active.isdisjoint(gone), "who is gone is not elected"
    partition = place.partition
    stay = partition.in_sync.difference(gone)
    if not stay and partition.in_sync:
        stay = frozenset({_last_to_stay(partition, electorate.reports)})
    eligible = eligible_beside(stay, place, electorate)
    after = partition.edited(in_sync=stay, eligible=eligible)
    return led_anew(after, electorate) if partition.leader in gone else after


def _last_to_stay(partition: PartitionImage, reports: ReplicaReports) -> NodeId:
    if partition.leader in partition.in_sync:
        return partition.leader
    best = _best(partition, partition.in_sync, reports)
    assert best is not None, "who is in sync is a replica"
    return best


def eligible_beside(
    in_sync: frozenset[NodeId], place: Place, electorate: Electorate
) -> frozenset[NodeId]:
    """Who may lead beside the smaller set `in_sync`: while that commits nothing, all who left."""
    partition = place.partition
    if len(in_sync) >= electorate.minimum(place.topic, partition):
        return frozenset()
    return (partition.eligible | partition.in_sync) - in_sync


def leave(
    image: ClusterImage, nodes: Collection[NodeId], electorate: Electorate
) -> Iterator[PartitionChanged]:
    """What changes when `nodes` lead nothing more and leave the in-sync sets."""
    for place in _held_by_any(image, nodes):
        after = without(place, nodes, electorate)
        if after != place.partition:
            yield change(place, after)


def _held_by_any(image: ClusterImage, nodes: Collection[NodeId]) -> Iterable[Place]:
    places: dict[int, Place] = {}
    for node in sorted(nodes):
        places |= image.held.get(node, {})
    return places.values()


# Brokers that come.


def come(
    image: ClusterImage, nodes: Collection[NodeId], electorate: Electorate
) -> Iterator[PartitionChanged]:
    """What nobody leads, and somebody can now that `nodes` are among the active."""
    offline = image.led.get(NO_NODE, {})
    if offline:
        for place in _held_by_any(image, nodes):
            if place.partition.leader == NO_NODE:
                leader = choose(place.partition, electorate)
                if leader is not None:
                    yield change(place, led_by(place.partition, leader))


def elect_all(image: ClusterImage, electorate: Electorate) -> Iterator[PartitionChanged]:
    """Everything that nobody leads and somebody can."""
    return come(image, electorate.active, electorate)


def restore_preferred(
    image: ClusterImage, electorate: Electorate, *, count_max: int
) -> list[PartitionChanged]:
    """Give partitions back to their first replicas, where these are there and in sync."""
    restored: list[PartitionChanged] = []
    for place in image.strayed.values():
        if len(restored) >= count_max:
            break
        partition = place.partition
        first = partition.replicas[0]
        if first in partition.in_sync and first in electorate.active:
            restored.append(change(place, led_by(partition, first)))
    return restored


# What an operator asks for.


def elect_preferred(place: Place, electorate: Electorate) -> PartitionChanged:
    """Let the first replica lead."""
    partition = place.partition
    first = partition.replicas[0]
    if partition.leader == first:
        raise ElectionNotNeeded(f"{place.name} is led by its first replica, {first}")
    if first not in electorate.active or first not in partition.in_sync:
        why = "in sync" if first in electorate.active else "there"
        raise PreferredLeaderNotAvailable(
            f"{first}, the first replica of {place.name}, is not {why}"
        )
    return change(place, led_by(partition, first))


def elect_unclean(place: Place, electorate: Electorate) -> PartitionChanged:
    """Let somebody lead, though committed records may be lost; nobody must lead now."""
    partition = place.partition
    if partition.leader != NO_NODE:
        raise ElectionNotNeeded(f"{place.name} is led by {partition.leader}")
    clean = choose(partition, electorate)
    if clean is not None:
        return change(place, led_by(partition, clean))
    leader = choose_unclean(partition, electorate)
    if leader is None:
        raise EligibleLeadersNotAvailable(
            f"no replica of {place.name} is there; start one of {list(partition.replicas)}"
        )
    return change(place, forced(partition, leader))


def promote(
    place: Place, target: NodeId | None, electorate: Electorate, *, force: bool
) -> PartitionChanged:
    """Let `target` lead, or whoever has the longest log; with `force` whatever may be lost."""
    partition = place.partition
    if target is None:
        target = (choose_unclean if force else choose)(partition, electorate)
    if target is None:
        raise EligibleLeadersNotAvailable(
            f"no replica of {place.name} that may lead is there; "
            f"in sync are {sorted(partition.in_sync)}, eligible {sorted(partition.eligible)}"
        )
    if target not in partition.replicas:
        raise InvalidReplicaAssignment(
            f"{target} holds no replica of {place.name}; {list(partition.replicas)} do"
        )
    if target == partition.leader:
        raise ElectionNotNeeded(f"{place.name} is led by {target}")
    if target not in electorate.active:
        raise EligibleLeadersNotAvailable(f"{target} is not there, or is about to stop")
    if target in partition.in_sync or (
        partition.leader == NO_NODE and target in partition.eligible
    ):
        return change(place, led_by(partition, target))
    if not force:
        raise EligibleLeadersNotAvailable(
            f"{target} is not in sync with {place.name}; wait until it is, "
            "or use --force, and lose what it does not have"
        )
    return change(place, forced(partition, target))


def forced(partition: PartitionImage, leader: NodeId) -> PartitionImage:
    """The partition under a leader who may lack committed records: its log is the truth now."""
    return partition.edited(
        leader=leader, in_sync=frozenset({leader}), eligible=frozenset(), lost=()
    )
