"""Who leads a partition, and who is in sync, when brokers go and come.

Rule 1: a clean leader is in the in-sync set, or is eligible: it holds all that was committed.
        Nobody else leads unless an operator, or the topic's config, says so.
Rule 2: every change rises the partition epoch, and the leader epoch if the leader is another one
        or becomes nobody. What was proposed on the state before is then known as stale.
Rule 3: the last of an in-sync set stays in it though it is fenced: only it can lead again.
Rule 4: functions here look and answer; `membership` and `registration` say when they are asked.
Rule 5: who leaves an in-sync set stays eligible while nothing can be committed without it: until
        enough are in sync *and* somebody leads (`settled`; KIP-966).
Rule 6: a replica that says it is damaged neither leads nor is in sync while others are. If nobody
        else can lead cleanly, nobody leads: followers would copy the hole, or be cut where it
        begins, though the records may be on a disk that is only away. A sole replica leads, come
        what may: there is nothing to wait for.
Rule 7: a replica whose start had to discard what may have been a batch leads only if all who could
        lead are so, and are there to be compared, and nobody knows of more that was committed: what
        it took for a torn tail may have been rot. If one of them is damaged instead, nobody leads:
        it may have more than it can tell of, and committed. The doubt ends once the replica has
        fetched as many bytes again (`partition.cut_tail`). The same holds for one that lost its
        note of who wrote deleted records: it would write a retried batch twice.
Rule 8: a broker whose disk is full leads only what no other in-sync replica with room can lead, and
        is not preferred while it is full. When another takes over, the full broker leaves the
        in-sync set if enough stay, and more than one: it may not even have room to learn whom to
        follow.
Rule 9: a replica leads only once its broker has told of all that it holds, in this life: it may be
        damaged. A controller whose process has just begun has heard of nobody. It waits for a
        heartbeat, or for the end of a lease, and so do those who would do without that replica.
Rule 10: with `failover.mode` manual the controller takes leadership away, and gives it to nobody.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from uuid import UUID

from tidelog.config import TopicConfig, topic_config
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

ConfigOf: TypeAlias = Callable[[TopicImage], TopicConfig]
"""All settings of a topic, its own over those of the cluster."""


def own_config(topic: TopicImage) -> TopicConfig:
    """What the topic itself says, over what Tidelog comes with."""
    return topic_config(topic.config, TopicConfig())


def min_in_sync(default: int = BY_REPLICAS) -> MinInSync:
    """What the topic's config says, or else the cluster's."""

    def of(topic: TopicImage) -> int:
        return int(topic.config.get("min.insync.replicas", default))

    return of


@dataclass(frozen=True, slots=True, kw_only=True)
class Electorate:
    """Who can be elected, and what is known of them: for one decision, on one image."""

    active: frozenset[NodeId]
    reports: ReplicaReports
    min_in_sync: MinInSync
    config_of: ConfigOf = own_config
    unheard: frozenset[NodeId] = frozenset()
    """The brokers that have not told of all their replicas."""
    _minimums: dict[UUID, int] = field(default_factory=dict)
    _configs: dict[UUID, TopicConfig] = field(default_factory=dict)
    """Parsed once for each topic: a broker that goes may lead thousands of its partitions."""

    @classmethod
    def of(
        cls,
        image: ClusterImage,
        reports: ReplicaReports,
        min_in_sync: MinInSync,
        config_of: ConfigOf = own_config,
        *,
        unheard: frozenset[NodeId] = frozenset(),
    ) -> "Electorate":
        return cls(
            active=frozenset(image.active_nodes()),
            reports=reports,
            min_in_sync=min_in_sync,
            config_of=config_of,
            unheard=unheard,
        )

    def with_nodes(self, nodes: Iterable[NodeId]) -> "Electorate":
        return replace(self, active=self.active.union(nodes))

    def without_nodes(self, nodes: Iterable[NodeId]) -> "Electorate":
        return replace(self, active=self.active.difference(nodes))

    def minimum(self, topic: TopicImage, partition: PartitionImage) -> int:
        """How many must be in sync for anything to be committed."""
        return self.minimum_of(topic, partition.replication)

    def minimum_of(self, topic: TopicImage, replication: int) -> int:
        """The same, for a partition of the topic that has so many replicas."""
        wanted = self._minimums.get(topic.id)
        if wanted is None:
            wanted = self._minimums[topic.id] = self.min_in_sync(topic)
        return enough_in_sync(wanted, replication)

    def config(self, topic: TopicImage) -> TopicConfig:
        config = self._configs.get(topic.id)
        if config is None:
            config = self._configs[topic.id] = self.config_of(topic)
        return config

    def waits(self, topic: TopicImage, partition: PartitionImage) -> bool:
        """Whether an operator decides who leads the partition."""
        return partition.replication > 1 and self.config(topic).failover_mode == "manual"

    def may_lead(self, node: NodeId, partition: PartitionImage) -> bool:
        """Whether it is there and, unless it is the only one, known to be whole."""
        is_known = not self.is_unheard(node, partition)
        return node in self.active and is_known and not self.is_damaged(node, partition)

    def with_room(self, nodes: Iterable[NodeId]) -> set[NodeId]:
        """Those of `nodes` whose disks are not full."""
        return {node for node in nodes if not self.reports.is_full(node)}

    def is_unheard(self, node: NodeId, partition: PartitionImage) -> bool:
        return len(partition.replicas) > 1 and node in self.unheard

    def awaited(self, partition: PartitionImage) -> list[NodeId]:
        """The replicas that are there, and of which nothing is known yet."""
        there = self.active.intersection(partition.replicas)
        return sorted(node for node in there if self.is_unheard(node, partition))

    def is_cut(self, node: NodeId, partition: PartitionImage) -> bool:
        return len(partition.replicas) > 1 and self.reports.is_cut(node, partition.cluster_id)

    def is_damaged(self, node: NodeId, partition: PartitionImage) -> bool:
        return len(partition.replicas) > 1 and self.reports.is_damaged(node, partition.cluster_id)


def change(place: Place, after: PartitionImage) -> PartitionChanged:
    """The record that makes the partition so, with the epochs that it takes."""
    return PartitionChanged(
        topic=str(place.topic.id), partition=place.number, state=place.partition.then(after).state
    )


def settled(place: Place, after: PartitionImage, electorate: Electorate) -> PartitionImage:
    """The partition as it is to be: nobody stays eligible once others can commit without it."""
    if after.leader == NO_NODE or not after.eligible:
        return after
    if len(after.in_sync) < electorate.minimum(place.topic, after):
        return after
    return after.edited(eligible=frozenset())


def decided(place: Place, after: PartitionImage, electorate: Electorate) -> PartitionChanged:
    return change(place, settled(place, after, electorate))


# Choosing.


def choose(partition: PartitionImage, electorate: Electorate) -> NodeId | None:
    """Who may lead without losing anything; None if nobody who is there."""
    cut = {node for node in partition.replicas if electorate.is_cut(node, partition)}
    for among in (partition.in_sync, partition.eligible):
        able = {node for node in among - cut if electorate.may_lead(node, partition)}
        best = _best(partition, electorate.with_room(able) or able, electorate.reports)
        if best is not None:
            return best
    counted_on = partition.in_sync | partition.eligible
    if not cut or not counted_on <= cut & electorate.active:
        return None
    reports = [electorate.reports.get(node, partition.cluster_id) for node in partition.replicas]
    committed = max(report.watermark for report in reports if report is not None)
    able = {
        node
        for node in counted_on
        if electorate.may_lead(node, partition)
        and (report := electorate.reports.get(node, partition.cluster_id)) is not None
        and report.end >= committed
    }
    return _best(partition, able, electorate.reports)


def choose_unclean(
    partition: PartitionImage, electorate: Electorate, *, damaged_too: bool = False
) -> NodeId | None:
    """Who would lose the least of those who are there; the damaged only if nobody else is.

    None while one of them was not heard of: it may be the one that loses nothing.
    """
    if electorate.awaited(partition):
        return None
    there = electorate.active.intersection(partition.replicas)
    whole = {node for node in there if electorate.may_lead(node, partition)}
    best = _best(partition, whole, electorate.reports)
    if best is None and damaged_too:
        best = _best(partition, there, electorate.reports)
    return best


def _best(partition: PartitionImage, among: Collection[NodeId], reports: ReplicaReports) -> NodeId | None:
    """The greatest (last epoch, end) that is known of; among equals the first of the replicas."""
    best, most = None, (NO_EPOCH - 1, NO_OFFSET - 1)
    for node in partition.replicas:
        if node in among:
            report = reports.get(node, partition.cluster_id)
            has = (NO_EPOCH, NO_OFFSET) if report is None else (report.last_epoch, report.end)
            if has > most:
                best, most = node, has
    return best


def best_of(partition: PartitionImage, among: Collection[NodeId], reports: ReplicaReports) -> NodeId:
    """Who of these replicas, of which there is one at least, has the most."""
    best = _best(partition, among, reports)
    assert best is not None, "one of them is a replica"
    return best


def led_by(partition: PartitionImage, leader: NodeId) -> PartitionImage:
    """The partition under another leader, who is in sync or eligible."""
    if leader in partition.in_sync:
        return partition.edited(leader=leader, lost=())
    # Nothing was committed since it left, so those who stayed hold no more that counts than it.
    assert leader in partition.eligible, "a clean leader is in sync or eligible"
    return partition.edited(
        leader=leader,
        in_sync=frozenset({leader}),
        lost=(),
        eligible=(partition.eligible | partition.in_sync) - {leader},
    )


def led_anew(place: Place, partition: PartitionImage, electorate: Electorate) -> PartitionImage:
    """The partition of `place` under the best leader that it may have by itself, or nobody."""
    leader = None
    if not electorate.waits(place.topic, partition):
        leader = choose(partition, electorate)
        if leader is None and electorate.config(place.topic).unclean_leader_election_enable:
            leader = choose_unclean(partition, electorate)
            if leader is not None:
                return forced(partition, leader)
    return partition.edited(leader=NO_NODE) if leader is None else led_by(partition, leader)


# Brokers that go.


def without(place: Place, gone: Collection[NodeId], electorate: Electorate) -> PartitionImage:
    """The partition when `gone` can neither lead nor be in sync."""
    assert electorate.active.isdisjoint(gone), "who is gone is not elected"
    partition = place.partition
    stay = partition.in_sync.difference(gone)
    if not stay and partition.in_sync:
        stay = frozenset({_last_to_stay(partition, electorate.reports)})
    after = with_in_sync(partition, stay)
    if partition.leader in gone:
        after = led_anew(place, after, electorate)
    return settled(place, after, electorate)


def _last_to_stay(partition: PartitionImage, reports: ReplicaReports) -> NodeId:
    if partition.leader in partition.in_sync:
        return partition.leader
    return best_of(partition, partition.in_sync, reports)


def with_in_sync(partition: PartitionImage, in_sync: frozenset[NodeId]) -> PartitionImage:
    """The partition with another in-sync set; who leaves it is eligible, until it is `settled`."""
    eligible = (partition.eligible | partition.in_sync) - in_sync
    return partition.edited(in_sync=in_sync, eligible=eligible)


def leave(
    image: ClusterImage, nodes: Collection[NodeId], electorate: Electorate
) -> Iterator[PartitionChanged]:
    """What changes when `nodes` lead nothing more and leave the in-sync sets."""
    for place in _held_by_any(image, nodes):
        if (changed := left(place, nodes, electorate)) is not None:
            yield changed


def left(place: Place, nodes: Collection[NodeId], electorate: Electorate) -> PartitionChanged | None:
    """What changes when `nodes` do not lead this partition any more, and leave its in-sync set."""
    partition = place.partition
    if partition.leader not in nodes and partition.in_sync.isdisjoint(nodes):
        return None
    after = without(place, nodes, electorate)
    return None if after == partition else change(place, after)


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
    if image.led.get(NO_NODE):
        for place in _held_by_any(image, nodes):
            if (changed := lead_again(place, electorate)) is not None:
                yield changed


def lead_again(place: Place, electorate: Electorate) -> PartitionChanged | None:
    """The partition under a leader, if nobody leads it and somebody can."""
    if place.partition.leader != NO_NODE:
        return None
    after = led_anew(place, place.partition, electorate)
    return None if after.leader == NO_NODE else decided(place, after, electorate)


# Replicas that are damaged, and those that are so no more.


def settle_damage(
    image: ClusterImage, electorate: Electorate, news: Collection[int]
) -> list[PartitionChanged]:
    """What follows from damage; `news` are the partitions where it came or went just now.

    A leader that nobody can replace steps down when its damage is news, and not again: it may be
    one that an operator, who knew of it, has let lead by force since.
    """
    changed = []
    for cluster_id in {**dict.fromkeys(electorate.reports.damaged()), **dict.fromkeys(news)}:
        place = image.places.get(cluster_id)
        if place is None:
            continue  # its topic is deleted
        after = without_damaged(place, electorate)
        replaced = after.leader != NO_NODE or cluster_id in news
        if after != place.partition and (replaced or place.partition.leader == NO_NODE):
            changed.append(change(place, after))
    return changed


def without_damaged(place: Place, electorate: Electorate) -> PartitionImage:
    """The partition when those who are damaged neither lead nor are in sync beside others.

    They are not eligible either: what makes them whole again comes from a leader, and until then
    they may lack what was committed before they left.
    """
    partition = place.partition
    damaged = {node for node in partition.replicas if electorate.is_damaged(node, partition)}
    after = with_in_sync(partition, partition.in_sync - damaged or partition.in_sync)
    if after.leader == NO_NODE or after.leader in damaged:
        after = led_anew(place, after, electorate)
    after = after.edited(eligible=after.eligible - damaged)
    return settled(place, after, electorate)


# First replicas.


def given_back(place: Place, electorate: Electorate) -> PartitionChanged | None:
    """The partition under its first replica, if another leads, and that is there and in sync.

    What nobody leads is not given back but elected: see `lead_again`.
    """
    partition = place.partition
    first = partition.replicas[0]
    if partition.leader in (first, NO_NODE) or first not in partition.in_sync:
        return None
    if electorate.reports.is_full(first):
        return None
    if not electorate.may_lead(first, partition) or electorate.waits(place.topic, partition):
        return None
    return decided(place, led_by(partition, first), electorate)


# Brokers whose disks are full.


def relieve_full(image: ClusterImage, electorate: Electorate, *, count_max: int) -> list[PartitionChanged]:
    """Let others lead what brokers with full disks lead, where others with room are in sync."""
    relieved: list[PartitionChanged] = []
    for node in electorate.reports.full():
        for place in image.led.get(node, {}).values():
            if len(relieved) >= count_max:
                return relieved
            partition = place.partition
            if len(partition.in_sync) < 2 or electorate.waits(place.topic, partition):
                continue
            with_room = frozenset(electorate.with_room(partition.in_sync))
            able = partition.edited(in_sync=with_room, eligible=frozenset())
            leader = choose(able, electorate) if with_room else None
            if leader is not None:
                after = led_by(partition, leader)
                if len(with_room) >= max(2, electorate.minimum(place.topic, partition)):
                    after = with_in_sync(after, with_room)
                relieved.append(decided(place, after, electorate))
    return relieved


# What a leader asks for.


def step_down(place: Place, electorate: Electorate) -> PartitionChanged:
    """Let another in-sync replica lead or, if there is none, the same one in another epoch."""
    partition = place.partition
    others = electorate.without_nodes([partition.leader])
    in_sync = partition.edited(eligible=frozenset())
    leader = None if others.waits(place.topic, partition) else choose(in_sync, others)
    if leader is not None:
        return decided(place, led_by(partition, leader), electorate)
    after = partition.then(partition)
    return PartitionChanged(
        topic=str(place.topic.id), partition=place.number, state=after.edited(epoch=after.epoch + 1).state
    )


# What an operator asks for.


def elect_preferred(place: Place, electorate: Electorate) -> PartitionChanged:
    """Let the first replica lead."""
    partition = place.partition
    first = partition.replicas[0]
    if partition.leader == first:
        raise ElectionNotNeeded(f"{place.name} is led by its first replica, {first}")
    why = ""
    if first not in electorate.active:
        why = "not there, or is about to stop"
    elif electorate.is_unheard(first, partition):
        why = "one that has not told the controller of its replicas yet"
    elif electorate.is_damaged(first, partition):
        why = "damaged"
    elif electorate.reports.is_full(first):
        why = "on a disk that is full"
        if electorate.reports.lacks_files(first):
            why = "on a node that can open no more files"
    elif not _is_clean(partition, first):
        why = "not in sync"
    elif not loses_nothing(partition, first, electorate):
        why = "one that had to discard bytes, which may have been committed"
    if why:
        raise PreferredLeaderNotAvailable(f"{first}, the first replica of {place.name}, is {why}")
    return decided(place, led_by(partition, first), electorate)


def _is_clean(partition: PartitionImage, leader: NodeId) -> bool:
    """Whether nothing is lost if it leads from now on."""
    return leader in partition.in_sync or (partition.leader == NO_NODE and leader in partition.eligible)


def elect_unclean(place: Place, electorate: Electorate) -> PartitionChanged:
    """Let somebody lead, though committed records may be lost; nobody must lead now."""
    partition = place.partition
    if partition.leader != NO_NODE:
        raise ElectionNotNeeded(f"{place.name} is led by {partition.leader}")
    clean = choose(partition, electorate)
    if clean is not None:
        return decided(place, led_by(partition, clean), electorate)
    leader = choose_unclean(partition, electorate, damaged_too=True)
    if leader is None:
        _check_all_heard(place, electorate)
        raise EligibleLeadersNotAvailable(
            f"no replica of {place.name} is there; start one of {list(partition.replicas)}"
        )
    return change(place, forced(partition, leader))


def _check_all_heard(place: Place, electorate: Electorate) -> None:
    if awaited := electorate.awaited(place.partition):
        raise EligibleLeadersNotAvailable(
            f"{', '.join(map(str, awaited))} of {place.name} have not told the controller of their "
            "replicas yet; try again in a moment"
        )


def promote(place: Place, target: NodeId | None, electorate: Electorate, *, force: bool) -> PartitionChanged:
    """Let `target` lead, or whoever has the longest log; with `force` whatever may be lost.

    A target that is named becomes the first replica: it would lose the lead again within seconds
    otherwise, to the one that is.
    """
    partition = place.partition
    named = target is not None
    if target is None:
        target = choose(partition, electorate)
        if force and target is None:
            target = choose_unclean(partition, electorate, damaged_too=True)
    if target is None:
        _check_all_heard(place, electorate)
        raise EligibleLeadersNotAvailable(
            f"no replica of {place.name} that may lead is there; "
            f"in sync are {sorted(partition.in_sync)}, eligible {sorted(partition.eligible)}"
        )
    if target not in partition.replicas:
        raise InvalidReplicaAssignment(
            f"{target} holds no replica of {place.name}; {list(partition.replicas)} do"
        )
    after = preferring(partition, target) if named else partition
    if target == partition.leader:
        if after == partition:
            raise ElectionNotNeeded(f"{place.name} is led by {target}")
        return change(place, after)
    if target not in electorate.active:
        raise EligibleLeadersNotAvailable(f"{target} is not there, or is about to stop")
    if electorate.reports.is_full(target) and not force:
        what = "has a full disk; free some space there"
        if electorate.reports.lacks_files(target):
            what = "can open no more files; let it open more (`ulimit -n`)"
        raise EligibleLeadersNotAvailable(f"{target}, the leader wanted for {place.name}, {what}")
    if loses_nothing(partition, target, electorate):
        return decided(place, led_by(after, target), electorate)
    if not force:
        what = "is not in sync with"
        if electorate.is_damaged(target, partition):
            what = "is damaged in"
        elif _is_clean(partition, target) and electorate.is_unheard(target, partition):
            what = "has not told the controller yet of"
        elif _is_clean(partition, target):
            what = "had to discard bytes, which may have been committed, of"
        raise EligibleLeadersNotAvailable(
            f"{target} {what} {place.name}; wait until it is well, "
            "or use --force, and lose what it does not have"
        )
    return change(place, forced(after, target))


def preferring(partition: PartitionImage, node: NodeId) -> PartitionImage:
    """The partition with `node` as its first replica. While replicas move, their plan says who."""
    if partition.is_moving:
        return partition
    others = (other for other in partition.replicas if other != node)
    return partition.edited(replicas=(node, *others))


def loses_nothing(partition: PartitionImage, leader: NodeId, electorate: Electorate) -> bool:
    """Whether this replica holds all that was committed, as far as is known."""
    if not _is_clean(partition, leader) or electorate.is_unheard(leader, partition):
        return False
    if electorate.is_damaged(leader, partition):
        return False
    is_doubtful = partition.leader == NO_NODE and electorate.is_cut(leader, partition)
    return not is_doubtful or choose(partition, electorate) == leader


def forced(partition: PartitionImage, leader: NodeId) -> PartitionImage:
    """The partition under a leader who may lack committed records: its log is the truth now."""
    return partition.edited(leader=leader, in_sync=frozenset({leader}), eligible=frozenset(), lost=())
