"""The records of `__transaction_state`: Kafka's own formats, and one of ours for decisions.

Rule 1: the newest record of a key is the truth; a record without a value deletes its key.
Rule 2: every length read is compared with the bytes that are left before it is used.
Rule 3: what a later version of Kafka may have written under keys or tags we do not know is passed
        over (KIP-915); a known key with a value that makes no sense is corruption.

A value is always written in version 1, which Kafka reads since 3.5 (KIP-915): version 0 has no
room for what an ended transaction must be known by, so every id would change between the two.
Our own tag is one that Kafka passes over. It keeps the epoch before the last bump, without which
a producer that repeats a request after its coordinator has moved would be taken for a zombie.
"""

# key      := version: int16 = 0, transactional_id: string                        (big-endian)
#           | version: int16 = 1000, group: string                              (a decision: ours)
# value    := version: int16 = 1, producer_id: int64, epoch: int16, timeout_ms: int32,
#             state: int8, topic*?, updated_ms: int64, started_ms: int64, tags
# topic    := name: compact string, partition: int32*, tags          ("*": uvarint count + 1, each)
# tags     := count: uvarint, (tag: uvarint, size: uvarint, that many bytes){count}
#             0 previous_producer_id: int64, 1 next_producer_id: int64, 2 client_version: int16,
#             1000 last_epoch: int16 (ours)
#             Version 0, with plain arrays and strings and without tags, is read but not written.
# decision := version: int16 = 1, batch_id: int64, decided_ms: int64, members: int32, after: int64,
#             counting: int8, tags
#             0 proof: bytes
#             Version 0, which ends after the members, is read but not written. Who does not know
#             a tag passes over it, so a cluster of two versions reads what either has written.

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from tidelog.errors import CorruptMessage
from tidelog.model import NO_EPOCH, NO_PRODUCER, NO_TIMESTAMP, ProducerId, TopicPartition
from tidelog.records import Record
from tidelog.shards.effects import Writer
from tidelog.wire.batches_decided import NO_BATCH, Counting
from tidelog.wire.reader import Reader

TEXT_BYTES_MAX: Final = 2**15 - 1
"""The longest string of these formats, and so the longest transactional id."""

_TRANSACTION_KEY: Final = 0
_DECISION_KEY: Final = 1000
_VALUE_VERSION: Final = 1
_DECISION_VERSION: Final = 1

_PREVIOUS_TAG: Final = 0
_NEXT_TAG: Final = 1
_CLIENT_VERSION_TAG: Final = 2
_LAST_EPOCH_TAG: Final = 1000
_PROOF_TAG: Final = 0
"""Of a decision."""

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_FIXED: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_DECISION: Final = struct.Struct(">hqqiqb")

PROOF_BYTES_MAX: Final = 4096
"""What a decision may keep of what its batch was."""


class State(Enum):
    """What a transactional id is doing, by Kafka's names; `transaction.py` has the table."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


# The index is Kafka's number. Its 6 and 7, Dead and PrepareEpochFence, are never in a log.
_STATES: Final = tuple(State)
_NUMBERS: Final = {state: number for number, state in enumerate(_STATES)}

PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""It is decided, and markers are on their way."""
UNFINISHED: Final = PREPARED | {State.ONGOING}
"""Markers will come."""
COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
COMMITTED: Final = frozenset({State.PREPARE_COMMIT, State.COMPLETE_COMMIT})

BUMPING_VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """All there is to know of a transactional id."""

    producer_id: ProducerId
    epoch: int
    previous_producer_id: ProducerId = NO_PRODUCER
    """The producer id before the last bump of the epoch; most often the same."""
    last_epoch: int = NO_EPOCH
    """The epoch before that bump, if the producer that had it goes on; else it is fenced."""
    next_producer_id: ProducerId = NO_PRODUCER
    """Where epochs are used up: the id with which the producer goes on after the markers."""
    timeout_ms: int
    state: State
    places: frozenset[TopicPartition] = field(default_factory=frozenset)
    """The partitions of the transaction, until the markers stand in all of them."""
    updated_ms: int
    started_ms: int = NO_TIMESTAMP
    client_version: int = 0
    """`BUMPING_VERSION` if the epoch is bumped with the transaction's end (KIP-890), else 0."""

    @property
    def is_bumped(self) -> bool:
        """The epoch is not the one in which the transaction was written, but the next."""
        return self.state in PREPARED and self.client_version >= BUMPING_VERSION

    @property
    def writer(self) -> Writer:
        """As whom the producer goes on."""
        if self.next_producer_id != NO_PRODUCER:
            return Writer(self.next_producer_id, 0)
        return Writer(self.producer_id, self.epoch)

    @property
    def predecessor(self) -> Writer | None:
        """The same producer before its epoch was last bumped: it may repeat what it asked."""
        if self.last_epoch == NO_EPOCH:
            return None
        return Writer(self.previous_producer_id, self.last_epoch)


_COUNTINGS: Final = {counting.value: counting for counting in Counting}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The newest batch of a group that was committed; all before it count as committed, too."""

    batch_id: int
    decided_ms: int
    members: int
    """How many transactions were committed by it."""
    after: int = NO_BATCH
    """The batch that was decided before it."""
    counting: Counting | None = None
    """None in what was written before it was asked for."""
    proof: bytes | None = None
    """What the batch was, in the words of who wrote it; nothing here reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWritten:
    """The newest state of a transactional id, or None where it was forgotten."""

    transactional_id: str
    value: TransactionRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionWritten:
    """The newest decision of a group, or None where it was forgotten."""

    group: str
    value: Decision | None


Written: TypeAlias = TransactionWritten | DecisionWritten


def encode(written: Written, wall_ms: int) -> Record:
    """The record that says so."""
    if isinstance(written, TransactionWritten):
        key = _INT16.pack(_TRANSACTION_KEY) + _text(written.transactional_id)
        value = None if written.value is None else _encode_transaction(written.value)
    else:
        key = _INT16.pack(_DECISION_KEY) + _text(written.group)
        value = None if written.value is None else _encode_decision(written.value)
    return Record(key=key, value=value, timestamp_ms=wall_ms)


def decode(record: Record) -> Written | None:
    """What the record says; None if its key is of a kind that we do not know."""
    if record.key is None:
        raise CorruptMessage(f"the record at {record.offset} has no key")
    key = Reader(record.key)
    kind = key.int16()
    if kind not in (_TRANSACTION_KEY, _DECISION_KEY):
        return None
    name = key.text()
    key.end()
    if kind == _TRANSACTION_KEY:
        value = None if record.value is None else _decode_transaction(Reader(record.value))
        return TransactionWritten(transactional_id=name, value=value)
    decision = None if record.value is None else _decode_decision(Reader(record.value))
    return DecisionWritten(group=name, value=decision)


def fits(text: str) -> bool:
    """Whether the formats have room for `text`."""
    return len(text) <= TEXT_BYTES_MAX and len(text.encode()) <= TEXT_BYTES_MAX


# Writing.


def _encode_transaction(value: TransactionRecord) -> bytes:
    parts = [
        _FIXED.pack(_VALUE_VERSION, value.producer_id, value.epoch, value.timeout_ms, _NUMBERS[value.state])
    ]
    if value.state is State.EMPTY:
        assert not value.places, "nothing was written yet"
        parts.append(_uvarint(0))
    else:
        topics: dict[str, list[int]] = {}
        for place in sorted(value.places):
            topics.setdefault(place.topic, []).append(place.partition)
        parts.append(_uvarint(len(topics) + 1))
        for topic, partitions in topics.items():
            encoded = topic.encode()
            parts += (
                _uvarint(len(encoded) + 1),
                encoded,
                _uvarint(len(partitions) + 1),
                *map(_INT32.pack, partitions),
                _uvarint(0),
            )
    parts.append(_TIMES.pack(value.updated_ms, value.started_ms))
    tags = list(_tags(value))
    parts.append(_uvarint(len(tags)))
    for tag, data in tags:
        parts += (_uvarint(tag), _uvarint(len(data)), data)
    return b"".join(parts)


def _tags(value: TransactionRecord) -> Iterator[tuple[int, bytes]]:
    if value.previous_producer_id != NO_PRODUCER:
        yield _PREVIOUS_TAG, _INT64.pack(value.previous_producer_id)
    if value.next_producer_id != NO_PRODUCER:
        yield _NEXT_TAG, _INT64.pack(value.next_producer_id)
    if value.client_version:
        yield _CLIENT_VERSION_TAG, _INT16.pack(value.client_version)
    if value.last_epoch != NO_EPOCH:
        yield _LAST_EPOCH_TAG, _INT16.pack(value.last_epoch)


def _encode_decision(value: Decision) -> bytes:
    assert value.counting is not None, "who asks says how its group counts"
    fields = _DECISION.pack(
        _DECISION_VERSION, value.batch_id, value.decided_ms, value.members, value.after, value.counting.value
    )
    if value.proof is None:
        return fields + _uvarint(0)
    return b"".join((fields, _uvarint(1), _uvarint(_PROOF_TAG), _uvarint(len(value.proof)), value.proof))


def _text(text: str) -> bytes:
    encoded = text.encode()
    assert len(encoded) <= TEXT_BYTES_MAX, "texts are checked where they come in"
    return _INT16.pack(len(encoded)) + encoded


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Reading.


def _decode_transaction(reader: Reader) -> TransactionRecord:
    version = reader.int16()
    if not 0 <= version <= _VALUE_VERSION:
        raise CorruptMessage(f"version {version} of a transaction; those up to 1 are known")
    is_compact = version > 0
    producer_id = reader.int64()
    epoch = reader.int16()
    timeout_ms = reader.int32()
    number = reader.int8()
    if not 0 <= number < len(_STATES):
        raise CorruptMessage(f"{number} is no state of a transaction in a log")
    places: list[TopicPartition] = []
    for _ in range(reader.count(is_compact=is_compact, may_be_null=True)):
        topic = reader.text(is_compact=is_compact)
        partitions = range(reader.count(is_compact=is_compact, may_be_null=True))
        places += [TopicPartition(topic, reader.int32()) for _ in partitions]
        if is_compact:
            reader.tags()
    updated_ms = reader.int64()
    started_ms = reader.int64()
    tags = reader.tags() if is_compact else {}
    reader.end()
    return TransactionRecord(
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=_STATES[number],
        places=frozenset(places),
        updated_ms=updated_ms,
        started_ms=started_ms,
        previous_producer_id=_tagged(tags, _PREVIOUS_TAG, _INT64, NO_PRODUCER),
        next_producer_id=_tagged(tags, _NEXT_TAG, _INT64, NO_PRODUCER),
        client_version=_tagged(tags, _CLIENT_VERSION_TAG, _INT16, 0),
        last_epoch=_tagged(tags, _LAST_EPOCH_TAG, _INT16, NO_EPOCH),
    )


def _tagged(tags: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != form.size:
        raise CorruptMessage(f"tag {tag} has {len(data)} bytes, not {form.size}")
    value: int = form.unpack(data)[0]
    return value


def _decode_decision(reader: Reader) -> Decision:
    version = reader.int16()
    if not 0 <= version <= _DECISION_VERSION:
        raise CorruptMessage(f"version {version} of a decision; those up to 1 are known")
    batch_id, decided_ms, members = reader.int64(), reader.int64(), reader.int32()
    if version == 0:
        reader.end()
        return Decision(batch_id=batch_id, decided_ms=decided_ms, members=members)
    after, number = reader.int64(), reader.int8()
    if number not in _COUNTINGS:
        raise CorruptMessage(f"{number} is no way to count batches")
    tags = reader.tags()
    reader.end()
    return Decision(
        batch_id=batch_id,
        decided_ms=decided_ms,
        members=members,
        after=after,
        counting=_COUNTINGS[number],
        proof=tags.get(_PROOF_TAG),
    )
