"""What nodes of a cluster say to each other beside the quorum's own messages."""

from enum import IntEnum

from tidelog.controller.leases import Heartbeat
from tidelog.controller.records import MetadataRecord
from tidelog.controller.registration import Registration
from tidelog.model import NodeId, Offset
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
    """Commit these records, if nothing was committed since `based_on`. None: has anything been?"""

    based_on: Offset
    records: list[MetadataRecord]


class ProposalFate(IntEnum):
    TAKEN = 0
    """Committed; the answer's offset is where the log ends now."""
    STALE = 1
    """Something has changed; decide again once you have reached the answer's offset."""
    ELSEWHERE = 2
    """This node is not the active controller."""


class ProposalAnswer(Message, frozen=True, kw_only=True, tag=True):
    fate: ProposalFate
    offset: Offset


# Membership.


class Register(Message, frozen=True, kw_only=True, tag=True):
    """A process of a broker has started, and wants to be one of the cluster."""

    registration: Registration


class RegisterAnswer(Message, frozen=True, kw_only=True, tag=True):
    """Registered; or not, for the reason in `problem`; or, without either, ask another node."""

    offset: Offset | None = None
    """Everything that this life begins with lies below it."""
    broker_epoch: int = -1
    problem: str | None = None
    code: int = 0


class Beat(Message, frozen=True, kw_only=True, tag=True):
    """I live. Sent to every voter, so that whoever leads next knows, too."""

    heartbeat: Heartbeat


class HeartbeatAnswer(Message, frozen=True, kw_only=True, tag=True):
    is_controller: bool
    """Only the active controller's answer renews a lease."""
    is_known: bool = True
    """False: this life is over, or was never registered; register again."""
    is_fenced: bool = True
    may_stop: bool = False


# Voters.


class ChangeVoters(Message, frozen=True, kw_only=True, tag=True):
    """Let one voter in, or leave one out. Sent to the active controller."""

    add: Voter | None = None
    remove: ReplicaKey | None = None


class ChangeVotersAnswer(Message, frozen=True, kw_only=True, tag=True):
    problem: str | None = None
    code: int = 0
