"""What nodes of a cluster say to each other beside the quorum's own messages."""

from enum import IntEnum
from typing import Any
from uuid import UUID

import msgspec

from tidelog.controller.in_sync import WantedInSync
from tidelog.controller.leases import Heartbeat
from tidelog.controller.records import MetadataRecord
from tidelog.controller.registration import Registration
from tidelog.model import NO_EPOCH, NO_NODE, NO_OFFSET, Epoch, NodeId, Offset, ProducerId
from tidelog.peers.wire import Message
from tidelog.raft.voters import ReplicaKey, Voter

# Forming a quorum.


class WhoAreYou(Message, frozen=True, kw_only=True, tag=True):
    """Asked before there is a quorum, and by nodes that look for one."""

    quorum: tuple[NodeId, ...]
    """The nodes that the asker was told to form a quorum with."""


class IAm(Message, frozen=True, kw_only=True, tag=True):
    me: Voter
    cluster: str
    is_formed: bool
    voters: tuple[Voter, ...] = ()
    """Of the quorum, if it is formed."""
    quorum: tuple[NodeId, ...] = ()


# Changing the metadata.


class Proposal(Message, frozen=True, kw_only=True, tag=True):
    """Commit these records, if nothing that they depend on has changed since `based_on`.

    No records: has anything been committed since?
    """

    based_on: Offset
    records: list[MetadataRecord]


class ProposalFate(IntEnum):
    TAKEN = 0
    """Committed; the answer's offset is where the log ends now."""
    STALE = 1
    """Something has changed; decide again once you have reached the answer's offset."""
    ELSEWHERE = 2
    """This node is not the active controller."""
    REFUSED = 3
    """No node may propose this; the answer says why."""


class ProposalAnswer(Message, frozen=True, kw_only=True, tag=True):
    fate: ProposalFate
    offset: Offset
    problem: str = ""


# Membership.


class Register(Message, frozen=True, kw_only=True, tag=True):
    """A process of a broker has started, and wants to be one of the cluster."""

    registration: Registration


class RegisterAnswer(Message, frozen=True, kw_only=True, tag=True):
    """Registered; or not, for the reason in `problem`; or, without either, ask another node."""

    offset: Offset | None = None
    """Everything that this life begins with lies below it."""
    broker_epoch: int = -1
    """Of the life that has begun; or, if another one was known to the asker, of the newest."""
    problem: str | None = None
    code: int = 0


class Beat(Message, frozen=True, kw_only=True, tag=True):
    """I live. Sent to every voter, so that whoever leads next knows, too."""

    heartbeat: Heartbeat
    process: str = ""
    """The process of the voter that has heard what this leaves out; empty if none needs to."""


class HeartbeatAnswer(Message, frozen=True, kw_only=True, tag=True):
    is_controller: bool
    """Only the active controller's answer renews a lease, and only of one that is sure to be it."""
    is_known: bool = True
    """False: this life is over, or was never registered; register again."""
    is_fenced: bool = True
    may_stop: bool = False
    process: str = ""
    """Another one for each process of the voter: what its last one was told is lost with it."""


class ConfirmEpoch(Message, frozen=True, kw_only=True, tag=True):
    """Asked by the active controller of the other voters: is this still the quorum's epoch?"""

    epoch: Epoch
    directory: str = ""
    """Of the disk that votes; empty from nodes that do not say."""


class ConfirmEpochAnswer(Message, frozen=True, kw_only=True, tag=True):
    is_in_it: bool


class ChangeInSync(Message, frozen=True, kw_only=True, tag=True):
    """Asked by leaders of the active controller: may these be the in-sync sets?"""

    wanted: tuple[WantedInSync, ...]


class StepDown(Message, frozen=True, kw_only=True, tag=True):
    """Asked by a leader of the active controller: let another lead, or me in another epoch."""

    topic_id: UUID
    partition: int
    leader: NodeId
    epoch: Epoch


class Judged(Message, frozen=True, kw_only=True, tag=True):
    """What the active controller made of a leader's wish."""

    is_decided: bool = False
    """False: this node is not the controller, or ceased to be it meanwhile: it may yet be done."""
    offset: Offset = 0
    """All that was decided lies below it."""
    refused: dict[int, tuple[int, str]] = msgspec.field(default_factory=dict)
    """The error and the reason, by its place among what was wanted."""


# Voters.


class ChangeVoters(Message, frozen=True, kw_only=True, tag=True):
    """Let one voter in, or leave one out. Sent to the active controller."""

    add: Voter | None = None
    remove: ReplicaKey | None = None


class ChangeVotersAnswer(Message, frozen=True, kw_only=True, tag=True):
    problem: str | None = None
    code: int = 0


# Replication.


class ReplicaPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a follower wants to read on, and of which epoch the last record is that it has."""

    cluster_id: int
    epoch: Epoch
    """The leader's, as the follower knows it."""
    offset: Offset
    last_epoch: Epoch
    purges: int = -1
    """How many purges the leader had counted when this log began anew, if it did in this epoch."""
    lacks_producers: bool = False
    """Whether this log is empty, and does not know who wrote what is deleted before `offset`."""
    lacks_before: Offset = NO_OFFSET
    """Where a log begins that has batches, and does not know who wrote what is deleted before."""


class FetchReplicas(Message, frozen=True, kw_only=True, tag=True):
    """Send what follows these positions, now or when there is any; the others stay as they were.

    Says where to read, and acknowledges nothing.
    """

    session: int
    broker_epoch: int
    """Of the follower: the life that it is in."""
    is_new: bool = False
    """Nothing that was said in an earlier session counts."""
    positions: tuple[ReplicaPosition, ...] = ()
    forgotten: tuple[int, ...] = ()
    corrupt: tuple[int, ...] = ()
    """The partitions of which the last answer held batches whose checksums do not match."""
    troubles: tuple[tuple[int, str], ...] = ()
    """The partitions of which the last answer could not be taken, and why."""
    full: tuple[int, ...] = ()
    """The partitions of which the follower's disk has no room for more."""
    wait_ms: int = 0


class ReplicaPart(msgspec.Struct, frozen=True, array_like=True):
    """News of one partition; `size` bytes of batches lie in the answer's data, in order."""

    cluster_id: int
    error: int = 0
    watermark: Offset = NO_OFFSET
    start: Offset = NO_OFFSET
    size: int = 0
    differs: bool = False
    """The two logs part where `epoch`, the greatest not above the follower's last, `end`s."""
    epoch: Epoch = NO_EPOCH
    end: Offset = NO_OFFSET
    has_gaps: bool = False
    """Offsets may be missing, since the leader's log was compacted."""
    wanted_start: Offset = NO_OFFSET
    """Where the follower is asked to promise that its log will begin; `start` is where it may."""
    purged: Offset = 0
    """Of a follower that must begin anew: below it the leader's log may lack tombstones."""
    purges: int = -1
    """How many purges of its log the leader counts."""
    producers: bytes = b""
    """Of a follower that must begin anew: a snapshot of who wrote what is deleted before `start`.

    The follower notes it as its own (`log/producers.py`). Without it, a follower that leads later
    would take a retried batch for a new one.
    """
    is_whole: bool = True
    """False: the follower's batches stay; it only has to note `producers` at `start`."""


class FetchReplicasAnswer(Message, frozen=True, kw_only=True, tag=True):
    is_known: bool = True
    """False: begin a new session."""
    parts: tuple[ReplicaPart, ...] = ()


class AnswerNow(Message, frozen=True, kw_only=True, tag=True):
    """A note: the follower has something else to ask, so answer what waits."""

    session: int


class ForgetReplica(Message, frozen=True, kw_only=True, tag=True):
    """Asked by a follower that must discard what is damaged: forget what I told of it."""

    cluster_id: int
    epoch: Epoch


class ForgetReplicaAnswer(Message, frozen=True, kw_only=True, tag=True):
    is_forgotten: bool = False
    """Nobody counts on the follower, and it is proposed for no in-sync set before it tells anew."""
    partition_epoch: int = -1
    """How far the leader has acted on the metadata of the partition."""


class ReplicaProgress(msgspec.Struct, frozen=True, array_like=True):
    cluster_id: int
    epoch: Epoch
    end: Offset
    """Everything below it is as safe at the follower as the topic demands."""
    promised_start: Offset = NO_OFFSET
    """The follower has noted, durably, that its log will begin there; NO_OFFSET: not yet."""
    is_synced: bool = True
    """Whether that is on its disk, and not only in its memory: it may know another `durability`."""


class Progress(Message, frozen=True, kw_only=True, tag=True):
    """A note: what a follower holds by now."""

    session: int
    broker_epoch: int
    replicas: list[ReplicaProgress]


class FetchRange(Message, frozen=True, kw_only=True, tag=True):
    """Send the batches from the one that holds `offset` on: those here are damaged."""

    cluster_id: int
    offset: Offset
    end: Offset
    """Nothing from there on is wanted."""
    bytes_max: int
    uncommitted: bool = False
    """Whether batches above the high watermark are wanted, too."""


class FetchRangeAnswer(Message, frozen=True, kw_only=True, tag=True):
    """The batches lie in the answer's data; none if there is a `problem`."""

    problem: str = ""


class ConfirmWhole(Message, frozen=True, kw_only=True, tag=True):
    """Asked by a replica that would begin anew: are you in sync, and is your log whole?"""

    cluster_id: int
    partition_epoch: int
    """Of the in-sync set that is meant."""


class ConfirmWholeAnswer(Message, frozen=True, kw_only=True, tag=True):
    is_whole: bool = False
    """It is in sync by the same metadata, and knows of nothing in its log that cannot be read."""


# Transactions.


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A partition, as transactions know it: by name."""

    topic: str
    partition: int


class PlacesToAdd(msgspec.Struct, frozen=True, array_like=True):
    """The partitions that a leader has, or wants to have, in a transaction."""

    transactional_id: str
    producer_id: ProducerId
    epoch: int
    places: tuple[Place, ...]
    adds: bool
    """Not only to ask whether they are in it."""


class AddToTransactions(Message, frozen=True, kw_only=True, tag=True):
    """Asked by leaders of partitions before they take a transaction's first batch."""

    transactions: tuple[PlacesToAdd, ...]


class AddToTransactionsAnswer(Message, frozen=True, kw_only=True, tag=True):
    codes: tuple[tuple[int, ...], ...]
    """An error or 0 for each place of each transaction, in order."""


class TransactionEnd(msgspec.Struct, frozen=True, array_like=True):
    """A decided transaction, and where its marker is to stand."""

    producer_id: ProducerId
    epoch: int
    commits: bool
    is_bumped: bool
    """The epoch is the one after that of the transaction."""
    coordinator_epoch: Epoch
    number: int
    """It rises with every end of the coordinator's epoch, and stays when one is sent again."""
    places: tuple[Place, ...]


class WriteMarkers(Message, frozen=True, kw_only=True, tag=True):
    """Asked by coordinators of those who lead the places; answered when the markers are safe."""

    ends: tuple[TransactionEnd, ...]


class WriteMarkersAnswer(Message, frozen=True, kw_only=True, tag=True):
    codes: tuple[tuple[int, ...], ...]
    """An error or 0 for each place of each end, in order."""


class FindOpenTransaction(Message, frozen=True, kw_only=True, tag=True):
    """Asked of coordinators by the leader of a partition, before it ends what may be an orphan."""

    producer_id: ProducerId


class OpenTransactionAnswer(Message, frozen=True, kw_only=True, tag=True):
    is_open: bool
    """A transaction of the producer is open, or decided and not ended everywhere."""
    served: tuple[int, ...]
    """For which partitions of the coordinators' log this was answered."""


# Work for the leader of a partition.


class Serve(Message, frozen=True, kw_only=True, tag=True):
    """A piece of work, sent by the node that was asked for it to the one that can do it."""

    topic: str
    """The topic's id, in hex."""
    partition: int
    work: msgspec.Raw
    seconds: float
    """How long whoever asked waits."""


class ServeAnswer(Message, frozen=True, kw_only=True, tag=True):
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    code: int = 0
    """Of the error that it was refused with; 0 if it was done."""
    detail: str = ""
    is_unknown: bool = False
    """Nobody knows whether it was done, or will be."""
    known: dict[str, Any] = msgspec.field(default_factory=dict)


# What operators ask for.


class Perform(Message, frozen=True, kw_only=True, tag=True):
    """A verb, sent by the node that was asked for it, and that let it pass, to the one that can do it."""

    verb: str
    asked: msgspec.Raw
    applied: Offset = 0
    """The node that asks knows all metadata below it."""


class Performed(Message, frozen=True, kw_only=True, tag=True):
    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    code: int = 0
    """Of the error that it was refused with; 0 if it was done."""
    detail: str = ""
    is_unknown: bool = False
    """Nobody knows whether it was done, or will be."""
    acted_on: Offset = 0
    """All metadata below it is acted on at the node that answers."""


# Whether a leader still leads.


class Lead(msgspec.Struct, frozen=True, array_like=True):
    """A partition, and the epoch in which somebody believes to lead it."""

    cluster_id: int
    epoch: Epoch


class ConfirmLeads(Message, frozen=True, kw_only=True, tag=True):
    """Asked by a leader of those in sync: do you still follow me?

    And, without any `leads`, by who has deleted a topic: have you acted on that?
    """

    leads: tuple[Lead, ...]
    of: NodeId = NO_NODE
    """Who shall say so: another node than the one that is asked, which asks it and passes on what
    it says. Nodes of an earlier release answer for themselves."""


class ConfirmLeadsAnswer(Message, frozen=True, kw_only=True, tag=True):
    confirmed: tuple[bool | None, ...]
    """For each: yes, no, or that this node does not know."""
    acted_on: Offset = NO_OFFSET
    """All metadata below it is acted on here; NO_OFFSET from nodes of an earlier release."""
    of: NodeId = NO_NODE
    """Whose words these are, if another node passes them on."""


# What an operator asks of a node by way of another.


class StopNode(Message, frozen=True, kw_only=True, tag=True):
    """Stop in order, as with SIGTERM."""


class StopAnswer(Message, frozen=True, kw_only=True, tag=True):
    """It will."""

    node: NodeId


# Messages without a history.


class FanOut(Message, frozen=True, kw_only=True, tag=True):
    """Tell whoever listens at your node; without a topic: who does?"""

    topic: str = ""
    data: bytes = b""


class Fanned(Message, frozen=True, kw_only=True, tag=True):
    heard: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """Subscribers, by pattern."""
