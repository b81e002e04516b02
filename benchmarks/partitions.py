"""The same load over 1, 10, 100, 1,000 and 5,000 partitions.

Rule 1: batches are equally large and equally many are in flight, whatever the number of
        partitions; they go to all of them in turn, with acks=all and a sync.
Rule 2: once with one batch per request, as a slow producer sends them, and once with as many
        partitions per request as one producer would gather.
Rule 3: the first batch of a partition makes its files, so it is timed by itself.
Rule 4: the limit writes the same chunks to as many files in turn, and syncs after as many of them
        as are in flight.
"""

from functools import partial
from time import perf_counter, time_ns
from typing import Final

from benchmarks.bench import Bench, Steps, ask_node
from benchmarks.limits import write_spread
from benchmarks.process import cpu_seconds, forget_peak, memory_bytes, peak_memory_bytes
from benchmarks.pump import send_all
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.frames import ProduceFrame, make_batch
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load, LoadGenerator, Throughput

NAME: Final = "partitions"

COUNTS: Final = (1, 10, 100, 1000, 5000)
COUNTS_QUICK: Final = (1, 10, 100, 1000)
COMPARED_WITH: Final = 10
TARGET_AT: Final = 1000
TOPIC: Final = "spread"
RECORD_BYTES: Final = 1000
BATCH_BYTES: Final = 16 * 1024
IN_FLIGHT: Final = 256
GATHERED_MAX: Final = 64
"""Batches of 16 KiB in a request of 1 MB, a producer's usual limit."""

ALONE: Final = "one batch per request"
GATHERED: Final = f"up to {GATHERED_MAX} batches per request"


def run(bench: Bench) -> Report:
    measured = Measured()
    counts = COUNTS_QUICK if bench.quick else COUNTS
    rounds = min(bench.rounds, 3)  # every one makes all partitions anew
    with Steps(NAME, 2 * len(counts) * rounds) as steps:
        for _ in range(rounds):
            for count in counts:
                steps.begin(f"the disk, as many files as {_name(count)}")
                limit = write_spread(
                    bench.directory,
                    bench.limit_seconds,
                    files=count,
                    chunk_bytes=BATCH_BYTES,
                    chunks_per_sync=IN_FLIGHT,
                )
                bench.settle()
                measured.add(("limit", count), limit.megabytes_per_second)
                steps.begin(f"a node, {_name(count)}")
                with bench.node() as node:
                    _measure(bench, node, count, measured)
    title = f"16 KiB batches over all partitions in turn, {IN_FLIGHT} in flight, acks=all, fsync"
    return Report(title=title, results=_results(counts, measured))


def _measure(bench: Bench, node: NodeProcess, count: int, measured: Measured) -> None:
    batch, records = make_batch(RECORD_BYTES, BATCH_BYTES, now_ms=time_ns() // 1_000_000)
    bytes_per_record = len(batch) / records
    empty_bytes = memory_bytes(node.pid)

    async def create(client: KafkaClient) -> None:
        await client.cluster()  # connected
        started = perf_counter()
        await client.create_topic(TOPIC, partitions=count)
        measured.add(("create", count), perf_counter() - started)

    def load(per_request: int) -> Load:
        return Load(
            topic=TOPIC,
            record_bytes=RECORD_BYTES,
            batch_bytes=BATCH_BYTES,
            pipeline=IN_FLIGHT // per_request,
            partitions_per_request=per_request,
        )

    async def produce(client: KafkaClient, load: Load) -> Throughput:
        return await LoadGenerator(client, load).produce(bench.subject_seconds)

    ask_node(node, create)
    measured.add(("memory", count), (memory_bytes(node.pid) - empty_bytes) / 1e6)
    frames = [ProduceFrame.make(TOPIC, [number], batch, -1) for number in range(count)]
    first = send_all(node.port, TOPIC, frames, depth=min(IN_FLIGHT, count))
    measured.add(("first", count), first.seconds)
    bench.settle()
    forget_peak(node.pid)
    for kind, per_request in ((ALONE, 1), (GATHERED, min(count, GATHERED_MAX))):
        cpu = cpu_seconds(node.pid)
        produced = ask_node(node, partial(produce, load=load(per_request)))
        cpu = cpu_seconds(node.pid) - cpu
        batches = produced.records / records
        size = produced.records * bytes_per_record
        measured.add((kind, count), size / produced.seconds / 1e6)
        measured.add((kind, "cpu", count), cpu / batches * 1e6)
        bench.settle()
    measured.add(("peak", count), peak_memory_bytes(node.pid) / 1e6)


def _results(counts: tuple[int, ...], measured: Measured) -> list[Result]:
    rows = [
        result(
            NAME,
            f"{_name(count)}, {kind}",
            measured.of((kind, count)),
            "MB/s",
            limits=measured.of(("limit", count)),
            limit_name="the same writes and syncs",
        )
        for kind in (ALONE, GATHERED)
        for count in counts
    ]
    rows += [
        result(
            NAME,
            f"{_name(count)} against {COMPARED_WITH}, {kind}",
            measured.of((kind, count)),
            "MB/s",
            limits=measured.of((kind, COMPARED_WITH)),
            limit_name=f"{COMPARED_WITH} partitions",
            target=">= 0.5" if count == TARGET_AT else "",
        )
        for kind in (ALONE, GATHERED)
        for count in counts
        if count > COMPARED_WITH
    ]
    for title, name, unit in (
        ("creation", "create", "s"),
        ("first batch to each", "first", "s"),
        ("memory beyond an empty node, before the first batch", "memory", "MB"),
        ("peak memory under load", "peak", "MB"),
    ):
        rows += [
            result(NAME, f"{_name(count)}: {title}", measured.of((name, count)), unit) for count in counts
        ]
    rows += [
        result(NAME, f"{_name(count)}, {kind}", measured.of((kind, "cpu", count)), "CPU us/batch")
        for kind in (ALONE, GATHERED)
        for count in counts
    ]
    return rows


def _name(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"
