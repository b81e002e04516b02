"""How one record of a transactional id follows from the one before it.

Rule 1: an epoch, once left, never comes back under the same producer id.
Rule 2: the last epoch is given to no producer, so that each can be fenced by one that is higher.
        Whoever says that it has it is refused.
"""

from dataclasses import replace
from typing import Final

from tidelog.errors import ConcurrentTransactions
from tidelog.model import NO_EPOCH, NO_PRODUCER, ProducerId, TopicPartition
from tidelog.shards.effects import Moment, Writer
from tidelog.txn.records import BUMPING_VERSION, COMMITTED, State, TransactionRecord

EPOCH_MAX: Final = 2**15 - 1


def is_used_up(record: TransactionRecord) -> bool:
    """The producer can go on only under another id."""
    return record.epoch >= EPOCH_MAX - 1


def next_writer(record: TransactionRecord, fresh_id: ProducerId) -> Writer:
    """As whom the producer goes on, one epoch later."""
    if not is_used_up(record):
        return Writer(record.producer_id, record.epoch + 1)
    if fresh_id == NO_PRODUCER:
        raise ConcurrentTransactions("all epochs are used up; a fresh producer id is needed")
    return Writer(fresh_id, 0)


def initialised(
    record: TransactionRecord | None, at: Moment, *, writer: Writer, expected: Writer | None, timeout_ms: int
) -> TransactionRecord:
    """A producer may begin as `writer`; as `expected` it may ask again."""
    if record is None:
        expected = None
    previous_id = NO_PRODUCER if record is None else record.producer_id
    return TransactionRecord(
        producer_id=writer.producer_id,
        epoch=writer.epoch,
        timeout_ms=timeout_ms,
        previous_producer_id=previous_id if expected is None else expected.producer_id,
        last_epoch=NO_EPOCH if expected is None else expected.epoch,
        state=State.EMPTY,
        updated_ms=at.wall_ms,
    )


def added(
    record: TransactionRecord, at: Moment, *, places: frozenset[TopicPartition], is_implicit: bool
) -> TransactionRecord:
    """More partitions are written to; the first begin the transaction."""
    is_open = record.state is State.ONGOING
    return replace(
        record,
        state=State.ONGOING,
        places=record.places | places,
        updated_ms=at.wall_ms,
        started_ms=record.started_ms if is_open else at.wall_ms,
        client_version=BUMPING_VERSION if is_implicit else 0,
    )


def ended(record: TransactionRecord, at: Moment, *, commits: bool) -> TransactionRecord:
    """It is decided, in the same epoch."""
    return _closed(_decided(record, at, commits=commits), at)


def ended_as(record: TransactionRecord, at: Moment, *, commits: bool, writer: Writer) -> TransactionRecord:
    """It is decided, and the producer goes on as `writer`, its next."""
    decided = replace(
        _decided(record, at, commits=commits),
        epoch=record.epoch + 1,
        previous_producer_id=record.producer_id,
        last_epoch=record.epoch,
        next_producer_id=NO_PRODUCER if writer.epoch else writer.producer_id,
        client_version=BUMPING_VERSION,
    )
    assert decided.writer == writer
    return _closed(decided, at)


def fenced(record: TransactionRecord, at: Moment, *, commits: bool = False) -> TransactionRecord:
    """It is decided by another than its producer, which must begin anew.

    A log of an earlier version may have one that is open in the last epoch, which nobody was given:
    it is decided in that epoch, in which no request is taken.
    """
    assert record.state is State.ONGOING
    if record.epoch >= EPOCH_MAX:
        return _closed(_decided(record, at, commits=commits), at)
    decided = replace(
        _decided(record, at, commits=commits),
        epoch=record.epoch + 1,
        previous_producer_id=record.producer_id,
        last_epoch=NO_EPOCH,
        client_version=BUMPING_VERSION,
    )
    return _closed(decided, at)


def completed(record: TransactionRecord, at: Moment) -> TransactionRecord:
    """All markers stand."""
    writer = record.writer
    return replace(
        record,
        producer_id=writer.producer_id,
        epoch=writer.epoch,
        next_producer_id=NO_PRODUCER,
        state=State.COMPLETE_COMMIT if record.state in COMMITTED else State.COMPLETE_ABORT,
        places=frozenset(),
        updated_ms=at.wall_ms,
    )


def _decided(record: TransactionRecord, at: Moment, *, commits: bool) -> TransactionRecord:
    return replace(
        record,
        state=State.PREPARE_COMMIT if commits else State.PREPARE_ABORT,
        updated_ms=at.wall_ms,
        client_version=0,
        # Kafka takes no ended transaction that has not started.
        started_ms=record.started_ms if record.state is State.ONGOING else at.wall_ms,
    )


def _closed(record: TransactionRecord, at: Moment) -> TransactionRecord:
    """Where there is nothing to mark, the decision is the completion."""
    return record if record.places else completed(record, at)
