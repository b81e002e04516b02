"""From the start of the process until clients are served, and the memory that waiting takes.

Rule 1: the clock starts before the process exists. It is compared with an interpreter that starts
        and does nothing; memory is compared with a plain uvloop server.
Rule 2: every partition of the full node holds a batch, so that each has its files.
Rule 3: the first starts are not timed; they leave compiled modules behind, as any first start does.
"""

import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep, time_ns
from typing import Final

from benchmarks.bench import Bench, Steps, ask_node, running
from benchmarks.process import Peer, memory_bytes
from benchmarks.pump import send_all
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.frames import ProduceFrame, make_batch
from tidelog.client.kafka import KafkaClient

NAME: Final = "startup"

PARTITIONS: Final = 1000
TOPIC: Final = "startup"
IDLE_SECONDS: Final = 1.5
"""The memory of a start that is given back is gone after this."""


def run(bench: Bench) -> Report:
    measured = Measured()
    full = bench.fresh("full")
    with Peer("echo") as echo, Steps(NAME, 1 + 3 * bench.rounds) as steps:
        steps.begin(f"making {PARTITIONS:,} partitions")
        try:
            _fill(full)
            for _ in range(bench.rounds):
                steps.begin("a bare interpreter")
                measured.add("interpreter", _interpreter_seconds())
                measured.add("server", memory_bytes(echo.pid) / 1e6)
                steps.begin("an empty node")
                empty = bench.fresh("empty")
                _start("empty", empty, measured)
                bench.remove(empty)
                steps.begin(f"a node with {PARTITIONS:,} partitions")
                _start("full", full, measured)
                bench.settle()
        finally:
            bench.remove(full)
    return Report(title="start and idle memory", results=_results(measured))


def _results(measured: Measured) -> list[Result]:
    rows = []
    names = {"empty": "empty", "full": f"{PARTITIONS:,} partitions"}
    for kind, name in names.items():
        for what, title, target in (
            ("ready", "start to the ready line", ""),
            ("first", "start to the first acknowledged record", "< 1 s"),
        ):
            rows.append(
                result(
                    NAME,
                    f"{name}: {title}",
                    measured.of((what, kind)),
                    "s",
                    limits=measured.of("interpreter"),
                    limit_name="python -c pass",
                    target=target if kind == "empty" else "",
                )
            )
    for kind, name in names.items():
        rows.append(
            result(
                NAME,
                f"{name}: idle memory",
                measured.of(("memory", kind)),
                "MB",
                limits=measured.of("server"),
                limit_name="a plain uvloop server",
                target="<= 60 MB" if kind == "empty" else "",
            )
        )
    per_partition = [
        (full - empty) * 1000 / PARTITIONS
        for full, empty in zip(measured.of(("memory", "full")), measured.of(("memory", "empty")), strict=True)
    ]
    rows.append(result(NAME, "memory of one partition", per_partition, "KB"))
    return rows


def _interpreter_seconds() -> float:
    started = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter() - started


def _fill(data: Path) -> None:
    """A data directory with many partitions, stopped cleanly."""
    batch, _ = make_batch(100, 0, now_ms=time_ns() // 1_000_000)
    with running(NodeProcess(data)) as node:
        ask_node(node, lambda client: client.create_topic(TOPIC, partitions=PARTITIONS))
        frames = [ProduceFrame.make(TOPIC, [n], batch, -1) for n in range(PARTITIONS)]
        send_all(node.port, TOPIC, frames, depth=100)
        node.stop()


def _start(kind: str, data: Path, measured: Measured) -> None:
    """Start, let one record be acknowledged, wait a little, stop cleanly."""

    async def first_record(client: KafkaClient) -> None:
        if kind == "empty":
            await client.create_topic(TOPIC, partitions=1)
        assert await client.produce(TOPIC, 0, batch) is not None

    batch, _ = make_batch(100, 0, now_ms=time_ns() // 1_000_000)
    started = perf_counter()
    with running(NodeProcess(data)) as node:
        measured.add(("ready", kind), perf_counter() - started)
        ask_node(node, first_record)
        measured.add(("first", kind), perf_counter() - started)
        sleep(IDLE_SECONDS)
        measured.add(("memory", kind), memory_bytes(node.pid) / 1e6)
        node.stop()
