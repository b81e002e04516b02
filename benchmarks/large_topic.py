"""A topic of 10,000 partitions: what it costs a node to make it, and to describe it.

Rule 1: CPU time is that of the whole node, threads and kernel included. Creation is compared with
        making as many directories with a file in each, and one sync of them all.
Rule 2: the longest turn is that of another node, whose loop counts the CPU time of its callbacks
        (`turning_node`).
Rule 3: nothing changes between two Metadata requests, as between most of them. The first one after
        a change is shown by itself.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Final, TypeVar

from benchmarks.bench import Bench, Steps, ask_node, running
from benchmarks.process import cpu_seconds
from benchmarks.pump import ask, metadata_request
from benchmarks.report import Measured, Report, Result, result
from benchmarks.turning_node import PATH
from tests.support.node import TIDELOG, NodeProcess
from tidelog.client.kafka import KafkaClient
from tidelog.host import Path as HostPath
from tidelog.host import SystemDisk

NAME: Final = "large_topic"

PARTITIONS: Final = 10_000
PARTITIONS_QUICK: Final = 1_000
TOPIC: Final = "large"
SMALL: Final = "small"
REQUESTS: Final = 20
TURNING: Final = TIDELOG.replace("tidelog.faces.cli", "benchmarks.turning_node")
SETTLE_SECONDS: Final = 2.0
"""What follows a creation, such as checkpoints, is over by then."""
TELL_SECONDS_MAX: Final = 30.0

T = TypeVar("T")


def run(bench: Bench) -> Report:
    measured = Measured()
    count = PARTITIONS_QUICK if bench.quick else PARTITIONS
    rounds = min(bench.rounds, 3)
    with Steps(NAME, 3 * rounds) as steps:
        for _ in range(rounds):
            steps.begin(f"{count:,} directories, plainly")
            measured.add("plain", _plain(bench, count))
            steps.begin(f"a node makes {count:,} partitions")
            with bench.node() as node:
                _spent(bench, node, count, measured)
            steps.begin("the turns of its loop")
            with _turning(bench) as (node, told):
                _turned(node, told, count, measured)
    notes = [f"{kind}: {what}" for kind, what in _LONGEST.items()]
    return Report(title=f"a topic of {count:,} partitions", results=_results(measured), notes=notes)


_LONGEST: Final[dict[str, str]] = {}
"""What ran in the longest turn of each kind."""


def _plain(bench: Bench, count: int) -> float:
    root = bench.fresh("plain")
    disk = SystemDisk()
    began = process_time()
    disk.make_directory(HostPath(root))
    for number in range(count):
        path = root / f"{TOPIC}-{number}"
        path.mkdir()
        with (path / "partition.metadata").open("wb") as file:
            file.write(b"version: 0\n")
    disk.sync_everything(HostPath(root))
    spent = process_time() - began
    bench.remove(root)
    return spent


def _spent(bench: Bench, node: NodeProcess, count: int, measured: Measured) -> None:
    began = perf_counter()
    spent, _ = _cost(node, lambda: _create(node, TOPIC, count))
    measured.add("create wall", perf_counter() - began - SETTLE_SECONDS)
    measured.add("create", spent)
    request = metadata_request(TOPIC)
    spent, _ = _cost(node, lambda: ask(node.port, request))
    measured.add("first", 1000 * spent)
    spent, _ = _cost(node, lambda: [ask(node.port, request) for _ in range(REQUESTS)])
    measured.add("metadata", 1000 * spent / REQUESTS)


def _turned(
    node: NodeProcess, told: Callable[[], list[tuple[float, str]]], count: int, measured: Measured
) -> None:
    _create(node, SMALL, 1)
    told()
    for kind, work in (
        ("create", lambda: _create(node, TOPIC, count)),
        ("metadata", lambda: [ask(node.port, metadata_request(TOPIC)) for _ in range(3)]),
    ):
        work()
        time.sleep(SETTLE_SECONDS)
        longest = told()
        measured.add((kind, "longest"), longest[0][0])
        _LONGEST[kind] = "; ".join(f"{milliseconds:.1f} ms {what}" for milliseconds, what in longest)


def _create(node: NodeProcess, name: str, count: int) -> None:
    async def create(client: KafkaClient) -> None:
        await client.create_topic(name, partitions=count)

    ask_node(node, create)


def _cost(node: NodeProcess, work: Callable[[], T]) -> tuple[float, T]:
    """The CPU time that the node spends on the work and what follows from it; what came of it."""
    before = cpu_seconds(node.pid)
    found = work()
    time.sleep(SETTLE_SECONDS)
    return cpu_seconds(node.pid) - before, found


@contextmanager
def _turning(bench: Bench) -> Iterator[tuple[NodeProcess, Callable[[], list[tuple[float, str]]]]]:
    """A node that tells of its longest turns since it was last asked."""
    data, path = bench.fresh("turning"), bench.fresh("turns")
    os.environ[PATH] = str(path)
    path.touch()
    try:
        with running(NodeProcess(data, program=TURNING)) as node:
            yield node, lambda: _ask_for_turns(node, path)
    finally:
        del os.environ[PATH]
        bench.remove(data)
        path.unlink()


def _ask_for_turns(node: NodeProcess, path: Path) -> list[tuple[float, str]]:
    known = len(path.read_text().splitlines())
    os.kill(node.pid, signal.SIGUSR1)
    deadline = time.monotonic() + TELL_SECONDS_MAX
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines()
        if len(lines) > known:
            return [(milliseconds, what) for milliseconds, what in json.loads(lines[-1])]
        time.sleep(0.01)
    raise TimeoutError("the node does not tell of its turns")


def _results(measured: Measured) -> list[Result]:
    return [
        result(
            NAME,
            "creation, CPU of the node",
            measured.of("create"),
            "s",
            limits=measured.of("plain"),
            limit_name="as many directories and files, one sync",
            target="2 s",
        ),
        result(NAME, "creation, until it is answered", measured.of("create wall"), "s"),
        result(NAME, "creation: the longest turn", measured.of(("create", "longest")), "ms", target="2 ms"),
        result(NAME, "the first Metadata request after a change", measured.of("first"), "CPU ms"),
        result(NAME, "each further Metadata request", measured.of("metadata"), "CPU ms", target="1 ms"),
        result(NAME, "Metadata: the longest turn", measured.of(("metadata", "longest")), "ms", target="2 ms"),
    ]
