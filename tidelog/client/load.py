"""A load generator: as much as a broker takes, from one thread.

Rule 1: the generator must cost far less than the broker: while the clock runs, a produce request
        gets a correlation id and nothing else, and an answer is only counted.
Rule 2: what is counted was acknowledged, or received, within the measured time.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.client.frames import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    TIMEOUT_MS,
    ProduceFrame,
    fetch_frame,
    make_batch,
    read_fetched,
)
from tidelog.client.kafka import LATEST, KafkaClient
from tidelog.client.wire import Connection, ConnectionFailed, Frame
from tidelog.errors import TidelogError, UnsupportedVersion
from tidelog.host import Bytes, Clock, Network, SystemClock
from tidelog.model import Endpoint, Offset
from tidelog.wire.apis import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send, and how hard."""

    topic: str
    record_bytes: int = 100
    batch_bytes: int = 1_000_000
    acks: int = -1
    connections: int = 1
    """Connections to each broker; a partition's requests stay on one of them."""
    pipeline: int = 5
    """Unanswered requests per connection."""
    partitions_per_request: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How much went through in how long. `payload_bytes` counts values only."""

    records: int
    payload_bytes: int
    requests: int
    seconds: float
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """Of one request, from sending to its answer."""

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.payload_bytes / self.seconds / 1e6 if self.seconds else 0.0


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """The usual ones of some seconds, in milliseconds; {} without samples."""
    if not samples:
        return {}
    ordered = sorted(samples)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "p999": at(0.999), "max": ordered[-1] * 1000}


class _Pump:
    """Keeps one connection busy: sends the next request when an answer comes, until `stop_at`."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.requests = 0
        self.batches = 0
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._clock = clock
        self._sent_at: deque[float] = deque()

    def write(self, buffers: Sequence[Bytes]) -> None:
        self._sent_at.append(self._clock.monotonic())
        self._connection.frames.write(buffers)

    def answered(self, frame: Frame) -> float:
        """Note an answer, which belongs to the oldest request; return the time."""
        now = self._clock.monotonic()
        self.latencies.append(now - self._sent_at.popleft())
        self.requests += 1
        return now

    def fail(self, error: TidelogError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def lost(self, what: str) -> None:
        self.fail(ConnectionFailed(self._connection.endpoint, what))

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _ProducePump(_Pump):
    """Cycles through its requests, `pipeline` of them unanswered."""

    def __init__(
        self, connection: Connection, clock: Clock, load: Load, requests: Sequence[ProduceFrame]
    ) -> None:
        super().__init__(connection, clock)
        self._topic = load.topic
        self._requests = requests
        self._count = 0
        self._waiting: deque[ProduceFrame] = deque()
        self._stop_at = 0.0

    def start(self, pipeline: int, stop_at: float) -> None:
        self._stop_at = stop_at
        self._connection.hand_over(self._on_frame, self.lost)
        for _ in range(pipeline):
            self._send()

    async def run_unanswered(self, stop_at: float) -> None:
        """The same with acks=0: as fast as the connection takes it."""
        frames = self._connection.frames
        while self._clock.monotonic() < stop_at:
            request = self._next()
            frames.write(request.buffers(self._count))
            self.requests += 1
            self.batches += request.partitions
            await (asyncio.sleep(0) if frames.is_writable else frames.wait_writable())
        await self._connection.settle()

    def _next(self) -> ProduceFrame:
        self._count += 1
        return self._requests[self._count % len(self._requests)]

    def _send(self) -> None:
        request = self._next()
        self._waiting.append(request)
        self.write(request.buffers(self._count))

    def _on_frame(self, frame: Frame) -> None:
        now = self.answered(frame)
        try:
            request = self._waiting.popleft()
            request.check(frame, self._topic)
            self.batches += request.partitions
        except TidelogError as error:
            self.fail(error)
        if now < self._stop_at and not self.done.done():
            self._send()
        elif not self._waiting:
            self.finish()


class _ConsumePump(_Pump):
    """Reads its partitions from their positions to their ends, one request at a time."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        topic: str,
        positions: dict[int, Offset],
        ends: Mapping[int, Offset],
        bytes_max: int,
    ) -> None:
        super().__init__(connection, clock)
        self.records = 0
        self._topic = topic
        self._positions = {at: offset for at, offset in positions.items() if offset < ends[at]}
        self._ends = ends
        self._bytes_max = bytes_max

    def start(self) -> None:
        self._connection.hand_over(self._on_frame, self.lost)
        self._send()

    def _send(self) -> None:
        if not self._positions:
            self.finish()
            return
        frame = fetch_frame(
            self.requests + 1,
            self._topic,
            self._positions,
            wait_ms=500,
            bytes_max=self._bytes_max,
            partition_bytes_max=max(1024 * 1024, self._bytes_max // len(self._positions)),
        )
        self.write([frame])

    def _on_frame(self, frame: Frame) -> None:
        self.answered(frame)
        try:
            for partition, offset, _ in read_fetched(frame, self._topic):
                self.records += offset - self._positions.pop(partition)
                if offset < self._ends[partition]:
                    self._positions[partition] = offset  # last in line: all get their turn
        except (TidelogError, IndexError, struct.error) as error:
            self.fail(error if isinstance(error, TidelogError) else TidelogError(str(error)))
            return
        self._send()


class LoadGenerator:
    """Puts one load on a topic that exists, and reads it back."""

    def __init__(
        self, client: KafkaClient, load: Load, *, network: Network | None = None, clock: Clock | None = None
    ) -> None:
        self._client = client
        self._load = load
        self._network = network
        self._clock = clock or SystemClock()

    async def produce(self, seconds: float) -> Throughput:
        """Send batches for this long; count those that were acknowledged."""
        load = self._load
        now_ms = self._clock.wall_ms()
        batch, count = make_batch(load.record_bytes, load.batch_bytes, now_ms=now_ms)
        pumps = []
        connections = await self._connect(load.connections)
        for connection, partitions in connections:
            step = load.partitions_per_request
            groups = [partitions[at : at + step] for at in range(0, len(partitions), step)]
            frames = [ProduceFrame.make(load.topic, group, batch, load.acks) for group in groups]
            pumps.append(_ProducePump(connection, self._clock, load, frames))
        started = self._clock.monotonic()
        try:
            if load.acks == 0:
                await asyncio.gather(*(pump.run_unanswered(started + seconds) for pump in pumps))
            else:
                for pump in pumps:
                    pump.start(load.pipeline, started + seconds)
                await asyncio.gather(*(pump.done for pump in pumps))
            elapsed = self._clock.monotonic() - started
        finally:
            _close(connections)
        records = count * sum(pump.batches for pump in pumps)
        return Throughput(
            records=records,
            payload_bytes=records * load.record_bytes,
            requests=sum(pump.requests for pump in pumps),
            seconds=elapsed,
            latency_ms=percentiles([one for pump in pumps for one in pump.latencies]),
        )

    async def ends(self, *, records: int = 0, seconds_max: float = 30.0) -> dict[int, Offset]:
        """Where each partition's committed records end, once there are as many as `records`.

        With acks 0 and 1 the answer, if any, comes before the commit.
        """
        topic = await self._client.topic(self._load.topic)
        times = {partition.partition: LATEST for partition in topic.partitions}
        give_up_at = self._clock.monotonic() + seconds_max
        while True:
            found = await self._client.list_offsets(self._load.topic, times)
            ends = {partition: one.offset for partition, one in found.items()}
            if sum(ends.values()) >= records or self._clock.monotonic() > give_up_at:
                return ends
            await asyncio.sleep(0.05)

    async def consume(self, ends: Mapping[int, Offset], *, bytes_max: int = 2 * 1024 * 1024) -> Throughput:
        """Read the topic from its start to the given ends."""
        load = self._load
        connections = await self._connect(load.connections, shared=False)
        pumps = []
        for connection, share in connections:
            positions = dict.fromkeys(share, 0)
            pumps.append(_ConsumePump(connection, self._clock, load.topic, positions, ends, bytes_max))
        started = self._clock.monotonic()
        try:
            for pump in pumps:
                pump.start()
            await asyncio.gather(*(pump.done for pump in pumps))
            elapsed = self._clock.monotonic() - started
        finally:
            _close(connections)
        records = sum(pump.records for pump in pumps)
        return Throughput(
            records=records,
            payload_bytes=records * load.record_bytes,
            requests=sum(pump.requests for pump in pumps),
            seconds=elapsed,
            latency_ms=percentiles([one for pump in pumps for one in pump.latencies]),
        )

    async def latency(self, *, samples: int, seconds_max: float) -> dict[str, float]:
        """From sending one record to a waiting consumer having it, one record at a time.

        Milliseconds by percentile, and `acknowledged_*` from sending to the producer's answer.
        """
        load = self._load
        batch, _ = make_batch(load.record_bytes, 0, now_ms=self._clock.wall_ms())
        request = ProduceFrame.make(load.topic, [0], batch, load.acks or 1)
        found = await self._client.list_offsets(load.topic, {0: LATEST})
        position = found[0].offset
        pair = [*await self._connect(1, partitions=[0]), *await self._connect(1, partitions=[0])]
        (producer, _), (consumer, _) = pair
        received: list[float] = []
        acknowledged: list[float] = []
        give_up_at = self._clock.monotonic() + seconds_max
        try:
            while len(received) < samples and self._clock.monotonic() < give_up_at:
                one = await self._one_record(producer, consumer, request, position)
                received.append(one[0])
                acknowledged.append(one[1])
                position += 1
        finally:
            _close(pair)
        answers = percentiles(acknowledged)
        return {
            "samples": len(received),
            **percentiles(received),
            **{f"acknowledged_{name}": value for name, value in answers.items()},
        }

    async def _one_record(
        self, producer: Connection, consumer: Connection, request: ProduceFrame, position: Offset
    ) -> tuple[float, float]:
        """Seconds until the consumer had the record, and until the producer heard yes."""
        load = self._load
        correlation_id = consumer.next_correlation_id()
        limits = {"wait_ms": 5000, "bytes_max": 1 << 20, "partition_bytes_max": 1 << 20}
        waiting = consumer.send(
            correlation_id, [fetch_frame(correlation_id, load.topic, {0: position}, **limits)]
        )
        correlation_id = producer.next_correlation_id()
        started = self._clock.monotonic()
        answer = producer.send(correlation_id, request.buffers(correlation_id))
        seconds: dict[asyncio.Future[Frame], float] = {}

        def note(future: asyncio.Future[Frame]) -> None:
            seconds[future] = self._clock.monotonic() - started

        waiting.add_done_callback(note)
        answer.add_done_callback(note)
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            fetched, produced = await asyncio.gather(waiting, answer)
        request.check(produced, load.topic)
        if not any(offset > position for _, offset, _ in read_fetched(fetched, load.topic)):
            raise TidelogError(f"{load.topic}-0: a waiting fetch came back without the record")
        return seconds[waiting], seconds[answer]

    async def _connect(
        self, count: int, *, shared: bool = True, partitions: Sequence[int] | None = None
    ) -> list[tuple[Connection, list[int]]]:
        """`count` connections to each leader, each with its share of the leader's partitions.

        `shared` lets several connections work on one partition if there are more of them.
        """
        leaders = await self._client.leaders(self._load.topic)
        wanted = leaders if partitions is None else {one: leaders[one] for one in partitions}
        by_leader: dict[Endpoint, list[int]] = {}
        for partition, endpoint in wanted.items():
            by_leader.setdefault(endpoint, []).append(partition)
        connections: list[tuple[Connection, list[int]]] = []
        try:
            for endpoint, led in by_leader.items():
                for at in range(count if shared else min(count, len(led))):
                    connection = await Connection.open(
                        endpoint, network=self._network, security=self._client.security
                    )
                    connections.append((connection, led[at::count] or [led[at % len(led)]]))
                    _require(connection, Api.PRODUCE, PRODUCE_VERSION)
                    _require(connection, Api.FETCH, FETCH_VERSION)
        except BaseException:
            _close(connections)
            raise
        return connections


def _close(connections: Sequence[tuple[Connection, list[int]]]) -> None:
    for connection, _ in connections:
        connection.close()


def _require(connection: Connection, api: Api, version: int) -> None:
    low, high = connection.versions.get(api, (0, -1))
    if not low <= version <= high:
        raise UnsupportedVersion(
            f"{connection.endpoint} speaks {api.name.lower()} {low} to {high}; "
            f"the load generator needs {version}"
        )
