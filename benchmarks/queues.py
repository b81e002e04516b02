"""Queues beside Redis Streams and RabbitMQ's quorum queues; copies of a bucket beside plain SQLite.

Rule 1: every figure is measured in turns with what it stands beside, by the same generator.
Rule 2: connections are spread over all nodes, so of three nodes two thirds of the requests come to
        one that must have another do the work.
Rule 3: what was published is there at the end, and what was acknowledged is not, or the run fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from benchmarks.bench import Bench, Steps
from benchmarks.clients import Unavailable
from benchmarks.cluster import NODES, cluster_of_three
from benchmarks.http_requests import VALUE, Nodes
from benchmarks.process import cpu_seconds
from benchmarks.queue_copies import copy_results, copy_steps, measure_copies
from benchmarks.queue_depths import depth_results, depth_steps, measure_depths
from benchmarks.queue_requests import COUNTS, REDIS, OurQueues, RedisStreams, Subject
from benchmarks.rabbit_peer import Rabbit
from benchmarks.rabbit_requests import RABBIT, RabbitQueues
from benchmarks.redis_peer import Redis
from benchmarks.report import Measured, Report, Result, result

NAME: Final = "queues"

CONNECTIONS: Final = (1, 16)
PERCENTILES: Final = ("p50", "p95")
SYNCS: Final = ("always", "everysec")
SUBJECTS: Final = ("1 node", f"{NODES} nodes")
OURS: Final = "Tidelog"


class Peer(NamedTuple):
    """Somebody whose figures stand beside ours."""

    name: str
    asked: Mapping[str, str]
    """What it is asked for each kind."""
    sync: str = ""
    """How a Redis syncs."""
    syncs_first: bool = True
    """Whether it answers only what is synced: then how long that takes can be compared."""

    @property
    def key(self) -> str:
        return f"{self.name} {self.sync}"

    def limit(self, kind: str) -> str:
        asked = f"{self.name} {self.asked[kind]}"
        return f"{asked}, {self.sync}" if self.sync else asked


def run(bench: Bench) -> Report:
    measured = Measured()
    notes = [f"messages of {len(VALUE)} B; Redis is one server beside three nodes, too"]
    peers = _peers(bench, notes)
    steps_count = len(SUBJECTS) * bench.rounds * len(COUNTS) * len(CONNECTIONS) * (1 + len(peers))
    with Steps(NAME, steps_count + depth_steps(bench) + copy_steps(bench)) as steps:
        for one_of in (_one_node, _three_nodes):
            with one_of(bench) as nodes, _beside(bench, peers, len(nodes.pids)) as subjects:
                _measure(bench, nodes, subjects, measured, steps)
        measure_depths(bench, measured, steps)
        measure_copies(bench, measured, steps)
    rows = [*_results(measured, peers), *depth_results(bench, measured), *copy_results(measured)]
    title = "messages through queues; copies of a bucket; every answer is synced"
    return Report(title=title, results=rows, notes=notes)


def _peers(bench: Bench, notes: list[str]) -> list[Peer]:
    """Who can stand beside us on this machine; the others are noted."""
    peers = []
    try:
        Redis(bench.directory, "always")
    except Unavailable as missing:
        notes.append(f"Redis is left out: {missing}")
    else:
        peers += [Peer("Redis", REDIS, sync, sync == "always") for sync in SYNCS]
    try:
        Rabbit(bench.directory)
    except Unavailable as missing:
        notes.append(f"RabbitMQ is left out: {missing}")
    else:
        peers.append(Peer("RabbitMQ", RABBIT))
        notes.append(
            "RabbitMQ: quorum queues, as many nodes and copies as of ours, asked in AMQP frames by "
            "the generator that asks the others; it sends messages to who consumes, unasked"
        )
    return peers


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
def _beside(bench: Bench, peers: Sequence[Peer], nodes: int) -> Iterator[dict[str, Subject]]:
    """Every peer: a Redis for each way to sync, and as many nodes of RabbitMQ as of ours."""
    with ExitStack() as stack:
        subjects: dict[str, Subject] = {}
        for peer in peers:
            directory = bench.fresh(peer.name.lower())
            stack.callback(bench.remove, directory)
            subject: Subject
            if peer.sync:
                subject = RedisStreams(stack.enter_context(Redis(directory, peer.sync)))
            else:
                subject = RabbitQueues(stack.enter_context(Rabbit(directory, nodes)))
            subjects[peer.key] = subject
        yield subjects


def _measure(
    bench: Bench, nodes: Nodes, beside: Mapping[str, Subject], measured: Measured, steps: Steps
) -> None:
    asked: Mapping[str, Subject] = {**beside, OURS: OurQueues(nodes)}
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


def _results(measured: Measured, peers: Sequence[Peer]) -> list[Result]:
    rows = []
    for subject in SUBJECTS:
        for kind in COUNTS:
            for connections in CONNECTIONS:
                key, case = (subject, kind, connections), f"{subject}, {kind}, {connections}"
                for figure, unit in (("rate", "messages/s"), *((p, "ms") for p in PERCENTILES)):
                    is_rate = figure == "rate"
                    beside = [one for one in peers if is_rate or one.syncs_first]
                    for peer in beside or (None,):
                        limit = "" if peer is None else peer.limit(kind)
                        rows.append(
                            result(
                                NAME,
                                case if is_rate else f"{case}: {figure}",
                                measured.of((*key, OURS, figure)),
                                unit,
                                limits=measured.of((*key, peer.key if peer else "", figure)),
                                limit_name=limit if is_rate else f"{limit}, {figure}",
                            )
                        )
    rows += [
        result(
            NAME,
            f"{subject}, all nodes, {kind}, {CONNECTIONS[-1]}",
            measured.of((subject, kind, CONNECTIONS[-1], OURS, "cpu")),
            "CPU us/message",
        )
        for subject in SUBJECTS
        for kind in COUNTS
    ]
    return rows
