"""How a task begins to write: what it asks of the cluster while its first rows are on their way.

Rule 1: whether the batch was decided is asked first, and only after the answer the transactional id
        is taken over. The other way round a task could fence a member of a decision on its way.
Rule 2: a task without rows takes over no id. Whether rows will come nobody knows yet; so an id is
        taken over ahead of them only by a process that had rows for the same id last time.
Rule 3: an id that was taken over for nothing does no harm: no transaction is open until the first
        batch is written.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Refused
from tidelog.client.sender import BatchSender, Identity
from tidelog.client.transactional import Participant, TransactionalProducer
from tidelog.errors import ConfigError
from tidelog.spark.client_loop import SparkClient
from tidelog.spark.options import WriteOptions

TRANSACTION_MS: Final = 4 * 60 * 60 * 1000
"""How long a batch may take, from its first row to its decision, if nobody says otherwise."""
KAFKA_TRANSACTION_MS: Final = 15 * 60 * 1000
"""The same where the cluster allows no more: what Kafka allows by default."""
EXPECTED_MAX: Final = 1000
"""Ids that a process remembers."""

_expected: set[str] = set()
"""Ids that this process had rows for, the last time it wrote as them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Which batch is written, and by whom."""

    group: str
    number: int
    query: str | None = None
    """The id of a streaming query."""
    former_group: str | None = None
    """What the query's group was called before it had its topic in its name."""


@dataclass(frozen=True, slots=True)
class Found:
    """A decision that stands."""

    group: str
    batch_id: int
    proof: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of one task at one batch."""

    batch: Batch
    slot: int
    is_first: bool

    @property
    def transactional_id(self) -> str:
        return f"{self.batch.group}.{self.slot}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """As whom a task writes: in a transaction of its slot, or as a producer of no name."""

    member: Participant | None
    identity: Identity
    sender: BatchSender
    counts: dict[str, int]
    """How many partitions the topic has; empty if rows name theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a task knows when its first row is there."""

    found: Found | None
    """The newest decision."""
    is_decided: bool
    """Whether that is the task's batch, or one after it."""
    entered: Entered | None


async def begin(client: SparkClient, options: WriteOptions, attempt: Attempt) -> Beginning:
    """Ask what was decided; and take over the id at once, if rows are expected."""
    found = await _newest_decision(client, attempt.batch) if options.is_exactly_once else None
    is_decided = found is not None and found.batch_id >= attempt.batch.number
    is_ahead = not is_decided and attempt.transactional_id in _expected
    entered = await enter(client, options, attempt) if is_ahead else None
    return Beginning(found=found, is_decided=is_decided, entered=entered)


def expect(attempt: Attempt, *, rows: bool) -> None:
    """Remember whether a task had rows."""
    if not rows:
        _expected.discard(attempt.transactional_id)
        return
    if len(_expected) >= EXPECTED_MAX:
        _expected.clear()
    _expected.add(attempt.transactional_id)


async def enter(client: SparkClient, options: WriteOptions, attempt: Attempt) -> Entered:
    """Take over the id, and ask how many partitions there are."""
    (member, identity), counts = await asyncio.gather(
        _take_over(client, options, attempt), _counts(client, options)
    )
    sender = BatchSender(client, identity, acks=options.acks)
    return Entered(member=member, identity=identity, sender=sender, counts=counts)


async def partition_count(client: SparkClient, topic: str) -> int:
    """How many partitions a topic has; one that is missing is made, if the cluster does so."""
    client.forget(topic)  # it may have more partitions than for the task before
    return len((await client.topic(topic, create=True)).partitions)


async def _counts(client: SparkClient, options: WriteOptions) -> dict[str, int]:
    if options.topic is None:
        return {}
    return {options.topic: await partition_count(client, options.topic)}


async def _newest_decision(client: SparkClient, batch: Batch) -> Found | None:
    for group in (batch.group, batch.former_group):
        found = None if group is None else await client.newest_decision(group)
        if group is not None and found is not None:
            return Found(group, found.batch_id, found.proof)
    return None


async def _take_over(
    client: SparkClient, options: WriteOptions, attempt: Attempt
) -> tuple[Participant | None, Identity]:
    if not options.is_exactly_once:
        made = await client.idempotent_producer()
        return None, Identity(producer_id=made.producer_id, epoch=made.producer_epoch)
    producer = await _producer(client, attempt.transactional_id, options.transaction_timeout_ms)
    name, producer_id, epoch = producer.member
    return producer.member, Identity(producer_id=producer_id, epoch=epoch, transactional_id=name)


async def _producer(
    client: SparkClient, transactional_id: str, asked_ms: int | None
) -> TransactionalProducer:
    """Take over an id, for as long as was asked for or as is sensible and allowed."""
    wanted = (TRANSACTION_MS, KAFKA_TRANSACTION_MS) if asked_ms is None else (asked_ms,)
    for timeout_ms in wanted:
        try:
            return await client.begin(transactional_id, timeout_ms=timeout_ms)
        except Refused as error:
            if error.code != ErrorCode.invalid_transaction_timeout:
                raise
    raise ConfigError(
        f"kafka.transaction.timeout.ms is {wanted[-1]}, and the cluster allows less: set the "
        "option to what transaction.max.timeout.ms of the nodes is, or raise that"
    )
