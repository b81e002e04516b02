"""A broker's process has started and wants to be one of the cluster: may it, and what changes?

Rule 1: a registration ends the broker's previous life. Whatever that led gets a new epoch, sole
        replicas too: no process appends in an epoch that it did not open.
Rule 2: a broker is a node and its disk. A node that comes with another disk has none of the data
        that its in-sync sets counted on, and leaves them all, even as the last.
Rule 3: a disk that was the last one in sync is remembered by its id. If it comes back, all is well;
        if not, the partition waits for an operator, who alone may give committed records up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.controller import elections
from tidelog.controller.elections import Electorate
from tidelog.controller.image import BrokerImage, ClusterImage, PartitionImage, Place
from tidelog.controller.records import BrokerRegistered, MetadataRecord, PartitionChanged
from tidelog.errors import (
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRequest,
    StaleBrokerEpoch,
)
from tidelog.model import NO_NODE, Endpoint, NodeId, Offset
from tidelog.raft.voters import ReplicaKey

NODE_MAX: Final = 2**31 - 1
PORT_MAX: Final = 65535
LISTENERS_MAX: Final = 20
TEXT_CHARACTERS_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a process says of itself when it starts."""

    cluster_id: str
    node: NodeId
    incarnation: str
    """Another one for every process."""
    directory: str
    kafka: Endpoint
    peer: Endpoint
    http: Endpoint | None = None
    rack: str | None = None
    listeners: dict[str, Endpoint] = field(default_factory=dict)
    clean: bool = False
    """Whether its last stop was: all that it ever told of is on its disk."""
    known_epoch: int | None = None
    """The broker epoch of its node that it knows of; None if it does not say.

    With it, a registration that was held up until a later process had registered is refused. A
    process that is refused so lives, and asks again with the epoch that the error names.
    """


def register(
    image: ClusterImage, wanted: Registration, electorate: Electorate, *, cluster_id: str, end: Offset
) -> list[MetadataRecord]:
    """The records that make it a broker, or the reason why not; none if it is one already.

    `end` is where the log ends: the broker epoch is the offset of the registration, so that a
    broker which has applied the log beyond it knows that it is registered.
    """
    if problem := _problem(wanted):
        raise InvalidRequest(problem)
    if wanted.cluster_id != cluster_id:
        raise InconsistentClusterId(
            f"node {wanted.node} belongs to the cluster {wanted.cluster_id}, this is {cluster_id}; "
            "give it the addresses of its own cluster, or an empty data directory"
        )
    known = image.brokers.get(wanted.node)
    if known is not None:
        if known.incarnation == wanted.incarnation:
            return []  # the answer was lost, and it asks again
        _check_only_one(known, wanted)
    epoch = max(image.broker_epoch_last + 1, end)
    records: list[MetadataRecord] = [
        BrokerRegistered(
            node=wanted.node,
            incarnation=wanted.incarnation,
            broker_epoch=epoch,
            directory=wanted.directory,
            kafka=wanted.kafka,
            peer=wanted.peer,
            http=wanted.http,
            rack=wanted.rack,
            listeners=wanted.listeners,
        )
    ]
    records += _begin_life(image, known, wanted, electorate.without_nodes([wanted.node]))
    return records


def _problem(wanted: Registration) -> str | None:
    """Say why no process can say this of itself, or None."""
    places = [wanted.kafka, wanted.peer, *wanted.listeners.values()]
    if wanted.http is not None:
        places.append(wanted.http)
    texts = [wanted.incarnation, wanted.directory, wanted.rack or "", *(place.host for place in places)]
    texts += wanted.listeners
    if not 0 <= wanted.node <= NODE_MAX:
        return f"{wanted.node} is no node's number"
    if len(places) > LISTENERS_MAX or not all(0 <= place.port <= PORT_MAX for place in places):
        return "the addresses are none"
    if not all(len(text) <= TEXT_CHARACTERS_MAX and text.isprintable() for text in texts):
        return "a name or an address is too long, or cannot be printed"
    return None


def is_late(known: BrokerImage, wanted: Registration) -> bool:
    """Whether a later life has begun than the newest one that the process knew of."""
    return wanted.known_epoch is not None and wanted.known_epoch < known.broker_epoch


def _check_only_one(known: BrokerImage, wanted: Registration) -> None:
    if wanted.known_epoch is not None and is_late(known, wanted):
        raise StaleBrokerEpoch(epoch=wanted.known_epoch, current=known.broker_epoch)
    # With the same directory it must be a restart: two processes cannot have one directory open.
    if wanted.directory != known.directory and not known.fenced:
        raise DuplicateBrokerRegistration(
            f"two nodes have the id {known.node}: one runs at {known.peer} with the data directory "
            f"{known.directory}, this one is at {wanted.peer} with {wanted.directory}. Give this "
            "one another --node-id; or, if it replaces the other one, stop that first"
        )


def _begin_life(
    image: ClusterImage, known: BrokerImage | None, wanted: Registration, electorate: Electorate
) -> Iterator[PartitionChanged]:
    node = wanted.node
    for place in image.held.get(node, {}).values():
        partition = place.partition
        has_disk = known is None or known.directory == wanted.directory
        if has_disk and not (_counts_on(partition, node) or partition.lost):
            continue
        if known is not None and not has_disk:
            after = _without_disk(place, ReplicaKey(node, known.directory), electorate)
        else:
            after = elections.without(place, [node], electorate)
            if not wanted.clean:  # what it had told of may be lost with its page cache (KIP-966)
                after = _without_cache(place, after, node, electorate)
        if not after.in_sync and ReplicaKey(node, wanted.directory) in after.lost:
            after = after.edited(in_sync=frozenset({node}), lost=())
        if after != partition:
            yield elections.change(place, after)


def _counts_on(partition: PartitionImage, node: NodeId) -> bool:
    return node == partition.leader or node in partition.in_sync or node in partition.eligible


def _without_cache(
    place: Place, after: PartitionImage, node: NodeId, electorate: Electorate
) -> PartitionImage:
    """The partition when `node` may lack what it had not synced.

    That takes nothing from what it was counted on for: all that it told of was on its disk. Not so
    where `durability` is replicated. There it is eligible no more; and if it was the last in sync,
    one of the eligible, who are away, takes its place.
    """
    if electorate.config(place.topic).durability == "fsync":
        return after
    heirs = after.eligible - {node}
    if after.in_sync != {node} or not heirs:
        return after.edited(eligible=heirs)
    heir = elections.best_of(after, heirs, electorate.reports)
    return after.edited(in_sync=frozenset({heir}), eligible=heirs - {heir})


def _without_disk(place: Place, gone: ReplicaKey, electorate: Electorate) -> PartitionImage:
    """The partition when a disk is no more: nothing that it held counts."""
    partition, node = place.partition, gone.id
    stay = partition.in_sync - {node}
    after = elections.with_in_sync(partition, stay)
    lost = (gone,) if partition.in_sync and not stay else partition.lost
    after = after.edited(eligible=after.eligible - {node}, lost=lost)
    if partition.leader in (node, NO_NODE):
        after = elections.led_anew(place, after, electorate)
    return elections.settled(place, after, electorate)
