"""Rows into topics, each exactly once: what Spark's tasks write and what its driver decides.

Every task writes in a transaction of its own and leaves it open. Then one decision commits all of
them, and says of which query and which batch they were; see docs/decisions/010-transactions.md.

Rule 1: a task asks first whether its batch was decided; then it writes nothing. Only after that it
        takes over its transactional id, which ends what an attempt before it left open. See
        `entering.py`.
Rule 2: whether the attempts are still those that were meant is checked where the decision is made,
        in the same step. A driver that was thought dead cannot commit half a batch.
Rule 3: a batch that comes again is cut into tasks as Spark likes; nothing depends on the cut.
Rule 4: a task without rows takes part in nothing, unless an attempt before it may have had some.
Rule 5: the decision keeps a proof of what the batch was. A batch that was decided before is passed
        over only if it is the same; one that is not fails the query, and is never lost in silence.
        So tasks that write nothing tell what they would have written.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.cluster import Refused
from tidelog.client.transactional import Decision, Participant
from tidelog.errors import TidelogError
from tidelog.spark import client_loop
from tidelog.spark.client_loop import SparkClient
from tidelog.spark.content import NOTHING, Content
from tidelog.spark.entering import TRANSACTION_MS, Attempt, Batch, Found, begin, enter, expect
from tidelog.spark.options import WriteOptions
from tidelog.spark.placing import Counted, Output
from tidelog.spark.proofs import OtherContent, Proof, difference, source_ends
from tidelog.spark.registered import Parts
from tidelog.spark.workers import called
from tidelog.wire.batches_decided import Counting

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

    batch: Batch
    content: Content = NOTHING
    """What it wrote, or would have written."""
    member: Participant | None = None
    """As whom it wrote; None if it wrote nothing."""
    found: Found | None = None
    """The newest decision when it began."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches of one query. Spark makes it anew for each, and once more to commit."""

    def __init__(self, options: WriteOptions, schema: StructType, parts: Parts | None = None) -> None:
        self._options = options
        self._schema = schema
        self._parts = parts or {}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "every micro-batch has the id of its query"
        assert batch is not None, "and its own"
        asked = query_batch(query, self._options.topic, int(batch))
        return write(self._options, self._schema, _attempt(context, asked), iterator, self._parts)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        decide(self._options, messages, Counting.QUERY)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        told = _told(messages)
        if told is not None:  # otherwise nobody knows here which query it was
            give_up(self._options, told.batch.group)


class BatchWriter(DataSourceArrowWriter):
    """One write. It travels to the tasks, and from planning to the commit, with what it knows."""

    def __init__(self, options: WriteOptions, schema: StructType, parts: Parts | None = None) -> None:
        self._options = options
        self._schema = schema
        self._parts = parts or {}
        self._group = (
            GROUP_PREFIX + uuid.uuid4().hex
            if options.application is None
            else application_group(options.application, options.topic)
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch = Batch(self._group, self._options.version)
        attempt = _attempt(_context(), batch)
        return write(self._options, self._schema, attempt, iterator, self._parts)

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


def query_batch(query: str, topic: str | None, number: int) -> Batch:
    """A batch of a query: copies of one checkpoint may write to several topics.

    What a query has decided before its group was named after the topic, too, is found under the
    former name, until it decides under the new one.
    """
    former = GROUP_PREFIX + query
    if topic is None:
        return Batch(former, number, query)
    return Batch(f"{former}@{topic}", number, query, former)


def application_group(application: str, topic: str | None) -> str:
    """Whose versions are counted: an application may write one to each of several topics."""
    return GROUP_PREFIX + (application if topic is None else f"{application}:{topic}")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "tasks write, and a task has a context"
    return context


def _attempt(context: TaskContext, batch: Batch) -> Attempt:
    return Attempt(batch=batch, slot=context.partitionId(), is_first=context.attemptNumber() == 0)


# In a task.


def write(
    options: WriteOptions,
    schema: StructType,
    attempt: Attempt,
    batches: Iterator[pa.RecordBatch],
    parts: Parts | None = None,
) -> Written:
    """Write the rows of a task, and leave it to the driver to commit them."""
    called()
    asked = client_loop.ask_later(
        options.bootstrap,
        lambda client: begin(client, options, attempt),
        timeout_seconds=options.timeout_seconds,
    )
    try:
        first = next((batch for batch in batches if batch.num_rows), None)
        beginning = client_loop.wait(asked)
    except BaseException:
        asked.cancel()
        raise
    expect(attempt, rows=first is not None)
    found = beginning.found
    if first is not None:
        batches = chain((first,), batches)
    if beginning.is_decided:
        counted = Counted(options, schema, parts)
        for batch in batches:  # to the end: who makes them may have something to note there
            if batch.num_rows:
                counted.count(batch)
        return Written(attempt.batch, counted.content, None, found)
    if first is None and (attempt.is_first or not options.is_exactly_once):
        return Written(attempt.batch, found=found)
    entered = beginning.entered or client_loop.ask(
        options.bootstrap,
        lambda client: enter(client, options, attempt),
        timeout_seconds=options.timeout_seconds,
    )
    output = Output(options, schema, entered, slot=attempt.slot, parts=parts)
    try:
        for batch in batches:
            output.add(batch)
        output.finish()
    except BaseException:
        client_loop.wait(client_loop.start(entered.sender.cancel()))
        if entered.member is not None:
            _abort(options, [entered.member])
        raise
    wrote = entered.member if output.rows else None
    return Written(attempt.batch, output.content, wrote, found)


# On the driver.


def decide(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], counting: Counting) -> None:
    """Commit what all tasks wrote, or nothing of it."""
    told = _told(messages)
    if told is None or not options.is_exactly_once:
        return
    batch, members, found = told.batch, _members(messages), _found(messages)
    if counting is Counting.ONCE:
        if members and not _commit(options, batch, members, None, counting, None).is_new:
            _abort(options, members)
        return
    stands = found is not None and found.batch_id >= batch.number
    if not members and not stands:
        _sweep(options, batch, found)
        return
    proof = Proof.of(
        Content.sum(one.content for one in messages if isinstance(one, Written)),
        source_ends(options.checkpoint, batch.number, query=batch.query),
    )
    if members:
        after = _after(batch, messages)
        if after is None and batch.former_group is not None:
            give_up(options, batch.former_group)  # what was begun under it, nobody else ends
        decided = _commit(options, batch, members, after, counting, proof.encode())
        if decided.is_new:
            return
        # Decided by us, and the answer was lost: then these are closed. Or by another driver: then
        # they are what was written twice.
        _abort(options, members)
        found = Found(batch.group, decided.batch_id, decided.proof)
    else:
        _sweep(options, batch, found)
    assert found is not None, "it was decided before"
    check_replay(options, batch, found, proof)


def _commit(
    options: WriteOptions,
    batch: Batch,
    members: Sequence[Participant],
    after: int | None,
    counting: Counting,
    proof: bytes | None,
) -> Decision:
    try:
        return client_loop.ask(
            options.bootstrap,
            lambda client: client.commit_group(
                batch.group, batch.number, members, after=after, counting=counting, proof=proof
            ),
            timeout_seconds=options.timeout_seconds,
        )
    except Refused as error:
        if error.retriable:  # it may have been decided all the same
            raise
        allowed_ms = options.transaction_timeout_ms or TRANSACTION_MS
        raise NotDecided(
            f"batch {batch.number} was not committed, and nothing of it will be seen: {error}. "
            "Another driver may run the same query; or the batch took longer than the option "
            f"kafka.transaction.timeout.ms allows ({allowed_ms} ms, unless the nodes' "
            "transaction.max.timeout.ms is less: raise both)"
        ) from error


def check_replay(options: WriteOptions, batch: Batch, found: Found, proof: Proof) -> None:
    """Refuse to pass over a batch that is not the one that was decided under its number."""
    if not options.verifies_replays:
        return
    decided = Proof.decode(found.proof)
    if found.batch_id > batch.number:
        shown = "" if decided is None else f" ({decided.shown()})"
        why: str | None = f"the newest that was decided is {found.batch_id}{shown}, and only that comes again"
    else:
        why = difference(decided, proof)
    if why is None:
        return
    topic = "" if options.topic is None else f" into {options.topic!r}"
    if batch.query is not None:
        who = f"batch {batch.number} of query {batch.query}{topic}"
        advice = (
            "The checkpoint is older than the topic, or was repaired. Begin with a new checkpoint "
            "where the decided batch ended (startingOffsets; `tidelog pipeline decisions show "
            f"{found.group}` tells where); or have all written that comes, again too, after "
            f"`tidelog pipeline decisions reset {found.group}`"
        )
    else:
        who = f"txnVersion {batch.number} of txnAppId {options.application!r}{topic}"
        advice = (
            "A version is written once, and the next is higher: give every query (by its id), and "
            "every frame that it writes, a txnAppId of its own. `tidelog pipeline decisions show "
            f"{found.group}` tells what was written, and `... reset {found.group}` forgets it"
        )
    if proof.digest is None or decided is None or decided.digest is None:
        advice += ". If its rows differ from try to try, as random numbers do: verifyReplays=false"
    raise OtherContent(f"{who} was not written: {why}. {advice}")


def _sweep(options: WriteOptions, batch: Batch, found: Found | None) -> None:
    """End what an earlier try has left open, since no decision will."""
    give_up(options, batch.group)
    if batch.former_group is not None and (found is None or found.group == batch.former_group):
        give_up(options, batch.former_group)


def give_up(options: WriteOptions, group: str) -> None:
    """Let readers go on at once, past all that tasks of this group have left open.

    Those that were killed have told nobody as whom they wrote; so all are asked for.
    """
    if not options.is_exactly_once:
        return
    _try(options, lambda client: client.abort_group(group))


def until_seen(options: WriteOptions, members: Sequence[Participant]) -> None:
    """Return when readers of committed records see what was decided, or are taking long to."""

    async def question(client: SparkClient) -> None:
        for member in members:
            while (await client.describe_transaction(member.transactional_id)).is_open:
                if time.monotonic() > deadline:
                    logger.warning("batch is committed, but not all partitions show it yet")
                    return
                await asyncio.sleep(SEEN_PAUSE_SECONDS)

    deadline = time.monotonic() + options.timeout_seconds
    client_loop.ask(options.bootstrap, question, timeout_seconds=options.timeout_seconds)


def _told(messages: Sequence[WriterCommitMessage | None]) -> Written | None:
    return next((one for one in messages if isinstance(one, Written)), None)


def _members(messages: Sequence[WriterCommitMessage | None]) -> list[Participant]:
    return [one.member for one in messages if isinstance(one, Written) and one.member is not None]


def _found(messages: Sequence[WriterCommitMessage | None]) -> Found | None:
    """The newest decision that a task has found."""
    found = [one.found for one in messages if isinstance(one, Written) and one.found is not None]
    return max(found, key=lambda one: one.batch_id, default=None)


def _after(batch: Batch, messages: Sequence[WriterCommitMessage | None]) -> int | None:
    """The decision that the batch follows: the newest that a task which wrote has found."""
    wrote = [one for one in messages if isinstance(one, Written) and one.member is not None]
    found = _found(wrote)
    return found.batch_id if found is not None and found.group == batch.group else None


def _abort(options: WriteOptions, members: Sequence[Participant]) -> None:
    for member in members:
        _try(options, partial(SparkClient.abort_member, member=member))


def _try(options: WriteOptions, question: Callable[[SparkClient], Awaitable[None]]) -> None:
    """Ask for what only spares others some time; without it, it comes later."""
    try:
        client_loop.ask(options.bootstrap, question, timeout_seconds=TRY_SECONDS_MAX)
    except TidelogError as error:
        logger.warning("a transaction is left to end by itself: %s", error)
