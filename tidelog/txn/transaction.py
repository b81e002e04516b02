"""One transactional id: the machine that fences its producers and ends its transactions.

Rule 1: what is answered, and where markers go, is what the log has stored.
Rule 2: every bump of the epoch is stored before anybody hears of it, so nobody writes in an epoch
        that another producer has, or had.
Rule 3: while a write is on its way, whatever would change the id again is told to come back
        (ConcurrentTransactions). Only two kinds of writes may be built upon before they are
        stored: more partitions, and the completion.

    from             event                              to
    ---------------  ---------------------------------  -------------------------------------------
    (unknown)        init                               Empty, with a fresh producer id
    Empty,           init                               Empty, the epoch bumped; past the last
      Complete*                                           epoch a fresh producer id
                     init, repeated (KIP-360)           Empty, the same epoch again
                     add                                Ongoing
                     end: abort, with bump (KIP-890)    CompleteAbort, the epoch bumped
                     expire                             (unknown)
    Ongoing          add                                Ongoing, with more partitions
                     end: commit                        PrepareCommit [1]
                     end: abort                         PrepareAbort [1]
                     commit of its group                PrepareCommit, the epoch bumped
                     init; timeout; operator's abort;   PrepareAbort, the epoch bumped: whoever
                       sweep by its group's decision      wrote until now is fenced
    PrepareCommit    marked: the last partition         CompleteCommit [2]
    PrepareAbort     marked: the last partition         CompleteAbort [2]

    [1] From version 5 of EndTxn on the epoch is bumped: the marker carries the new epoch, and so
        does the next transaction. If it is the last one, the next has a fresh producer id.
    [2] With the fresh producer id, if there is one to go on with.
    Without partitions there is nothing to mark: Complete* follows at once, in one write.
    Everything else leaves the state as it is; `tests/unit/txn/test_table.py` has all pairs.

Kafka's Dead is here a deletion on its way, and its PrepareEpochFence is not needed: a fence and
the decision to abort are one write.
"""

from collections.abc import Collection

from tidelog.errors import (
    BrokerError,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    TransactionAbortable,
)
from tidelog.model import NO_PRODUCER, ProducerId, TopicPartition
from tidelog.shards.believed import BelievedTime
from tidelog.shards.effects import Answer, Moment, Token, Writer
from tidelog.txn import transitions
from tidelog.txn.events import (
    AddPartitions,
    Change,
    Effect,
    Ended,
    EndTransaction,
    GroupMember,
    Initialised,
    InitProducer,
    SendMarkers,
    Store,
    TransactionView,
    Verdicts,
)
from tidelog.txn.limits import Limits
from tidelog.txn.records import COMMITTED, COMPLETE, PREPARED, State, TransactionRecord


class Transaction:
    """A transactional id, its producer, and the transaction that may be open.

    Invariants:
      1. `stored` is the fold of its records; `tip` is what it will be if no write fails.
      2. All writes in flight but the last can be built upon: they add partitions, or complete.
      3. Markers are awaited only of what is stored and prepared.
      4. Requests wait only for the completion of what is stored and prepared.
    """

    def __init__(
        self, transactional_id: str, limits: Limits, stored: TransactionRecord | None = None
    ) -> None:
        self.id = transactional_id
        self.stored = stored
        self._limits = limits
        self._changes: list[Change] = []
        self._timeout_at: float | None = None
        self._retry_at = 0.0
        self._unmarked: frozenset[TopicPartition] = frozenset()
        self._waiting: list[tuple[float, AddPartitions]] = []

    def __repr__(self) -> str:
        state = None if self.stored is None else self.stored.state.value
        return f"<Transaction {self.id!r} {state} writes={len(self._changes)}>"

    @property
    def tip(self) -> TransactionRecord | None:
        """The newest record, on its way or stored."""
        return self._changes[-1].record if self._changes else self.stored

    @property
    def changes(self) -> tuple[Change, ...]:
        """The writes in flight, the oldest first."""
        return tuple(self._changes)

    @property
    def is_nothing(self) -> bool:
        """There is nothing to know of it."""
        return self.stored is None and not self._changes

    @property
    def needs_fresh_id(self) -> bool:
        """The next bump of the epoch by its producer needs another producer id."""
        return self.tip is None or transitions.is_used_up(self.tip)

    @property
    def can_be_swept(self) -> bool:
        """A transaction is open, whatever is on its way to it."""
        return self.tip is not None and self.tip.state is State.ONGOING

    # Life.

    def start(self, at: Moment) -> list[Effect]:
        """The log is folded: go on where it ends."""
        record = self.stored
        assert record is not None
        assert not self._changes
        if record.state in PREPARED:
            return self._send_markers(record, at)
        if record.state is State.ONGOING:
            # The wall clock may have jumped, so it can shorten the time left, but not add to it.
            passed_ms = at.wall_ms - record.started_ms if record.started_ms > 0 else 0
            left_ms = record.timeout_ms - passed_ms
            self._timeout_at = at.now + min(max(left_ms, 0), record.timeout_ms) / 1000
        return []

    def unload(self, error: BrokerError) -> list[Effect]:
        """Tell everyone who waits for a completion; those of writes are told by the shard."""
        waiting, self._waiting = self._waiting, []
        return [Answer(to=event.reply, result=error) for _, event in waiting]

    # Requests of producers.

    def init(self, event: InitProducer, at: Moment) -> list[Effect]:
        """A producer begins, or begins again."""
        self._check_not_writing()
        record, expected = self.stored, event.expected
        self._check_given(event.epoch)
        if record is None:
            if event.fresh_id == NO_PRODUCER:
                raise ConcurrentTransactions("a fresh producer id is needed")
            return [self._initialise(event, Writer(event.fresh_id, 0), at)]
        is_itself = expected == record.writer
        # One that repeats what it asked has not begun since; where one has begun, it is a zombie.
        is_repeated = expected == record.predecessor and record.state is not State.ONGOING
        if expected is not None and not is_itself and not is_repeated:
            raise ProducerFenced(f"{self.id!r} is of a newer producer than epoch {event.epoch}")
        if record.state in PREPARED:
            raise ConcurrentTransactions(f"the last transaction of {self.id!r} is being completed")
        if record.state is State.ONGOING:
            if is_itself:
                writer = transitions.next_writer(record, event.fresh_id)
                aborted = transitions.ended_as(record, at, commits=False, writer=writer)
            else:
                aborted = transitions.fenced(record, at)
            back = ConcurrentTransactions(f"the open transaction of {self.id!r} is being aborted")
            return [self._begin(aborted, Answer(to=event.reply, result=back))]
        if expected is not None and is_repeated:
            return [self._initialise(event, record.writer, at)]
        return [self._initialise(event, transitions.next_writer(record, event.fresh_id), at)]

    def _initialise(self, event: InitProducer, writer: Writer, at: Moment) -> Store:
        record = transitions.initialised(
            self.stored, at, writer=writer, expected=event.expected, timeout_ms=event.timeout_ms
        )
        return self._begin(record, Answer(to=event.reply, result=Initialised(*writer)))

    def add(self, event: AddPartitions, at: Moment) -> list[Effect]:
        """Partitions join the transaction, or begin one."""
        tip = self._checked(event, is_from_leader=event.is_from_leader)
        if event.verify_only:
            return [Answer(to=event.reply, result=self._verdicts(tip, event.places))]
        if tip.state in PREPARED:
            return self._wait(event, at)
        added: Verdicts = dict.fromkeys(sorted(event.places))
        answer = Answer(to=event.reply, result=added)
        if event.places <= tip.places:
            if not self._changes:
                return [answer]
            self._changes[-1].answers.append(answer)
            return []
        timeout_at = self._changes[-1].timeout_at if self._changes else self._timeout_at
        if timeout_at is None:
            timeout_at = at.now + tip.timeout_ms / 1000
        record = transitions.added(tip, at, places=event.places, is_implicit=event.implicit)
        return [self._begin(record, answer, timeout_at=timeout_at)]

    def _verdicts(self, tip: TransactionRecord, places: Collection[TopicPartition]) -> Verdicts:
        if tip.state in PREPARED:
            raise ConcurrentTransactions(f"the transaction of {self.id!r} is being completed")
        # What is stored may be the transaction before, on whose completion the next is built.
        is_open = self.stored is not None and self.stored.state is State.ONGOING
        known = self.stored.places if self.stored is not None and is_open else frozenset()
        missing = TransactionAbortable(f"the partition is not in the transaction of {self.id!r}")
        return {place: None if place in known else missing for place in sorted(places)}

    def _wait(self, event: AddPartitions, at: Moment) -> list[Effect]:
        is_stored = not self._changes
        if not is_stored or len(self._waiting) >= self._limits.waiting_max:
            raise ConcurrentTransactions(f"the last transaction of {self.id!r} is being completed")
        self._waiting.append((at.now + self._limits.completion_wait_ms / 1000, event))
        return []

    def end(self, event: EndTransaction, at: Moment) -> list[Effect]:
        """The producer commits or aborts."""
        self._check_given(event.epoch)
        record = self.stored
        who = Writer(event.producer_id, event.epoch)
        is_ended = record is not None and record.state not in (State.EMPTY, State.ONGOING)
        if record is not None and is_ended and who == self._ender(record, event):
            self._check_only_completing()
            if event.commits != (record.state in COMMITTED):
                raise InvalidTransactionState(f"it was decided otherwise: {record.state.value}")
            return [Answer(to=event.reply, result=Ended(*record.writer))]
        record = self._checked(event)
        self._check_not_writing()
        if record.state in PREPARED:
            raise ConcurrentTransactions(f"the last transaction of {self.id!r} is being completed")
        if record.state is not State.ONGOING and (event.commits or not event.bumps_epoch):
            raise InvalidTransactionState(f"no transaction is open: {record.state.value}")
        if event.bumps_epoch:
            writer = transitions.next_writer(record, event.fresh_id)
            ended = transitions.ended_as(record, at, commits=event.commits, writer=writer)
        else:
            ended = transitions.ended(record, at, commits=event.commits)
        return [self._begin(ended, Answer(to=event.reply, result=Ended(*ended.writer)))]

    @staticmethod
    def _ender(record: TransactionRecord, event: EndTransaction) -> Writer | None:
        """Who has ended the transaction, and may ask for it again."""
        return record.predecessor if event.bumps_epoch else record.writer

    # Decisions by others.

    def abort(self, reply: Token, at: Moment) -> list[Effect]:
        """An operator ends the transaction, as its timeout would."""
        record = self.stored
        if record is not None and record.state is State.PREPARE_ABORT:
            return [Answer(to=reply, result=None)]
        self._check_not_writing()
        if record is None or record.state is not State.ONGOING:
            state = "unknown" if record is None else record.state.value
            raise InvalidTransactionState(f"no transaction of {self.id!r} is open: {state}")
        return [self._begin(transitions.fenced(record, at), Answer(to=reply, result=None))]

    def member_commit(self, member: GroupMember, at: Moment) -> Change | None:
        """The change that commits a member of a group; None if it has written nothing.

        Nothing has happened until it is given to `begin`.
        """
        record = self.stored
        if record is None:
            raise InvalidProducerIdMapping(f"the member {self.id!r} is not known")
        self._check_given(member.epoch)
        if record.writer != Writer(member.producer_id, member.epoch):
            raise ProducerFenced(f"the member {self.id!r} has another producer or epoch by now")
        if self._changes:
            raise ConcurrentTransactions(f"the member {self.id!r} is changing")
        if record.state is State.EMPTY:
            return None
        if record.state is not State.ONGOING:
            raise InvalidTransactionState(f"the member {self.id!r} is in {record.state.value}")
        # Its producer does not go on by itself: it is as if fenced, but committed.
        return Change(record=transitions.fenced(record, at, commits=True))

    def sweep(self, at: Moment) -> Change:
        """The change that aborts what its group has left behind; for `begin`."""
        tip = self.tip
        assert tip is not None
        return Change(record=transitions.fenced(tip, at))

    def begin(self, change: Change) -> None:
        """`change` is on its way to the log."""
        self._changes.append(change)

    def marked(
        self, producer_id: ProducerId, epoch: int, places: Collection[TopicPartition], at: Moment
    ) -> list[Effect]:
        """Markers stand in these partitions, or the partitions are gone."""
        record = self.stored
        if record is None or record.state not in PREPARED:
            return []  # a late report: the transaction is complete
        if (producer_id, epoch) != (record.producer_id, record.epoch):
            return []  # of another transaction
        self._unmarked -= frozenset(places)
        return self._complete(record, at)

    def expire(self, time: BelievedTime) -> list[Effect]:
        """Forget an id that nobody has used for too long, by a clock that has not just jumped."""
        record = self.stored
        if self._changes or record is None:
            return []
        is_idle = record.state is State.EMPTY or record.state in COMPLETE
        kept_ms = self._limits.id_expiration_ms
        if not is_idle or not time.is_past(record.updated_ms + kept_ms, kept_ms):
            return []
        return [self._begin(None)]

    # The log reports back.

    def stored_change(self, change: Change, at: Moment) -> list[Effect]:
        """The log has committed `change`, and so everything before it."""
        assert self._changes[0] is change, "the log commits in order"
        del self._changes[0]
        self.stored, self._timeout_at = change.record, change.timeout_at
        self._unmarked = frozenset()
        effects: list[Effect] = list(change.answers)
        if change.record is not None and change.record.state in PREPARED:
            effects += self._send_markers(change.record, at)
        return effects

    def failed_change(self, change: Change, error: BrokerError, at: Moment) -> list[Effect]:
        """`change` is not in the log; what was built upon it may be, and says all that it said."""
        self._changes.remove(change)
        self._retry_at = at.now + self._limits.retry_ms / 1000
        return [Answer(to=answer.to, result=error) for answer in change.answers]

    # Time.

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens before."""
        dues = [due for due, _ in self._waiting]
        if not self._changes and self.stored is not None:
            if self.stored.state in PREPARED and not self._unmarked:
                dues.append(self._retry_at)
            elif self._timeout_at is not None:
                dues.append(max(self._timeout_at, self._retry_at))
        return min(dues, default=None)

    def tick(self, at: Moment) -> list[Effect]:
        """Refuse who has waited too long; end what is open for too long, or half ended."""
        effects: list[Effect] = []
        late = [event for due, event in self._waiting if due <= at.now]
        self._waiting = [wait for wait in self._waiting if wait[0] > at.now]
        for event in late:
            error = ConcurrentTransactions(f"{self.id!r} waits for markers of its last transaction")
            effects.append(Answer(to=event.reply, result=error))
        record = self.stored
        if self._changes or record is None or self._retry_at > at.now:
            return effects
        if record.state in PREPARED:
            effects += self._complete(record, at)
        elif self._timeout_at is not None and self._timeout_at <= at.now:
            effects.append(self._begin(transitions.fenced(record, at)))
        return effects

    # Inside.

    def _begin(
        self, record: TransactionRecord | None, *answers: Answer, timeout_at: float | None = None
    ) -> Store:
        change = Change(record=record, answers=list(answers), timeout_at=timeout_at)
        self.begin(change)
        return Store(change=change)

    def _send_markers(self, record: TransactionRecord, at: Moment) -> list[Effect]:
        self._unmarked = record.places
        if not record.places:
            return self._complete(record, at)
        return [
            SendMarkers(
                transactional_id=self.id,
                producer_id=record.producer_id,
                epoch=record.epoch,
                commits=record.state in COMMITTED,
                is_bumped=record.is_bumped,
                places=tuple(sorted(record.places)),
            )
        ]

    def _complete(self, record: TransactionRecord, at: Moment) -> list[Effect]:
        """Once all markers stand, the next transaction may begin: those who waited for it do."""
        if self._unmarked or self._changes:
            return []
        effects: list[Effect] = [self._begin(transitions.completed(record, at))]
        waiting, self._waiting = self._waiting, []
        for _, event in waiting:
            try:
                effects += self.add(event, at)
            except BrokerError as error:
                effects.append(Answer(to=event.reply, result=error))
        return effects

    def _checked(
        self, event: AddPartitions | EndTransaction, *, is_from_leader: bool = False
    ) -> TransactionRecord:
        """What to build upon, if the request is of the producer whose turn it is."""
        tip, who = self.tip, Writer(event.producer_id, event.epoch)
        is_given = who.epoch < transitions.EPOCH_MAX
        if is_given and tip is not None and tip.writer == who:
            can_build = tip.state is State.ONGOING or tip.state in COMPLETE
            if self._changes and not can_build:
                raise ConcurrentTransactions(f"{self.id!r} is changing")
            return tip
        if is_given and self.stored is not None and self.stored.writer == who:
            raise ConcurrentTransactions(f"{self.id!r} is changing")
        current = self.stored or tip
        if current is None or current.writer.producer_id != who.producer_id:
            raise InvalidProducerIdMapping(f"{self.id!r} is not of producer {who.producer_id}")
        if is_from_leader:
            # Producers take this from a produce request; Kafka's leaders translate it, too.
            raise InvalidProducerEpoch(
                producer_id=who.producer_id, epoch=who.epoch, current=current.writer.epoch
            )
        raise ProducerFenced(f"{self.id!r} has epoch {current.writer.epoch} by now; {who.epoch} is fenced")

    def _check_given(self, epoch: int) -> None:
        """The last epoch is what fencing leaves: no producer has it."""
        if epoch >= transitions.EPOCH_MAX:
            raise ProducerFenced(f"no producer of {self.id!r} was given epoch {epoch}")

    def _check_not_writing(self) -> None:
        if self._changes:
            raise ConcurrentTransactions(f"{self.id!r} is changing")

    def _check_only_completing(self) -> None:
        if any(c.record is None or c.record.state not in COMPLETE for c in self._changes):
            raise ConcurrentTransactions(f"{self.id!r} is changing")

    # Views.

    def view(self) -> TransactionView | None:
        """The id as the log has it; None if it has nothing."""
        record = self.stored
        if record is None:
            return None
        return TransactionView(
            transactional_id=self.id,
            state=record.state.value,
            producer_id=record.producer_id,
            epoch=record.epoch,
            timeout_ms=record.timeout_ms,
            started_ms=record.started_ms,
            updated_ms=record.updated_ms,
            places=tuple(sorted(record.places)),
            unmarked=tuple(sorted(self._unmarked)),
        )

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        can_be_built_upon = {State.ONGOING} | COMPLETE
        for change in self._changes[:-1]:
            assert change.record is not None
            assert change.record.state in can_be_built_upon
        record = self.stored
        is_prepared = record is not None and record.state in PREPARED
        assert is_prepared or not self._unmarked
        assert is_prepared or not self._waiting
        if record is not None:
            assert 0 <= record.epoch <= transitions.EPOCH_MAX
            assert record.writer.epoch < transitions.EPOCH_MAX or record.state is not State.ONGOING
            assert self._unmarked <= record.places
            assert bool(record.places) == (record.state is State.ONGOING or is_prepared)
            assert (self._timeout_at is not None) == (record.state is State.ONGOING)
            assert record.next_producer_id == NO_PRODUCER or is_prepared
