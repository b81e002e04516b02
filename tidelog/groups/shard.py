"""All groups of one partition of `__consumer_offsets`: their log is that partition.

Rule 1: nothing is served before the log has been folded to its end.
Rule 2: what a client can read, and what a restart will know, is what the log has committed.
Rule 3: effects are performed in order: a write that was asked for first is appended first.

    event                        what happens
    ---------------------------  ----------------------------------------------------------------
    replay(record, producer_id)  one record of the log, in its order, before anything is served
    replay_marker(producer_id)   likewise one marker
    loaded(at)                   the log is folded; sessions begin to run
    join, sync, heartbeat,       one request for one group; answered by an `Answer`, now or later
      leave, commit,
      commit_in_transaction,
      delete_offsets, delete_group
    appended(write, offset)      where in the log this write stands; it may yet fail
    stored(write)                the log has committed this write, so all earlier ones too
    store_failed(write, error)   this write is not in the log and never will be
    completed(producer_id)       the log has committed a marker, so all that stands before it too
    tick(at)                     deadlines of the groups
    expire(at)                   offsets that are too old, and groups that hold nothing more
    topics_deleted(names, ids)   offsets of these names go, but not of topics that have them now
    topics_found(ids)            offsets of all other topics go
    unload(error)                another node coordinates these groups now

Outcomes may be reported in any order, since the log commits in order: a write that is stored
settles those before it, and their own reports change nothing. Only a failure must be reported
before the success of any later write, and a marker before the success of any later write of its
producer. Where an outcome is unknown, the shard is to be unloaded and read anew.

A marker may come at any time, also while the log is read: then it is kept in mind, and told to the
groups once they are there. One that was read as well finds nothing left to decide.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import assert_never
from uuid import UUID

from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidGroupId,
    NotCoordinator,
    UnknownMemberId,
)
from tidelog.groups.events import (
    NO_MEMBER_ID,
    Commit,
    Effect,
    GroupView,
    Heartbeat,
    Join,
    Leave,
    Left,
    OffsetsDone,
    ShardEffect,
    Store,
    Sync,
    TransactionalCommit,
)
from tidelog.groups.group import Group
from tidelog.groups.limits import Limits
from tidelog.groups.offsets import Offsets, check_commit, check_delete
from tidelog.groups.records import (
    CommittedOffset,
    GroupRecord,
    GroupWritten,
    MemberWritten,
    OffsetWritten,
    RenamedMember,
    decode,
    fits,
)
from tidelog.groups.state import State
from tidelog.groups.transactions import Completion, Transactions
from tidelog.groups.writes import Entry, Waiter, Write, Writes
from tidelog.model import NO_PRODUCER, NO_TIMESTAMP, Offset, ProducerId, TopicPartition
from tidelog.records import Record
from tidelog.shards.believed import BelievedTime
from tidelog.shards.deadlines import Deadlines
from tidelog.shards.effects import Answer, Moment, Token, Writer


class Shard:
    """The groups that one partition of `__consumer_offsets` keeps.

    Invariants:
      1. Offsets equal the fold over the stored records and markers; groups run ahead of it, as
         `GroupState` says.
      2. Writes are numbered in the order in which their effects are returned, and settled in it.
      3. A group of which there is nothing to know (no member, promise, offset, record or write)
         does not exist.
      4. No group's deadline is earlier than the shard's entry for it.
    Owned by one driver; not thread-safe.
    """

    def __init__(self, limits: Limits) -> None:
        self.is_loaded = False
        self._refusal: BrokerError | None = CoordinatorLoadInProgress("the groups are being read")
        self._limits = limits
        self._entries: dict[str, Entry] = {}
        self._writes = Writes()
        self._deadlines: Deadlines[str] = Deadlines()
        self._transactions = Transactions(self._entries)
        self._early: list[Completion] = []
        """Markers that came while the log was read."""
        self._time = BelievedTime()

    def __repr__(self) -> str:
        return f"<Shard groups={len(self._entries)} writes={len(self._writes)}>"

    # Loading.

    def replay(self, record: Record, producer_id: ProducerId = NO_PRODUCER) -> None:
        """Take one record of the log; CorruptMessage if it makes no sense.

        `producer_id` is of the transaction in which it was written, if it was in one.
        """
        assert not self.is_loaded, "a live shard writes the log itself"
        written = decode(record)
        match written:
            case OffsetWritten(value=CommittedOffset() as value) if producer_id != NO_PRODUCER:
                entry = self._entry(written.group_id)
                self._transactions.hold(entry, producer_id, written.place, value, record.offset)
            case OffsetWritten():
                entry = self._entry(written.group_id)
                entry.offsets.apply(written.place, written.value, record.offset)
                self._drop_if_nothing(entry)
            case GroupWritten(group_id=group_id, value=GroupRecord() as value):
                entry = self._entry(group_id)
                entry.group = Group.restored(group_id, value, self._limits)
                entry.has_record = True
            case MemberWritten(group_id=group_id, instance_id=instance_id, value=renamed):
                self._replay_member(group_id, instance_id, renamed)
            case GroupWritten(group_id=group_id):
                self._on_removed(self._entry(group_id))
            case None:
                pass
            case _:
                assert_never(written)

    def _replay_member(self, group_id: str, instance_id: str, renamed: RenamedMember | None) -> None:
        entry = self._entries.get(group_id)
        if entry is None:
            return  # of a group that is no more
        if renamed is None:
            entry.renamed.discard(instance_id)
        else:
            entry.renamed.add(instance_id)
            entry.group.rename(renamed)

    def replay_marker(self, producer_id: ProducerId, commits: bool) -> None:
        """Take one marker of the log: the transaction of that producer ends here."""
        assert not self.is_loaded, "a live shard hears of markers as they are committed"
        for entry in self._transactions.complete(producer_id, commits=commits):
            self._drop_if_nothing(entry)

    def loaded(self, at: Moment) -> list[ShardEffect]:
        """The whole log has been replayed. What is undecided at its end stays so."""
        assert not self.is_loaded
        self.is_loaded = True
        self._refusal = None
        self._time.look(at)
        effects: list[ShardEffect] = []
        for entry in list(self._entries.values()):
            effects += self._perform(entry, entry.group.start(at), at)
        early, self._early = self._early, []
        for producer_id, commits, offset in early:
            effects += self.completed(producer_id, commits, at, offset)
        return effects

    def unload(self, error: BrokerError | None = None) -> list[ShardEffect]:
        """Serve no more, and tell everyone who waits."""
        self._refusal = error or NotCoordinator("the groups have moved to another node")
        effects: list[ShardEffect] = []
        for entry in self._entries.values():
            for effect in entry.group.unload(self._refusal):
                assert isinstance(effect, Answer), "nothing is written any more"
                effects.append(effect)
        effects += self._writes.give_up(self._refusal)
        self._entries.clear()
        self._transactions.clear()
        self._early.clear()
        self._deadlines = Deadlines()
        return effects

    # Requests of members.

    def join(self, group_id: str, event: Join, at: Moment) -> list[ShardEffect]:
        """A client joins; one without an id founds the group if need be."""
        try:
            self._check_serving()
            _check_group_id(group_id)
            if event.member_id != NO_MEMBER_ID and group_id not in self._entries:
                raise UnknownMemberId(event.member_id)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        entry = self._entry(group_id, since_ms=at.wall_ms)
        return self._perform(entry, entry.group.join(event, at), at)

    def sync(self, group_id: str, event: Sync, at: Moment) -> list[ShardEffect]:
        try:
            entry = self._entry_of_member(group_id, event.member_id)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        return self._perform(entry, entry.group.sync(event, at), at)

    def heartbeat(self, group_id: str, event: Heartbeat, at: Moment) -> list[ShardEffect]:
        if isinstance(self._refusal, CoordinatorLoadInProgress):
            # Consumers do not expect that error here and would stop; Kafka says yes, too.
            return [Answer(to=event.reply, result=None)]
        try:
            entry = self._entry_of_member(group_id, event.member_id)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        return self._perform(entry, entry.group.heartbeat(event, at), at)

    def leave(self, group_id: str, event: Leave, at: Moment) -> list[ShardEffect]:
        try:
            self._check_serving()
            _check_group_id(group_id)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        entry = self._entries.get(group_id)
        if entry is None:
            nobody = tuple((leaver, UnknownMemberId(leaver.member_id)) for leaver in event.members)
            return [Answer(to=event.reply, result=Left(members=nobody))]
        return self._perform(entry, entry.group.leave(event, at), at)

    # Offsets.

    def commit(self, group_id: str, event: Commit, at: Moment) -> list[ShardEffect]:
        """Note how far a group has come; answered when the log holds it."""
        try:
            self._check_serving()
            if not fits(group_id):
                raise InvalidGroupId("the group's name is too long")
            entry = self._entry_for_commit(group_id, event, at)
            entry.group.check_commit(event, at)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        return self._commit(entry, event, at)

    def commit_in_transaction(
        self, group_id: str, event: TransactionalCommit, at: Moment
    ) -> list[ShardEffect]:
        """Note how far a transaction has read; answered when the log holds it, decided later."""
        try:
            self._check_serving()
            _check_group_id(group_id)
            entry = self._entry_for_commit(group_id, event, at)
            entry.group.check_transactional_commit(event)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        return self._commit(entry, event, at, writer=event.writer)

    def _commit(
        self, entry: Entry, event: Commit | TransactionalCommit, at: Moment, writer: Writer | None = None
    ) -> list[ShardEffect]:
        accepted, refused = check_commit(event, at, self._limits)
        done = OffsetsDone(refused=refused)
        if not accepted:
            return [Answer(to=event.reply, result=done), *self._perform(entry, [], at)]
        waiter = Waiter(reply=event.reply, result=done)
        append = self._writes.append(entry, at, offsets=accepted, waiter=waiter, writer=writer)
        return [append, *self._perform(entry, [], at)]

    def _entry_for_commit(self, group_id: str, event: Commit | TransactionalCommit, at: Moment) -> Entry:
        entry = self._entries.get(group_id)
        if entry is not None:
            return entry
        if event.generation < 0:
            return self._entry(group_id, since_ms=at.wall_ms)
        if isinstance(event, Commit) and event.knows_group_not_found:
            raise GroupIdNotFound(group_id)
        raise IllegalGeneration(generation=event.generation, current=None)

    def fetch_offsets(
        self, group_id: str, places: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset | BrokerError | None]:
        """The offsets asked for, or all of the group; None where there is none."""
        self._check_serving()
        entry = self._entries.get(group_id)
        offsets = Offsets() if entry is None else entry.offsets
        return offsets.fetch(places, require_stable=require_stable)

    def delete_offsets(
        self, group_id: str, places: Collection[TopicPartition], reply: Token, at: Moment
    ) -> list[ShardEffect]:
        """Forget some offsets, but not of topics that the group consumes."""
        try:
            entry = self._existing(group_id)
            entry.group.check_delete_offsets()
        except BrokerError as error:
            return [Answer(to=reply, result=error)]
        refused = check_delete(entry.group, places)
        known = entry.offsets.known()
        gone = [place for place in places if place in known and place not in refused]
        done = OffsetsDone(refused=refused)
        if not gone:
            return [Answer(to=reply, result=done)]
        return [*self._writes.delete(entry, gone, at, waiter=Waiter(reply=reply, result=done))]

    def delete_group(self, group_id: str, reply: Token, at: Moment) -> list[ShardEffect]:
        """Forget a group that has no members, and all its offsets."""
        try:
            entry = self._existing(group_id)
            entry.group.check_delete()
        except BrokerError as error:
            return [Answer(to=reply, result=error)]
        entry.group.die()
        places = sorted(entry.offsets.known())
        waiter = Waiter(reply=reply)
        return [*self._writes.delete(entry, places, at, removes_group=True, waiter=waiter)]

    def expire(self, at: Moment) -> list[ShardEffect]:
        """Forget offsets that are too old, and groups of which nothing is left."""
        effects: list[ShardEffect] = []
        if self._refusal is not None:
            return effects
        self._time.look(at)
        for entry in list(self._entries.values()):
            effects += self._expire(entry, at)
        return effects

    def _expire(self, entry: Entry, at: Moment) -> list[ShardEffect]:
        if entry.group.state is State.DEAD:
            return []
        expired = entry.offsets.expired(entry.group, self._time, self._limits.offsets_retention_ms)
        are_all = len(expired) == len(entry.offsets.committed) and not entry.offsets.pending
        if are_all and entry.group.is_vacant and not entry.writes:
            entry.group.die()
            return [*self._writes.delete(entry, expired, at, removes_group=True)]
        return [*self._writes.delete(entry, expired, at)] if expired else []

    def topics(self) -> set[str]:
        """Every topic of which some group has an offset."""
        return {place.topic for entry in self._entries.values() for place in entry.offsets.known()}

    def topics_deleted(
        self, names: Collection[str], ids: Mapping[str, UUID], at: Moment
    ) -> list[ShardEffect]:
        """Topics of these names are no more: forget their offsets. `ids` are those of the topics
        that have such a name by now; what was committed of them stays."""

        def is_gone(topic: str, topic_id: UUID | None) -> bool:
            return topic in names and (topic_id is None or topic_id != ids.get(topic))

        return self._forget(is_gone, at)

    def topics_found(self, ids: Mapping[str, UUID], at: Moment) -> list[ShardEffect]:
        """There are these topics: forget the offsets of all others, whatever their names.

        An offset without an id is of a time when they had none; it is known by its name.
        """

        def is_gone(topic: str, topic_id: UUID | None) -> bool:
            return topic not in ids or (topic_id is not None and topic_id != ids[topic])

        return self._forget(is_gone, at)

    def _forget(self, is_gone: Callable[[str, UUID | None], bool], at: Moment) -> list[ShardEffect]:
        effects: list[ShardEffect] = []
        if self._refusal is not None:
            return effects
        in_flight = self._writes.newest_offsets()
        for entry in list(self._entries.values()):
            newest: dict[TopicPartition, CommittedOffset | None] = {
                **entry.offsets.newest(),
                **in_flight.get(entry.group.id, {}),
            }
            gone = sorted(
                place
                for place, value in newest.items()
                if value is not None and is_gone(place.topic, value.topic_id)
            )
            if gone:
                effects += self._writes.delete(entry, gone, at)
        return effects

    # Views.

    def describe(self, group_id: str) -> GroupView | None:
        """The group as an operator sees it; None if there is none."""
        self._check_serving()
        entry = self._entries.get(group_id)
        return None if entry is None else entry.group.view()

    def groups(self) -> list[Group]:
        """All groups, for lists; only to be looked at."""
        self._check_serving()
        return [entry.group for entry in self._entries.values()]

    # The log reports back.

    def appended(self, write: int, offset: Offset) -> None:
        """The first record of `write` stands at `offset` of the log."""
        self._writes.note(write, offset)

    def stored(self, write: int, at: Moment) -> list[ShardEffect]:
        """The log has committed `write`, and so everything before it."""
        effects: list[ShardEffect] = []
        for settled in self._writes.take_stored(write):
            effects += self._settle(settled, None, at)
        return effects

    def store_failed(self, write: int, error: BrokerError, at: Moment) -> list[ShardEffect]:
        """`write` is not in the log and never will be; others may be."""
        failed = self._writes.take_failed(write)
        return [] if failed is None else self._settle(failed, error, at)

    def completed(
        self, producer_id: ProducerId, commits: bool, at: Moment, offset: Offset
    ) -> list[ShardEffect]:
        """The log has committed a marker at `offset`: what the producer's transaction has written
        here counts now, or never will."""
        if not self.is_loaded:
            if not isinstance(self._refusal, CoordinatorLoadInProgress):
                return []  # it is not being read; whoever reads the log finds the marker
            self._early.append(Completion(producer_id, commits, offset))
            return []
        effects: list[ShardEffect] = []
        for settled in self._writes.take_before(offset):
            effects += self._settle(settled, None, at)
        for entry in self._transactions.complete(producer_id, commits=commits, before=offset):
            effects += self._perform(entry, [], at)
        return effects

    def _settle(self, write: Write, error: BrokerError | None, at: Moment) -> list[ShardEffect]:
        entry, change = write.entry, write.change
        effects: list[Effect] = []
        if error is not None:
            if change is not None:
                effects = entry.group.store_failed(change, error, at)
            elif write.removes_group:
                entry.group.revive()
        else:
            self._transactions.apply(write)
            if change is not None:
                entry.has_record = True
                effects = entry.group.stored(change, at)
            elif write.removes_group:
                self._on_removed(entry)
        told = [] if write.waiter is None else write.waiter.settled(error)
        return [*told, *self._perform(entry, effects, at)]

    def _on_removed(self, entry: Entry) -> None:
        """The log says that the group is no more. Offsets that are left make a group of their own,
        as they would at a restart."""
        entry.has_record = False
        entry.group = Group(entry.group.id, self._limits)
        self._drop_if_nothing(entry)

    # Time.

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens before."""
        return self._deadlines.next()

    def tick(self, at: Moment) -> list[ShardEffect]:
        """Let the groups do what is due."""
        effects: list[ShardEffect] = []
        while (group_id := self._deadlines.pop_due(at.now)) is not None:
            entry = self._entries[group_id]
            effects += self._perform(entry, entry.group.tick(at), at)
        return effects

    # Inside.

    def _check_serving(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # one instance, raised many times

    def _existing(self, group_id: str) -> Entry:
        self._check_serving()
        entry = self._entries.get(group_id)
        if entry is None:
            raise GroupIdNotFound(group_id)
        return entry

    def _entry_of_member(self, group_id: str, member_id: str) -> Entry:
        self._check_serving()
        _check_group_id(group_id)
        entry = self._entries.get(group_id)
        if entry is None:
            raise UnknownMemberId(member_id)
        return entry

    def _entry(self, group_id: str, *, since_ms: int = NO_TIMESTAMP) -> Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            entry = Entry(group=Group(group_id, self._limits, since_ms=since_ms))
            self._entries[group_id] = entry
        return entry

    def _drop_if_nothing(self, entry: Entry) -> bool:
        if not entry.holds_nothing:
            return False
        del self._entries[entry.group.id]
        self._deadlines.cancel(entry.group.id)
        return True

    def _perform(self, entry: Entry, effects: list[Effect], at: Moment) -> list[ShardEffect]:
        """Turn what a group wants into what the driver does, and see to its deadline."""
        out: list[ShardEffect] = []
        for effect in effects:
            match effect:
                case Answer():
                    out.append(effect)
                case Store():
                    out.append(self._writes.append(entry, at, change=effect.change))
                case _:
                    assert_never(effect)
        if self._entries.get(entry.group.id) is entry and not self._drop_if_nothing(entry):
            due = entry.group.next_deadline()
            if due is None:
                self._deadlines.cancel(entry.group.id)
            else:
                self._deadlines.set(entry.group.id, due)
        return out

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        self._writes.assert_invariants(self._entries.values())
        self._transactions.assert_invariants()
        for group_id, entry in self._entries.items():
            assert entry.group.id == group_id
            assert not entry.holds_nothing
            entry.group.assert_invariants()
            is_going = any(w.removes_group for w in self._writes if w.entry is entry)
            assert (entry.group.state is State.DEAD) == is_going
            due, queued = entry.group.next_deadline(), self._deadlines.due(group_id)
            assert due is None or (queued is not None and queued <= due)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("a group that has members has a name; set group.id")
    if not fits(group_id):
        raise InvalidGroupId("the group's name is too long")
