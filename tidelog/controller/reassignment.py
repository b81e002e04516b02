"""A partition's replicas move to other brokers: begun, cancelled, completed.

Rule 1: a move begins by adding and ends by removing. In between there are more replicas than before
        and than after; nobody who had a copy loses it before those who come have one.
Rule 2: a move is complete once all who are added are in sync and, of those who stay, as many as
        `min.insync.replicas` asks for. In-sync replicas hold all that was committed, so whoever
        goes then takes nothing along. Then `replicas` is the target, and nobody else counts.
Rule 3: a partition is never left without a leader because it moves. Where the leader goes, an
        in-sync replica that stays leads in the same decision; where there is none, or nobody leads,
        the move waits. Whoever moved a leader away has decided that another one leads, so it is so
        with `failover.mode` manual, too.
Rule 4: another target replaces the one before, and counts from the replicas of before the first.
        Cancelling is going back to those. Who was added for nothing leaves at once, and not if
        too few of the others are in sync then, though enough are now.
Rule 5: who is being added does not count for what `min.insync.replicas` comes to (`replication`):
        a set is as short, or not, as it was before the move.
Rule 6: every step is a change of the partition: a proposal that a leader made on the state before
        is stale. The steps are in the metadata, so that any controller goes on with them.
Rule 7: where a replica goes, another leader epoch begins, though the leader be the same. Who goes
        deletes its log as soon as it hears of it; should it be added again before, what it
        told of that log must not count. In the new epoch only those are heard who know of both.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tidelog.controller.elections import Electorate, change, choose, led_by, settled
from tidelog.controller.image import ClusterImage, PartitionImage, Place
from tidelog.controller.records import PartitionChanged
from tidelog.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from tidelog.model import NO_NODE, NodeId


def begin(
    place: Place, target: Sequence[NodeId], image: ClusterImage, electorate: Electorate
) -> PartitionChanged | None:
    """Let `target` hold the partition, the preferred leader first; None if that is so already.

    Another order of the same replicas needs no move.
    """
    partition = place.partition
    _check(place, target, image)
    after = _towards(partition, tuple(target))
    if after == partition:
        return None
    return _change(place, _without_dropped(place, after, electorate))


def cancel(place: Place, electorate: Electorate) -> PartitionChanged:
    """Let those hold the partition who did before its replicas began to move."""
    partition = place.partition
    if not partition.is_moving:
        raise NoReassignmentInProgress(place.name)
    after = _towards(partition, before(partition))
    return _change(place, _without_dropped(place, after, electorate))


def complete(place: Place, electorate: Electorate) -> PartitionChanged | None:
    """Let go who is to be removed; None if it is too early."""
    partition = place.partition
    if not partition.is_moving or partition.leader == NO_NODE:
        return None
    if not partition.in_sync.issuperset(partition.adding):
        return None
    target = partition.target
    stay = _whole(partition, partition.in_sync.intersection(target), electorate)
    enough = max(electorate.minimum_of(place.topic, len(target)), 1)
    if not stay.issuperset(partition.adding) or len(stay) < enough:
        return None
    leader: NodeId | None = partition.leader
    if leader not in stay:
        leader = _heir(partition, target[0], stay, electorate)
    if leader is None:
        return None
    after = partition.edited(
        replicas=target,
        in_sync=stay,
        eligible=partition.eligible.intersection(target) - stay,
        adding=(),
        removing=(),
        original=(),
    )
    return _change(place, settled(place, led_by(after, leader), electorate))


def completed(places: Iterable[Place], electorate: Electorate, *, count_max: int) -> list[PartitionChanged]:
    """Everything among `places` that can be completed now, up to a number."""
    found: list[PartitionChanged] = []
    for place in places:
        if len(found) >= count_max:
            break
        if (record := complete(place, electorate)) is not None:
            found.append(record)
    return found


def before(partition: PartitionImage) -> tuple[NodeId, ...]:
    """The replicas, in their order, from before they began to move."""
    return partition.original or partition.replicas


def _change(place: Place, after: PartitionImage) -> PartitionChanged:
    """The record of a step; see rule 7."""
    record, now = change(place, after), place.partition
    if set(now.replicas) <= set(after.replicas) or record.state.epoch != now.epoch:
        return record
    state = msgspec.structs.replace(record.state, epoch=now.epoch + 1)
    return msgspec.structs.replace(record, state=state)


# What is asked for.


def _check(place: Place, target: Sequence[NodeId], image: ClusterImage) -> None:
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignment(
            f"{list(target)} cannot be its replicas: name each node once, and at least one"
        )
    if unknown := [node for node in target if node not in image.nodes]:
        raise InvalidReplicaAssignment(
            f"it cannot move to {unknown}: there are only nodes {sorted(image.nodes)}"
        )
    active = image.active_nodes()
    away = [node for node in target if node not in active and node not in place.partition.replicas]
    if away:
        raise InvalidReplicaAssignment(
            f"it cannot move to {away}: they are fenced or about to stop; start them, or choose "
            f"among {active}"
        )


def _towards(partition: PartitionImage, target: tuple[NodeId, ...]) -> PartitionImage:
    """The partition on its way to `target`, with those in its sets who are replicas no more."""
    original = before(partition)
    adding = tuple(node for node in target if node not in original)
    removing = tuple(node for node in original if node not in target)
    return partition.edited(
        replicas=target + removing,
        adding=adding,
        removing=removing,
        original=original if adding or removing else (),
    )


def _without_dropped(place: Place, after: PartitionImage, electorate: Electorate) -> PartitionImage:
    """`after` without those who were being added and shall not come any more."""
    partition = place.partition
    dropped = frozenset(partition.replicas).difference(after.replicas)
    stay = partition.in_sync - dropped
    _check_dropped(place, dropped, stay, electorate)
    after = after.edited(in_sync=stay, eligible=partition.eligible - dropped)
    if partition.leader in dropped:
        leader = _heir(partition, after.replicas[0], stay, electorate)
        if leader is None:
            raise InvalidReplicaAssignment(
                f"it is led by {partition.leader}, which would go, and none of {sorted(stay)} can "
                "lead now; start one of them"
            )
        after = led_by(after, leader)
    return settled(place, after, electorate)


def _check_dropped(
    place: Place, dropped: frozenset[NodeId], stay: frozenset[NodeId], electorate: Electorate
) -> None:
    if not dropped:
        return
    partition = place.partition
    whole = _whole(partition, partition.in_sync, electorate)
    is_last = (whole and whole <= dropped) or (partition.in_sync and not stay)
    lost = [key.id for key in partition.lost if key.id in dropped]
    if lost or is_last:
        alone = lost or sorted(whole or partition.in_sync)
        raise InvalidReplicaAssignment(
            f"all that is committed is on {alone} alone, which would go; wait until another of its "
            "replicas is in sync, or keep it"
        )
    enough = electorate.minimum(place.topic, partition)
    if len(whole - dropped) < enough <= len(whole):
        raise InvalidReplicaAssignment(
            f"it needs {enough} replicas in sync, and without {sorted(dropped)} only "
            f"{sorted(whole - dropped)} would be; wait until more of {list(before(partition))} are"
        )


def _whole(partition: PartitionImage, nodes: frozenset[NodeId], electorate: Electorate) -> frozenset[NodeId]:
    """Those of `nodes` that are not damaged. Asked before the rest goes, for a sole replica never
    counts as damaged."""
    return frozenset(node for node in nodes if not electorate.is_damaged(node, partition))


def _heir(
    partition: PartitionImage, first: NodeId, stay: frozenset[NodeId], electorate: Electorate
) -> NodeId | None:
    """Who of `stay`, all of them in sync, leads from now on: `first`, or who has the most."""
    can_lead = electorate.may_lead(first, partition) and not electorate.is_cut(first, partition)
    if first in stay and can_lead:
        return first
    return choose(partition.edited(in_sync=stay, eligible=frozenset()), electorate)
