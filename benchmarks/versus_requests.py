"""Keys and queues beside NATS, Redis and RabbitMQ: one generator, and every server in turns.

Rule 1: all run the whole time and only one of them is loaded; each figure is taken from all of them
        before the next, round by round, and medians count.
Rule 2: a request has 100 bytes of value, and its answer says that they are safe on a disk: with one
        server on one, of three on most. What others read is weaker than ours: their answer may be
        older than a write that was acknowledged, where there are three of them.
Rule 3: CPU is that of the servers, of all their nodes and threads; what they do in the background
        counts, too. The generator (`closed_load.c`) is the same program for all.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.bench import Bench, Steps
from benchmarks.closed_load import ClosedLoad
from benchmarks.compared import LESS, Case, Compared, compare
from benchmarks.http_requests import KEYS
from benchmarks.process import cpu_seconds
from benchmarks.queue_requests import QUEUES
from benchmarks.report import Measured
from benchmarks.request_sides import FILL, GET, PEERS, PUBLISH, PUT, TAKE, Side, sides

NAME: Final = "versus"
CONNECTIONS: Final = (1, 16)
FILL_CONNECTIONS: Final = 16
FILL_SECONDS_MAX: Final = 120.0
KINDS: Final = (PUT, GET, PUBLISH, TAKE)
OURS: Final = ""


def compare_requests(
    bench: Bench, peers: Sequence[str], counts: Sequence[int], notes: list[str]
) -> list[Compared]:
    """Beside each of `peers`, with so many nodes each."""
    load = ClosedLoad(bench.directory)
    rounds = 2 if bench.quick else 5
    compared: list[Compared] = []
    for nodes in counts:
        measured = Measured()
        with sides(bench, peers, nodes) as started:
            runs = _Runs(bench, load, started, measured)
            for name in started:
                runs.put_every_key(name)
            with Steps(NAME, rounds * len(KINDS) * len(CONNECTIONS)) as steps:
                for _ in range(rounds):
                    for kind in KINDS:
                        for connections in CONNECTIONS:
                            steps.begin(f"{_nodes(nodes)}: {kind}, {connections}")
                            for name in started:
                                runs.measure(name, kind, connections)
            compared += [row for peer in started if peer for row in _rows(measured, peer, nodes)]
    notes.append("kv get: ours is a strong read; the reads of three NATS servers are not")
    return compared


class _Runs:
    """What is measured of servers that run."""

    def __init__(
        self, bench: Bench, load: ClosedLoad, started: Mapping[str, Side], measured: Measured
    ) -> None:
        self._bench = bench
        self._load = load
        self._started = started
        self._measured = measured
        self._stocks = dict.fromkeys(started, 0)
        """How many messages every queue has at least that is taken from."""

    @property
    def _seconds(self) -> float:
        return 0.5 if self._bench.quick else 2.0

    @property
    def _turns_max(self) -> int:
        """Of a run that takes messages: all of them may be of one queue."""
        return 250 if self._bench.quick else 2000

    def put_every_key(self, name: str) -> None:
        side = self._started[name]
        if (talks := side.talks(PUT, 1)) is not None:
            self._load.ask(side.protocol, talks, seconds=FILL_SECONDS_MAX, turns_max=KEYS)

    def measure(self, name: str, kind: str, connections: int) -> None:
        side = self._started[name]
        if kind == TAKE:
            self._fill(name, side)
        talks = side.talks(kind, connections)
        if talks is None:
            return
        self._bench.settle()
        cpu = sum(map(cpu_seconds, side.pids))
        if kind == TAKE:
            timed = self._load.ask(
                side.protocol, talks, seconds=self._seconds, turns_max=self._turns_max - connections
            )
            self._stocks[name] -= timed.requests + connections
        else:
            timed = self._load.ask(side.protocol, talks, seconds=self._seconds)
        cpu = sum(map(cpu_seconds, side.pids)) - cpu
        self._measured.add((name, kind, connections, "rate"), timed.per_second)
        self._measured.add((name, kind, connections, "cpu"), cpu / timed.requests * 1e6)

    def _fill(self, name: str, side: Side) -> None:
        lacking = self._turns_max - self._stocks[name]
        talks = side.talks(FILL, FILL_CONNECTIONS)
        if lacking <= 0 or talks is None:
            return
        # Each connection goes through the queues in turn: they get equally many, up to one round.
        rounds = lacking + FILL_CONNECTIONS
        self._load.ask(side.protocol, talks, seconds=FILL_SECONDS_MAX, turns_max=rounds * QUEUES)
        self._stocks[name] += lacking


def _rows(measured: Measured, peer: str, nodes: int) -> list[Compared]:
    rows = []
    for kind in KINDS:
        for connections in CONNECTIONS:
            title = f"{kind}, {connections}"
            for case, figure in (
                (Case(title, "requests/s"), "rate"),
                (Case(f"{title}: CPU", "CPU us/request", LESS), "cpu"),
            ):
                ours = measured.of((OURS, kind, connections, figure))
                theirs = measured.of((peer, kind, connections, figure))
                pair = f"{_nodes(nodes)}: {PEERS[peer]}"
                rows.append(compare(pair, case, ours, theirs, peer=peer))
    return [row for row in rows if row is not None]


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
