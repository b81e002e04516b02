"""What the log knows of its idempotent producers: the state that refuses gaps and repeats.

Rule 1: the state equals a fold over the batches of the log, deleted ones included; a snapshot is
        the fold of a prefix. A replica that begins anew gets that of what it never held from its
        leader (`encode_before`).
Rule 2: checking changes nothing; only `note` and `note_marker`, called with what is in the log, do.
Rule 3: a transaction is open from its first batch to its marker, whatever epoch either has; a
        producer with an open one is not forgotten.

A marker is written in the epoch of its transaction (KIP-98), and sequences go on; or in the next
one, which its producer goes on with (KIP-890, and whenever a producer is fenced), and they begin
again at 0.
"""

# snapshot := version: int16 = 1, crc: uint32, count: int32, entry{count}         (big-endian)
# entry    := producer_id: int64, epoch: int16, last_sequence: int32, last_offset: int64,
#             offset_delta: int32, timestamp: int64, coordinator_epoch: int32,
#             transaction_start: int64
#             `crc` covers everything after itself. A producer has one entry for each batch still
#             remembered, the oldest first; Kafka writes only the last, and reading ours keeps it.
#             Before them comes the last marker, if there was one, as Kafka writes a producer of
#             which nothing but a marker is known: sequence and offset are -1, the delta is 0.

import struct
from collections import deque
from collections.abc import ItemsView, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TidelogError,
    TransactionCoordinatorFenced,
)
from tidelog.model import (
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    ONCE_PRODUCER_MIN,
    Epoch,
    Offset,
    ProducerId,
)
from tidelog.records import SEQUENCE_MODULUS, TRANSACTIONAL, BatchHeader, Marker

ONCE_MAX: Final = 100_000
"""Requests with an Idempotency-Key that a log remembers; the oldest go first."""
_MOMENTS: Final = 16
"""How many are told apart in the time that something is remembered for."""
BATCHES_REMEMBERED: Final = 5
"""As many as a client may have in flight, so every honest retry is recognised."""

_HEAD: Final = struct.Struct(">hIi")
_CRC_FROM: Final = 6
_ENTRY: Final = struct.Struct(">qhiqiqiq")


class SnapshotDamaged(TidelogError):
    """A producer snapshot does not make sense; the state is rebuilt from the log."""


class RememberedBatch(NamedTuple):
    """A batch of a producer, as much of it as a retry must be compared with."""

    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> Offset:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % SEQUENCE_MODULUS


@dataclass(slots=True)
class ProducerState:
    """One producer: its epoch, its last few batches, the oldest first, and its transaction."""

    epoch: int
    batches: deque[RememberedBatch]
    coordinator_epoch: Epoch = NO_EPOCH
    """Of the last marker; NO_EPOCH if there was none."""
    transaction_start: Offset = NO_OFFSET
    """The first offset of the open transaction; NO_OFFSET if none is open."""
    marked_ms: int = NO_TIMESTAMP
    """When the last marker was written."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_timestamp_ms(self) -> int:
        return max(self.batches[-1].timestamp_ms if self.batches else 0, self.marked_ms)


class _Moments:
    """How far something had come at some moments of the monotonic clock."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: deque[tuple[float, int]] = deque()

    def before(self, far: int, now: float, seconds: float) -> int | None:
        """How far it had come `seconds` ago; None if that is not known. Now it has come `far`."""
        known = self._known
        if not known or now - known[-1][0] >= seconds / _MOMENTS:
            known.append((now, far))
        while len(known) > 1 and known[1][0] <= now - seconds:
            known.popleft()
        noted_at, was = known[0]
        return was if noted_at <= now - seconds else None


class ProducerStates:
    """All idempotent producers that have written to a log."""

    __slots__ = ("_ends", "_once", "_once_count", "_once_known", "_open", "_states")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._once: dict[ProducerId, int] = {}  # in the order of offsets, and which one it is
        self._once_count = 0
        self._once_known = _Moments()
        """How many had been noted."""
        self._ends = _Moments()
        """Where the log ended."""
        self._open: dict[ProducerId, Offset] = {}  # in the order of offsets

    def __len__(self) -> int:
        return len(self._states)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._states == other._states

    __hash__ = None  # type: ignore[assignment]

    def last_offset(self, producer_id: ProducerId) -> Offset:
        """Of the last record that a producer wrote; NO_OFFSET if it is not known to have."""
        state = self._states.get(producer_id)
        return state.batches[-1].last_offset if state is not None and state.batches else NO_OFFSET

    def items(self) -> ItemsView[int, ProducerState]:
        """Every producer's id and state; only to be looked at."""
        return self._states.items()

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def last_offsets(self) -> dict[ProducerId, Offset]:
        """Where the newest batch of each producer ends."""
        return {p: s.batches[-1].last_offset for p, s in self._states.items() if s.batches}

    def marked_epochs(self) -> dict[ProducerId, int]:
        """The epoch of each producer that only a marker tells of."""
        return {p: s.epoch for p, s in self._states.items() if not s.batches}

    def transaction_start(self, producer_id: ProducerId) -> Offset:
        """The first offset of a producer's open transaction, or NO_OFFSET."""
        return self._open.get(producer_id, NO_OFFSET)

    def is_in_transaction(self, producer_id: ProducerId) -> bool:
        """Whether a producer's transaction is open here."""
        return producer_id in self._open

    def first_open(self) -> Offset:
        """The first offset of all open transactions, or NO_OFFSET."""
        return next(iter(self._open.values()), NO_OFFSET)

    def has_markers(self) -> bool:
        """Whether a transaction of a producer that is still known has ended."""
        return any(state.coordinator_epoch != NO_EPOCH for state in self._states.values())

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The earlier batch that `header` repeats, or None if it is the next one.

        Raises InvalidProducerEpoch or OutOfOrderSequence, and InvalidTransactionState for a plain
        batch while a transaction is open. A producer of which the log holds nothing may begin
        anywhere: retention may have taken what it wrote before. What a coordinator writes in a
        producer's transaction has no sequence.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            return None
        if header.producer_epoch < state.epoch:
            raise InvalidProducerEpoch(
                producer_id=header.producer_id, epoch=header.producer_epoch, current=state.epoch
            )
        if header.base_sequence < 0 and header.attributes & TRANSACTIONAL:
            return None
        if header.producer_epoch > state.epoch:
            expected = 0
        else:
            for batch in state.batches:
                if (
                    batch.last_sequence == header.last_sequence
                    and batch.offset_delta == header.last_offset_delta
                ):
                    return batch
            expected = (state.last_sequence + 1) % SEQUENCE_MODULUS
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                producer_id=header.producer_id, expected=expected, received=header.base_sequence
            )
        if state.transaction_start != NO_OFFSET and not header.attributes & TRANSACTIONAL:
            raise InvalidTransactionState(
                f"producer {header.producer_id} sent a plain batch within its transaction, which "
                f"began at offset {state.transaction_start}"
            )
        return None

    def check_marker(
        self, producer_id: ProducerId, epoch: int, marker: Marker, *, is_bumped: bool = False
    ) -> None:
        """Refuse a marker that is late: InvalidProducerEpoch or TransactionCoordinatorFenced.

        `is_bumped`: it is written in the epoch after its transaction's. Then one that finds a
        transaction of its own epoch open is a repeat, and would end what follows (KIP-1228).
        """
        state = self._states.get(producer_id)
        if state is None:
            return
        is_repeat = is_bumped and state.epoch == epoch and state.transaction_start != NO_OFFSET
        if state.epoch > epoch or is_repeat:
            raise InvalidProducerEpoch(producer_id=producer_id, epoch=epoch, current=state.epoch)
        if state.coordinator_epoch > marker.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id} has had a marker of coordinator epoch "
                f"{state.coordinator_epoch}; this one is of {marker.coordinator_epoch}"
            )

    def note(self, header: BatchHeader, base_offset: Offset) -> None:
        """Remember a batch that now lies in the log at `base_offset`."""
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._begin_epoch(header.producer_id, header.producer_epoch)
        last_sequence = header.last_sequence if header.base_sequence >= 0 else NO_SEQUENCE
        state.batches.append(
            RememberedBatch(
                last_sequence,
                base_offset + header.last_offset_delta,
                header.last_offset_delta,
                header.max_timestamp,
            )
        )
        if header.attributes & TRANSACTIONAL and state.transaction_start == NO_OFFSET:
            state.transaction_start = self._open[header.producer_id] = base_offset

    def note_marker(self, header: BatchHeader, marker: Marker) -> Offset | None:
        """Remember a marker that is now in the log.

        The first offset of the transaction that it ends, or None if none was open.
        """
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._begin_epoch(header.producer_id, header.producer_epoch)
        state.coordinator_epoch = marker.coordinator_epoch
        state.marked_ms = header.max_timestamp
        state.transaction_start = NO_OFFSET
        return self._open.pop(header.producer_id, None)

    def _begin_epoch(self, producer_id: ProducerId, epoch: int) -> ProducerState:
        """The state of a producer that is new, or in another epoch: none of its batches count."""
        state = self._states.get(producer_id)
        if state is None:
            is_once = producer_id >= ONCE_PRODUCER_MIN
            state = self._states[producer_id] = ProducerState(
                epoch, deque(maxlen=1 if is_once else BATCHES_REMEMBERED)
            )
            if is_once:
                self._note_once(producer_id)
        else:
            state.epoch = epoch
            state.batches.clear()
        return state

    def _note_once(self, producer_id: ProducerId) -> None:
        self._once[producer_id] = self._once_count
        self._once_count += 1
        if len(self._once) > ONCE_MAX:
            oldest = next(iter(self._once))
            del self._once[oldest], self._states[oldest]

    def expire(self, before_ms: int, *, end: Offset, now: float, seconds: float) -> None:
        """Forget producers whose last batch or marker is older than `before_ms`, and who have
        written nothing for `seconds`; the log ends at `end`.

        The times in a batch are its producer's, who may copy what is years old, and the wall clock
        may have jumped; `now` is the monotonic one. Not those made of an Idempotency-Key:
        `expire_once`.
        """
        silent_to = self._ends.before(end, now, seconds)
        if silent_to is None:
            return
        gone = [
            producer_id
            for producer_id, state in self._states.items()
            if state.last_timestamp_ms < before_ms
            and producer_id < ONCE_PRODUCER_MIN
            and state.transaction_start == NO_OFFSET
            and self.last_offset(producer_id) < silent_to
        ]
        for producer_id in gone:
            del self._states[producer_id]

    def expire_once(self, before_ms: int, *, now: float, seconds: float) -> None:
        """Forget requests that were written before `before_ms`, and are known for `seconds` here.

        The wall clock may have jumped, or be another node's; `now` is the monotonic one.
        """
        count = self._once_known.before(self._once_count, now, seconds)
        if count is None:
            return
        for producer_id, number in list(self._once.items()):
            if number >= count:
                break
            if self._states[producer_id].last_timestamp_ms < before_ms:
                del self._states[producer_id], self._once[producer_id]

    def encode(self) -> bytes:
        return _encode(self._states.items())

    def encode_before(self, start: Offset, bytes_max: int, ended: Mapping[ProducerId, Offset]) -> bytes:
        """A snapshot of what is remembered of the batches below `start`, of at most `bytes_max`.

        With the batches from `start` on, a log that holds nothing before knows what this one does.
        `ended` tells which transactions were open at `start` and ended behind it; whoever reads
        their markers has to know what these end. A producer is left out if all that is remembered
        of it lies behind `start`. If there are too many, those with an open transaction come
        first, then those that wrote last.
        """
        told: list[tuple[ProducerId, ProducerState]] = []
        for producer_id, state in self._states.items():
            before = _before(state, start, ended.get(producer_id, NO_OFFSET))
            is_open = before.transaction_start != NO_OFFSET
            if before.batches or not state.batches or is_open:
                told.append((producer_id, before))
        entries_max = (bytes_max - _HEAD.size) // _ENTRY.size
        if sum(_entry_count(state) for _, state in told) > entries_max:
            told = _first(told, entries_max)
        return _encode(told)

    @classmethod
    def decode(cls, data: bytes) -> "ProducerStates":
        if len(data) < _HEAD.size:
            raise SnapshotDamaged(f"a snapshot of {len(data)} bytes is cut off")
        version, crc, count = _HEAD.unpack_from(data)
        if version != 1 or crc != crc32c(memoryview(data)[_CRC_FROM:]):
            raise SnapshotDamaged("the snapshot's version or checksum is wrong")
        if len(data) != _HEAD.size + count * _ENTRY.size:
            raise SnapshotDamaged(f"{count} entries do not fill {len(data)} bytes")
        states = cls()
        for entry in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start = entry
            state = states._states.get(producer_id)
            if state is None or state.epoch != epoch:
                state = states._begin_epoch(producer_id, epoch)
            if offset >= 0:
                state.batches.append(RememberedBatch(sequence, offset, delta, timestamp))
            else:
                state.marked_ms = timestamp
            state.coordinator_epoch, state.transaction_start = coordinator, max(start, NO_OFFSET)
        states._open = {
            producer_id: state.transaction_start
            for producer_id, state in sorted(
                states._states.items(), key=lambda each: each[1].transaction_start
            )
            if state.transaction_start != NO_OFFSET
        }
        return states


def _has_marker_entry(state: ProducerState) -> bool:
    return state.coordinator_epoch != NO_EPOCH or not state.batches


def _entry_count(state: ProducerState) -> int:
    return len(state.batches) + _has_marker_entry(state)


def _before(state: ProducerState, start: Offset, ended: Offset) -> ProducerState:
    """What is remembered of a producer's batches below `start`.

    `ended` is where its transaction began that was open there and has ended since, or NO_OFFSET.
    """
    batches = deque(batch for batch in state.batches if batch.last_offset < start)
    opened = state.transaction_start if NO_OFFSET < state.transaction_start < start else ended
    return replace(state, batches=batches, transaction_start=opened)


def _first(states: list[tuple[int, ProducerState]], entries_max: int) -> list[tuple[int, ProducerState]]:
    """As many producers as have room in a snapshot, in the order that they are in."""

    def urgency(at: int) -> tuple[bool, Offset]:
        state = states[at][1]
        last_offset = state.batches[-1].last_offset if state.batches else NO_OFFSET
        return state.transaction_start != NO_OFFSET, last_offset

    chosen: list[int] = []
    for at in sorted(range(len(states)), key=urgency, reverse=True):
        entries_max -= _entry_count(states[at][1])
        if entries_max < 0:
            break
        chosen.append(at)
    return [states[at] for at in sorted(chosen)]


def _encode(states: Iterable[tuple[int, ProducerState]]) -> bytes:
    entries: list[bytes] = []
    for producer_id, state in states:
        ending = state.coordinator_epoch, state.transaction_start
        if _has_marker_entry(state):
            entries.append(
                _ENTRY.pack(producer_id, state.epoch, NO_SEQUENCE, NO_OFFSET, 0, state.marked_ms, *ending)
            )
        entries += [
            _ENTRY.pack(
                producer_id,
                state.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                batch.timestamp_ms,
                *ending,
            )
            for batch in state.batches
        ]
    data = bytearray(_HEAD.pack(1, 0, len(entries)) + b"".join(entries))
    struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_FROM:]))
    return bytes(data)
