"""Rows into topics, each exactly once: what Spark's tasks write and what its driver decides.

Every task writes in a transaction of its own and leaves it open. Then one decision commits all of
them, and says of which query and which batch they were; see docs/decisions/010-transactions.md.

Rule 1: a task asks first whether its batch was decided; then it writes nothing. Only after that it
        takes over its transactional id, which ends what an attempt before it left open.
Rule 2: whether the attempts are still those that were meant is checked where the decision is made,
        in the same step. A driver that was thought dead cannot commit half a batch.
Rule 3: a batch that comes again is cut into tasks as Spark likes; nothing depends on the cut.
Rule 4: a task without rows takes part in nothing, unless an attempt before it may have had some.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelog.client.cluster import Refused
from tidelog.client.sender import BatchSender, Identity
from tidelog.client.transactional import Member
from tidelog.errors import TidelogError
from tidelog.spark import asking
from tidelog.spark.asking import SparkClient
from tidelog.spark.options import WriteOptions
from tidelog.spark.placing import Output
from tidelog.txn.records import Counting

logger = logging.getLogger(__name__)

GROUP_PREFIX: Final = "spark."
"""Ids that begin so are coordinated by their group: all members of a decision in one place."""
SEEN_PAUSE_SECONDS: Final = 0.01
TRY_SECONDS_MAX: Final = 10.0
"""For what is not needed: an abort comes by itself, only later."""


class NotDecided(TidelogError):
    """A batch could not be committed; nothing of it is seen, and Spark may write it again."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    group: str
    batch_id: int
    rows: int = 0
    member: Member | None = None
    """As whom it wrote; None if it wrote nothing."""
    after: int | None = None
    """The newest decision when it began to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of one task at one batch."""

    group: str
    batch_id: int
    slot: int
    is_first: bool

    @property
    def transactional_id(self) -> str:
        return f"{self.group}.{self.slot}"


class StreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches of one query. Spark makes it anew for each, and once more to commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "every micro-batch has the id of its query"
        assert batch is not None, "and its own"
        attempt = _attempt(context, GROUP_PREFIX + query, int(batch))
        return write(self._options, self._schema, attempt, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        decide(self._options, messages, Counting.QUERY)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        told = _told(messages)
        if told is not None:  # otherwise nobody knows here which query it was
            give_up(self._options, told.group)


class BatchWriter(DataSourceArrowWriter):
    """One write. It travels to the tasks, and from planning to the commit, with what it knows."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._group = (
            GROUP_PREFIX + uuid.uuid4().hex
            if options.application is None
            else application_group(options.application, options.topic)
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        attempt = _attempt(_context(), self._group, self._options.version)
        return write(self._options, self._schema, attempt, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        is_once = self._options.application is None
        decide(self._options, messages, Counting.ONCE if is_once else Counting.APPLICATION)
        members = _members(messages)
        if not members:
            return
        try:
            until_seen(self._options, members)
        except TidelogError as error:  # it is decided: a failure now would have it written again
            logger.warning("committed, but whether readers see it yet is not known: %s", error)
        if is_once:
            version = self._options.version
            _try(self._options, lambda client: client.forget_decision(self._group, version))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        give_up(self._options, self._group)


def application_group(application: str, topic: str | None) -> str:
    """Whose versions are counted: an application may write one to each of several topics."""
    return GROUP_PREFIX + (application if topic is None else f"{application}:{topic}")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "tasks write, and a task has a context"
    return context


def _attempt(context: TaskContext, group: str, batch_id: int) -> Attempt:
    return Attempt(
        group=group, batch_id=batch_id, slot=context.partitionId(),
        is_first=context.attemptNumber() == 0,
    )  # fmt: skip


# In a task.


def write(
    options: WriteOptions, schema: StructType, attempt: Attempt, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write the rows of a task, and leave it to the driver to commit them."""
    nothing = Written(attempt.group, attempt.batch_id)
    after = _newest_decision(options, attempt) if options.is_exactly_once else None
    if after is not None and after >= attempt.batch_id:
        for _ in batches:  # who makes them may have something to note at their end
            pass
        return nothing
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None and (attempt.is_first or not options.is_exactly_once):
        return nothing
    member, identity = _enter(options, attempt)
    sender = asking.wait(asking.start(_sender(options, identity)))
    output = Output(options, schema, sender, identity, slot=attempt.slot)
    try:
        if first is not None:
            output.add(first)
        for batch in batches:
            output.add(batch)
        output.finish()
    except BaseException:
        asking.wait(asking.start(sender.cancel()))
        if member is not None:
            _abort(options, [member])
        raise
    wrote = member if output.rows else None
    return Written(attempt.group, attempt.batch_id, output.rows, wrote, after)


async def _sender(options: WriteOptions, identity: Identity) -> BatchSender:
    client = asking.client(options.bootstrap, timeout_seconds=options.timeout_seconds)
    return BatchSender(client, identity, acks=options.acks)


def _newest_decision(options: WriteOptions, attempt: Attempt) -> int | None:
    return asking.ask(
        options.bootstrap,
        lambda client: client.read_decision(attempt.group),
        timeout_seconds=options.timeout_seconds,
    )


def _enter(options: WriteOptions, attempt: Attempt) -> tuple[Member | None, Identity]:
    """As whom a task writes: in a transaction of its slot, or as a producer of no name."""

    async def question(client: SparkClient) -> tuple[Member | None, Identity]:
        if not options.is_exactly_once:
            made = await client.idempotent_producer()
            return None, Identity(producer_id=made.producer_id, epoch=made.producer_epoch)
        producer = await client.begin(
            attempt.transactional_id, timeout_ms=options.transaction_timeout_ms
        )
        name, producer_id, epoch = producer.member
        return producer.member, Identity(
            producer_id=producer_id, epoch=epoch, transactional_id=name
        )

    return asking.ask(options.bootstrap, question, timeout_seconds=options.timeout_seconds)


# On the driver.


def decide(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], counting: Counting
) -> None:
    """Commit what all tasks wrote, or nothing of it."""
    members, told = _members(messages), _told(messages)
    if not members or told is None:
        return
    try:
        decision = asking.ask(
            options.bootstrap,
            lambda client: client.commit_group(
                told.group, told.batch_id, members, after=_after(messages), counting=counting
            ),
            timeout_seconds=options.timeout_seconds,
        )
    except Refused as error:
        if error.retriable:  # it may have been decided all the same
            raise
        raise NotDecided(
            f"batch {told.batch_id} was not committed, and nothing of it will be seen: {error}. "
            "Another driver may run the same query; or a task took longer than "
            f"kafka.transaction.timeout.ms ({options.transaction_timeout_ms})"
        ) from error
    if not decision.is_new:
        # Decided by us, and the answer was lost: then these are closed. Or by another driver: then
        # they are what was written twice.
        _abort(options, members)


def give_up(options: WriteOptions, group: str) -> None:
    """Let readers go on at once, past all that tasks of this group have left open.

    Those that were killed have told nobody as whom they wrote; so all are asked for.
    """
    if not options.is_exactly_once:
        return
    timeout_ms = options.transaction_timeout_ms
    _try(options, lambda client: client.abort_group(group, timeout_ms=timeout_ms))


def until_seen(options: WriteOptions, members: Sequence[Member]) -> None:
    """Return when readers of committed records see what was decided, or are taking long to."""

    async def question(client: SparkClient) -> None:
        for member in members:
            while (await client.describe_transaction(member.transactional_id)).is_open:
                if time.monotonic() > deadline:
                    logger.warning("batch is committed, but not all partitions show it yet")
                    return
                await asyncio.sleep(SEEN_PAUSE_SECONDS)

    deadline = time.monotonic() + options.timeout_seconds
    asking.ask(options.bootstrap, question, timeout_seconds=options.timeout_seconds)


def _told(messages: Sequence[WriterCommitMessage | None]) -> Written | None:
    return next((one for one in messages if isinstance(one, Written)), None)


def _members(messages: Sequence[WriterCommitMessage | None]) -> list[Member]:
    return [one.member for one in messages if isinstance(one, Written) and one.member is not None]


def _after(messages: Sequence[WriterCommitMessage | None]) -> int | None:
    """The decision that the batch follows: the newest that a task which wrote has found."""
    found = [
        one.after
        for one in messages
        if isinstance(one, Written) and one.member is not None and one.after is not None
    ]
    return max(found, default=None)


def _abort(options: WriteOptions, members: Sequence[Member]) -> None:
    for member in members:
        _try(options, partial(SparkClient.abort_member, member=member))


def _try(options: WriteOptions, question: Callable[[SparkClient], Awaitable[None]]) -> None:
    """Ask for what only spares others some time; without it, it comes later."""
    try:
        asking.ask(options.bootstrap, question, timeout_seconds=TRY_SECONDS_MAX)
    except TidelogError as error:
        logger.warning("a transaction is left to end by itself: %s", error)
