"""Records of a request, packed into one batch for each partition.

Rule: what can be seen to be wrong is found here, before any partition is written to. Blocks for as
long as it takes to encode: for a request with many records call it from a thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidelog.broker.joint_writes import BYTES_MAX, size_of
from tidelog.broker.writing import NO_DIGEST, batch_of, digest_of
from tidelog.config import TopicConfig
from tidelog.errors import (
    BrokerError,
    InvalidPartitions,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    TidelogError,
)
from tidelog.model import NO_PRODUCER, Offset, ProducerId
from tidelog.records import Record
from tidelog.wire.partitioner import partition_for


class NewRecord(NamedTuple):
    """A record that somebody wants to be written. A tuple, as requests have thousands of them."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    """Now, if it does not say."""
    partition: int | None = None
    """By its key, if it does not say."""


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where a record stands."""

    partition: int
    offset: Offset


class Outcome(NamedTuple):
    """What became of a record: where it stands, or why it does not, or why nobody knows."""

    partition: int
    placed: Placed | None
    error: BrokerError | None = None


class PartlyWritten(TidelogError):
    """Some partitions have their records; of the others it is known why not."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        first = next(one for one in outcomes if one.error is not None)
        assert first.error is not None
        super().__init__(f"partition {first.partition}: {first.error}")
        self.error = first.error
        self.outcomes = outcomes


@dataclass(slots=True)
class Packed:
    """What goes to one partition, and where it stands in the request."""

    numbers: list[int] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    data: bytes = b""
    """The batch; empty while it may be left to whoever appends it together with others."""
    digest: int = NO_DIGEST
    """Of what was asked for, where that has an Idempotency-Key."""

    def sealed(self) -> bytes:
        """The batch, for who writes it alone."""
        return self.data or bytes(batch_of(self.records, NO_PRODUCER))


def pack(
    count: int, config: TopicConfig, records: Sequence[NewRecord], once: ProducerId, keyless: int, now_ms: int
) -> dict[int, Packed]:
    """The records by partition, encoded unless they are few and plain.

    Refuses what leaders would, of which some too late.
    """
    batches: dict[int, Packed] = {}
    for at, record in enumerate(records):
        _check(at, record, count, config, now_ms)
        number = record.partition
        if number is None:
            number = keyless % count if record.key is None else partition_for(record.key, count)
        batch = batches.setdefault(number, Packed())
        batch.numbers.append(at)
        batch.records.append(
            Record(
                key=record.key,
                value=record.value,
                headers=record.headers,
                timestamp_ms=now_ms if record.timestamp_ms is None else record.timestamp_ms,
            )
        )
    is_plain = once == NO_PRODUCER and not any(one.headers or one.timestamp_ms is not None for one in records)
    for batch in batches.values():
        if is_plain and 2 * size_of(batch.records) < min(BYTES_MAX, config.max_message_bytes):
            continue  # it is right, whoever encodes it
        if once != NO_PRODUCER:
            asked = [(*records[at][:3], records[at].timestamp_ms) for at in batch.numbers]
            batch.digest = digest_of(msgspec.msgpack.encode(asked))
        batch.data = bytes(batch_of(batch.records, once, batch.digest))
        if len(batch.data) > config.max_message_bytes:
            raise MessageTooLarge(size=len(batch.data), size_max=config.max_message_bytes)
    return batches


def failure_of(
    batches: dict[int, Packed], results: Sequence[Offset | BrokerError]
) -> BrokerError | PartlyWritten:
    """What is raised if some partitions, or the only one, did not take their records.

    `results` are where the batches stand, or why they do not.
    """
    if len(results) == 1 and isinstance(results[0], BrokerError):
        return results[0]
    outcomes: dict[int, Outcome] = {}
    for (number, batch), result in zip(batches.items(), results, strict=True):
        for delta, at in enumerate(batch.numbers):
            outcomes[at] = (
                Outcome(number, None, result)
                if isinstance(result, BrokerError)
                else Outcome(number, Placed(number, result + delta))
            )
    return PartlyWritten([outcomes[at] for at in range(len(outcomes))])


def _check(at: int, record: NewRecord, count: int, config: TopicConfig, now_ms: int) -> None:
    if record.partition is not None and not 0 <= record.partition < count:
        raise InvalidPartitions(
            f"records[{at}] is for partition {record.partition}; there are 0 to {count - 1}"
        )
    if record.key is None and config.compacts:
        raise InvalidRecord(f"records[{at}] has no key, which a compacted topic needs")
    if record.timestamp_ms is None or config.message_timestamp_type != "CreateTime":
        return
    first = now_ms - config.message_timestamp_before_max_ms
    last = now_ms + config.message_timestamp_after_max_ms
    if not first <= record.timestamp_ms <= last:
        raise InvalidTimestamp(
            f"records[{at}] is of {record.timestamp_ms}; the topic takes {first} to {last} now "
            "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        )
