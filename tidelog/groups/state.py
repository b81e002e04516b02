"""What a group is: its state, its members and what follows from them. Nothing happens here."""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from tidelog.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    UnknownMemberId,
)
from tidelog.groups.events import GroupView, Joined, JoinedMember, MemberView, NewAssignment, Synced
from tidelog.groups.limits import Limits
from tidelog.groups.members import Member, Roster
from tidelog.groups.records import CommittedOffset, GroupRecord
from tidelog.model import NO_TIMESTAMP
from tidelog.shards.deadlines import Deadlines
from tidelog.wire.subscription import CONSUMER, subscribed_topics


class State(Enum):
    """The values are the names that Kafka's clients know."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NEXT_STATES: Final = {
    State.EMPTY: {State.PREPARING, State.DEAD},
    State.PREPARING: {State.COMPLETING, State.EMPTY, State.DEAD},
    State.COMPLETING: {State.STABLE, State.PREPARING, State.DEAD},
    State.STABLE: {State.PREPARING, State.DEAD},
    State.DEAD: {State.EMPTY},  # only when its deletion could not be stored
}


class Timer(Enum):
    """The deadlines of a group as a whole; a member's stands under its id."""

    JOIN = "join"
    SYNC = "sync"


class GroupState:
    """The facts about one group, and the questions that can be asked of them.

    Invariants:
      1. There are members exactly in PreparingRebalance, CompletingRebalance and Stable, except
         that in PreparingRebalance the last may have gone while others are still awaited.
      2. Joins wait only in PreparingRebalance, but for a static member whose replacement is being
         stored; syncs wait only in CompletingRebalance.
      3. Every member and every promised id has a deadline.
      4. In Stable and Empty, with no store in flight and none failed, a fold over the stored
         records gives this group.
    """

    __slots__ = (
        "_deadlines",
        "_limits",
        "_promised",
        "_promised_size",
        "_saving",
        "_unsynced",
        "generation",
        "id",
        "protocol",
        "protocol_type",
        "reason",
        "roster",
        "state",
        "state_since_ms",
        "subscribed",
    )

    def __init__(self, group_id: str, limits: Limits, *, since_ms: int = NO_TIMESTAMP) -> None:
        self.id = group_id
        self.state = State.EMPTY
        self.state_since_ms = since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        """None in a group that nobody ever joined: it only keeps offsets."""
        self.protocol: str | None = None
        self.roster = Roster()
        self.subscribed: frozenset[str] | None = None
        """The topics that members consume, where that is known."""
        self.reason = ""
        """Why the last rebalance began, for people."""
        self._limits = limits
        self._promised: set[str] = set()
        """Ids that clients were sent back with and have not joined with yet (KIP-394)."""
        self._promised_size = 0
        self._unsynced: set[str] = set()
        """Members that have not asked for their share of this generation."""
        self._saving: NewAssignment | None = None
        self._deadlines: Deadlines[str | Timer] = Deadlines()

    def __repr__(self) -> str:
        return (
            f"<Group {self.id!r} {self.state.value} generation={self.generation} members={len(self.roster)}>"
        )

    # To and from the log.

    def _restore(self, record: GroupRecord) -> None:
        self.generation = record.generation
        self.protocol_type = record.protocol_type or None
        self.protocol = record.protocol
        self.state_since_ms = record.state_since_ms
        for member in record.members:
            assert record.protocol is not None, "a record with members names their protocol"
            self.roster.add(Member.restored(member, record.protocol))
        if record.leader is not None and record.leader in self.roster:
            self.roster.leader = record.leader
        self.state = State.STABLE if record.members else State.EMPTY
        self.subscribed = self._compute_subscribed()

    def record(self, assignments: Mapping[str, bytes], since_ms: int) -> GroupRecord:
        """This generation for the log; who is not in `assignments` gets nothing."""
        assert self.protocol is not None or not self.roster
        protocol = self.protocol or ""
        return GroupRecord(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.roster.leader,
            state_since_ms=since_ms,
            members=tuple(
                [member.record(protocol, assignments.get(member.id, b"")) for member in self.roster]
            ),
        )

    def durable(self) -> GroupRecord:
        """What the log should say of this group, if it is Stable or Empty."""
        assert self.state in (State.STABLE, State.EMPTY)
        return self.record({m.id: m.assignment for m in self.roster}, self.state_since_ms)

    # Checks.

    def _check_alive(self) -> None:
        if self.state is State.DEAD:
            raise CoordinatorNotAvailable(f"the group {self.id!r} is being removed")

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(generation=generation, current=self.generation)

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        """The member that asks, if it is who it says."""
        if instance_id is not None:
            owner = self.roster.static.get(instance_id)
            if owner is not None and owner != member_id:
                raise FencedInstanceId(instance_id)
            if owner is None:
                raise UnknownMemberId(member_id)
        member = self.roster.get(member_id)
        if member is None:
            raise UnknownMemberId(member_id)
        return member

    def check_delete(self) -> None:
        """Let the group be deleted, or raise."""
        if self.state is State.DEAD:
            raise GroupIdNotFound(self.id)
        if self.state is not State.EMPTY:
            raise NonEmptyGroup(f"{self.id!r} has {len(self.roster)} members")

    def check_delete_offsets(self) -> None:
        """Let offsets be deleted, of topics that are not consumed, or raise."""
        if self.state is State.DEAD:
            raise GroupIdNotFound(self.id)
        if self.state is not State.EMPTY and self.protocol_type != CONSUMER:
            # What its members consume is not known.
            raise NonEmptyGroup(f"{self.id!r} has members of type {self.protocol_type!r}")

    # What follows.

    @property
    def is_vacant(self) -> bool:
        """Nobody is in the group, and nobody is expected."""
        return self.state is State.EMPTY and not self._promised

    @property
    def _all_joined(self) -> bool:
        return self.roster.joined_count == len(self.roster) and not self._promised

    def _compute_subscribed(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        topics: set[str] = set()
        for member in self.roster:
            assert self.protocol is not None
            own = subscribed_topics(member.metadata(self.protocol))
            if own is None:
                return None
            topics |= own
        return frozenset(topics)

    def consumes(self, topic: str) -> bool:
        """Whether members consume the topic. Consumers whose topics are unknown may."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed

    def expires_at_ms(self, topic: str, offset: CommittedOffset, retention_ms: int) -> int | None:
        """When an offset is too old to be kept; None while it must not expire (KIP-211)."""
        if self.consumes(topic):
            return None
        if self.protocol_type is None:
            since_ms = offset.committed_ms
        elif self.state is State.EMPTY:
            # An operator may set the offsets of a group that is long empty: those are new.
            since_ms = max(offset.committed_ms, self.state_since_ms)
        elif self.state is State.STABLE and self.subscribed is not None:
            since_ms = offset.committed_ms
        else:
            return None
        return offset.expires_ms if offset.expires_ms is not None else since_ms + retention_ms

    def _joined(self, member: Member) -> Joined:
        assert self.protocol_type is not None
        assert self.protocol is not None
        assert self.roster.leader is not None
        members: tuple[JoinedMember, ...] = ()
        if member.id == self.roster.leader:
            protocol = self.protocol
            members = tuple([JoinedMember(m.id, m.instance_id, m.metadata(protocol)) for m in self.roster])
        return Joined(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.roster.leader,
            members=members,
        )

    def _synced(self, member: Member) -> Synced:
        assert self.protocol_type is not None
        assert self.protocol is not None
        return Synced(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)

    def view(self) -> GroupView:
        """The group as an operator sees it. Metadata means something only once it is stable."""
        protocol = self.protocol if self.state is State.STABLE else None
        return GroupView(
            group_id=self.id,
            state=self.state.value,
            generation=self.generation,
            protocol_type=self.protocol_type or "",
            protocol=protocol or "",
            leader=self.roster.leader or "",
            reason=self.reason,
            members=tuple(
                [
                    MemberView(
                        member_id=m.id,
                        instance_id=m.instance_id,
                        client_id=m.client_id,
                        client_host=m.client_host,
                        assignment=m.assignment,
                        metadata=b"" if protocol is None else m.metadata(protocol),
                    )
                    for m in self.roster
                ]
            ),
        )

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        roster, state = self.roster, self.state
        roster.assert_invariants()
        if state is not State.PREPARING:
            assert bool(roster) == (state in (State.COMPLETING, State.STABLE))
        for member in roster:
            assert member.joining is None or state in (State.PREPARING, State.STABLE)
            assert member.joining is None or not (state is State.STABLE and member.instance_id is None)
            assert member.syncing is None or state is State.COMPLETING
            assert member.id not in self._promised
            assert member.id in self._deadlines
            assert not (member.is_new and member.joining is None)
        assert all(member_id in self._deadlines for member_id in self._promised)
        assert self._promised_size == sum(map(len, self._promised))
        assert (Timer.JOIN in self._deadlines) == (state is State.PREPARING)
        assert (Timer.SYNC in self._deadlines) == bool(self._unsynced)
        assert self._unsynced <= {member.id for member in roster}
        assert not self._unsynced or state in (State.COMPLETING, State.STABLE)
        assert self._saving is None or state is State.COMPLETING
        timers = (Timer.JOIN in self._deadlines) + (Timer.SYNC in self._deadlines)
        assert len(self._deadlines) == len(roster) + len(self._promised) + timers
