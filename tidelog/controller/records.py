"""Every change of the cluster's metadata, as a value that goes into the metadata log.

Rule 1: a record says what happened, never how to compute it; applying one needs no clock, no
        random number and no config, so that every node comes to the same image.
Rule 2: records are tagged msgpack maps. A field may be added with a default; none is ever renamed
        or removed. An unknown tag stops the node: it would be wrong to go on without knowing.
        What they hold in arrays (`PartitionState`) grows at the end only, with a default, too.
Rule 3: the records of one decision go into one batch: all of them happen, or none.
"""

import zlib
from functools import lru_cache
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from tidelog.model import NO_NODE, Endpoint, Epoch, NodeId
from tidelog.raft.voters import ReplicaKey, Voter
from tidelog.security.scram import Verifier
from tidelog.security.tokens import Token


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """A change; the tag is the class's name."""


# Brokers.


class NodeRegistered(_Record, frozen=True, tag="NodeRegistered"):
    """A process of a node that is alone has started; it opens a new epoch wherever it leads.

    No process appends in an epoch that it did not open: what an earlier one left half written can
    then be told apart. In a cluster `BrokerRegistered` takes its place, and says nothing of
    partitions: the records beside it do.
    """

    node: NodeId
    incarnation: str


class BrokerRegistered(_Record, frozen=True, tag="BrokerRegistered"):
    """A process of a broker has started, and is fenced until it knows so. Earlier ones are over."""

    node: NodeId
    incarnation: str
    broker_epoch: int
    """Given by the controller; greater than any before it, of any broker."""
    directory: str
    """The id of its data directory: another one holds other data, or none."""
    kafka: Endpoint
    peer: Endpoint
    http: Endpoint | None = None
    rack: str | None = None
    listeners: dict[str, Endpoint] = {}
    """Where clients of further listeners connect, by the listener's name."""


class BrokerFenced(_Record, frozen=True, tag="BrokerFenced"):
    """The broker's lease is over: it leads nothing, and nothing waits for it."""

    node: NodeId
    broker_epoch: int


class BrokerUnfenced(_Record, frozen=True, tag="BrokerUnfenced"):
    """The broker knows that it is registered, and may lead and be in sync."""

    node: NodeId
    broker_epoch: int


class BrokerShutdownWanted(_Record, frozen=True, tag="BrokerShutdownWanted"):
    """The broker wants to stop: it gets no more leadership, and what it leads moves away."""

    node: NodeId
    broker_epoch: int


class BrokerUnregistered(_Record, frozen=True, tag="BrokerUnregistered"):
    """The broker will not come back; it holds no replicas."""

    node: NodeId
    broker_epoch: int


# The quorum.


class LeaderChanged(_Record, frozen=True, tag="LeaderChanged"):
    """The first record of an epoch of the quorum."""

    epoch: Epoch
    leader: NodeId
    voters: list[Voter]


class VotersChanged(_Record, frozen=True, tag="VotersChanged"):
    """These are the voters now, and no others."""

    voters: list[Voter]


# Topics and partitions.


class PartitionState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """All that the cluster has decided about a partition. Sets are sorted: equal states are equal.

    Invariant: the leader is NO_NODE or one of `in_sync`; `in_sync`, `eligible` and `lost` share
    no node; `in_sync` is empty only where `lost` is not. While replicas move, `replicas` are those
    that shall stay or come, in their order, and then `removing`.
    """

    cluster_id: int
    """The partition's 32-bit number in the cluster; see `cluster_id_of`."""
    replicas: tuple[NodeId, ...]
    """Who holds it, the preferred leader first."""
    in_sync: tuple[NodeId, ...]
    leader: NodeId
    epoch: Epoch
    """Rises whenever the leader changes, to nobody as well, or begins another life."""
    partition_epoch: int = 0
    """Rises with every change, so that a proposal made on an older state is known by it."""
    eligible: tuple[NodeId, ...] = ()
    """Left the in-sync set while it was too small to commit anything more (KIP-966)."""
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()
    """Replicas that a reassignment is about to add or remove."""
    lost: tuple[ReplicaKey, ...] = ()
    """The last that were in sync, if their nodes came back with other disks.

    Committed records may be on those disks and nowhere else: an operator must decide.
    """
    original: tuple[NodeId, ...] = ()
    """The replicas, in their order, before they began to move: what cancelling goes back to."""


class TopicCreated(_Record, frozen=True, tag="TopicCreated"):
    name: str
    id: str
    replicas: list[list[NodeId]]
    """For each partition its replicas, the preferred leader first."""
    config: dict[str, str] = {}
    partitions: list[PartitionState] = []
    """Each in full. Where this is empty, as it was before clusters: all replicas are in sync, the
    first of them leads, and the cluster id is the first free one."""
    sizes: list[int] = []
    """In a snapshot: how many partitions the topic had before, each time that some were added."""


class PartitionsAdded(_Record, frozen=True, tag="PartitionsAdded"):
    topic: str
    replicas: list[list[NodeId]]
    partitions: list[PartitionState] = []
    """As in `TopicCreated`."""


class PartitionChanged(_Record, frozen=True, tag="PartitionChanged"):
    """The partition is as `state` says now; whatever it was before."""

    topic: str
    """The topic's id."""
    partition: int
    state: PartitionState


class TopicDeleted(_Record, frozen=True, tag="TopicDeleted"):
    name: str


class TopicConfigChanged(_Record, frozen=True, tag="TopicConfigChanged"):
    """The topic's own settings are these now, and no others."""

    topic: str
    config: dict[str, str]


class NodeConfigChanged(_Record, frozen=True, tag="NodeConfigChanged"):
    """What was changed of a node's settings while it ran is this now; None is every node."""

    node: NodeId | None
    config: dict[str, str]


# Permissions.


class AclAdded(_Record, frozen=True, tag="AclAdded"):
    """A permission or denial holds from now on, by the names that Kafka has for its parts."""

    principal: str
    host: str
    operation: str
    effect: str
    kind: str
    name: str
    pattern: str


class AclRemoved(_Record, frozen=True, tag="AclRemoved"):
    """The permission or denial that says all of this holds no more; every other one does."""

    principal: str
    host: str
    operation: str
    effect: str
    kind: str
    name: str
    pattern: str


# The rest.


class ProducerIdsGranted(_Record, frozen=True, tag="ProducerIdsGranted"):
    """All producer ids below `end` belong to someone; the next grant begins there."""

    node: NodeId
    end: int


# Users.


class UserChanged(_Record, frozen=True, tag="UserChanged"):
    """What is stored of the user's passwords is this now, by mechanism; of nothing the user is gone."""

    name: str
    verifiers: dict[str, Verifier]


class TokenGranted(_Record, frozen=True, tag="TokenGranted"):
    """Whoever shows this token is its user, until it expires or is revoked."""

    token: Token


class TokenRevoked(_Record, frozen=True, tag="TokenRevoked"):
    """The token of this id proves nothing any more, if there was one."""

    id: str


class SaltsChosen(_Record, frozen=True, tag="SaltsChosen"):
    """What the salts of users that do not exist are made of, once there is a user."""

    secret: bytes

    def __repr__(self) -> str:
        return "SaltsChosen()"


class SnapshotBegan(_Record, frozen=True, tag="SnapshotBegan"):
    """The first record of a snapshot, never of a log: what no other record of it says."""

    version: int
    broker_epoch_last: int = -1
    """The greatest that was ever given, though its broker may be gone."""
    quorum_epoch: Epoch = 0
    quorum_leader: NodeId = NO_NODE


MetadataRecord: TypeAlias = (
    NodeRegistered
    | BrokerRegistered
    | BrokerFenced
    | BrokerUnfenced
    | BrokerShutdownWanted
    | BrokerUnregistered
    | LeaderChanged
    | VotersChanged
    | TopicCreated
    | PartitionsAdded
    | PartitionChanged
    | TopicDeleted
    | TopicConfigChanged
    | NodeConfigChanged
    | AclAdded
    | AclRemoved
    | ProducerIdsGranted
    | UserChanged
    | SaltsChosen
    | TokenGranted
    | TokenRevoked
    | SnapshotBegan
)

FORMAT: Final = 1
"""The first byte of every encoded record."""

_encoder = msgspec.msgpack.Encoder()
_decoder: "msgspec.msgpack.Decoder[MetadataRecord]" = msgspec.msgpack.Decoder(MetadataRecord)

FIRST_EPOCH: Final[Epoch] = 0


def encode(record: MetadataRecord) -> bytes:
    return bytes([FORMAT]) + _encoder.encode(record)


def decode(data: bytes) -> MetadataRecord:
    """ValueError if the record is damaged or of a later version of Tidelog."""
    if not data or data[0] != FORMAT:
        raise ValueError(f"a metadata record of format {data[:1]!r}; this version knows {FORMAT}")
    return _decoder.decode(data[1:])


@lru_cache(maxsize=8192)
def topic_id_of(written: str) -> UUID:
    """A topic's id as a record has it; parsed once, for a batch may name it thousands of times."""
    return UUID(written)


def cluster_id_of(topic_id: UUID, number: int) -> int:
    """The number that the partition has in the cluster, if no other has it.

    Of the topic's id, not of its name: a topic that is made again is another one. The partitions
    of one topic never get the same number, since a CRC-32 maps the last four bytes one to one.
    """
    return zlib.crc32(topic_id.bytes + number.to_bytes(4, "big"))
