"""A leader and three replicas: 10,000 replicated writes per second, and how far replicas lag.

Rule 1: writes come over HTTP, 100 records in a request, and go to one partition of four replicas.
        Every node is asked in turn.
Rule 2: for the lag, requests are due at fixed times, whether or not earlier ones were answered; a
        request's time begins when it was due.
Rule 3: a batch *lags* from the moment the leader's own file has it until the last replica's file
        has it. Files are looked at every half millisecond.
Rule 4: where disks are waited for, beside it stands what a plain append of a batch's size and a
        sync took right before: a disk that stalls is seen as one.
"""

import gc
import os
from bisect import bisect_right
from collections import deque
from pathlib import Path
from select import select
from socket import socket
from time import monotonic
from typing import Final

from benchmarks.bench import Bench, Steps
from benchmarks.closed import Target, ask_closed, http_answer
from benchmarks.cluster import Cluster, cluster_of
from benchmarks.http_requests import MANY, records_request
from benchmarks.latency import BEHIND_SECONDS_MAX, WARM_UP_SECONDS
from benchmarks.limits import sync_latency_ms
from benchmarks.pump import connect
from benchmarks.report import Measured, Result, result
from tidelog.client.load import percentiles

NAME: Final = "http"
NODES: Final = 4
RATE: Final = 10_000
INTERVAL_SECONDS: Final = MANY / RATE
BATCH_BYTES: Final = 11_000
"""About what a request's records take in the log."""
CONNECTIONS: Final = 16
SYNCED: Final = "fsync"
DURABILITIES: Final = (SYNCED, "replicated")
LOOK_SECONDS: Final = 0.0005
FIGURES: Final = {"p50": "p50", "p95": "p95", "p99": "p99", "max": "the slowest"}
TARGETS: Final = {"p95": "< 10 ms", "max": "< 100 ms"}
TARGET_STEPS: Final = 2 * len(DURABILITIES)


def measure_targets(bench: Bench, measured: Measured, steps: Steps) -> None:
    with cluster_of(bench, NODES) as cluster:
        for durability in DURABILITIES:
            cluster.create(durability, replication=NODES, configs={"durability": durability})
        for _ in range(bench.rounds):
            for durability in DURABILITIES:
                steps.begin(f"{NODES} replicas, {durability}: writes, {MANY} at once")
                bench.settle()
                ports = [cluster.http_port(node) for node in cluster.node_ids]
                timed = ask_closed(
                    [Target(port, [records_request(durability, MANY)]) for port in ports],
                    http_answer,
                    connections=CONNECTIONS,
                    seconds=bench.subject_seconds,
                )
                measured.add(("targets", durability, "rate"), MANY * timed.per_second)
                steps.begin(f"{NODES} replicas, {durability}: {RATE:,} writes/s")
                bench.settle()
                if durability == SYNCED:
                    syncs = sync_latency_ms(bench.directory, bench.limit_seconds, BATCH_BYTES)
                    for figure in FIGURES:
                        measured.add(("targets", durability, "sync", figure), syncs[figure])
                    bench.settle()
                writes = OpenWrites(cluster, durability, 2 * bench.subject_seconds)
                for what, found in writes.run().items():
                    for figure in FIGURES:
                        measured.add(("targets", durability, what, figure), found[figure])


def target_results(measured: Measured) -> list[Result]:
    rows = []
    for durability in DURABILITIES:
        case = f"{NODES} replicas, {durability}"
        rows.append(
            result(
                NAME,
                f"{case}: {MANY} at once, {CONNECTIONS} connections",
                measured.of(("targets", durability, "rate")),
                "records/s",
                target=f">= {RATE:,}/s",
            )
        )
        for what in ("lag", "acknowledged", "sent"):
            for figure, title in FIGURES.items():
                rows.append(
                    result(
                        NAME,
                        f"{case}, {RATE:,} records/s: {what} {title}",
                        measured.of(("targets", durability, what, figure)),
                        "ms",
                        limits=_syncs(measured, durability, what, figure),
                        limit_name=f"append {BATCH_BYTES // 1000} KB + fdatasync, {title}",
                        target=TARGETS.get(figure, "") if what == "lag" else "",
                        share=1.0 if figure == "max" else 0.5,
                    )
                )
    return rows


def _syncs(measured: Measured, durability: str, what: str, figure: str) -> list[float]:
    """What a plain disk took right before; nothing for what waits for none."""
    if durability != SYNCED or what == "sent":
        return []
    return measured.of(("targets", durability, "sync", figure))


class OpenWrites:
    """One loop: sends what is due; notes answers, and what the files of all replicas have."""

    def __init__(self, cluster: Cluster, topic: str, seconds: float) -> None:
        seen = cluster.partitions(topic)[0]
        assert seen.leader is not None, "it was whole a moment ago"
        self._request = records_request(topic, MANY)
        self._uncounted = int(WARM_UP_SECONDS / INTERVAL_SECONDS)
        self._count = self._uncounted + int(seconds / INTERVAL_SECONDS)
        others = [node for node in seen.replicas if node != seen.leader]
        self._files = [_File(cluster.segment(node, topic)) for node in (seen.leader, *others)]
        ports = [cluster.http_port(node) for node in cluster.node_ids]
        self._idle = deque(connect(ports[at % len(ports)]) for at in range(CONNECTIONS))
        self._busy: dict[socket, tuple[int, bytes]] = {}
        """The request that each connection carries, and what has come of its answer."""
        for connection in self._idle:
            connection.setblocking(False)
        self._sent: list[float] = []
        self._acknowledged: dict[int, float] = {}

    def run(self) -> dict[str, dict[str, float]]:
        """Percentiles in milliseconds: of the lag, of the answers, and of the generator's delay."""
        gc.disable()
        try:
            started = self._run()
        finally:
            gc.enable()
            for connection in (*self._idle, *self._busy):
                connection.close()
        batch_bytes, rest = divmod(self._files[0].grown, self._count)
        assert rest == 0, "every batch has the same size, and nobody else writes"
        leader, *others = (
            [file.had(n * batch_bytes) for n in range(1, self._count + 1)] for file in self._files
        )
        lags = [max(0.0, max(there) - here) for here, *there in zip(leader, *others, strict=True)]
        counted = range(self._uncounted, self._count)
        due = [started + at * INTERVAL_SECONDS for at in range(self._count)]
        return {
            "lag": percentiles([lags[at] for at in counted]),
            "acknowledged": percentiles([self._acknowledged[at] - due[at] for at in counted]),
            "sent": percentiles([self._sent[at] - due[at] for at in counted]),
        }

    def _run(self) -> float:
        """Send and receive everything; when the first request was due."""
        started = monotonic() + INTERVAL_SECONDS
        give_up_at = started + self._count * INTERVAL_SECONDS + BEHIND_SECONDS_MAX
        while len(self._acknowledged) < self._count or not self._are_level():
            now = monotonic()
            if now > give_up_at:
                raise RuntimeError("requests are missing: the nodes, or this program, fell behind")
            due = min(self._count, int((now - started) / INTERVAL_SECONDS) + 1)
            while len(self._sent) < due and self._idle:
                self._send()
            for file in self._files:
                file.look()
            # select, because it alone waits for less than a millisecond.
            for connection in select(list(self._busy), [], [], LOOK_SECONDS)[0]:
                self._receive(connection)
        return started

    def _are_level(self) -> bool:
        return len({file.grown for file in self._files}) == 1

    def _send(self) -> None:
        connection = self._idle.popleft()
        self._busy[connection] = len(self._sent), b""
        self._sent.append(monotonic())
        sent = connection.send(self._request)
        assert sent == len(self._request), "a socket that is idle has room for a request"

    def _receive(self, connection: socket) -> None:
        number, answer = self._busy[connection]
        answer += connection.recv(1 << 16)
        if http_answer(answer):
            self._acknowledged[number] = monotonic()
            del self._busy[connection]
            self._idle.append(connection)
        else:
            self._busy[connection] = number, answer


class _File:
    """When a replica's file was seen to have grown, and how far."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._first = os.stat(self._path).st_size
        self._sizes: list[int] = []
        self._seen: list[float] = []

    @property
    def grown(self) -> int:
        return self._sizes[-1] if self._sizes else 0

    def look(self) -> None:
        size = os.stat(self._path).st_size - self._first
        if size > self.grown:
            self._sizes.append(size)
            self._seen.append(monotonic())

    def had(self, size: int) -> float:
        """When it had grown by so much."""
        return self._seen[bisect_right(self._sizes, size - 1)]
