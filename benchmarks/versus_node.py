"""One node of Tidelog and one of Apache Kafka: same machine, same client, same run.

Rule 1: both run the whole time and only one of them is loaded. Each figure is taken from Tidelog,
        then Kafka, then Tidelog again, round by round; medians count. On a busy machine there are
        fewer rounds. Before the first, Kafka alone gets some load, since its JVM compiles what is
        used; `--quick` cannot wait until that is done, and flatters us.
Rule 2: like is compared with like: nothing synced on either side, or a sync before every
        acknowledgement on both. What differs in that is called a cross pair.
Rule 3: start-up is measured with nothing else running, after the load, so that whatever a first
        start leaves behind is there for both. Kafka's storage is formatted before the clock runs.
Rule 4: MB are millions of bytes of the log, CPU is the server's. Every acknowledged record is in
        the log, or the run fails.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep, time_ns
from typing import Final, Protocol, TypeVar

from benchmarks.bench import Bench, Steps, run_fast
from benchmarks.clients import Client, Rdkafka, Unavailable
from benchmarks.compared import KAFKA, LESS, TIDELOG, Case, Compared, compare
from benchmarks.kafka_peer import Kafka, KafkaProcess
from benchmarks.latency import OpenLoad
from benchmarks.limits import Moved
from benchmarks.process import cpu_seconds, memory_bytes
from benchmarks.pump import answer_bytes_of, produce_request, pump, send_all
from benchmarks.report import Measured
from benchmarks.startup import IDLE_SECONDS
from tests.support.node import NodeProcess
from tidelog.client.frames import ProduceFrame, make_batch
from tidelog.client.kafka import LATEST, KafkaClient
from tidelog.client.load import Load, LoadGenerator
from tidelog.errors import TidelogError

NAME: Final = "versus"

RECORD_BYTES: Final = 100
BATCHES: Final = {1_000_000: "1 MB batches", 16_384: "16 KB batches"}
LATENCY_RATE: Final = 1000
SHAPES: Final = {(1, 100): "1 connection x 100", (8, 100): "8 connections x 100"}
CLIENT_RECORDS: Final = 400_000
"""How many librdkafka moves per second of measuring."""
FILL_DEPTH: Final = 5
DELETED_SECONDS: Final = 0.3
"""Until Kafka has deleted the files of a topic that is gone."""
FIRST_RECORD_SECONDS_MAX: Final = 30.0
RETRY_SECONDS: Final = 0.01

T = TypeVar("T")
S = TypeVar("S", bound="Server")


class Server(Protocol):
    """What a node of either kind can do."""

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> int: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """A server, and how safe a record must be before it is acknowledged."""

    server: str
    safety: str
    config: tuple[tuple[str, str], ...] = ()


TIDELOG_REPLICATED: Final = Setup(TIDELOG, "replicated", (("durability", "replicated"),))
TIDELOG_FSYNC: Final = Setup(TIDELOG, "fsync", (("durability", "fsync"),))
KAFKA_DEFAULTS: Final = Setup(KAFKA, "defaults")
KAFKA_FLUSH: Final = Setup(KAFKA, "flush.messages=1", (("flush.messages", "1"),))

UNSYNCED: Final = {TIDELOG: TIDELOG_REPLICATED, KAFKA: KAFKA_DEFAULTS}
SETUPS: Final = (TIDELOG_REPLICATED, KAFKA_DEFAULTS, TIDELOG_FSYNC, KAFKA_FLUSH)
WARMED_UP: Final = (KAFKA_DEFAULTS,)

PAIRS: Final = {
    "unsynced: Tidelog durability=replicated, Kafka with its defaults": (TIDELOG_REPLICATED, KAFKA_DEFAULTS),
    "synced: Tidelog with its defaults (fsync), Kafka flush.messages=1": (TIDELOG_FSYNC, KAFKA_FLUSH),
    "cross pair: Tidelog with its defaults (synced), Kafka with its defaults (unsynced)": (
        TIDELOG_FSYNC,
        KAFKA_DEFAULTS,
    ),
}
EITHER: Final = "whatever the durability"


PRODUCE: Final = {size: Case(f"produce, {name}", "MB/s") for size, name in BATCHES.items()}
PRODUCE_CPU: Final = {size: Case(f"produce, {name}: CPU", "CPU s/GB", LESS) for size, name in BATCHES.items()}
CLIENT_PRODUCE: Final = Case("produce, librdkafka, batches up to 1 MB", "records/s")
LATENCY: Final = {
    name: Case(f"{LATENCY_RATE:,} records/s: produced to consumed, {name}", "ms", LESS)
    for name in ("p50", "p99")
}
REQUESTS: Final = {shape: Case(f"unbatched produce, {name}", "requests/s") for shape, name in SHAPES.items()}
REQUESTS_CPU: Final = {
    shape: Case(f"unbatched produce, {name}: CPU", "CPU us/request", LESS) for shape, name in SHAPES.items()
}
BY_SETUP: Final = (
    *PRODUCE.values(),
    *PRODUCE_CPU.values(),
    CLIENT_PRODUCE,
    *LATENCY.values(),
    *REQUESTS.values(),
    *REQUESTS_CPU.values(),
)

CONSUME: Final = {size: Case(f"consume, {name}", "MB/s") for size, name in BATCHES.items()}
CONSUME_CPU: Final = {size: Case(f"consume, {name}: CPU", "CPU s/GB", LESS) for size, name in BATCHES.items()}
CLIENT_CONSUME: Final = Case("consume, librdkafka", "records/s")
READY: Final = Case("start to the first answer", "s", LESS)
FIRST_RECORD: Final = Case("start to the first acknowledged record", "s", LESS)
IDLE_MEMORY: Final = Case("memory (RSS), idle", "MB", LESS)
LOADED_MEMORY: Final = Case("memory (RSS), after the load", "MB", LESS)
BY_SERVER: Final = (
    *CONSUME.values(),
    *CONSUME_CPU.values(),
    CLIENT_CONSUME,
    READY,
    FIRST_RECORD,
    IDLE_MEMORY,
    LOADED_MEMORY,
)


class Versus:
    """How much to do, with what, and what came of it."""

    def __init__(self, bench: Bench, kafka: Kafka) -> None:
        self.bench = bench
        self.kafka = kafka
        self.measured = Measured()
        self.notes: list[str] = []
        self.client: Client | None = None
        try:
            self.client = Rdkafka(bench.directory)
        except Unavailable as missing:
            self.notes.append(f"a client is left out: {missing}")

    @property
    def rounds(self) -> int:
        """How many there are, unless the machine is so busy that `rounds_seconds_max` ends them."""
        return 1 if self.bench.quick else 3

    @property
    def rounds_seconds_max(self) -> float:
        return 30.0 if self.bench.quick else 210.0

    @property
    def starts(self) -> int:
        return 1 if self.bench.quick else 3

    @property
    def seconds(self) -> float:
        """How long one figure takes."""
        return 0.5 if self.bench.quick else 2.0

    @property
    def warm_up_seconds(self) -> float:
        """The same for the round that does not count."""
        return 1.0 if self.bench.quick else 4.0

    def fill_bytes(self, batch_bytes: int) -> int:
        """How much there is to consume."""
        size = 400_000_000 if batch_bytes == max(BATCHES) else 100_000_000
        return size // 4 if self.bench.quick else size


def compare_nodes(versus: Versus) -> list[Compared]:
    """Load both in turns, then start each alone."""
    _load(versus)
    _starts(versus)
    return _compare(versus.measured)


# The load.


def _load(versus: Versus) -> None:
    """All rounds, with both servers running."""
    bench = versus.bench
    by_setup = len(BATCHES) + (versus.client is not None) + 1 + len(SHAPES)
    setups = len(WARMED_UP) + len(SETUPS) * versus.rounds
    total = 2 + by_setup * setups + 2 * len(BATCHES) * (1 + versus.rounds)
    with Steps(NAME, total) as steps:
        steps.begin("starting both")
        with (
            _running(NodeProcess(bench.fresh("tidelog"))) as tidelog,
            _running(KafkaProcess(versus.kafka, bench.fresh("kafka"))) as kafka,
        ):
            servers: dict[str, Server] = {TIDELOG: tidelog, KAFKA: kafka}
            steps.begin("filling the topics that are consumed")
            for name, server in servers.items():
                for size in BATCHES:
                    _fill(server, UNSYNCED[name], size, versus.fill_bytes(size))
            _round(versus, servers, steps, Measured(), versus.warm_up_seconds, WARMED_UP)
            started = perf_counter()
            for done in range(1, 1 + versus.rounds):
                _round(versus, servers, steps, versus.measured, versus.seconds)
                elapsed = perf_counter() - started
                if done < versus.rounds and elapsed + elapsed / done > versus.rounds_seconds_max:
                    versus.notes.append(f"this machine is slow or busy: {done} rounds, not more")
                    break
            for name, server in servers.items():
                versus.measured.add((LOADED_MEMORY, name), memory_bytes(server.pid) / 1e6)
            kafka.stop()
            tidelog.stop()


def _round(
    versus: Versus,
    servers: Mapping[str, Server],
    steps: Steps,
    measured: Measured,
    seconds: float,
    setups: Sequence[Setup] = SETUPS,
) -> None:
    """Every figure once, each of all setups before the next."""

    def each(what: str) -> Iterator[tuple[Setup, Server]]:
        for setup in setups:
            steps.begin(f"{setup.server}, {setup.safety}: {what}")
            versus.bench.settle()
            yield setup, servers[setup.server]

    for size in BATCHES:
        for setup, server in each(PRODUCE[size].name):
            _produce(server, setup, size, seconds, measured)
    if versus.client is not None:
        for setup, server in each("librdkafka"):
            _client(versus.client, server, setup, int(CLIENT_RECORDS * seconds), measured)
    for setup, server in each(f"{LATENCY_RATE:,} records/s"):
        if (problem := _latency(server, setup, seconds, measured)) is not None:
            versus.notes.append(problem)
    for shape in SHAPES:
        for setup, server in each(REQUESTS[shape].name):
            _requests(server, setup, shape, seconds / 2, measured)
    for size in BATCHES:
        for name, server in servers.items():
            steps.begin(f"{name}: {CONSUME[size].name}")
            versus.bench.settle()
            _consume(server, name, size, seconds / 2, measured)


def _produce(server: Server, setup: Setup, batch_bytes: int, seconds: float, measured: Measured) -> None:
    topic = _fresh_topic("produced")
    batch, records = make_batch(RECORD_BYTES, batch_bytes, now_ms=time_ns() // 1_000_000)

    async def work(client: KafkaClient) -> None:
        await _create(client, topic, setup)
        load = Load(topic=topic, record_bytes=RECORD_BYTES, batch_bytes=batch_bytes)
        generator = LoadGenerator(client, load)
        cpu = cpu_seconds(server.pid)
        produced = await generator.produce(seconds)
        cpu = cpu_seconds(server.pid) - cpu
        await _check_and_delete(client, topic, produced.records)
        moved = Moved(
            size=produced.records // records * len(batch), seconds=produced.seconds, cpu_seconds=cpu
        )
        measured.add((PRODUCE[batch_bytes], setup), moved.megabytes_per_second)
        measured.add((PRODUCE_CPU[batch_bytes], setup), moved.cpu_seconds_per_gigabyte)

    _ask(server, work)


def _client(client: Client, server: Server, setup: Setup, count: int, measured: Measured) -> None:
    """A real client; what it consumes is what it produced, so its batches are its own."""
    topic = _fresh_topic("client")
    _ask(server, lambda kafka: _create(kafka, topic, setup))
    seconds = client.produce(server.bootstrap, topic, count, RECORD_BYTES, -1)
    measured.add((CLIENT_PRODUCE, setup), count / seconds)
    if setup in UNSYNCED.values():
        seconds = client.consume(server.bootstrap, topic, count, RECORD_BYTES)
        measured.add((CLIENT_CONSUME, setup.server), count / seconds)
    _ask(server, lambda kafka: _check_and_delete(kafka, topic, count))


def _latency(server: Server, setup: Setup, seconds: float, measured: Measured) -> str | None:
    """Returns why there is no figure, if there is none."""
    topic = _fresh_topic("latency")
    _ask(server, lambda client: _create(client, topic, setup))
    try:
        timed = OpenLoad(server.port, topic, LATENCY_RATE, seconds).run()
    except RuntimeError as error:
        return f"{setup.server}, {setup.safety}, {LATENCY_RATE:,} records/s: {error}"
    finally:
        _ask(server, lambda client: client.delete_topic(topic))
        sleep(DELETED_SECONDS)
    for name, case in LATENCY.items():
        measured.add((case, setup), timed.consumed[name])
    return None


def _requests(
    server: Server, setup: Setup, shape: tuple[int, int], seconds: float, measured: Measured
) -> None:
    topic = _fresh_topic("requests")
    connections, depth = shape
    _ask(server, lambda client: _create(client, topic, setup))
    now_ms = time_ns() // 1_000_000
    request = produce_request(topic, 0, record_bytes=RECORD_BYTES, now_ms=now_ms)
    answer_bytes = answer_bytes_of(server.port, request)
    cpu = cpu_seconds(server.pid)
    rate = pump(
        server.port, request, answer_bytes=answer_bytes, connections=connections, depth=depth, seconds=seconds
    )
    cpu = cpu_seconds(server.pid) - cpu
    _ask(server, lambda client: _check_and_delete(client, topic, 1 + rate.requests))
    measured.add((REQUESTS[shape], setup), rate.per_second)
    measured.add((REQUESTS_CPU[shape], setup), cpu / rate.requests * 1e6)


def _fill(server: Server, setup: Setup, batch_bytes: int, size: int) -> None:
    topic = _filled(batch_bytes)
    _ask(server, lambda client: _create(client, topic, setup))
    batch, _ = make_batch(RECORD_BYTES, batch_bytes, now_ms=time_ns() // 1_000_000)
    frames = [ProduceFrame.make(topic, [0], batch, -1)] * (size // len(batch))
    send_all(server.port, topic, frames, depth=FILL_DEPTH)


def _filled(batch_bytes: int) -> str:
    return f"consumed-{batch_bytes}"


def _consume(server: Server, name: str, batch_bytes: int, seconds: float, measured: Measured) -> None:
    """Read the whole topic, from memory, as often as it takes."""
    topic = _filled(batch_bytes)
    batch, records = make_batch(RECORD_BYTES, batch_bytes, now_ms=time_ns() // 1_000_000)

    async def work(client: KafkaClient) -> Moved:
        generator = LoadGenerator(client, Load(topic=topic, record_bytes=RECORD_BYTES))
        ends = await generator.ends()
        elapsed, size = 0.0, 0
        cpu = cpu_seconds(server.pid)
        while elapsed < seconds:
            consumed = await generator.consume(ends)
            assert consumed.records == sum(ends.values()), "all that is there is read"
            elapsed += consumed.seconds
            size += consumed.records // records * len(batch)
        return Moved(size=size, seconds=elapsed, cpu_seconds=cpu_seconds(server.pid) - cpu)

    moved = _ask(server, work)
    measured.add((CONSUME[batch_bytes], name), moved.megabytes_per_second)
    measured.add((CONSUME_CPU[batch_bytes], name), moved.cpu_seconds_per_gigabyte)


async def _create(client: KafkaClient, topic: str, setup: Setup) -> None:
    await client.create_topic(topic, partitions=1, replication=1, configs=dict(setup.config))
    await client.list_offsets(topic, {0: LATEST})  # retried until the leader knows that it leads


def _fresh_topic(name: str) -> str:
    """A name that was not used before: Kafka takes a moment to forget a topic."""
    return f"{name}-{time_ns()}"


async def _check_and_delete(client: KafkaClient, topic: str, records: int) -> None:
    """The log has what was acknowledged, no more and no less."""
    end = (await client.list_offsets(topic, {0: LATEST}))[0].offset
    assert end == records, f"{records} records were acknowledged, the log has {end}"
    await client.delete_topic(topic)
    await asyncio.sleep(DELETED_SECONDS)


# Starting.


def _starts(versus: Versus) -> None:
    """Start each by itself, let one record be acknowledged, wait a little, stop."""
    bench = versus.bench
    with Steps(f"{NAME}, starts", 2 * versus.starts) as steps:
        for _ in range(versus.starts):
            for name in (TIDELOG, KAFKA):
                steps.begin(name)
                data = bench.fresh(name)
                server: Server
                if name == TIDELOG:
                    server = NodeProcess(data)
                else:
                    server = KafkaProcess(versus.kafka, data)
                bench.settle()
                _start(name, server, versus.measured)
                bench.remove(data)


def _start(name: str, server: Server, measured: Measured) -> None:
    started = perf_counter()
    with _running(server):
        measured.add((READY, name), perf_counter() - started)
        _ask(server, lambda client: _first_record(client, UNSYNCED[name]))
        measured.add((FIRST_RECORD, name), perf_counter() - started)
        sleep(IDLE_SECONDS)
        measured.add((IDLE_MEMORY, name), memory_bytes(server.pid) / 1e6)
        server.stop()


async def _first_record(client: KafkaClient, setup: Setup) -> None:
    """Kafka may answer before its controller lets it have a topic."""
    batch, _ = make_batch(RECORD_BYTES, 0, now_ms=time_ns() // 1_000_000)
    async with asyncio.timeout(FIRST_RECORD_SECONDS_MAX):
        while True:
            try:
                await _create(client, "first", setup)
                break
            except TidelogError:
                await asyncio.sleep(RETRY_SECONDS)
        assert await client.produce("first", 0, batch) == 0


@contextmanager
def _running(server: S) -> Iterator[S]:
    """Start the server; whatever happens from then on, it does not outlive the `with`."""
    try:
        server.start()
        yield server
    finally:
        if server.is_running:
            server.kill()


def _ask(server: Server, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    """Do some work with a client of either server."""

    async def run() -> T:
        async with KafkaClient(server.bootstrap) as client:
            return await work(client)

    return run_fast(run())


# Telling.


def _compare(measured: Measured) -> list[Compared]:
    rows = [
        compare(pair, case, measured.of((case, ours)), measured.of((case, theirs)))
        for pair, (ours, theirs) in PAIRS.items()
        for case in BY_SETUP
    ]
    rows += [
        compare(EITHER, case, measured.of((case, TIDELOG)), measured.of((case, KAFKA))) for case in BY_SERVER
    ]
    return [row for row in rows if row is not None]
