"""Batches of 1 MB into one partition and out again, from a raw generator and from real clients.

Rule 1: MB are millions of bytes of the log, as network and disk carry them; records are counted
        beside. With 100 B per record a tenth of the bytes is the format's.
Rule 2: a produce is compared with the slower of the two things it cannot avoid: the loopback, and
        the disk in the way the case asks for (a sync per 1 MB, or one at the end). A consume is
        compared with the loopback.
"""

from dataclasses import dataclass
from statistics import median
from time import time_ns
from typing import Final

from benchmarks.bench import Bench, Steps, ask_node
from benchmarks.clients import Client, Confluent, Rdkafka, Unavailable
from benchmarks.limits import Moved, loopback_copy, write_synced, write_then_sync
from benchmarks.process import Peer, cpu_seconds, forget_peak, peak_memory_bytes
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.frames import make_batch
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load, LoadGenerator

NAME: Final = "throughput"

BATCH_BYTES: Final = 1_000_000
CLIENT_RECORDS: Final = {100: 500_000, 1000: 150_000}
"""How many a client moves per second of measuring, by their size: about what it can."""
CPU_UNIT: Final = "CPU s/GB"


@dataclass(frozen=True, slots=True)
class Case:
    """How safe a batch must be before it is acknowledged."""

    record_bytes: int
    durability: str
    acks: int

    @property
    def name(self) -> str:
        size = "1 KB" if self.record_bytes == 1000 else f"{self.record_bytes} B"
        return f"{size}, acks={'all' if self.acks == -1 else self.acks}, {self.durability}"

    @property
    def syncs(self) -> bool:
        """Whether an acknowledgement waits for the disk."""
        return self.durability == "fsync" and self.acks == -1


CASES: Final = [
    Case(record_bytes, durability, acks)
    for record_bytes in (100, 1000)
    for durability, acks in (("fsync", -1), ("replicated", -1), ("fsync", 1))
]


def run(bench: Bench) -> Report:
    clients, notes = _clients(bench)
    measured = Measured()
    synced = [case for case in CASES if case.syncs]
    steps_per_round = 3 * len(CASES) + 3 * len(clients) * len(synced)
    with bench.node() as node, Peer("sink") as sink, Steps(NAME, steps_per_round * bench.rounds) as steps:
        for _ in range(bench.rounds):
            for case in CASES:
                _limits(bench, case, sink, measured, steps)
                _raw(bench, case, node, measured, steps)
            for client in clients:
                for case in synced:
                    _limits(bench, case, sink, measured, steps)
                    _client(bench, client, case, node, measured, steps)
    rows = [*_raw_results(measured), *_client_results(clients, synced, measured), *_cost_results(measured)]
    return Report(title="batches of 1 MB, one partition", results=rows, notes=notes)


def _clients(bench: Bench) -> tuple[list[Client], list[str]]:
    """The clients that can be had here, and why others cannot."""
    found: list[Client] = []
    notes: list[str] = []
    for make in (lambda: Rdkafka(bench.directory), Confluent):
        try:
            found.append(make())
        except Unavailable as missing:
            notes.append(f"a client is left out: {missing}")
    return found, notes


# Measuring.


def _limits(bench: Bench, case: Case, sink: Peer, measured: Measured, steps: Steps) -> None:
    steps.begin(f"limits for {case.name}")
    bench.settle()
    seconds = bench.limit_seconds
    sent, received = loopback_copy(sink, seconds)
    write = write_synced if case.syncs else write_then_sync
    written: Moved = write(bench.directory, seconds)
    bench.settle()
    measured.add(("copy", case), sent.megabytes_per_second)
    measured.add(("disk", case), written.megabytes_per_second)
    measured.add(("copy cpu", case), sent.cpu_seconds_per_gigabyte)
    least = received.cpu_seconds_per_gigabyte + written.cpu_seconds_per_gigabyte
    measured.add(("write cpu", case), least)


def _raw(bench: Bench, case: Case, node: NodeProcess, measured: Measured, steps: Steps) -> None:
    batch, records_per_batch = make_batch(case.record_bytes, BATCH_BYTES, now_ms=time_ns() // 1_000_000)
    bytes_per_record = len(batch) / records_per_batch

    async def work(client: KafkaClient) -> None:
        await _create(client, "raw", case)
        load = Load(topic="raw", record_bytes=case.record_bytes, batch_bytes=BATCH_BYTES, acks=case.acks)
        generator = LoadGenerator(client, load)
        steps.begin(f"produce, {case.name}")
        forget_peak(node.pid)
        cpu = cpu_seconds(node.pid)
        produced = await generator.produce(bench.subject_seconds)
        cpu = cpu_seconds(node.pid) - cpu
        size = int(produced.records * bytes_per_record)
        note("produce", Moved(size=size, seconds=produced.seconds, cpu_seconds=cpu))
        measured.add(("records", "produce", case), produced.records_per_second)
        ends = await generator.ends(records=produced.records)
        bench.settle()
        steps.begin(f"consume, {case.name}")
        cpu = cpu_seconds(node.pid)
        consumed = await generator.consume(ends)
        cpu = cpu_seconds(node.pid) - cpu
        assert consumed.records == produced.records, "all that was acknowledged is read back"
        note("consume", Moved(size=size, seconds=consumed.seconds, cpu_seconds=cpu))
        measured.add(("records", "consume", case), consumed.records_per_second)
        measured.add(("peak", case), peak_memory_bytes(node.pid) / 1e6)
        await client.delete_topic("raw")

    def note(what: str, moved: Moved) -> None:
        measured.add((what, case), moved.megabytes_per_second)
        measured.add((what, "cpu", case), moved.cpu_seconds_per_gigabyte)

    ask_node(node, work)


def _client(
    bench: Bench, client: Client, case: Case, node: NodeProcess, measured: Measured, steps: Steps
) -> None:
    count = int(CLIENT_RECORDS[case.record_bytes] * bench.subject_seconds)
    topic, size, bootstrap = "client", case.record_bytes, node.bootstrap
    ask_node(node, lambda kafka: _create(kafka, topic, case))
    steps.begin(f"{client.name}: produce, {case.name}")
    seconds = client.produce(bootstrap, topic, count, size, case.acks)
    measured.add((client.name, "produce", case), count / seconds)
    bench.settle()
    steps.begin(f"{client.name}: consume, {case.name}")
    seconds = client.consume(bootstrap, topic, count, size)
    measured.add((client.name, "consume", case), count / seconds)
    ask_node(node, lambda kafka: kafka.delete_topic(topic))


async def _create(client: KafkaClient, topic: str, case: Case) -> None:
    await client.create_topic(topic, partitions=1, configs={"durability": case.durability})


# Telling.


def _limit_of(case: Case, measured: Measured) -> tuple[list[float], str]:
    """The slower of loopback and disk."""
    copy, disk = measured.of(("copy", case)), measured.of(("disk", case))
    if median(copy) < median(disk):
        return copy, "loopback copy"
    return disk, "write + fdatasync per 1 MB" if case.syncs else "write, fdatasync at the end"


def _raw_results(measured: Measured) -> list[Result]:
    rows = []
    for case in CASES:
        limits, limit_name = _limit_of(case, measured)
        rows.append(
            result(
                NAME,
                f"produce {case.name}",
                measured.of(("produce", case)),
                "MB/s",
                limits=limits,
                limit_name=limit_name,
                target=">= 0.5" if case.syncs else "",
            )
        )
        rows.append(
            result(
                NAME,
                f"consume {case.name}",
                measured.of(("consume", case)),
                "MB/s",
                limits=measured.of(("copy", case)),
                limit_name="loopback copy",
            )
        )
    rows += [
        result(NAME, f"{what} {case.name}", measured.of(("records", what, case)), "records/s")
        for case in CASES
        for what in ("produce", "consume")
    ]
    return rows


def _client_results(clients: list[Client], cases: list[Case], measured: Measured) -> list[Result]:
    """Limits in records, of values alone: a client chooses its own batches."""
    rows = []
    for client in clients:
        for case in cases:
            produce_limits, limit_name = _limit_of(case, measured)
            for what, limits, name in (
                ("produce", produce_limits, limit_name),
                ("consume", measured.of(("copy", case)), "loopback copy"),
            ):
                rows.append(
                    result(
                        NAME,
                        f"{client.name}: {what} {case.name}",
                        measured.of((client.name, what, case)),
                        "records/s",
                        limits=[limit * 1e6 / case.record_bytes for limit in limits],
                        limit_name=name,
                    )
                )
    return rows


def _cost_results(measured: Measured) -> list[Result]:
    rows = []
    for case in CASES:
        rows += [
            result(
                NAME,
                f"node, produce {case.name}",
                measured.of(("produce", "cpu", case)),
                CPU_UNIT,
                limits=measured.of(("write cpu", case)),
                limit_name="receive + write",
            ),
            result(
                NAME,
                f"node, consume {case.name}",
                measured.of(("consume", "cpu", case)),
                CPU_UNIT,
                limits=measured.of(("copy cpu", case)),
                limit_name="send",
            ),
            result(NAME, f"node, {case.name}", measured.of(("peak", case)), "MB peak RSS"),
        ]
    return rows
