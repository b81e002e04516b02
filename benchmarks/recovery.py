"""How long a start takes with a large log: after a clean stop, and after SIGKILL.

Rule 1: after a clean stop nothing is scanned, so it is compared with the start of an empty node.
        After a kill the active segment is read and checked, so the time beyond a clean start is
        compared with reading that file and taking its CRC32C.
Rule 2: before each of them memory forgets the log, so that the device is read.
Rule 3: the node is killed right after it has acknowledged some batches: past the last checkpoint
        recovery also writes again.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, time_ns
from typing import Final

from benchmarks.bench import MIB, Bench, Steps, ask_node, running
from benchmarks.limits import forget_cached, read_checked
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.frames import ProduceFrame, make_batch
from tidelog.client.kafka import KafkaClient
from tidelog.client.wire import Connection

NAME: Final = "recovery"

TOPIC: Final = "log"
RECORD_BYTES: Final = 100
KILLED_PART: Final = 64
"""This part of a segment is written before every kill; all of them fit into what is left of it."""
IN_FLIGHT: Final = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A log to recover."""

    extent: str
    size: int
    segment_bytes: int
    batches: str
    batch_bytes: int
    """0 for one record per batch."""

    def __str__(self) -> str:
        return f"{self.extent}, {self.batches}"


def cases(bench: Bench) -> list[Case]:
    """The last segment of each is nearly full, as recovery is slowest then."""
    segment = 64 * MIB if bench.quick else 1024 * MIB
    segments = 10 if bench.full else 2
    size = int(segment * (segments - 0.1))
    small = 8 * MIB if bench.quick else 64 * MIB
    name = f"{segments} segments of {segment / MIB:,g} MiB"
    return [
        Case(name, size, segment, "batches of 1 MB", 1_000_000),
        Case(name, size, segment, "batches of 16 KiB", 16 * 1024),
        Case(f"{small / MIB:g} MiB", int(small * 0.9), small, "batches of one record", 0),
    ]


def run(bench: Bench) -> Report:
    measured = Measured()
    chosen = cases(bench)
    rounds = min(bench.rounds, 3)
    with Steps(NAME, len(chosen) * (1 + 3 * rounds)) as steps:
        for case in chosen:  # one log at a time, or the disk would have to hold all of them
            data = bench.fresh("recovery")
            node = NodeProcess(data, {"log.segment.bytes": case.segment_bytes})
            try:
                steps.begin(f"writing {case}")
                with running(node):
                    ask_node(node, partial(_fill, case=case))
                    node.stop()
                for _ in range(rounds):
                    _round(bench, case, node, measured, steps)
            finally:
                if node.is_running:
                    node.kill()
                bench.remove(data)
    return Report(title="start of a large log", results=_results(chosen, measured))


def _round(bench: Bench, case: Case, node: NodeProcess, measured: Measured, steps: Steps) -> None:
    steps.begin("an empty node")
    with bench.node() as empty:
        empty.stop()
        measured.add(("empty", case), _start_seconds(empty))
    steps.begin(f"after a clean stop: {case}")
    _forget(node.data)
    measured.add(("clean", case), _start_seconds(node))
    ask_node(node, partial(_write_and_kill, node=node, case=case))
    steps.begin(f"after SIGKILL: {case}")
    active = max((node.data / f"{TOPIC}-0").glob("*.log"))
    bench.settle()
    _forget(node.data)
    read = read_checked(active)
    measured.add(("read", case), read.seconds)
    measured.add(("size", case), read.size / 1e6)
    _forget(node.data)
    measured.add(("killed", case), _start_seconds(node))
    node.stop()


def _start_seconds(node: NodeProcess) -> float:
    started = perf_counter()
    node.start()
    return perf_counter() - started


def _forget(data: Path) -> None:
    for path in data.rglob("*"):
        if path.is_file():
            forget_cached(path)


async def _fill(client: KafkaClient, case: Case) -> None:
    await client.create_topic(TOPIC, partitions=1)
    await _produce(client, case, case.size)


def _batch(case: Case) -> bytes:
    return make_batch(RECORD_BYTES, case.batch_bytes, now_ms=time_ns() // 1_000_000)[0]


async def _produce(client: KafkaClient, case: Case, size: int) -> None:
    """Append about so many bytes, many batches at once; return when all are acknowledged."""
    connection: Connection = await client.leader(TOPIC, 0)
    batch = _batch(case)
    frame = ProduceFrame.make(TOPIC, [0], batch, -1)
    free = asyncio.Semaphore(IN_FLIGHT)
    failures: list[BaseException] = []

    def done(answer: "asyncio.Future[bytearray]") -> None:
        free.release()
        try:
            frame.check(answer.result(), TOPIC)
        except Exception as error:
            failures.append(error)

    for _ in range(max(1, size // len(batch))):
        await free.acquire()
        number = connection.next_correlation_id()
        connection.send(number, frame.buffers(number)).add_done_callback(done)
    for _ in range(IN_FLIGHT):
        await free.acquire()
    for failure in failures:
        raise failure


async def _write_and_kill(client: KafkaClient, node: NodeProcess, case: Case) -> None:
    await _produce(client, case, case.segment_bytes // KILLED_PART)
    node.kill()


def _results(chosen: list[Case], measured: Measured) -> list[Result]:
    rows = []
    for case in chosen:
        clean, killed = measured.of(("clean", case)), measured.of(("killed", case))
        scans = [max(0.0, after - before) for before, after in zip(clean, killed, strict=True)]
        sizes = measured.of(("size", case))
        rows += [
            result(
                NAME,
                f"after a clean stop: {case}",
                clean,
                "s",
                limits=measured.of(("empty", case)),
                limit_name="an empty node",
            ),
            result(NAME, f"after SIGKILL: {case}", killed, "s"),
            result(
                NAME,
                f"the scan alone, of {sizes[0]:,.0f} MB in {case.batches}",
                scans,
                "s",
                limits=measured.of(("read", case)),
                limit_name="read + CRC32C",
            ),
        ]
    return rows
