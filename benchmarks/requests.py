"""Requests that carry next to nothing: what one of them costs.

Rule 1: the limit is a plain server in Python that answers 100 bytes at a time. A produce with
        acks=all cannot be answered before a sync that began after it came, so with n requests in
        flight there are also at most n answers per sync; the smaller of the two counts.
Rule 2: every record that was acknowledged is in the log at the end, or the run fails.
"""

from dataclasses import dataclass
from time import time_ns
from typing import Final

from benchmarks.bench import Bench, Steps, ask_node
from benchmarks.limits import echoes_per_second, sync_latency_ms
from benchmarks.process import Peer, cpu_seconds
from benchmarks.pump import Rate, answer_bytes_of, ask, metadata_request, produce_request, pump
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.frames import fetch_frame, read_fetched
from tidelog.client.kafka import LATEST, KafkaClient

NAME: Final = "requests"

RECORD_BYTES: Final = 100
DEPTHS: Final = (1, 10, 100, 1000)
CONNECTIONS: Final = (1, 8)
PARTITIONS_MANY: Final = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """How many requests are in flight."""

    connections: int
    depth: int

    @property
    def in_flight(self) -> int:
        return self.connections * self.depth

    def __str__(self) -> str:
        connections = "1 connection" if self.connections == 1 else f"{self.connections} connections"
        return f"{connections} x {self.depth:,}"


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.kind}, {self.shape}"


PRODUCE: Final = "produce"
FETCH: Final = "fetch"
METADATA: Final = "metadata, 1 partition"
METADATA_MANY: Final = f"metadata, {PARTITIONS_MANY} partitions"

CASES: Final = [
    *(Case(PRODUCE, Shape(connections, depth)) for connections in CONNECTIONS for depth in DEPTHS),
    *(
        Case(kind, Shape(connections, depth))
        for kind in (FETCH, METADATA, METADATA_MANY)
        for connections, depth in ((1, 1), (1, 100), (8, 100))
    ),
]


def run(bench: Bench) -> Report:
    measured = Measured()
    with bench.node() as node, Peer("answer") as echo, Steps(NAME, len(CASES) * bench.rounds) as steps:
        requests = ask_node(node, lambda client: _prepare(client, node.port))
        answers = {kind: answer_bytes_of(node.port, request) for kind, request in requests.items()}
        produced = 1  # to learn the size of the answer
        for _ in range(bench.rounds):
            for case in CASES:
                steps.begin(str(case))
                measured.add(("echo", case), _echoes(bench, echo, case.shape))
                if case.kind == PRODUCE:
                    bench.settle()
                    milliseconds = sync_latency_ms(bench.directory, bench.limit_seconds)["p50"]
                    measured.add(("syncs", case), 1000 / milliseconds)
                cpu = cpu_seconds(node.pid)
                rate = _requests(bench, node, case, requests[case.kind], answers[case.kind])
                cpu = cpu_seconds(node.pid) - cpu
                measured.add(case, rate.per_second)
                measured.add(("cpu", case), cpu / rate.requests * 1e6)
                if case.kind == PRODUCE:
                    produced += rate.requests
        end = ask_node(node, _end)
        assert end == produced, f"{produced} records were acknowledged, the log has {end}"
    title = "one record of 100 B per request; acks=all, fsync"
    return Report(title=title, results=_results(measured))


async def _prepare(client: KafkaClient, port: int) -> dict[str, bytes]:
    """Make the topics, and the requests of each kind."""
    now_ms = time_ns() // 1_000_000
    await client.create_topic("produced", partitions=1)
    await client.create_topic("fetched", partitions=1)
    await client.create_topic("wide", partitions=PARTITIONS_MANY)
    limits = {"wait_ms": 0, "bytes_max": 1 << 20, "partition_bytes_max": 1 << 20}
    fetch = fetch_frame(1, "fetched", {0: 0}, **limits)
    ask(port, produce_request("fetched", 0, record_bytes=RECORD_BYTES, now_ms=now_ms))
    ((_, after, _),) = read_fetched(ask(port, fetch), "fetched")
    assert after == 1, "the fetch finds its record"
    return {
        PRODUCE: produce_request("produced", 0, record_bytes=RECORD_BYTES, now_ms=now_ms),
        FETCH: fetch,
        METADATA: metadata_request("produced"),
        METADATA_MANY: metadata_request("wide"),
    }


async def _end(client: KafkaClient) -> int:
    return (await client.list_offsets("produced", {0: LATEST}))[0].offset


def _echoes(bench: Bench, echo: Peer, shape: Shape) -> float:
    return echoes_per_second(
        echo, connections=shape.connections, depth=shape.depth, seconds=bench.limit_seconds / 3
    )


def _requests(bench: Bench, node: NodeProcess, case: Case, request: bytes, answer_bytes: int) -> Rate:
    return pump(
        node.port,
        request,
        answer_bytes=answer_bytes,
        connections=case.shape.connections,
        depth=case.shape.depth,
        seconds=bench.subject_seconds / 2,
    )


def _results(measured: Measured) -> list[Result]:
    rows = []
    for case in CASES:
        limits, limit_name = measured.of(("echo", case)), "echo, each by itself"
        if case.kind == PRODUCE:
            by_sync = [rate * case.shape.in_flight for rate in measured.of(("syncs", case))]
            if sum(by_sync) < sum(limits):
                limits, limit_name = by_sync, f"{case.shape.in_flight:,} per fdatasync"
        rows.append(
            result(NAME, str(case), measured.of(case), "requests/s", limits=limits, limit_name=limit_name)
        )
    rows += [result(NAME, f"node, {case}", measured.of(("cpu", case)), "CPU us/request") for case in CASES]
    return rows
