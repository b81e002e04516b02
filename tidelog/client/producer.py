"""Records in, batches out.

Rule 1: one batch per partition is in flight, so that a repeated one cannot overtake its successor.
        While it flies the next one grows, so a slow cluster gets larger batches by itself.
Rule 2: memory is bounded: `room` waits while too much is unsent.
Rule 3: the first failure ends it. Every later call raises that failure.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.kafka import KafkaClient
from tidelog.client.partitioner import Partitioner
from tidelog.errors import TidelogError
from tidelog.model import NO_OFFSET, Offset
from tidelog.records import Codec, Record, encode_batch

RECORD_OVERHEAD_BYTES: Final = 24
"""What a record takes in a batch beyond its key, value and headers; an upper bound in practice."""


@dataclass(slots=True)
class Sent:
    """What one partition has acknowledged so far; offsets are unknown with acks=0."""

    records: int = 0
    bytes: int = 0
    first_offset: Offset = NO_OFFSET
    last_offset: Offset = NO_OFFSET


@dataclass(slots=True)
class _Lane:
    """The unsent records of one partition, oldest first, each with its size."""

    unsent: deque[tuple[Record, int]] = field(default_factory=deque)
    unsent_bytes: int = 0
    task: asyncio.Task[None] | None = None
    full: asyncio.Event = field(default_factory=asyncio.Event)


class Producer:
    """Sends records to one topic, in order within each partition.

    Owned by one task, which calls `add`, then `room` now and then, then `flush`.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        *,
        partitions: int,
        acks: int = -1,
        codec: Codec = Codec.NONE,
        batch_bytes: int = 512 * 1024,
        linger_seconds: float = 0.005,
        unsent_bytes_max: int = 16 * 1024 * 1024,
        on_sent: Callable[[int, int], None] | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._acks = acks
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._linger_seconds = linger_seconds
        self._unsent_bytes_max = unsent_bytes_max
        self._on_sent = on_sent
        self._partitioner = Partitioner(partitions)
        self._lanes: dict[int, _Lane] = {}
        self._unsent_bytes = 0
        self._progress = asyncio.Event()
        self._flushing = False
        self._failure: TidelogError | None = None
        self.sent: dict[int, Sent] = {}

    def add(self, record: Record, partition: int | None = None) -> None:
        """Take a record to send; it leaves with its batch."""
        if self._failure is not None:
            raise self._failure
        if partition is None:
            partition = self._partitioner.pick(record.key)
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane()
        size = _size(record)
        lane.unsent.append((record, size))
        batches_before = lane.unsent_bytes // self._batch_bytes
        lane.unsent_bytes += size
        self._unsent_bytes += size
        if lane.unsent_bytes // self._batch_bytes > batches_before:
            lane.full.set()
            if record.key is None:
                self._partitioner.move_on()
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(partition, lane))

    @property
    def has_room(self) -> bool:
        return self._unsent_bytes < self._unsent_bytes_max

    async def room(self) -> None:
        """Wait until less than the limit is unsent."""
        while not self.has_room and self._failure is None:
            self._progress.clear()
            await self._progress.wait()
        if self._failure is not None:
            raise self._failure

    async def flush(self) -> None:
        """Return when everything added was acknowledged."""
        self._flushing = True
        for lane in self._lanes.values():
            lane.full.set()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        await asyncio.gather(*tasks)
        self._flushing = False
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        """Drop what was not sent."""
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()

    async def _run(self, partition: int, lane: _Lane) -> None:
        """Send a lane until it is empty."""
        try:
            while lane.unsent and self._failure is None:
                if lane.unsent_bytes < self._batch_bytes and not self._flushing:
                    await self._linger(lane)
                await self._send(partition, self._take(lane))
        except TidelogError as error:
            self._failure = self._failure or error
        finally:
            lane.task = None
            self._progress.set()

    async def _linger(self, lane: _Lane) -> None:
        """Let more records join a batch that is not full."""
        lane.full.clear()
        try:
            async with asyncio.timeout(self._linger_seconds):
                await lane.full.wait()
        except TimeoutError:
            pass

    def _take(self, lane: _Lane) -> list[tuple[Record, int]]:
        """The next batch: as many records as fit, and at least one."""
        batch = [lane.unsent.popleft()]
        size = batch[0][1]
        while lane.unsent and size + lane.unsent[0][1] <= self._batch_bytes:
            batch.append(lane.unsent.popleft())
            size += batch[-1][1]
        lane.unsent_bytes -= size
        return batch

    async def _send(self, partition: int, taken: list[tuple[Record, int]]) -> None:
        batch = encode_batch([record for record, _ in taken], codec=self._codec)
        base = await self._client.produce(self._topic, partition, batch, acks=self._acks)
        size = sum(size for _, size in taken)
        self._unsent_bytes -= size
        self._progress.set()
        sent = self.sent.setdefault(partition, Sent())
        sent.records += len(taken)
        sent.bytes += sum(_payload_bytes(record) for record, _ in taken)
        if base is not None:
            sent.first_offset = base if sent.first_offset == NO_OFFSET else sent.first_offset
            sent.last_offset = base + len(taken) - 1
        if self._on_sent is not None:
            self._on_sent(len(taken), size)


def _payload_bytes(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _size(record: Record) -> int:
    size = _payload_bytes(record) + RECORD_OVERHEAD_BYTES
    for name, value in record.headers:
        size += 4 * len(name) + len(value or b"") + 8
    return size
