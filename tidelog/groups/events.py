"""What reaches a group, what it wants done, and what those who asked are told.

Rule 1: a request carries a `reply`, which means nothing here. Exactly one `Answer` goes out for
        it, now or after other events; a refusal is the `BrokerError` that the client gets.
Rule 2: everything is a value; nothing here acts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tidelog.errors import BrokerError
from tidelog.groups.members import Member
from tidelog.groups.records import GroupRecord, RenamedMember
from tidelog.model import NO_EPOCH, Epoch, Offset, TopicPartition
from tidelog.shards.effects import Answer, Append, Token, Writer

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""A member's protocols, the one it likes best first, each with what its leader must know."""

NO_MEMBER_ID = ""
NO_GENERATION = -1


# Requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A client wants to become a member, or to stay one for the next generation."""

    reply: Token
    member_id: str
    """Empty for a client that has none yet."""
    unique: str
    """A fresh UUID, out of which a new member's id is made."""
    instance_id: str | None = None
    """The name of a static member (KIP-345), which stays the same over restarts."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long its members have to join again; negative in version 0: the session timeout."""
    protocol_type: str
    protocols: Protocols
    wants_id_first: bool
    """From version 4: a client without an id is given one and sent back for it (KIP-394)."""
    can_skip_assignment: bool
    """From version 9: a leader can be told that there is nothing to assign (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member asks for its share; the leader's request brings everyone's."""

    reply: Token
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member lives, and wants to know whether the group still stands as it was."""

    reply: Token
    member_id: str
    instance_id: str | None = None
    generation: int


class Leaver(NamedTuple):
    """Who leaves. Without a member id, the static member of that name, whoever it is now."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Members go, or an operator removes them."""

    reply: Token
    members: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """How far a partition has been consumed."""

    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""
    topic_id: UUID | None = None
    """Of the topic that has the name in the turn in which this is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A member, or a consumer that belongs to no generation (-1), notes how far it came."""

    reply: Token
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None
    generation: int = NO_GENERATION
    offsets: Mapping[TopicPartition, OffsetToCommit]
    retention_ms: int | None = None
    """Only in versions 2 to 4: keep the offsets for this long, whatever becomes of the group."""
    knows_group_not_found: bool = False
    """From version 9: that error is understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalCommit:
    """A producer notes how far its transaction has read; it counts if the transaction commits.

    Who names a generation, a member or an instance must be that member (KIP-447). Producers that
    know of none, as all did before version 3, may commit at any time.
    """

    reply: Token
    writer: Writer
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None
    generation: int = NO_GENERATION
    offsets: Mapping[TopicPartition, OffsetToCommit]

    @property
    def names_member(self) -> bool:
        """Whether it says on whose behalf it comes."""
        names_nobody = self.member_id == NO_MEMBER_ID and self.instance_id is None
        return self.generation >= 0 or not names_nobody


# Answers.


class JoinedMember(NamedTuple):
    """A member as the leader must know it to give it a share."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The member belongs to this generation. Only the leader hears who else does."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The member's share, in the words of its own protocol."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Each leaver, and why it could not be removed, in the order of the request."""

    members: tuple[tuple[Leaver, BrokerError | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsDone:
    """All offsets of the request are stored, or deleted, but those refused."""

    refused: Mapping[TopicPartition, BrokerError] = field(default_factory=dict)


Result: TypeAlias = Joined | Synced | Left | OffsetsDone | BrokerError | None
"""None: done, and there is nothing to say about it."""


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewAssignment:
    """The leader has shared out the work of a generation."""

    record: GroupRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replacement:
    """A static member has restarted and takes the place it had, under a new member id."""

    renamed: RenamedMember
    member_id: str
    reply: Token
    old: Member
    """As it was before; a failed write brings it back."""
    leader_before: str
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Emptied:
    """The last member is gone."""

    record: GroupRecord


Change: TypeAlias = NewAssignment | Replacement | Emptied
"""Compared by identity: each is one write, which is stored or fails once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Write the change's record to the log; `stored` or `store_failed` comes back with it."""

    change: Change


Effect: TypeAlias = Answer | Store
"""What a group wants done, in order."""


ShardEffect: TypeAlias = Answer | Append
"""What a shard wants done, in order."""


# Views.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member as an operator sees it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as an operator sees it; `reason` is why it last rebalanced."""

    group_id: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    reason: str
    members: tuple[MemberView, ...]
