"""Three nodes of Tidelog and three of Apache Kafka: replication 3, two in sync at least, acks=all.

Rule 1: as in `versus.py`: both clusters run the whole time, only one is loaded, each figure is
        taken from all setups before the next, and Kafka's JVMs get some load that does not count.
        Nor does the first record of a topic: Kafka's followers may take half a second to hear of a
        new partition.
Rule 2: Kafka has its defaults: a record is acknowledged when it is in the page cache of all in-sync
        replicas. That is `durability: replicated` here. Our default, which syncs on all of them
        first, stands beside it as a cross pair: it promises more.
Rule 3: CPU and memory are those of all three nodes. A GB is one of the log, and is counted once.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import sleep, time_ns
from typing import Final, Protocol, TypeVar

from benchmarks.bench import ASK_SECONDS_MAX, Bench, Steps, run_fast
from benchmarks.clients import Client
from benchmarks.cluster import NODES, cluster_of_three
from benchmarks.compared import KAFKA, LESS, TIDELOG, Case, Compared, compare
from benchmarks.kafka_peer import Kafka, KafkaCluster
from benchmarks.latency import OpenLoad
from benchmarks.limits import Moved
from benchmarks.process import cpu_seconds, memory_bytes
from benchmarks.pump import send_all
from benchmarks.report import Measured
from tidelog.client.frames import ProduceFrame, make_batch
from tidelog.client.kafka import LATEST, KafkaClient
from tidelog.client.load import Load, LoadGenerator

NAME: Final = "versus, three nodes"

RECORD_BYTES: Final = 100
BATCHES: Final = {1_000_000: "1 MB batches", 16_384: "16 KB batches"}
LATENCY_RATES: Final = (100, 1000)
CLIENT_RECORDS: Final = 200_000
"""How many librdkafka moves per second of measuring."""
FILL_DEPTH: Final = 5
DELETED_SECONDS: Final = 0.3

T = TypeVar("T")


class Servers(Protocol):
    """What a cluster of either kind can do."""

    @property
    def bootstrap(self) -> str: ...

    def pids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """A cluster, and how safe a record must be before it is acknowledged."""

    server: str
    config: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.server} {dict(self.config).get('durability', '')}".strip()

    @property
    def configs(self) -> dict[str, str]:
        return {"min.insync.replicas": "2", **dict(self.config)}


REPLICATED: Final = Setup(TIDELOG, (("durability", "replicated"),))
FSYNC: Final = Setup(TIDELOG, (("durability", "fsync"),))
DEFAULTS: Final = Setup(KAFKA)
SETUPS: Final = (REPLICATED, DEFAULTS, FSYNC)
UNSYNCED: Final = {TIDELOG: REPLICATED, KAFKA: DEFAULTS}
PAIRS: Final = {
    "three nodes, unsynced: Tidelog durability=replicated, Kafka with its defaults": REPLICATED,
    "three nodes, cross pair: Tidelog with its defaults (synced), Kafka with its defaults": FSYNC,
}
EITHER: Final = "three nodes, whatever the durability"
NOTES: Final = (
    "three nodes: replication 3, min.insync.replicas 2, acks=all, one partition; all nodes share "
    "this machine's cores and disk",
    "three nodes, cross pair: ours waits for a sync on every in-sync replica, Kafka's for no disk at all",
    "three nodes: Kafka takes one request at a time from a connection, ours many; the generator "
    "has one connection and 5 requests on it, and at 1,000 records/s each is a request of its own",
)

PRODUCE: Final = {size: Case(f"produce, {name}", "MB/s") for size, name in BATCHES.items()}
PRODUCE_CPU: Final = {
    size: Case(f"produce, {name}: CPU of all nodes", "CPU s/GB", LESS) for size, name in BATCHES.items()
}
CLIENT_PRODUCE: Final = Case("produce, librdkafka, batches up to 1 MB", "records/s")
LATENCY: Final = {
    (rate, name): Case(f"{rate:,} records/s: produced to consumed, {name}", "ms", LESS)
    for rate in LATENCY_RATES
    for name in ("p50", "p99")
}
BY_SETUP: Final = (*PRODUCE.values(), *PRODUCE_CPU.values(), CLIENT_PRODUCE, *LATENCY.values())
CONSUME: Final = {size: Case(f"consume, {name}", "MB/s") for size, name in BATCHES.items()}
CLIENT_CONSUME: Final = Case("consume, librdkafka", "records/s")
MEMORY: Final = Case("memory (RSS) of all nodes, after the load", "MB", LESS)
BY_SERVER: Final = (*CONSUME.values(), CLIENT_CONSUME, MEMORY)


def compare_clusters(bench: Bench, kafka: Kafka, client: Client | None) -> list[Compared]:
    """Start both, load them in turns, stop them."""
    measured = Measured()
    rounds = 1 if bench.quick else 3
    figures = len(BATCHES) + (client is not None) + len(LATENCY_RATES)
    total = 2 + figures + rounds * (figures * len(SETUPS) + 2 * len(BATCHES)) + 2 * len(BATCHES)
    with Steps(NAME, total) as steps:
        steps.begin("starting both")
        with cluster_of_three(bench) as tidelog, KafkaCluster(kafka, bench.fresh("kafkas"), NODES) as kafkas:
            servers: dict[str, Servers] = {TIDELOG: tidelog, KAFKA: kafkas}
            steps.begin("filling the topics that are consumed")
            for name, one in servers.items():
                for size in BATCHES:
                    _fill(one, UNSYNCED[name], size, 30_000_000 if bench.quick else 200_000_000)
            runner = _Round(bench, servers, client, steps)
            runner.run((DEFAULTS,), 1.0 if bench.quick else 4.0, Measured())
            for _ in range(rounds):
                runner.run(SETUPS, 0.5 if bench.quick else 2.0, measured)
            for name, one in servers.items():
                measured.add((MEMORY, name), sum(map(memory_bytes, one.pids())) / 1e6)
    rows = [
        compare(pair, case, measured.of((case, ours)), measured.of((case, DEFAULTS)))
        for pair, ours in PAIRS.items()
        for case in BY_SETUP
    ]
    rows += [
        compare(EITHER, case, measured.of((case, TIDELOG)), measured.of((case, KAFKA))) for case in BY_SERVER
    ]
    return [row for row in rows if row is not None]


class _Round:
    """Every figure once, each of all setups before the next."""

    def __init__(
        self, bench: Bench, servers: Mapping[str, Servers], client: Client | None, steps: Steps
    ) -> None:
        self._bench = bench
        self._servers = servers
        self._client = client
        self._steps = steps

    def run(self, setups: tuple[Setup, ...], seconds: float, measured: Measured) -> None:
        for size in BATCHES:
            for setup, servers in self._each(setups, PRODUCE[size].name):
                _produce(servers, setup, size, seconds, measured)
        if self._client is not None:
            for setup, servers in self._each(setups, "librdkafka"):
                count = int(CLIENT_RECORDS * seconds)
                _through_client(self._client, servers, setup, count, measured)
        for rate in LATENCY_RATES:
            for setup, servers in self._each(setups, f"{rate:,} records/s"):
                _latency(servers, setup, rate, seconds, measured)
        for size in BATCHES:
            for name, servers in self._servers.items():
                self._begin(f"{name}: {CONSUME[size].name}")
                _consume(servers, name, size, seconds / 2, measured)

    def _each(self, setups: tuple[Setup, ...], what: str) -> Iterator[tuple[Setup, Servers]]:
        for setup in setups:
            self._begin(f"{setup.name}: {what}")
            yield setup, self._servers[setup.server]

    def _begin(self, what: str) -> None:
        self._steps.begin(what)
        self._bench.settle()


def _produce(servers: Servers, setup: Setup, batch_bytes: int, seconds: float, measured: Measured) -> None:
    topic = _create(servers, setup, "produced")
    batch, records = make_batch(RECORD_BYTES, batch_bytes, now_ms=time_ns() // 1_000_000)

    async def work(client: KafkaClient) -> None:
        load = Load(topic=topic, record_bytes=RECORD_BYTES, batch_bytes=batch_bytes)
        cpu = _cpu_seconds(servers)
        produced = await LoadGenerator(client, load).produce(seconds)
        moved = Moved(
            size=produced.records // records * len(batch),
            seconds=produced.seconds,
            cpu_seconds=_cpu_seconds(servers) - cpu,
        )
        await _check(client, topic, produced.records)
        measured.add((PRODUCE[batch_bytes], setup), moved.megabytes_per_second)
        measured.add((PRODUCE_CPU[batch_bytes], setup), moved.cpu_seconds_per_gigabyte)

    _ask(servers, work)
    _delete(servers, topic)


def _through_client(client: Client, servers: Servers, setup: Setup, count: int, measured: Measured) -> None:
    """A real client; what it consumes is what it produced, so its batches are its own."""
    topic = _create(servers, setup, "client")
    seconds = client.produce(servers.bootstrap, topic, count, RECORD_BYTES, -1)
    measured.add((CLIENT_PRODUCE, setup), count / seconds)
    if setup in UNSYNCED.values():
        seconds = client.consume(servers.bootstrap, topic, count, RECORD_BYTES)
        measured.add((CLIENT_CONSUME, setup.server), count / seconds)
    _ask(servers, lambda kafka: _check(kafka, topic, count))
    _delete(servers, topic)


def _latency(servers: Servers, setup: Setup, rate: int, seconds: float, measured: Measured) -> None:
    """Records that are due at fixed times: a server that falls behind has long times to show."""
    topic = _create(servers, setup, "latency")
    timed = OpenLoad(_leader_port(servers, topic), topic, rate, seconds, first=1).run()
    for name in ("p50", "p99"):
        measured.add((LATENCY[rate, name], setup), timed.consumed[name])
    _delete(servers, topic)


def _fill(servers: Servers, setup: Setup, batch_bytes: int, size: int) -> None:
    topic = _create(servers, setup, "filled", name=_filled(batch_bytes))
    batch, _ = make_batch(RECORD_BYTES, batch_bytes, now_ms=time_ns() // 1_000_000)
    frames = [ProduceFrame.make(topic, [0], batch, -1)] * (size // len(batch))
    send_all(_leader_port(servers, topic), topic, frames, depth=FILL_DEPTH)


def _filled(batch_bytes: int) -> str:
    return f"consumed-{batch_bytes}"


def _consume(servers: Servers, name: str, batch_bytes: int, seconds: float, measured: Measured) -> None:
    """Read the whole topic from its leader's memory, as often as it takes."""
    topic = _filled(batch_bytes)
    batch, records = make_batch(RECORD_BYTES, batch_bytes, now_ms=time_ns() // 1_000_000)

    async def work(client: KafkaClient) -> list[float]:
        generator = LoadGenerator(client, Load(topic=topic, record_bytes=RECORD_BYTES))
        ends = await generator.ends()
        rates, elapsed = [], 0.0
        while elapsed < seconds:
            consumed = await generator.consume(ends)
            assert consumed.records == sum(ends.values()), "all that is there is read"
            elapsed += consumed.seconds
            rates.append((consumed.records - 1) // records * len(batch) / consumed.seconds / 1e6)
        return rates

    measured.add((CONSUME[batch_bytes], name), median(_ask(servers, work)))


# Clusters of either kind.


def _create(servers: Servers, setup: Setup, kind: str, *, name: str = "") -> str:
    """A topic with a name of its own, which Kafka takes a moment to forget, and one record."""
    topic = name or f"{kind}-{time_ns()}"

    async def work(client: KafkaClient) -> None:
        await client.create_topic(topic, partitions=1, replication=NODES, configs=setup.configs)
        await client.list_offsets(topic, {0: LATEST})
        first, _ = make_batch(RECORD_BYTES, 0, now_ms=time_ns() // 1_000_000)
        await client.produce(topic, 0, first)

    _ask(servers, work)
    return topic


def _delete(servers: Servers, topic: str) -> None:
    _ask(servers, lambda client: client.delete_topic(topic))
    sleep(DELETED_SECONDS)


async def _check(client: KafkaClient, topic: str, records: int) -> None:
    """The log has what was acknowledged, no more and no less."""
    end = (await client.list_offsets(topic, {0: LATEST}))[0].offset - 1
    assert end == records, f"{records} records were acknowledged, the log has {end}"


def _leader_port(servers: Servers, topic: str) -> int:
    async def find(client: KafkaClient) -> int:
        return (await client.leaders(topic))[0].port

    return _ask(servers, find)


def _cpu_seconds(servers: Servers) -> float:
    return sum(map(cpu_seconds, servers.pids()))


def _ask(servers: Servers, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with KafkaClient(servers.bootstrap, timeout_seconds=ASK_SECONDS_MAX) as client:
            return await work(client)

    return run_fast(run())
