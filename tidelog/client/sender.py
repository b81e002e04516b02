"""Whole batches of one producer, to any number of partitions, in order within each.

Rule 1: a batch has its sequence before it is handed over, so a repeated one is told from a new one,
        and several of a partition may be on their way at once.
Rule 2: when one fails and may be tried again, the partition waits for the answers of all that were
        on their way, then sends again from the oldest unanswered one on, in order. The broker knows
        those it has (the window is no longer than its memory of them).
Rule 3: memory is bounded: `put` waits while too much is unanswered.
Rule 4: the first failure ends it. Every later call raises that failure.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import ANSWER_SECONDS, Refused, check
from tidelog.client.kafka import KafkaClient
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.model import NO_EPOCH, NO_PRODUCER, Offset, ProducerId, TopicPartition
from tidelog.records import SEQUENCE_MODULUS
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

PRODUCE_VERSION: Final = 12
"""The last that names topics, and the first with which partitions join transactions by
themselves."""
WINDOW: Final = 5
"""Batches of a partition on their way: as many as brokers remember of a producer."""
UNANSWERED_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """As whom batches are written."""

    producer_id: ProducerId = NO_PRODUCER
    epoch: int = NO_EPOCH
    transactional_id: str | None = None


class _Batch(NamedTuple):
    content: bytes | bytearray | memoryview
    records: int


@dataclass(slots=True)
class _Lane:
    """The batches of one partition that are not answered, oldest first."""

    unanswered: deque[_Batch] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    sequence: int = 0
    is_known: bool = False
    """A broker has stored a batch; one that knows nothing of a producer takes any as its first."""
    grown: asyncio.Event = field(default_factory=asyncio.Event)


class BatchSender:
    """Sends what it is given. Owned by one task of the client's loop."""

    def __init__(
        self, client: KafkaClient, identity: Identity, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> None:
        assert acks != 0, "an answer is what lets the next batch go"
        self._client = client
        self._identity = identity
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._unanswered_bytes = 0
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self.records = 0
        """How many were acknowledged."""

    @property
    def places(self) -> list[TopicPartition]:
        """Every partition that was written to."""
        return sorted(self._lanes)

    def take_sequence(self, place: TopicPartition, records: int) -> int:
        """The sequence of the partition's next batch, which will have so many records."""
        lane = self._lane(place)
        sequence = lane.sequence
        lane.sequence = (sequence + records) % SEQUENCE_MODULUS
        return sequence

    async def put(self, place: TopicPartition, content: bytes | bytearray, records: int) -> None:
        """Hand over a partition's next batch; returns when there is room for another."""
        self._check()
        lane = self._lane(place)
        lane.unanswered.append(_Batch(content, records))
        lane.grown.set()
        self._unanswered_bytes += len(content)
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(place, lane))
        while self._unanswered_bytes > UNANSWERED_BYTES_MAX and self._failure is None:
            self._progress.clear()
            await self._progress.wait()
        self._check()

    async def flush(self) -> None:
        """Return when everything was acknowledged."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        await asyncio.gather(*tasks)
        self._check()

    async def cancel(self) -> None:
        """Drop what was not sent."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane(self, place: TopicPartition) -> _Lane:
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _Lane()
        return lane

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _run(self, place: TopicPartition, lane: _Lane) -> None:
        """Send a lane until it is empty."""
        try:
            while lane.unanswered and self._failure is None:
                await self._client.retry(lambda: self._attempt(place, lane))
        except Exception as error:  # whatever it was, what is unanswered was not written
            self._failure = self._failure or error
        finally:
            lane.task = None
            self._progress.set()

    async def _attempt(self, place: TopicPartition, lane: _Lane) -> None:
        """Send from the oldest unanswered batch on, until all are answered or one fails.

        A failure after others were answered is forgiven: patience begins anew with progress.
        """
        connection = await self._client.leader(place.topic, place.partition)
        flying: deque[asyncio.Task[Offset]] = deque()
        answered = 0
        try:
            while lane.unanswered and self._failure is None:
                window = WINDOW if lane.is_known else 1
                while len(flying) < min(window, len(lane.unanswered)):
                    batch = lane.unanswered[len(flying)]
                    flying.append(asyncio.create_task(self._send(connection, place, batch)))
                await _answered_or_grown(lane, flying[0], window)
                if flying[0].done():
                    flying.popleft().result()
                    self._acknowledge(lane.unanswered.popleft())
                    lane.is_known = True
                    answered += 1
        except (ConnectionFailed, Refused) as error:
            if not answered or not _may_be_sent_again(error):
                raise
            self._client.forget(place.topic)
        except asyncio.CancelledError:
            for task in flying:
                task.cancel()
            raise
        finally:
            # Nothing may still be on its way when the partition sends again from its oldest.
            await asyncio.gather(*flying, return_exceptions=True)

    def _acknowledge(self, batch: _Batch) -> None:
        self._unanswered_bytes -= len(batch.content)
        self.records += batch.records
        self._progress.set()

    async def _send(self, connection: Connection, place: TopicPartition, batch: _Batch) -> Offset:
        request = request_entity(
            Api.PRODUCE,
            PRODUCE_VERSION,
            {
                "transactional_id": self._identity.transactional_id,
                "acks": self._acks,
                "timeout": self._timeout_ms,
                "topic_data": [
                    {
                        "name": place.topic,
                        "partition_data": [{"index": place.partition, "records": batch.content}],
                    }
                ],
            },
        )
        response = await connection.request(request, timeout_seconds=self._timeout_ms / 1000 + ANSWER_SECONDS)
        (answer,) = response.responses[0].partition_responses
        check(answer.error_code, str(place), answer.error_message)
        return int(answer.base_offset)


async def _answered_or_grown(lane: _Lane, first: "asyncio.Task[Offset]", window: int) -> None:
    """Wait for the oldest answer, or for a batch that may join those on their way."""
    if len(lane.unanswered) >= window:
        await asyncio.wait((first,))
        return
    lane.grown.clear()
    grown = asyncio.ensure_future(lane.grown.wait())
    try:
        await asyncio.wait((first, grown), return_when=asyncio.FIRST_COMPLETED)
    finally:
        grown.cancel()


def _may_be_sent_again(error: ConnectionFailed | Refused) -> bool:
    """Whether it may be well next time; a sequence is out of order behind one that has failed."""
    return error.retriable or (
        isinstance(error, Refused) and error.code == ErrorCode.out_of_order_sequence_number
    )
