"""Folds what is committed, as it is committed, and judges transactions by it.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| only legal transitions           | of a transactional id, from one record of its log to the next |
| a transaction ends in one way    | never committed in one partition and aborted in another       |
| a transaction is of one writer   | between two markers stand records of one transaction, only    |
| a marker follows its decision    | the coordinator's log has it before any partition does        |
| complete is marked everywhere    | in every partition of the transaction                         |
| the last stable offset is true   | it is the first offset of what is open below the watermark,   |
|                                  | or the log's start if that is deleted                         |
| the last stable offset never     | on any replica, within a life of its node; and no client is   |
|   falls                          | shown a lower one; unless its log may hold less than it did   |
| only the committed is shown      | to who asks for it, and nothing above the last stable offset  |
| an input is moved once           | it is in the output of one committed transaction              |
| offsets move with the commit     | of the transaction that they are of, not before and not after |
| a batch is visible once          | and by its group's decision, wholly or not at all             |

Rule 1: the truth is what leaders have committed, batch by batch. What any of them, or a
        coordinator, believes of transactions counts for nothing here.
Rule 2: records say which transaction they are of (see `transactional.Value`).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.errors import StorageError
from tidelog.groups.records import OffsetWritten
from tidelog.groups.records import decode as decode_group
from tidelog.log.log import Log
from tidelog.log.transactions import find_marker
from tidelog.model import NO_PRODUCER, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Offset, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import CONTROL, TRANSACTIONAL, BatchHeader, decode_batch
from tidelog.simulation.loop import Process
from tidelog.simulation.machine import Machine
from tidelog.simulation.nodes import OWN
from tidelog.simulation.replica_watch import ReplicaWatch
from tidelog.simulation.replicas_seen import may_hold_less
from tidelog.simulation.transactional import Value
from tidelog.simulation.world import World
from tidelog.txn.records import (
    COMMITTED,
    COMPLETE,
    PREPARED,
    DecisionWritten,
    State,
    TransactionRecord,
    TransactionWritten,
)
from tidelog.txn.records import decode as decode_transaction

TRANSITIONS: Final = "only legal transitions"
ONE_END: Final = "a transaction ends in one way"
ONE_WRITER: Final = "a transaction is of one writer"
DECIDED: Final = "a marker follows its decision"
COMPLETED: Final = "complete is marked everywhere"
STABLE: Final = "the last stable offset is true"
STABLE_FALLS: Final = "the last stable offset never falls"
SHOWN: Final = "only the committed is shown"
MOVED: Final = "an input is moved once"
OFFSETS: Final = "offsets move with the commit"
BATCH: Final = "a batch is visible once"

_CHECK_EVERY_EVENTS: Final = 32

_LEGAL: Final[dict[State | None, frozenset[State | None]]] = {
    None: frozenset({State.EMPTY}),
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.COMPLETE_ABORT, None}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.COMPLETE_ABORT, None}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.COMPLETE_ABORT, None}),
}

GroupPlace: TypeAlias = tuple[str, TopicPartition]


@dataclass(slots=True)
class _Open:
    """A transaction that no marker has ended in a partition."""

    first: Offset
    epoch: int
    values: list[tuple[Offset, bytes]] = field(default_factory=list)
    offsets: list[OffsetWritten] = field(default_factory=list)


@dataclass(slots=True)
class _Truth:
    """One partition, as its committed batches have it."""

    end: Offset = 0
    open: dict[ProducerId, _Open] = field(default_factory=dict)
    values: dict[Offset, bytes] = field(default_factory=dict)
    committed: dict[Offset, bytes] = field(default_factory=dict)
    """What was committed by its transaction."""
    is_behind: bool = False
    """A disk could not be read; so nobody knows yet what was committed last."""

    @property
    def stable(self) -> Offset:
        return min((each.first for each in self.open.values()), default=self.end)


class TransactionWatch:
    """Looks at all that is committed in a world, and remembers what it means."""

    def __init__(self, world: World, replicas: ReplicaWatch) -> None:
        self._world = world
        self._truths: dict[TopicPartition, _Truth] = {}
        self._states: dict[str, TransactionRecord | None] = {}
        self._decided: dict[ProducerId, tuple[int, bool]] = {}
        self._ends: dict[str, tuple[bool, TopicPartition]] = {}
        self._find = world.find
        self._stable: dict[tuple[int, Partition], tuple[Log, Offset]] = {}
        self._lives: dict[int, int] = {}
        self._taken = 0
        """How many committed batches were looked at."""
        self._seen_at: dict[int, tuple[Process, int, int]] = {}
        """By machine, the process, its newest event, and `_taken`, when it was last looked at."""
        self.inputs: dict[str, tuple[TopicPartition, Offset]] = {}
        """Every committed record that is to be moved, by its id, and where it is."""
        self.moved: dict[str, str] = {}
        """By whom an input was moved."""
        self.applied: dict[GroupPlace, list[Offset]] = {}
        """What a group's offset has been, one after the other."""
        self.decisions: dict[str, int] = {}
        """The newest batch of each group that was decided."""
        self.rows: dict[tuple[str, int], dict[str, str]] = {}
        """Of each batch of a group, the rows that are visible, and of which attempt they are."""
        replicas.on_committed.append(self._on_committed)
        world.invariant("transactions", self._check, every=_CHECK_EVERY_EVENTS)

    # What is asked by those who know what clients were told.

    def shown(self, place: TopicPartition, offset: Offset, value: bytes, stable: Offset) -> None:
        """A client that reads what is committed was given this record."""
        if offset >= stable:
            self._world.fail(SHOWN, f"{place} {offset}, and {stable} is the last stable offset")
        self._refresh(place)
        truth = self._truth(place)
        known = truth.committed.get(offset)
        if known != value and not truth.is_behind:
            self._world.fail(SHOWN, f"{place} {offset}: {value!r}; committed is {known!r}")

    def shown_undecided(self, place: TopicPartition, offset: Offset, value: bytes) -> None:
        """A client that reads everything was given this record."""
        self._refresh(place)
        truth = self._truth(place)
        if truth.values.get(offset) != value and not truth.is_behind:
            self._world.fail(SHOWN, f"{place} {offset}: {value!r} is not what is there")

    def looked_up(self, group: str, place: TopicPartition, offset: Offset, since: int) -> None:
        """A client was told a group's offset; when it asked, `since` of them had been applied."""
        if any(t.is_behind for p, t in self._truths.items() if p.topic == OFFSETS_TOPIC):
            return
        known = self.applied.get((group, place), [])
        possible = known[max(since - 1, 0) :] if since else [-1, *known]
        if offset not in possible:
            self._world.fail(OFFSETS, f"{group} {place} is at {offset}, not in {possible[-9:]}")

    def unfinished(self) -> str | None:
        """What is open, or decided and not complete."""
        for name, record in self._states.items():
            if record is not None and record.state in (State.ONGOING, *PREPARED):
                return f"{name!r} is in {record.state.value}: {sorted(record.places)}"
        for place, truth in self._truths.items():
            if truth.open:
                return f"{place} has open transactions: {truth.open.keys()}"
        return None

    # What leaders commit.

    def _truth(self, place: TopicPartition) -> _Truth:
        return self._truths.setdefault(place, _Truth())

    def _on_committed(self, machine: Machine, partition: Partition, end: Offset) -> None:
        if machine.is_damaged or partition.name.topic.startswith(OWN):
            return
        place, truth = partition.name, self._truth(partition.name)
        try:
            for header, batch in machine.sound_batches(partition.log, truth.end, end):
                self._take(place, truth, header, batch)
            truth.is_behind = False
        except (OSError, StorageError):
            truth.is_behind = True  # a fault of its disk: another time

    def _refresh(self, place: TopicPartition) -> None:
        for machine in self._world.machines.values():
            replicas = getattr(getattr(machine.node, "broker", None), "replicas", None)
            for partition in () if replicas is None else replicas.of(place.topic):
                leader = partition.leader
                if partition.name != place or leader is None:
                    continue
                if leader.high_watermark > self._truth(place).end:
                    self._on_committed(machine, partition, leader.high_watermark)

    def _take(self, place: TopicPartition, truth: _Truth, header: BatchHeader, batch: memoryview) -> None:
        self._taken += 1
        truth.end = header.next_offset
        if header.attributes & CONTROL:
            if (marker := find_marker(header, batch)) is not None:
                self._ended(place, truth, header, commits=marker.commits)
            return
        if place.topic == TRANSACTIONS_TOPIC:
            self._take_states(batch)
            return
        records = decode_batch(batch)
        opened: _Open | None = None
        if header.attributes & TRANSACTIONAL:
            opened = truth.open.setdefault(
                header.producer_id, _Open(header.base_offset, header.producer_epoch)
            )
            if opened.epoch != header.producer_epoch:
                who = f"{header.producer_id}, epoch {header.producer_epoch} after {opened.epoch}"
                self._find(ONE_WRITER, f"{place} {header.base_offset}: {who}")
        if place.topic == OFFSETS_TOPIC:
            for record in records:
                written = decode_group(record)
                if isinstance(written, OffsetWritten):
                    if opened is None:
                        self._apply(written)
                    else:
                        opened.offsets.append(written)
        elif opened is not None:
            values = [(record.offset, record.value or b"") for record in records]
            opened.values += values
            truth.values.update(values)

    # The partitions' side.

    def _ended(self, place: TopicPartition, truth: _Truth, header: BatchHeader, *, commits: bool) -> None:
        who = f"{place} {header.base_offset}: {header.producer_id} in {header.producer_epoch}"
        decided = self._decided.get(header.producer_id)
        opened = truth.open.pop(header.producer_id, None)
        if decided is None or (opened is not None and decided[1] != commits):
            self._find(DECIDED, f"{who}: commits {commits}, decided was {decided}")
        if opened is None:
            return
        labels: dict[str, None] = {}
        for offset, data in opened.values:
            value = Value.decode(data)
            labels[value.label] = None
            if commits:
                truth.committed[offset] = data
                self._visible(place, offset, value)
        if len(labels) > 1:
            self._find(ONE_WRITER, f"{who} ends {list(labels)}")
        for label in labels:
            before, where = self._ends.setdefault(label, (commits, place))
            if before != commits:
                self._find(ONE_END, f"{label}: {who} {commits}, {where} {before} (commits)")
        if commits:
            for written in opened.offsets:
                self._apply(written)

    def _apply(self, written: OffsetWritten) -> None:
        if written.value is not None:
            key = (written.group_id, written.place)
            self.applied.setdefault(key, []).append(written.value.offset)

    def _visible(self, place: TopicPartition, offset: Offset, value: Value) -> None:
        if value.kind == "d":
            before = self.moved.setdefault(value.rest, value.id)
            if before != value.id:
                self._find(MOVED, f"{value.rest} is in {before} and in {value.id}")
            return
        self.inputs[value.id] = (place, offset)
        if value.kind == "b":
            group, batch, row = value.rest.split("/")
            if self.decisions.get(group, -1) < int(batch):
                self._find(BATCH, f"{value.rest} without a decision: {self.decisions.get(group)}")
            rows = self.rows.setdefault((group, int(batch)), {})
            if row in rows or (rows and value.label not in rows.values()):
                self._find(BATCH, f"{value.rest} of {value.label}, and there is {rows}")
            rows[row] = value.label

    # The coordinators' side.

    def _take_states(self, batch: memoryview) -> None:
        for record in decode_batch(batch):
            written = decode_transaction(record)
            match written:
                case TransactionWritten(transactional_id=name, value=value):
                    before, self._states[name] = self._states.get(name), value
                    if problem := illegal(before, value):
                        self._find(TRANSITIONS, f"{name!r}: {problem}: {before}, then {value}")
                    if value is not None and value.state in PREPARED | COMPLETE:
                        self._decide(name, before, value)
                case DecisionWritten(group=group, value=decision):
                    known = self.decisions.get(group, -1)
                    if decision is None or decision.batch_id <= known:
                        self._find(TRANSITIONS, f"{group!r}: {decision} after {known}")
                    else:
                        self.decisions[group] = decision.batch_id

    def _decide(self, name: str, before: TransactionRecord | None, value: TransactionRecord) -> None:
        if value.state in PREPARED:
            self._decided[value.producer_id] = (value.epoch, value.state in COMMITTED)
        elif before is not None:
            unmarked = [place for place in sorted(before.places) if self._lacks(place, before)]
            if unmarked:
                self._find(COMPLETED, f"{name!r}: {unmarked} after {before}")

    def _lacks(self, place: TopicPartition, ended: TransactionRecord) -> bool:
        self._refresh(place)
        opened = self._truth(place).open.get(ended.producer_id)
        is_open = opened is not None and opened.epoch <= ended.epoch
        return is_open and not self._truth(place).is_behind

    # Every few events: what replicas say of themselves.

    def _check(self) -> str | None:
        for machine in self._world.machines.values():
            broker = getattr(machine.node, "broker", None)
            if broker is None or not hasattr(broker, "replicas"):
                continue
            if machine.lives != self._lives.get(machine.number):
                self._lives[machine.number] = machine.lives
                for key in [key for key in self._stable if key[0] == machine.number]:
                    del self._stable[key]
            if machine.is_damaged or machine.process is None:
                continue
            seen_at = (machine.process, machine.process.ran_at, self._taken)
            if self._seen_at.get(machine.number) == seen_at:
                continue  # nothing of it can have changed
            self._seen_at[machine.number] = seen_at
            for partition in broker.partitions():
                if not partition.mending.is_changing:
                    self._look(machine, partition)
        return None

    def _look(self, machine: Machine, partition: Partition) -> None:
        stable = partition.last_stable_offset
        log, before = self._stable.get((machine.number, partition), (partition.log, -1))
        if stable < before and not may_hold_less(log, partition.log):
            self._find(STABLE_FALLS, f"{machine.name} {partition.name}: from {before} to {stable}")
        self._stable[machine.number, partition] = (partition.log, stable)
        truth = self._truths.get(partition.name)
        if truth is None or partition.high_watermark != truth.end:
            return
        if stable != max(truth.stable, partition.log.start):
            self._find(STABLE, f"{machine.name} {partition.name}: {stable}, not {truth.stable}: {truth.open}")


def illegal(before: TransactionRecord | None, after: TransactionRecord | None) -> str | None:
    """Why one record of a transactional id must not follow another."""
    old, new = (None if each is None else each.state for each in (before, after))
    if new not in _LEGAL[old]:
        return "no such transition"
    if before is None or after is None:
        return None
    if after.producer_id == before.producer_id:
        if after.epoch < before.epoch:
            return "the epoch falls"
    elif after.producer_id not in (before.next_producer_id, NO_PRODUCER) and new is not State.EMPTY:
        return "another producer"
    if new is State.ONGOING and after.epoch != before.epoch:
        return "the epoch changes when partitions are added"
    if old is State.ONGOING and not _keeps(before.places, after.places):
        return "a partition is forgotten"
    return None


def _keeps(before: Collection[TopicPartition], after: Collection[TopicPartition]) -> bool:
    return set(before) <= set(after)
