"""The HTTP face: keys, records and waiting for them, beside Redis and beside the Kafka face.

Rule 1: one generator asks all of them, over connections that stay open, one request at a time on
        each (`closed.py`); every figure is measured in turns with what it stands beside.
Rule 2: connections are spread over all nodes, and there are as many partitions as nodes: so of
        three nodes two thirds of the requests come to one that must have another do the work.
        Over Kafka they go to the leaders, as clients do.
Rule 3: every write that was answered is in the log at the end, or the run fails.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from benchmarks.bench import Bench, Steps
from benchmarks.clients import Unavailable
from benchmarks.closed import Timed, ask_closed, http_answer, kafka_answer
from benchmarks.cluster import NODES, cluster_of_three
from benchmarks.delivery import deliver
from benchmarks.http_beside import beside_results, measure_beside
from benchmarks.http_requests import (
    BESIDE,
    GET,
    KAFKA_WAIT,
    LONG_POLL,
    MANY,
    SET,
    SET_LATER,
    SET_MANY,
    VALUE,
    WAITED,
    Asked,
    Nodes,
    fetches_that_wait,
    fill,
    http_requests,
    kafka_requests,
    long_polls,
    redis_requests,
    write_waited,
)
from benchmarks.http_targets import TARGET_STEPS, measure_targets, target_results
from benchmarks.process import cpu_seconds
from benchmarks.redis_peer import Redis
from benchmarks.report import Measured, Report, Result, result

NAME: Final = "http"

CONNECTIONS: Final = (1, 16, 64)
CPU_CONNECTIONS: Final = 16
TIMED_CONNECTIONS: Final = (1, 16)
"""Of so many the latencies are told; of more, they follow from the rate."""
PERCENTILES: Final = ("p50", "p95", "p99")
REDIS_KINDS: Final = (SET, SET_LATER, GET, SET_MANY)
KINDS: Final = len({*BESIDE, *BESIDE.values(), *REDIS_KINDS})
SUBJECTS: Final = ("1 node", f"{NODES} nodes")


def run(bench: Bench) -> Report:
    measured = Measured()
    notes = [f"{MANY} at once: rates are of requests, each with {MANY} of {len(VALUE)} B"]
    has_redis = True
    try:
        Redis(bench.directory, "always")
    except Unavailable as missing:
        has_redis = False
        notes.append(f"Redis is left out: {missing}")
    kinds = KINDS if has_redis else KINDS - len(REDIS_KINDS)
    steps_count = bench.rounds * (2 * kinds * len(CONNECTIONS) + 2 + TARGET_STEPS)
    with Steps(NAME, steps_count) as steps:
        with _one_node(bench) as nodes:
            _measure(bench, nodes, measured, steps, has_redis=has_redis)
            measure_beside(bench, nodes, measured, steps)
        with _three_nodes(bench) as nodes:
            _measure(bench, nodes, measured, steps, has_redis=has_redis)
        measure_targets(bench, measured, steps)
    rows = [*_results(measured), *beside_results(measured), *target_results(measured)]
    title = f"requests of {len(VALUE)} B over connections that stay open; acks=all, fsync"
    return Report(title=title, results=rows, notes=notes)


@contextmanager
def _one_node(bench: Bench) -> Iterator[Nodes]:
    with bench.node() as node:
        port = int(node.http.rpartition(":")[2])
        yield Nodes(name=SUBJECTS[0], bootstrap=node.bootstrap, http_ports=[port], pids=[node.pid])


@contextmanager
def _three_nodes(bench: Bench) -> Iterator[Nodes]:
    with cluster_of_three(bench) as cluster:
        yield Nodes(
            name=SUBJECTS[1],
            bootstrap=cluster.bootstrap,
            http_ports=[cluster.http_port(node) for node in cluster.node_ids],
            pids=[cluster.pid(node) for node in cluster.node_ids],
        )


@contextmanager
def _redis(bench: Bench, *, is_there: bool) -> Iterator[dict[str, Asked]]:
    """What can be asked of Redis; nothing if there is none."""
    if not is_there:
        yield {}
        return
    directories = [bench.fresh("redis-always"), bench.fresh("redis-everysec")]
    try:
        with Redis(directories[0], "always") as always, Redis(directories[1], "everysec") as later:
            yield redis_requests(always, later)
    finally:
        for directory in directories:
            bench.remove(directory)


def _measure(bench: Bench, nodes: Nodes, measured: Measured, steps: Steps, *, has_redis: bool) -> None:
    fill(nodes)
    with _redis(bench, is_there=has_redis) as redis:
        asked: Mapping[str, Asked] = redis | kafka_requests(nodes) | http_requests(nodes)
        for _ in range(bench.rounds):
            for connections in CONNECTIONS:
                bench.settle()
                for kind in (*asked, KAFKA_WAIT, LONG_POLL):
                    steps.begin(f"{nodes.name}: {kind}, {connections} connections")
                    cpu = sum(map(cpu_seconds, nodes.pids))
                    if kind in asked:
                        timed = _ask(bench, nodes, asked[kind], connections)
                    else:
                        timed = _wait(bench, nodes, kind, connections)
                    cpu = sum(map(cpu_seconds, nodes.pids)) - cpu
                    key = (nodes.name, kind, connections)
                    measured.add((*key, "rate"), timed.per_second)
                    measured.add((*key, "cpu"), cpu / timed.requests * 1e6)
                    for name in PERCENTILES:
                        measured.add((*key, name), timed.milliseconds[name])
    nodes.check()


def _ask(bench: Bench, nodes: Nodes, asked: Asked, connections: int) -> Timed:
    seconds = bench.subject_seconds / 3
    timed = ask_closed(asked.targets, asked.read, connections=connections, seconds=seconds)
    if asked.topic:
        nodes.records[asked.topic] += timed.requests * asked.records
    return timed


def _wait(bench: Bench, nodes: Nodes, kind: str, connections: int) -> Timed:
    if kind == LONG_POLL:
        waiting, read = long_polls(nodes, connections), http_answer
    else:
        waiting, read = fetches_that_wait(nodes, connections), kafka_answer
    timed = deliver(
        write_waited(nodes), waiting, read, first=nodes.records[WAITED], seconds=bench.subject_seconds / 3
    )
    nodes.records[WAITED] += timed.requests // connections
    return timed


def _results(measured: Measured) -> list[Result]:
    rows = []
    beside = {**BESIDE, SET_LATER: SET} if measured.of((SUBJECTS[0], SET, 1, "rate")) else BESIDE
    for subject in SUBJECTS:
        for kind, other in beside.items():
            if kind == SET_LATER and subject != SUBJECTS[0]:
                continue
            for connections in CONNECTIONS:
                case = f"{subject}, {kind}, {connections}"
                percentiles = PERCENTILES if connections in TIMED_CONNECTIONS else ()
                for figure, unit in (("rate", "requests/s"), *((p, "ms") for p in percentiles)):
                    rows.append(
                        result(
                            NAME,
                            case if figure == "rate" else f"{case}: {figure}",
                            measured.of((subject, kind, connections, figure)),
                            unit,
                            limits=measured.of((subject, other, connections, figure)),
                            limit_name=other if figure == "rate" else f"{other}, {figure}",
                        )
                    )
    kinds = (*BESIDE, *(other for other in BESIDE.values() if other.startswith("Kafka")))
    rows += [
        result(
            NAME,
            f"{subject}, all nodes, {kind}, {CPU_CONNECTIONS}",
            measured.of((subject, kind, CPU_CONNECTIONS, "cpu")),
            "CPU us/request",
        )
        for subject in SUBJECTS
        for kind in kinds
    ]
    return rows
