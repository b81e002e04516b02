"""Queues beside Redis Streams, and copies of a bucket beside plain SQLite.

Rule 1: every figure is measured in turns with what it stands beside, by the same generator.
Rule 2: connections are spread over all nodes, so of three nodes two thirds of the requests come to
        one that must have another do the work.
Rule 3: what was published is there at the end, and what was acknowledged is not, or the run fails.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.bench import Bench, Steps
from benchmarks.clients import Unavailable
from benchmarks.cluster import NODES, cluster_of_three
from benchmarks.http_requests import VALUE, Nodes
from benchmarks.process import cpu_seconds
from benchmarks.queue_copies import copy_results, copy_steps, measure_copies
from benchmarks.queue_requests import COUNTS, REDIS, OurQueues, RedisStreams, Subject
from benchmarks.redis_peer import Redis
from benchmarks.report import Measured, Report, Result, result

NAME: Final = "queues"

CONNECTIONS: Final = (1, 16)
PERCENTILES: Final = ("p50", "p95")
SYNCS: Final = ("always", "everysec")
SUBJECTS: Final = ("1 node", f"{NODES} nodes")
OURS: Final = "Tidelog"
RABBIT: Final = "RabbitMQ's quorum queues are left out: nothing here speaks AMQP (pika)"


def run(bench: Bench) -> Report:
    measured = Measured()
    notes = [f"messages of {len(VALUE)} B; Redis is one server beside three nodes, too", RABBIT]
    syncs: tuple[str, ...] = SYNCS
    try:
        Redis(bench.directory, syncs[0])
    except Unavailable as missing:
        syncs = ()
        notes.append(f"Redis is left out: {missing}")
    steps_count = len(SUBJECTS) * bench.rounds * len(COUNTS) * len(CONNECTIONS) * (1 + len(syncs))
    with Steps(NAME, steps_count + copy_steps(bench)) as steps:
        for one_of in (_one_node, _three_nodes):
            with one_of(bench) as nodes, _redis(bench, syncs) as streams:
                _measure(bench, nodes, streams, measured, steps)
        measure_copies(bench, measured, steps)
    rows = [*_results(measured, syncs), *copy_results(measured)]
    title = "messages through queues; copies of a bucket; every answer is synced"
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
            name=SUBJECTS[1], bootstrap=cluster.bootstrap,
            http_ports=[cluster.http_port(node) for node in cluster.node_ids],
            pids=[cluster.pid(node) for node in cluster.node_ids],
        )  # fmt: skip


@contextmanager
def _redis(bench: Bench, syncs: tuple[str, ...]) -> Iterator[dict[str, Subject]]:
    """One Redis for each way to sync."""
    with ExitStack() as stack:
        streams: dict[str, Subject] = {}
        for sync in syncs:
            directory = bench.fresh(f"redis-{sync}")
            stack.callback(bench.remove, directory)
            streams[sync] = RedisStreams(stack.enter_context(Redis(directory, sync)))
        yield streams


def _measure(
    bench: Bench,
    nodes: Nodes,
    streams: Mapping[str, Subject],
    measured: Measured,
    steps: Steps,
) -> None:
    asked: Mapping[str, Subject] = {**streams, OURS: OurQueues(nodes)}
    stock = 2000 if bench.quick else 20_000
    for _ in range(bench.rounds):
        for kind, count in COUNTS.items():
            for connections in CONNECTIONS:
                for name, subject in asked.items():
                    steps.begin(f"{nodes.name}: {kind}, {connections} connections, {name}")
                    subject.prepare(kind, stock)
                    bench.settle()
                    cpu = sum(map(cpu_seconds, nodes.pids))
                    timed = subject.ask(kind, connections, bench.subject_seconds)
                    cpu = sum(map(cpu_seconds, nodes.pids)) - cpu
                    key = (nodes.name, kind, connections, name)
                    measured.add((*key, "rate"), timed.per_second * count)
                    measured.add((*key, "cpu"), cpu / (timed.requests * count) * 1e6)
                    for figure in PERCENTILES:
                        measured.add((*key, figure), timed.milliseconds[figure])
    for subject in asked.values():
        subject.check()


def _results(measured: Measured, syncs: tuple[str, ...]) -> list[Result]:
    rows = []
    for subject in SUBJECTS:
        for kind in COUNTS:
            for connections in CONNECTIONS:
                key, case = (subject, kind, connections), f"{subject}, {kind}, {connections}"
                for figure, unit in (("rate", "messages/s"), *((p, "ms") for p in PERCENTILES)):
                    for sync in syncs or ("",):
                        if figure != "rate" and sync == "everysec":
                            continue
                        limit = f"Redis {REDIS[kind]}, {sync}"
                        rows.append(
                            result(
                                NAME, case if figure == "rate" else f"{case}: {figure}",
                                measured.of((*key, OURS, figure)), unit,
                                limits=measured.of((*key, sync, figure)),
                                limit_name=limit if figure == "rate" else f"{limit}, {figure}",
                            )
                        )  # fmt: skip
    rows += [
        result(
            NAME, f"{subject}, all nodes, {kind}, {CONNECTIONS[-1]}",
            measured.of((subject, kind, CONNECTIONS[-1], OURS, "cpu")), "CPU us/message",
        )
        for subject in SUBJECTS
        for kind in COUNTS
    ]  # fmt: skip
    return rows
