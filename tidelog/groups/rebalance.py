"""How a group comes from one generation to the next, and how members come and go in it.

The requests that set this off are in `group`, with the tables of states and triggers.
"""

from dataclasses import replace
from typing import assert_never

from tidelog.errors import BrokerError, RebalanceInProgress, UnknownMemberId
from tidelog.groups.events import Change, Effect, Emptied, Joined, NewAssignment, Replacement, Result, Store
from tidelog.groups.limits import Limits
from tidelog.groups.members import Member
from tidelog.groups.records import GroupRecord
from tidelog.groups.state import NEXT_STATES, GroupState, State, Timer
from tidelog.model import NO_TIMESTAMP
from tidelog.shards.effects import Answer, Moment, Token
from tidelog.shards.refusals import as_coordinator


class Rebalancing(GroupState):
    """A group whose generations come and go."""

    __slots__ = ("_effects", "_grew", "_initial", "_initial_left_ms")

    def __init__(self, group_id: str, limits: Limits, *, since_ms: int = NO_TIMESTAMP) -> None:
        super().__init__(group_id, limits, since_ms=since_ms)
        self._initial = False
        """This rebalance is the first since the group was empty: the initial delay counts."""
        self._initial_left_ms = 0
        self._grew = False
        """Somebody has joined since the initial delay began."""
        self._effects: list[Effect] = []

    def _answer(self, reply: Token, result: Result) -> None:
        self._effects.append(Answer(to=reply, result=result))

    def _done(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # Members.

    def _set_deadline(self, key: str | Timer, after_ms: int, at: Moment) -> None:
        # Always later than now, whatever timeout a client asks for: a tick must come to its end.
        self._deadlines.set(key, at.now + max(after_ms, 1) / 1000)

    def _expect(self, member: Member, at: Moment) -> None:
        """The member lives: it has the time of a session until it must be heard of again."""
        self._set_deadline(member.id, member.session_timeout_ms, at)

    def _release(self, member: Member, error: BrokerError) -> None:
        """Answer whatever the member waits for."""
        joining, syncing = self.roster.stop_joining(member), member.syncing
        member.syncing = None
        for reply in (joining, syncing):
            if reply is not None:
                self._answer(reply, error)

    def _remove(self, member: Member) -> None:
        """The member is out; the caller sees to the rebalance."""
        self._release(member, UnknownMemberId(member.id))
        self.roster.remove(member)
        self._deadlines.cancel(member.id)
        self._unsynced.discard(member.id)

    def _swap(self, old: Member, new: Member, at: Moment) -> None:
        """`new` takes the place of `old`."""
        self.roster.replace(old, new)
        self._deadlines.cancel(old.id)
        self._expect(new, at)
        if old.id in self._unsynced:
            self._unsynced.remove(old.id)
            self._unsynced.add(new.id)

    def _promise(self, member_id: str, session_timeout_ms: int, at: Moment) -> None:
        """A client may join under this id, if it comes back in time."""
        self._promised.add(member_id)
        self._promised_size += len(member_id)
        self._set_deadline(member_id, session_timeout_ms, at)

    def _withdraw(self, member_id: str) -> None:
        """An id that was promised is not waited for any longer."""
        if member_id in self._promised:
            self._promised.remove(member_id)
            self._promised_size -= len(member_id)
            self._deadlines.cancel(member_id)

    # From generation to generation.

    def _enter(self, state: State) -> None:
        assert state in NEXT_STATES[self.state], f"{self.state} does not lead to {state}"
        self.state = state

    def _rebalance(self, at: Moment, reason: str) -> None:
        """Begin a rebalance; if one is under way, see whether it can go on."""
        if self.state is State.PREPARING:
            self._complete_if_all_joined(at)
            return
        if self.state is State.COMPLETING:
            self._fail_syncs(RebalanceInProgress(reason), at)
        self._saving = None
        self._unsynced.clear()
        self._deadlines.cancel(Timer.SYNC)
        self._initial = self.state is State.EMPTY
        self._enter(State.PREPARING)
        self.reason = reason
        if not self._initial:
            self._wait_for_joins(at)
            self._complete_if_all_joined(at)
        elif delay_ms := self._limits.initial_rebalance_delay_ms:
            self._initial_left_ms = max(self.roster.rebalance_timeout_ms - delay_ms, 0)
            self._grew = False
            self._set_deadline(Timer.JOIN, delay_ms, at)
        else:
            self._complete(at)

    def _wait_for_joins(self, at: Moment) -> None:
        self._set_deadline(Timer.JOIN, self.roster.rebalance_timeout_ms, at)

    def _complete_if_all_joined(self, at: Moment) -> None:
        # The initial delay waits for members that nobody knows of yet.
        if self.state is State.PREPARING and not self._initial and self._all_joined:
            self._complete(at)

    def _complete(self, at: Moment) -> None:
        """Those who have joined are the next generation."""
        self._deadlines.cancel(Timer.JOIN)
        for member in [m for m in self.roster if m.joining is None and m.instance_id is None]:
            self._remove(member)
        if self.roster and not self.roster.elect_joined_leader():
            self._wait_for_joins(at)  # static members may be restarting; their sessions will end
            return
        self.generation += 1
        self._initial = False
        if self.roster:
            self._begin_generation(at)
        else:
            self._become_empty(at)

    def _begin_generation(self, at: Moment) -> None:
        self._enter(State.COMPLETING)
        self.protocol = self.roster.choose_protocol()
        self.subscribed = self._compute_subscribed()
        for member in self.roster:
            if (reply := self.roster.stop_joining(member)) is not None:
                self._answer(reply, self._joined(member))
            member.is_new = False
            self._unsynced.add(member.id)
            self._expect(member, at)
        self._set_deadline(Timer.SYNC, self.roster.rebalance_timeout_ms, at)

    def _become_stable(self, record: GroupRecord, at: Moment) -> None:
        self._enter(State.STABLE)
        self.state_since_ms = record.state_since_ms
        for share in record.members:
            member = self.roster.get(share.member_id)
            assert member is not None, "any change of members begins a rebalance"
            member.assignment = share.assignment
            if member.syncing is not None:
                self._answer(member.syncing, self._synced(member))
                member.syncing = None
                self._expect(member, at)

    def _become_empty(self, at: Moment) -> None:
        self._enter(State.EMPTY)
        self.protocol = None
        self.subscribed = self._compute_subscribed()
        self.state_since_ms = at.wall_ms
        self._effects.append(Store(change=Emptied(record=self.durable())))

    def _fail_syncs(self, error: BrokerError, at: Moment) -> None:
        for member in self.roster:
            member.assignment = b""
            if member.syncing is not None:
                self._answer(member.syncing, error)
                member.syncing = None
                self._expect(member, at)

    # The log reports back.

    def stored(self, change: Change, at: Moment) -> list[Effect]:
        """The change is in the log for good."""
        match change:
            case NewAssignment():
                if change is self._saving:  # else a rebalance has begun since
                    self._saving = None
                    self._become_stable(change.record, at)
            case Replacement():
                if (member := self._awaiting(change)) is not None:
                    self.roster.stop_joining(member)
                    self._answer(change.reply, self._joined_again(member, change))
                    self._expect(member, at)
            case Emptied():
                pass
            case _:
                assert_never(change)
        return self._done()

    def store_failed(self, change: Change, error: BrokerError, at: Moment) -> list[Effect]:
        """The change is not in the log, and never will be."""
        match change:
            case NewAssignment():
                if change is self._saving:
                    self._fail_syncs(as_coordinator(error, "group"), at)
                    self._rebalance(at, f"the assignment could not be stored: {error}")
            case Replacement():
                if (member := self._awaiting(change)) is not None:
                    self._release(member, as_coordinator(error, "group"))
                    self._swap(member, change.old, at)
            case Emptied():
                pass  # at a restart the last stored generation comes back, and runs out of time
            case _:
                assert_never(change)
        return self._done()

    def _awaiting(self, change: Replacement) -> Member | None:
        """The member that waits for `change`, unless a rebalance will answer it instead."""
        member = self.roster.get(change.member_id)
        if self.state is State.STABLE and member is not None and member.joining is change.reply:
            return member
        return None

    def _joined_again(self, member: Member, change: Replacement) -> Joined:
        """The answer to a static member whose restart makes no difference to the others."""
        joined = self._joined(member)
        if change.can_skip_assignment:
            return replace(joined, skip_assignment=joined.leader == member.id)
        # Told that its former self leads, it will not assign what a stable group ignores.
        leader = change.leader_before if joined.leader == member.id else joined.leader
        return replace(joined, leader=leader, members=())

    # Time.

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens before."""
        return self._deadlines.next()

    def tick(self, at: Moment) -> list[Effect]:
        """Do what is due."""
        while (key := self._deadlines.pop_due(at.now)) is not None:
            match key:
                case Timer.JOIN:
                    self._on_join_timeout(at)
                case Timer.SYNC:
                    for member in [m for m in self.roster if m.id in self._unsynced]:
                        self._remove(member)
                    self._rebalance(at, "members did not ask for their assignment in time")
                case str():
                    self._on_silence(key, at)
                case _:
                    assert_never(key)
        return self._done()

    def _on_join_timeout(self, at: Moment) -> None:
        if self._initial and self._grew and self._initial_left_ms:
            delay_ms = min(self._limits.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._grew = False
            self._set_deadline(Timer.JOIN, delay_ms, at)
        else:
            self._complete(at)

    def _on_silence(self, member_id: str, at: Moment) -> None:
        if member_id in self._promised:
            self._withdraw(member_id)
            self._complete_if_all_joined(at)
            return
        member = self.roster.get(member_id)
        assert member is not None, "who leaves takes the deadline along"
        if member.waits and not member.is_new:
            self._expect(member, at)  # it is the group that keeps it waiting
        else:
            self._remove(member)
            self._rebalance(at, f"{member_id} was silent for too long")

    # The end.

    def die(self) -> None:
        """The group is empty and its deletion is being written; promised ids are void."""
        for member_id in list(self._promised):
            self._withdraw(member_id)
        assert self.is_vacant, "only an empty group is deleted"
        self._enter(State.DEAD)

    def revive(self) -> None:
        """The deletion could not be written."""
        self._enter(State.EMPTY)

    def unload(self, error: BrokerError) -> list[Effect]:
        """Another node coordinates the group now: tell everyone who waits to look for it."""
        for member in self.roster:
            self._release(member, error)
        self.state = State.DEAD
        return self._done()
