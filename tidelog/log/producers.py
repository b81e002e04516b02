"""What the log knows of its idempotent producers: the state that refuses gaps and repeats.

Rule 1: the state equals a fold over the batches of the log; a snapshot is the fold of a prefix.
Rule 2: checking changes nothing; only `note`, called with a batch that is in the log, does.
"""

# snapshot := version: int16 = 1, crc: uint32, count: int32, entry{count}         (big-endian)
# entry    := producer_id: int64, epoch: int16, last_sequence: int32, last_offset: int64,
#             offset_delta: int32, timestamp: int64, coordinator_epoch: int32,
#             transaction_start: int64
#             `crc` covers everything after itself. A producer has one entry for each batch still
#             remembered, the oldest first; Kafka writes only the last, and reading ours keeps it.

import struct
from collections import deque
from collections.abc import ItemsView
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.errors import InvalidProducerEpoch, OutOfOrderSequence, TidelogError
from tidelog.model import NO_EPOCH, NO_OFFSET, NO_SEQUENCE, Offset, ProducerId
from tidelog.records import SEQUENCE_MODULUS, BatchHeader

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
    """One producer: its epoch and its last few batches, the oldest first."""

    epoch: int
    batches: deque[RememberedBatch]

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_timestamp_ms(self) -> int:
        return self.batches[-1].timestamp_ms if self.batches else 0


class ProducerStates:
    """All idempotent producers that have written to a log."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}

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

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The earlier batch that `header` repeats, or None if it is the next one.

        Raises InvalidProducerEpoch or OutOfOrderSequence. A producer of which the log holds
        nothing may begin anywhere: retention may have taken what it wrote before.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            return None
        if header.producer_epoch < state.epoch:
            raise InvalidProducerEpoch(
                producer_id=header.producer_id, epoch=header.producer_epoch, current=state.epoch
            )
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
        return None

    def note(self, header: BatchHeader, base_offset: Offset) -> None:
        """Remember a batch that now lies in the log at `base_offset`."""
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            batches: deque[RememberedBatch] = deque(maxlen=BATCHES_REMEMBERED)
            state = self._states[header.producer_id] = ProducerState(header.producer_epoch, batches)
        state.batches.append(
            RememberedBatch(
                header.last_sequence, base_offset + header.last_offset_delta,
                header.last_offset_delta, header.max_timestamp,
            )
        )  # fmt: skip

    def expire(self, before_ms: int) -> None:
        """Forget producers whose last batch is older than `before_ms`."""
        for producer_id in [p for p, s in self._states.items() if s.last_timestamp_ms < before_ms]:
            del self._states[producer_id]

    def encode(self) -> bytes:
        entries = [
            _ENTRY.pack(
                producer_id, state.epoch, batch.last_sequence, batch.last_offset,
                batch.offset_delta, batch.timestamp_ms, NO_EPOCH, NO_OFFSET,
            )
            for producer_id, state in self._states.items()
            for batch in state.batches
        ]  # fmt: skip
        data = bytearray(_HEAD.pack(1, 0, len(entries)) + b"".join(entries))
        struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_FROM:]))
        return bytes(data)

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
        for producer_id, epoch, sequence, offset, delta, timestamp, _, _ in _ENTRY.iter_unpack(
            memoryview(data)[_HEAD.size :]
        ):
            state = states._states.get(producer_id)
            if state is None or state.epoch != epoch:
                state = states._states[producer_id] = ProducerState(
                    epoch, deque(maxlen=BATCHES_REMEMBERED)
                )
            state.batches.append(RememberedBatch(sequence, offset, delta, timestamp))
        return states
