"""What copying every record to two more nodes costs: throughput, lag, connections.

Rule 1: three nodes of one cluster on this machine; every figure of three replicas stands beside the
        same with one replica on the same nodes, measured right before. All three share the cores
        and the disk, which no real cluster does.
Rule 2: CPU time is that of all nodes, per GB of the log (once, not three times).
Rule 3: lag is measured as latency is: batches are due at fixed times, whether or not earlier ones
        have come through, and a batch's time begins when it was due.
Rule 4: a batch is *acknowledged* when the leader's watermark covers it and the producer hears so;
        *written* when the slower follower's own file has it; *readable* when a consumer that waits
        at a follower has it.
"""

import gc
import os
from bisect import bisect_right
from dataclasses import dataclass
from select import select
from time import monotonic, time_ns
from typing import Final

from benchmarks.bench import Bench, Steps
from benchmarks.clients import Client, Rdkafka, Unavailable
from benchmarks.cluster import NODES, Cluster, cluster_of_three
from benchmarks.latency import BEHIND_SECONDS_MAX, WARM_UP_SECONDS, Stream
from benchmarks.limits import Moved, sync_latency_ms
from benchmarks.pump import connect
from benchmarks.report import Measured, Report, Result, result
from benchmarks.throughput import BATCH_BYTES, CLIENT_RECORDS, CPU_UNIT
from tidelog.client.frames import FRAME_HEAD, ProduceFrame, fetch_frame, make_batch, read_fetched
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load, LoadGenerator, percentiles

NAME: Final = "replication"

RECORD_BYTES: Final = 100
DURABILITIES: Final = ("fsync", "replicated")
REPLICATIONS: Final = (1, NODES)
LAG_RATE: Final = 10_000
LAG_BATCH_RECORDS: Final = 10
LAG_MS_MAX: Final = 10.0
"""With `replicated`; with `fsync` twice the 95th percentile of a plain sync, and 5 ms."""
LAG_MS_BESIDE_SYNCS: Final = 5.0
LOOK_SECONDS: Final = 0.0005
PERCENTILES: Final = ("p50", "p95", "p99")
SAFE: Final = ("acknowledged", "written")
"""What the target is for."""
MANY_PARTITIONS: Final = 500
ANY_RACK: Final = b"x"
"""A consumer that names a rack may read from a follower."""


def run(bench: Bench) -> Report:
    measured = Measured()
    notes = []
    client: Client | None = None
    try:
        client = Rdkafka(bench.directory)
    except Unavailable as missing:
        notes.append(f"a client is left out: {missing}")
    by_durability = len(REPLICATIONS) * (3 + 2 * (client is not None)) + 1
    with (
        cluster_of_three(bench) as cluster,
        Steps(NAME, 1 + bench.rounds * by_durability * len(DURABILITIES)) as steps,
    ):
        # Lag first: right after the others, whose gigabytes are then deleted, it was far worse.
        for _ in range(bench.rounds):
            for durability in DURABILITIES:
                _limits(bench, durability, measured, steps)
                for replication in REPLICATIONS:
                    _lag(bench, cluster, Case(durability, replication), measured, steps)
        for _ in range(bench.rounds):
            for durability in DURABILITIES:
                for replication in REPLICATIONS:
                    case = Case(durability, replication)
                    _raw(bench, cluster, case, measured, steps)
                    if client is not None:
                        _client(bench, cluster, client, case, measured, steps)
        steps.begin(f"connections with {MANY_PARTITIONS} partitions")
        measured.add(("connections", "few"), cluster.peer_connections())
        cluster.create("many", partitions=MANY_PARTITIONS)
        measured.add(("connections", "many"), cluster.peer_connections())
    rows = [*_throughput_results(measured, client), *_lag_results(measured), *_connection_results(measured)]
    notes.append("sent is the generator's own delay: where it is large, the machine was busy")
    notes.append("the limit of a lag with fsync is 2 x p95 of a plain append of that size + 5 ms")
    return Report(title="three nodes, three replicas, acks=all", results=rows, notes=notes)


@dataclass(frozen=True, slots=True)
class Case:
    """How safe a record is: where it must be, and on how many nodes."""

    durability: str
    replication: int

    @property
    def name(self) -> str:
        return f"{self.durability}, {self.replication} replica{'s' * (self.replication > 1)}"

    @property
    def configs(self) -> dict[str, str]:
        return {"durability": self.durability}


# Throughput.


def _raw(bench: Bench, cluster: Cluster, case: Case, measured: Measured, steps: Steps) -> None:
    """1 MB batches from the plain generator, and back."""
    batch, records = make_batch(RECORD_BYTES, BATCH_BYTES, now_ms=time_ns() // 1_000_000)
    cluster.create("raw", replication=case.replication, configs=case.configs)

    async def work(client: KafkaClient) -> None:
        load = Load(topic="raw", record_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES)
        generator = LoadGenerator(client, load)
        steps.begin(f"produce, {case.name}")
        await client.produce("raw", 0, _small_batch())  # it makes the files
        bench.settle()
        cluster.forget_peak()
        cpu = cluster.cpu_seconds()
        produced = await generator.produce(bench.subject_seconds)
        cpu = cluster.cpu_seconds() - cpu
        size = produced.records // records * len(batch)
        note("produce", Moved(size=size, seconds=produced.seconds, cpu_seconds=cpu))
        measured.add(("peak", case), cluster.peak_memory_bytes() / 1e6)
        total = LAG_BATCH_RECORDS + produced.records
        ends = await generator.ends(records=total)
        steps.begin(f"consume, {case.name}")
        bench.settle()
        cpu = cluster.cpu_seconds()
        consumed = await generator.consume(ends)
        cpu = cluster.cpu_seconds() - cpu
        assert consumed.records == total, "all that was acknowledged is read back"
        note("consume", Moved(size=size, seconds=consumed.seconds, cpu_seconds=cpu))

    def note(what: str, moved: Moved) -> None:
        measured.add((what, case), moved.megabytes_per_second)
        measured.add((what, "cpu", case), moved.cpu_seconds_per_gigabyte)

    cluster.ask(work)
    cluster.delete("raw")


def _client(
    bench: Bench, cluster: Cluster, client: Client, case: Case, measured: Measured, steps: Steps
) -> None:
    count = int(CLIENT_RECORDS[RECORD_BYTES] * bench.subject_seconds)
    cluster.create("client", replication=case.replication, configs=case.configs)
    steps.begin(f"{client.name}: produce, {case.name}")
    bench.settle()
    seconds = client.produce(cluster.bootstrap, "client", count, RECORD_BYTES, -1)
    measured.add(("client produce", case), count / seconds)
    steps.begin(f"{client.name}: consume, {case.name}")
    bench.settle()
    seconds = client.consume(cluster.bootstrap, "client", count, RECORD_BYTES)
    measured.add(("client consume", case), count / seconds)
    cluster.delete("client")


# Lag.


def _limits(bench: Bench, durability: str, measured: Measured, steps: Steps) -> None:
    steps.begin(f"limits for the lag, {durability}")
    bench.settle()
    syncs = sync_latency_ms(bench.directory, bench.limit_seconds, len(_small_batch()))
    for name in PERCENTILES:
        measured.add(("sync", durability, name), syncs[name])
    bench.settle()


def _lag(bench: Bench, cluster: Cluster, case: Case, measured: Measured, steps: Steps) -> None:
    steps.begin(f"lag, {case.name}")
    cluster.create("lag", replication=case.replication, configs=case.configs)
    batch = _small_batch()
    cluster.ask(lambda client: client.produce("lag", 0, batch))  # it makes the files
    bench.settle()
    found = _OpenBatches(cluster, "lag", batch, 2 * bench.subject_seconds).run()
    for what, times in found.items():
        for name in PERCENTILES:
            measured.add((what, name, case), times[name])
    cluster.delete("lag")


def _small_batch() -> bytes:
    now_ms = time_ns() // 1_000_000
    for size in range(LAG_BATCH_RECORDS * RECORD_BYTES, 2 * LAG_BATCH_RECORDS * RECORD_BYTES, 10):
        batch, count = make_batch(RECORD_BYTES, size, now_ms=now_ms)
        if count == LAG_BATCH_RECORDS:
            return batch
    raise AssertionError("some size holds ten records")


class _OpenBatches:
    """One loop: sends what is due; notes answers, the followers' files, and what can be read there.

    Only with followers are there the last two. One batch is in the log already.
    """

    def __init__(self, cluster: Cluster, topic: str, batch: bytes, seconds: float) -> None:
        self._topic = topic
        self._interval_seconds = LAG_BATCH_RECORDS / LAG_RATE
        self._uncounted = int(WARM_UP_SECONDS / self._interval_seconds)
        self._count = self._uncounted + int(seconds / self._interval_seconds)
        self._batch = batch
        self._request = ProduceFrame.make(topic, [0], batch, -1)
        seen = cluster.partitions(topic)[0]
        leader = seen.leader
        assert leader is not None, "it was whole a moment ago"
        followers = [node for node in seen.replicas if node != leader]
        self._producer = Stream(connect(cluster.kafka_port(leader)))
        self._consumer = Stream(connect(cluster.kafka_port(followers[0]))) if followers else None
        self._paths = [str(cluster.segment(node, topic)) for node in followers]
        self._sent: list[float] = []
        self._acknowledged: list[float] = []
        self._readable: list[float] = []
        self._sizes: list[tuple[list[int], list[float]]] = [([], []) for _ in followers]
        """What each follower's file had, and when that was seen."""

    def run(self) -> dict[str, dict[str, float]]:
        gc.disable()
        try:
            started = self._run()
        finally:
            gc.enable()
            for stream in filter(None, (self._producer, self._consumer)):
                stream.socket.close()
        times = {"sent": self._sent, "acknowledged": self._acknowledged}
        if self._paths:
            times |= {"written": self._written(), "readable": self._readable}
        return {what: self._delays(found, started) for what, found in times.items()}

    def _delays(self, times: list[float], started: float) -> dict[str, float]:
        assert len(times) == self._count, "every batch came through"
        return percentiles(
            [times[at] - started - at * self._interval_seconds for at in range(self._uncounted, self._count)]
        )

    def _written(self) -> list[float]:
        """When the slower follower had each batch."""
        slowest = []
        for at in range(self._count):
            needed = (at + 2) * len(self._batch)
            slowest.append(max(seen[bisect_right(sizes, needed - 1)] for sizes, seen in self._sizes))
        return slowest

    def _run(self) -> float:
        producer, consumer, count = self._producer, self._consumer, self._count
        interval = self._interval_seconds
        streams = {producer.socket: self._on_answer}
        if consumer is not None:
            streams[consumer.socket] = self._on_fetched
            self._fetch()
        started = monotonic() + interval
        give_up_at = started + count * interval + BEHIND_SECONDS_MAX
        while not self._is_done():
            now = monotonic()
            if now > give_up_at:
                raise RuntimeError("batches are missing: the nodes, or this program, fell behind")
            due = min(count, int((now - started) / interval) + 1)
            if due > len(self._sent):
                self._send(due)
            self._look()
            following = started + len(self._sent) * interval if due < count else give_up_at
            wait = min(max(0.0, following - monotonic()), LOOK_SECONDS if self._paths else 1.0)
            unsent = [producer.socket] if producer.unsent else []
            # select, because it alone waits for less than a millisecond.
            readable, writable, _ = select(streams, unsent, [], wait)
            if writable:
                producer.send(b"")
            for connection in readable:
                streams[connection]()
        return started

    def _is_done(self) -> bool:
        count = self._count
        if len(self._acknowledged) < count or (self._paths and len(self._readable) < count):
            return False
        return all(sizes and sizes[-1] > count * len(self._batch) for sizes, _ in self._sizes)

    def _send(self, due: int) -> None:
        at = len(self._sent)
        rest = b"".join(self._request.rest)
        heads = (self._request.buffers(n)[0] for n in range(at, due))
        self._producer.send(b"".join(bytes(head) + rest for head in heads))
        self._sent += [monotonic()] * (due - at)

    def _look(self) -> None:
        """See what the followers' files have by now."""
        for path, (sizes, seen) in zip(self._paths, self._sizes, strict=True):
            size = os.stat(path).st_size
            if not sizes or size > sizes[-1]:
                sizes.append(size)
                seen.append(monotonic())

    def _on_answer(self) -> None:
        frames = self._producer.receive()
        self._acknowledged += [monotonic()] * len(frames)
        for frame in frames:
            self._request.check(frame, self._topic)

    def _on_fetched(self) -> None:
        assert self._consumer is not None
        frames = self._consumer.receive()
        now = monotonic()
        for frame in frames:
            for _, after, _ in read_fetched(frame, self._topic):
                batches = after // LAG_BATCH_RECORDS - 1
                self._readable += [now] * (batches - len(self._readable))
            if len(self._readable) < self._count:
                self._fetch()

    def _fetch(self) -> None:
        assert self._consumer is not None
        at = (1 + len(self._readable)) * LAG_BATCH_RECORDS
        frame = fetch_frame(
            at, self._topic, {0: at}, wait_ms=500, bytes_max=1 << 20, partition_bytes_max=1 << 20
        )
        self._consumer.send(_from_a_follower(frame))


def _from_a_follower(frame: bytes) -> bytes:
    """The same fetch with a rack, which is the last thing in it: empty, and then no tags."""
    assert frame.endswith(b"\x01\x00")
    size, *head = FRAME_HEAD.unpack_from(frame)
    body = frame[FRAME_HEAD.size : -2] + bytes([1 + len(ANY_RACK)]) + ANY_RACK + b"\x00"
    return FRAME_HEAD.pack(size + len(ANY_RACK), *head) + body


# Telling.


def _throughput_results(measured: Measured, client: Client | None) -> list[Result]:
    rows = []

    def add(title: str, name: str, unit: str) -> None:
        for durability in DURABILITIES:
            alone, three = (Case(durability, count) for count in REPLICATIONS)
            rows.append(
                result(
                    NAME,
                    f"{title}, {durability}",
                    measured.of((*name.split("+"), three)),
                    unit,
                    limits=measured.of((*name.split("+"), alone)),
                    limit_name="one replica",
                )
            )

    add("produce, 1 MB batches of 100 B", "produce", "MB/s")
    add("consume the same", "consume", "MB/s")
    if client is not None:
        add(f"{client.name}: produce 100 B", "client produce", "records/s")
        add(f"{client.name}: consume 100 B", "client consume", "records/s")
    add("all nodes, produce", "produce+cpu", CPU_UNIT)
    add("all nodes, consume", "consume+cpu", CPU_UNIT)
    add("the largest node", "peak", "MB peak RSS")
    return rows


def _lag_results(measured: Measured) -> list[Result]:
    rows = []
    for durability in DURABILITIES:
        alone, three = (Case(durability, count) for count in REPLICATIONS)
        for what in (*SAFE, "readable", "sent"):
            for name in PERCENTILES if what != "sent" else ("p99",):
                has_target = what in SAFE and name == "p95"
                if has_target and durability == "fsync":
                    syncs = measured.of(("sync", durability, name))
                    limits = [2 * sync + LAG_MS_BESIDE_SYNCS for sync in syncs]
                    limit_name, target = "2 x fdatasync p95 + 5 ms", "<= 1.0x"
                else:
                    limits = measured.of((what, name, alone))
                    limit_name = f"one replica, {name}"
                    target = f"< {LAG_MS_MAX:.0f} ms" if has_target else ""
                rows.append(
                    result(
                        NAME,
                        f"{LAG_RATE:,} records/s, {durability}: {what} {name}",
                        measured.of((what, name, three)),
                        "ms",
                        limits=limits,
                        limit_name=limit_name,
                        target=target,
                    )
                )
    return rows


def _connection_results(measured: Measured) -> list[Result]:
    pairs = [NODES * (NODES - 1) / 2]
    return [
        result(
            NAME,
            f"peer connections, {title}",
            measured.of(("connections", name)),
            "connections",
            limits=pairs,
            limit_name="pairs of nodes",
            target="<= 1.0x",
        )
        for name, title in (("few", "no partition"), ("many", f"{MANY_PARTITIONS} partitions x 3"))
    ]
