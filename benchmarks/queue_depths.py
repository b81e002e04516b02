"""What a deep work queue costs one node: memory, loading, and every request at that depth.

Rule 1: the queue is filled, read and emptied over HTTP, by one connection.
Rule 2: the longest turn of the loop is seen from outside: another connection asks for the node's
        health all the while, and the slowest answer holds the turn. What the scheduler adds on a
        busy machine is in it.
Rule 3: memory is what the node has resident once it was started again with the queue in its log.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from time import perf_counter, sleep
from types import MappingProxyType
from typing import Any, Final

from benchmarks.bench import Bench, Steps
from benchmarks.process import cpu_seconds, memory_bytes
from benchmarks.report import Measured, Result, result
from tests.support.node import NodeProcess

DEPTHS: Final = (1_000, 100_000)
FULL_DEPTHS: Final = (*DEPTHS, 10_000_000)
AT_ONCE: Final = 1000
TURNS: Final = 300
"""Messages that are received and acknowledged, one by one."""
SETTINGS: Final = {"queues.topic.num.partitions": 1}
SECONDS_MAX: Final = 300
_LOOK_SECONDS: Final = 0.002
MIB: Final = 1024 * 1024

MEMORY, LOAD, PUBLISH, TAKE, PURGE = "memory", "load", "publish", "receive + ack", "purge"
LOAD_TURN, PURGE_TURN = "longest answer while it loads", "longest answer while it is purged"
CPU: Final = "CPU to load"
UNITS: Final = {
    MEMORY: "MiB",
    LOAD: "messages/s",
    CPU: "us/message",
    LOAD_TURN: "ms",
    PUBLISH: "messages/s",
    TAKE: "messages/s",
    PURGE: "messages/s",
    PURGE_TURN: "ms",
}


def depths(bench: Bench) -> tuple[int, ...]:
    return FULL_DEPTHS if bench.full else DEPTHS


def depth_steps(bench: Bench) -> int:
    return len(depths(bench))


def measure_depths(bench: Bench, measured: Measured, steps: Steps) -> None:
    for depth in depths(bench):
        steps.begin(f"a queue of {depth:,} messages")
        with bench.node(SETTINGS) as node:
            for name, value in measure_depth(node, depth):
                measured.add((depth, name), value)


def depth_results(bench: Bench, measured: Measured) -> list[Result]:
    return [
        result("queues", f"{depth:,} messages: {name}", measured.of((depth, name)), unit)
        for depth in depths(bench)
        for name, unit in UNITS.items()
    ]


def measure_depth(node: NodeProcess, depth: int) -> Iterator[tuple[str, float]]:
    """Fill a queue of a fresh node, start the node again, use the queue, and empty it."""
    desk = _Desk(node)
    desk.ask("PUT", "", {"messages_max": 10_000_000})
    batch = json.dumps({"messages": [{"value": "x" * 20}] * AT_ONCE}).encode()
    began = perf_counter()
    for _ in range(depth // AT_ONCE):
        desk.ask("POST", "/messages", batch)
    yield PUBLISH, depth / (perf_counter() - began)
    node.stop()
    node.launch()
    node.wait_ready()
    desk = _Desk(node)
    with _looking(node) as load_turn:
        began = perf_counter()
        found = desk.until_loaded()
        seconds = perf_counter() - began
    assert found["depth"] == depth, found
    yield LOAD, depth / seconds
    yield CPU, cpu_seconds(node.pid) / depth * 1e6
    yield MEMORY, memory_bytes(node.pid) / MIB
    yield LOAD_TURN, load_turn.seconds * 1000
    began = perf_counter()
    turns = min(TURNS, depth // 2)
    for _ in range(turns):
        (message,) = desk.ask("POST", "/receive", {})["messages"]
        desk.ask("POST", "/ack", {"receipts": [message["receipt"]]})
    yield TAKE, turns / (perf_counter() - began)
    with _looking(node) as purge_turn:
        began = perf_counter()
        purged = desk.purge()
        yield PURGE, purged / (perf_counter() - began)
    yield PURGE_TURN, purge_turn.seconds * 1000
    assert purged == depth - turns, purged


class _Desk:
    """Asks for one queue."""

    def __init__(self, node: NodeProcess) -> None:
        self._connection = HTTPConnection(node.http, timeout=2 * SECONDS_MAX)

    def ask(self, method: str, path: str, body: Any) -> Any:
        status, found = self._send(method, path, body)
        assert status < 300, (status, found)
        return found

    def purge(self) -> int:
        """What takes longer than a request may goes on, and is known again by its key."""
        while True:
            status, found = self._send("POST", "/purge", {}, {"idempotency-key": "purge"})
            if status < 300:
                return int(found["messages"])
            assert status in (503, 504), (status, found)

    def until_loaded(self) -> Any:
        """How the queue is, once somebody answers for it."""
        while True:
            status, found = self._send("GET", "", None)
            if status < 300:
                return found
            assert status == 503, (status, found)

    def _send(
        self, method: str, path: str, body: Any, more: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **more}
        self._connection.request(method, f"/v1/queues/deep{path}", data, headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())


class _Longest:
    seconds = 0.0


@contextmanager
def _looking(node: NodeProcess) -> Iterator[_Longest]:
    """The slowest of many small requests that are made meanwhile."""
    longest, ends = _Longest(), threading.Event()

    def look() -> None:
        connection = HTTPConnection(node.http, timeout=SECONDS_MAX)
        is_first = True  # a face that was never asked is being loaded
        while not ends.is_set():
            began = perf_counter()
            connection.request("GET", "/health/live")
            connection.getresponse().read()
            if not is_first:
                longest.seconds = max(longest.seconds, perf_counter() - began)
            is_first = False
            sleep(_LOOK_SECONDS)
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield longest
    finally:
        ends.set()
        thread.join()
