"""Batches of producers: what they may not say of themselves, whoever sends them.

Rule: only headers are looked at, never records.
"""

from tidelog.config import TopicConfig
from tidelog.errors import InvalidRecord, InvalidTimestamp, InvalidTransactionState
from tidelog.records import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader


def check_attributes(header: BatchHeader, *, is_transactional: bool) -> None:
    """Refuse what a producer may not say of its batch.

    `is_transactional`: its transaction is known to have this partition.
    """
    if header.attributes & CONTROL:
        raise InvalidRecord("control batches are written by brokers alone")
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("only a broker says that a batch has the time of its appending")
    if header.attributes & DELETE_HORIZON:
        raise InvalidRecord("only compaction says when a batch's tombstones may go")
    if header.attributes & TRANSACTIONAL:
        if header.producer_id < 0:
            raise InvalidRecord("a transaction's batch names its producer")
        if not is_transactional:
            raise InvalidTransactionState("a transaction's batch came without its id")


def check_times(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Refuse times too far from the broker's clock, if they are to be the records' times."""
    base_ms, max_ms = header.base_timestamp, header.max_timestamp
    if max_ms - now_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"a record is {max_ms - now_ms} ms ahead of the broker's clock; "
            f"message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}"
        )
    if now_ms - base_ms > config.message_timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"a record is {now_ms - base_ms} ms behind the broker's clock; "
            f"message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}"
        )
