"""All transactional ids of one partition of `__transaction_state`: their log is that partition.

Rule 1: nothing is served before the log has been folded to its end.
Rule 2: what is answered, where markers go, and what a restart will know is what the log has stored.
Rule 3: effects are performed in order: a write that was asked for first is appended first.
Rule 4: a decision over a group, the commits of its members and the aborts of what it leaves behind
        are one write. Nothing of it is seen unless all of it is.

    event                        what happens
    ---------------------------  ----------------------------------------------------------------
    replay(record)               one record of the log, in its order, before anything is served
    loaded(at)                   the log is folded; markers of what is decided go out (again)
    init_producer, end,          one request for one id; answered by an `Answer`, now or later
      add_partitions, abort
    commit_group, forget         one request for one group; likewise
    marked(id, ..., places)      these partitions have the marker, or are gone
    stored(write)                the log has committed this write, so all earlier ones too
    store_failed(write, error)   this write is not in the log and never will be
    tick(at)                     transactions that are open for too long are aborted
    expire(at)                   ids that nobody uses are forgotten; decisions never are
    unload(error)                another node coordinates these ids now

Outcomes may be reported in any order, since the log commits in order: a write that is stored
settles those before it, and their own reports change nothing. Only a failure must be reported
before the success of any later write. Where an outcome is unknown, the shard is to be unloaded and
read anew.
"""

from collections.abc import Collection
from typing import Final, assert_never

from tidelog.errors import (
    BrokerError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    NotCoordinator,
    TransactionalIdNotFound,
)
from tidelog.model import ProducerId, TopicPartition
from tidelog.records import Record
from tidelog.shards.believed import BelievedTime
from tidelog.shards.deadlines import Deadlines
from tidelog.shards.effects import Answer, Moment, Token
from tidelog.shards.refusals import as_coordinator
from tidelog.txn.events import (
    AddPartitions,
    Change,
    CommitGroup,
    Decided,
    Effect,
    EndTransaction,
    ForgetDecision,
    InitProducer,
    SendMarkers,
    ShardEffect,
    Store,
    TransactionView,
)
from tidelog.txn.limits import Limits
from tidelog.txn.placement import group_of
from tidelog.txn.records import (
    PROOF_BYTES_MAX,
    UNFINISHED,
    Decision,
    DecisionWritten,
    TransactionWritten,
    decode,
    fits,
)
from tidelog.txn.transaction import Transaction
from tidelog.txn.writes import Write, Writes
from tidelog.wire.batches_decided import NO_BATCH, Counting

QUERY_JUMP_MAX: Final = 1_000_000
"""How many batches of a query may follow each other without a row."""


class Shard:
    """The transactional ids, and the decisions of groups, that one partition keeps.

    Invariants:
      1. What is stored of each id and each group is the fold over the stored records.
      2. Writes are numbered in the order in which their effects are returned, and settled in it.
      3. An id of which nothing is stored or on its way does not exist.
      4. No transaction's deadline is earlier than the shard's entry for it.
      5. Of each group at most one decision is on its way.
    Owned by one driver; not thread-safe.
    """

    def __init__(self, limits: Limits) -> None:
        self.is_loaded = False
        self._refusal: BrokerError | None = CoordinatorLoadInProgress("transactions are being read")
        self._limits = limits
        self._transactions: dict[str, Transaction] = {}
        self._members: dict[str, dict[str, Transaction]] = {}
        self._decisions: dict[str, Decision] = {}
        self._deciding: dict[str, int] = {}
        self._writes = Writes()
        self._deadlines: Deadlines[str] = Deadlines()
        self._time = BelievedTime()

    def __repr__(self) -> str:
        return f"<Shard ids={len(self._transactions)} writes={len(self._writes)}>"

    # Loading.

    def replay(self, record: Record) -> None:
        """Take one record of the log; CorruptMessage if it makes no sense."""
        assert not self.is_loaded, "a live shard writes the log itself"
        written = decode(record)
        match written:
            case TransactionWritten(transactional_id=name, value=value):
                transaction = self._entry(name)
                transaction.stored = value
                self._drop_if_nothing(transaction)
            case DecisionWritten():
                self._decide(written)
            case None:
                pass
            case _:
                assert_never(written)

    def loaded(self, at: Moment) -> list[ShardEffect]:
        """The whole log has been replayed."""
        assert not self.is_loaded
        self.is_loaded = True
        self._refusal = None
        self._time.look(at)
        effects: list[ShardEffect] = []
        for transaction in list(self._transactions.values()):
            effects += self._perform(transaction, transaction.start(at), at)
        return effects

    def unload(self, error: BrokerError | None = None) -> list[ShardEffect]:
        """Serve no more, and tell everyone who waits."""
        self._refusal = error or NotCoordinator("the transactions have moved to another node")
        effects: list[ShardEffect] = [*self._writes.give_up(self._refusal)]
        for transaction in self._transactions.values():
            for effect in transaction.unload(self._refusal):
                assert isinstance(effect, Answer), "nothing is written any more"
                effects.append(effect)
        self._transactions.clear()
        self._members.clear()
        self._decisions.clear()
        self._deciding.clear()
        self._deadlines = Deadlines()
        return effects

    # Requests of producers.

    def needs_fresh_id(self, transactional_id: str, *, begins: bool = True) -> bool:
        """Whether the next request to initialise, or to end with a bump, needs `fresh_id`."""
        if self._refusal is not None:
            return False  # whatever is asked will be refused
        transaction = self._transactions.get(transactional_id)
        return begins if transaction is None else transaction.needs_fresh_id

    def init_producer(self, transactional_id: str, event: InitProducer, at: Moment) -> list[ShardEffect]:
        """A producer begins; answered by `Initialised`."""
        try:
            self._check_serving()
            if not transactional_id or not fits(transactional_id):
                raise InvalidRequest("a transactional id has 1 to 32767 bytes")
            if not 0 < event.timeout_ms <= self._limits.timeout_max_ms:
                raise InvalidTransactionTimeout(
                    f"{event.timeout_ms} ms is not between 1 and {self._limits.timeout_max_ms}"
                )
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        return self._ask(self._entry(transactional_id), event, at)

    def add_partitions(self, transactional_id: str, event: AddPartitions, at: Moment) -> list[ShardEffect]:
        """Partitions join a transaction, or are looked for in it; answered by `Verdicts`."""
        return self._ask_known(transactional_id, event, at)

    def end(self, transactional_id: str, event: EndTransaction, at: Moment) -> list[ShardEffect]:
        """A producer commits or aborts; answered by `Ended` when it is decided."""
        return self._ask_known(transactional_id, event, at)

    def _ask_known(
        self, transactional_id: str, event: AddPartitions | EndTransaction, at: Moment
    ) -> list[ShardEffect]:
        try:
            self._check_serving()
            transaction = self._transactions.get(transactional_id)
            if transaction is None:
                raise InvalidProducerIdMapping(f"{transactional_id!r} is not known; initialise it")
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        return self._ask(transaction, event, at)

    def _ask(
        self, transaction: Transaction, event: InitProducer | AddPartitions | EndTransaction, at: Moment
    ) -> list[ShardEffect]:
        effects: list[Effect]
        try:
            match event:
                case InitProducer():
                    effects = transaction.init(event, at)
                case AddPartitions():
                    effects = transaction.add(event, at)
                case EndTransaction():
                    effects = transaction.end(event, at)
                case _:
                    assert_never(event)
        except BrokerError as error:
            effects = [Answer(to=event.reply, result=error)]
        return self._perform(transaction, effects, at)

    # Requests of operators and drivers.

    def abort(self, transactional_id: str, reply: Token, at: Moment) -> list[ShardEffect]:
        """An operator ends a transaction; answered by None when that is stored."""
        try:
            self._check_serving()
            transaction = self._transactions.get(transactional_id)
            if transaction is None:
                raise TransactionalIdNotFound(transactional_id)
            effects = transaction.abort(reply, at)
        except BrokerError as error:
            return [Answer(to=reply, result=error)]
        return self._perform(transaction, effects, at)

    def marked(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: int,
        places: Collection[TopicPartition],
        at: Moment,
    ) -> list[ShardEffect]:
        """The markers of (producer_id, epoch) stand in `places`, or the partitions are gone."""
        transaction = self._transactions.get(transactional_id)
        if self._refusal is not None or transaction is None:
            return []
        return self._perform(transaction, transaction.marked(producer_id, epoch, places, at), at)

    # Groups.

    def decision(self, group: str) -> Decision | None:
        """The newest decision of the group that is stored, and so every one that was answered."""
        self._check_serving()
        return self._decisions.get(group)

    def commit_group(self, event: CommitGroup, at: Moment) -> list[ShardEffect]:
        """Commit all members, or none; answered by `Decided`.

        A refusal names the member at fault. Members that have written nothing are passed over; if
        no other is named, there is nothing to decide. What else is open in the group was left
        behind, and is aborted.
        """
        try:
            self._check_serving()
            _check_group(event)
            decided = self._decisions.get(event.group)
            if decided is not None and decided.batch_id >= event.batch_id:
                already = Decided(decided.batch_id, is_new=False, proof=decided.proof)
                return [Answer(to=event.reply, result=already)]
            self._check_not_deciding(event.group)
            _check_follows(event, decided)
            commits = self._commits(event, at)
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        named = {member.transactional_id for member in event.members}
        sweeps = [
            (transaction, transaction.sweep(at))
            for name, transaction in self._members.get(event.group, {}).items()
            if name not in named and transaction.can_be_swept
        ]
        decision = Decision(
            batch_id=event.batch_id,
            decided_ms=at.wall_ms,
            members=len(commits),
            after=event.after,
            counting=event.counting,
            proof=event.proof,
        )
        return self._write_decision(
            DecisionWritten(group=event.group, value=decision),
            [*commits, *sweeps],
            Answer(to=event.reply, result=Decided(batch_id=event.batch_id, is_new=True)),
            at,
        )

    def _commits(self, event: CommitGroup, at: Moment) -> list[tuple[Transaction, Change]]:
        commits: list[tuple[Transaction, Change]] = []
        for member in event.members:
            transaction = self._transactions.get(member.transactional_id)
            if transaction is None:
                raise InvalidProducerIdMapping(f"{member.transactional_id!r} is not known")
            change = transaction.member_commit(member, at)
            if change is not None:
                commits.append((transaction, change))
        if not commits:
            raise InvalidTransactionState(
                f"batch {event.batch_id} of {event.group!r} has nothing to commit: no member wrote"
            )
        return commits

    def forget(self, event: ForgetDecision, at: Moment) -> list[ShardEffect]:
        """Forget the decision of a group that had one batch only; answered by None.

        All others are kept, but where an operator says otherwise: without them a batch that comes
        again would be committed again.
        """
        group, answer = event.group, Answer(to=event.reply, result=None)
        try:
            self._check_serving()
            self._check_not_deciding(group)
            decided = self._decisions.get(group)
            if decided is None:
                return [answer]
            may_go = event.is_reset or decided.counting is Counting.ONCE
            if not may_go or decided.batch_id != event.batch_id:
                raise InvalidTransactionState(
                    f"batch {decided.batch_id} of {group!r} may be asked for again, and is not forgotten"
                )
        except BrokerError as error:
            return [Answer(to=event.reply, result=error)]
        return self._write_decision(DecisionWritten(group=group, value=None), [], answer, at)

    def _write_decision(
        self, decision: DecisionWritten, changes: list[tuple[Transaction, Change]], answer: Answer, at: Moment
    ) -> list[ShardEffect]:
        for transaction, change in changes:
            transaction.begin(change)
            self._set_deadline(transaction)
        append = self._writes.append(at, *changes, decision=decision, answer=answer)
        self._deciding[decision.group] = append.write
        return [append]

    def _decide(self, written: DecisionWritten) -> None:
        if written.value is None:
            self._decisions.pop(written.group, None)
        else:
            self._decisions[written.group] = written.value

    # Views.

    def describe(self, transactional_id: str) -> TransactionView | None:
        """The id as an operator sees it; None if the log has nothing of it."""
        self._check_serving()
        transaction = self._transactions.get(transactional_id)
        return None if transaction is None else transaction.view()

    def has_open(self, producer_id: ProducerId) -> bool:
        """Whether a transaction of the producer is open or being ended, or will be if no write
        fails."""
        return any(
            record.producer_id == producer_id and record.state in UNFINISHED
            for transaction in self._transactions.values()
            for record in (transaction.stored, transaction.tip)
            if record is not None
        )

    def transactions(self) -> list[TransactionView]:
        """All ids, for lists."""
        self._check_serving()
        views = [transaction.view() for transaction in self._transactions.values()]
        return [view for view in views if view is not None]

    def decisions(self) -> dict[str, Decision]:
        """The newest decision of each group."""
        self._check_serving()
        return dict(self._decisions)

    # The log reports back.

    def stored(self, write: int, at: Moment) -> list[ShardEffect]:
        """The log has committed `write`, and so everything before it."""
        effects: list[ShardEffect] = []
        for settled in self._writes.take_stored(write):
            effects += self._on_stored(settled, at)
        return effects

    def _on_stored(self, write: Write, at: Moment) -> list[ShardEffect]:
        effects: list[ShardEffect] = []
        if write.decision is not None:
            del self._deciding[write.decision.group]
            self._decide(write.decision)
        if write.answer is not None:
            effects.append(write.answer)
        for transaction, change in write.changes:
            effects += self._perform(transaction, transaction.stored_change(change, at), at)
        return effects

    def store_failed(self, write: int, error: BrokerError, at: Moment) -> list[ShardEffect]:
        """`write` is not in the log and never will be; others may be."""
        failed = self._writes.take_failed(write)
        if failed is None:
            return []
        told = as_coordinator(error, "transaction")
        effects: list[ShardEffect] = []
        if failed.decision is not None:
            del self._deciding[failed.decision.group]
        if failed.answer is not None:
            effects.append(Answer(to=failed.answer.to, result=told))
        for transaction, change in failed.changes:
            effects += self._perform(transaction, transaction.failed_change(change, told, at), at)
        return effects

    # Time.

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens before."""
        return self._deadlines.next()

    def tick(self, at: Moment) -> list[ShardEffect]:
        """Let the transactions do what is due."""
        effects: list[ShardEffect] = []
        while (name := self._deadlines.pop_due(at.now)) is not None:
            transaction = self._transactions[name]
            effects += self._perform(transaction, transaction.tick(at), at)
        return effects

    def expire(self, at: Moment) -> list[ShardEffect]:
        """Forget ids that nobody has used for too long, with nothing open."""
        effects: list[ShardEffect] = []
        if self._refusal is not None:
            return effects
        self._time.look(at)
        for transaction in list(self._transactions.values()):
            effects += self._perform(transaction, transaction.expire(self._time), at)
        return effects

    # Inside.

    def _check_serving(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # one instance, raised many times

    def _check_not_deciding(self, group: str) -> None:
        if group in self._deciding:
            raise ConcurrentTransactions(f"another decision of {group!r} is on its way")

    def _entry(self, transactional_id: str) -> Transaction:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            transaction = Transaction(transactional_id, self._limits)
            self._transactions[transactional_id] = transaction
            if (group := group_of(transactional_id)) is not None:
                self._members.setdefault(group, {})[transactional_id] = transaction
        return transaction

    def _drop_if_nothing(self, transaction: Transaction) -> bool:
        if not transaction.is_nothing:
            return False
        del self._transactions[transaction.id]
        self._deadlines.cancel(transaction.id)
        if (group := group_of(transaction.id)) is not None:
            members = self._members[group]
            del members[transaction.id]
            if not members:
                del self._members[group]
        return True

    def _perform(self, transaction: Transaction, effects: list[Effect], at: Moment) -> list[ShardEffect]:
        """Turn what a transaction wants into what the driver does, and see to its deadline."""
        out: list[ShardEffect] = []
        for effect in effects:
            match effect:
                case Answer() | SendMarkers():
                    out.append(effect)
                case Store():
                    out.append(self._writes.append(at, (transaction, effect.change)))
                case _:
                    assert_never(effect)
        if not self._drop_if_nothing(transaction):
            self._set_deadline(transaction)
        return out

    def _set_deadline(self, transaction: Transaction) -> None:
        due = transaction.next_deadline()
        if due is None:
            self._deadlines.cancel(transaction.id)
        else:
            self._deadlines.set(transaction.id, due)

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        in_flight = [change for write in self._writes for _, change in write.changes]
        began = [c for each in self._transactions.values() for c in each.changes]
        assert len(in_flight) == len(began)
        assert all(any(change is other for other in began) for change in in_flight)
        for name, transaction in self._transactions.items():
            assert transaction.id == name
            assert not transaction.is_nothing
            transaction.assert_invariants()
            due, queued = transaction.next_deadline(), self._deadlines.due(name)
            assert due is None or (queued is not None and queued <= due)
            if (group := group_of(name)) is not None:
                assert self._members[group][name] is transaction
        deciding = [w.decision.group for w in self._writes if w.decision is not None]
        assert sorted(deciding) == sorted(self._deciding)


def _check_follows(event: CommitGroup, decided: Decision | None) -> None:
    """Refuse a batch that is not of the query whose decisions these are, or skips what is not its
    to skip: all that lies between would count as committed."""
    what = f"batch {event.batch_id} of {event.group!r}"
    newest = NO_BATCH if decided is None else decided.batch_id
    if event.after != newest:
        raise InvalidTransactionState(
            f"{what} was begun after batch {event.after}, and the newest decision is {newest}"
        )
    if decided is None:
        return
    counting = decided.counting or event.counting
    if counting is not event.counting or counting is Counting.ONCE:
        raise InvalidTransactionState(
            f"{what} is counted as {event.counting.name}, and the group as {counting.name}"
        )
    if counting is Counting.QUERY and event.batch_id - newest > QUERY_JUMP_MAX:
        raise InvalidTransactionState(
            f"{what} follows batch {newest}: a query does not skip that many batches"
        )


def _check_group(event: CommitGroup) -> None:
    if not fits(event.group) or group_of(f"{event.group}.0") != event.group:
        raise InvalidRequest(f"{event.group!r} is no group: it is called spark.<name>")
    if event.batch_id < 0:
        raise InvalidRequest(f"a batch has a number from 0 up, not {event.batch_id}")
    if event.proof is not None and len(event.proof) > PROOF_BYTES_MAX:
        raise InvalidRequest(f"a proof of {len(event.proof)} bytes; at most {PROOF_BYTES_MAX} are kept")
    names = [member.transactional_id for member in event.members]
    if len(set(names)) < len(names):
        raise InvalidRequest("a member is named twice")
    for name in names:
        if group_of(name) != event.group:
            raise InvalidRequest(f"{name!r} is no member of {event.group!r}")
