"""A node was away and comes back: how fast it catches up, and who notices.

Rule 1: the rate stands beside a plain copy of the same bytes on the same disk, synced once, right
        before. Both read what memory holds: it was written a moment ago.
Rule 2: bytes sent are what the leader sent to the follower; bytes missing are those of its files.
Rule 3: the latency of others is an open load on another topic, with acks=all, while the node is
        away and while it catches up; the leaders stay the same.
Rule 4: what is foretold is compared with what came: the estimate ten seconds after the beginning,
        with the time that it took from there.
Rule 5: all nodes share the cores and the disk, which no real cluster does.
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any, Final

from benchmarks.bench import MIB, Bench, Steps, run_fast
from benchmarks.cluster import LOOK_SECONDS_MAX, Cluster, cluster_of_three
from benchmarks.latency import OpenLoad
from benchmarks.limits import copy_synced
from benchmarks.report import Measured, Report, Result, result
from tests.support.cluster import wait_until
from tidelog.client.admin import AdminClient, ConfigChange, Resource
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load, LoadGenerator
from tidelog.model import NodeId

NAME: Final = "catchup"

RECORD_BYTES: Final = 100
BATCH_BYTES: Final = 100_000
FAR: Final = "far"
"""What the node that was away lacks."""
NEAR: Final = "near"
"""What others write to meanwhile."""
RATE: Final = 500
FILL_SECONDS: Final = 0.2
QUIET_SECONDS: Final = 5.5
"""The pace is raised by what was written between two looks of a leader, every 5 s."""
PACE_BYTES: Final = 32 * MIB
FORETOLD_AFTER_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.05
DRAINED_PARTITIONS: Final = 1000
NODES_TO_DRAIN: Final = 4


def run(bench: Bench) -> Report:
    measured = Measured()
    rounds = 1 if bench.quick else 3
    with cluster_of_three(bench) as cluster, Steps(NAME, rounds * 6 + 1) as steps:
        for _ in range(rounds):
            _come_back(bench, cluster, measured, steps)
            _come_back_paced(bench, cluster, measured, steps)
    _drain(bench, measured, steps)
    return Report(
        title="a follower that was away comes back to a cluster of three",
        results=_results(measured),
        notes=[
            f"others write {RATE} records/s, one per request, acks=all",
            f"paced: {PACE_BYTES // MIB} MiB/s, the default; unpaced: no limit",
        ],
    )


def _bytes_missing(bench: Bench) -> int:
    return (300 if bench.quick else 1500) * MIB


# One node away.


class _Away:
    """A cluster of which one node, which leads neither topic, is away and lacks something."""

    def __init__(self, bench: Bench, cluster: Cluster, steps: Steps, size: int) -> None:
        self.cluster = cluster
        for topic in (FAR, NEAR):
            cluster.create(topic)
        leaders = {cluster.leader(topic) for topic in (FAR, NEAR)}
        self.leader = cluster.leader(FAR)
        self.node = next(node for node in cluster.node_ids if node not in leaders)
        self._near = cluster.kafka_port(cluster.leader(NEAR))
        cluster.act("stop", self.node)
        steps.begin(f"writing what node {self.node} will lack")
        _fill(cluster, size)
        bench.settle()

    @property
    def segments(self) -> list[Path]:
        """The leader's files."""
        first = self.cluster.segment(self.leader, FAR)
        return sorted(first.parent.glob("*.log"))

    @property
    def bytes_missing(self) -> int:
        return sum(path.stat().st_size for path in self.segments)

    def load(self, seconds: float) -> dict[str, float]:
        """How long others wait for what they write."""
        first = self.cluster.ask(_end_of_near)
        return OpenLoad(self._near, NEAR, RATE, seconds, first=first).run().acknowledged

    def catch_up(self) -> dict[str, Any] | None:
        """As the leader tells of it; once it is over, what was said last."""
        address = self.cluster.ready["http"].split(",")[self.leader - 1]
        url = f"http://{address}/v1/replication"
        with urllib.request.urlopen(url, timeout=LOOK_SECONDS_MAX) as answer:
            found = json.load(answer)["catch_up"]
        ours = [
            one
            for one in [*found["ended"], *found["running"]]
            if (one["topic"], one["node"]) == (FAR, self.node)
        ]
        return ours[-1] if ours else None

    def start(self) -> Thread:
        """Start the node; returns once it catches up."""
        starting = Thread(target=self.cluster.act, args=("start", self.node))
        starting.start()

        def has_begun() -> bool:
            found = self.catch_up()
            return found is not None and found["state"] in ("running", "done")

        wait_until(has_begun, "the node does not catch up")
        return starting

    def wait_done(self, starting: Thread) -> dict[str, Any]:
        while (found := self.catch_up()) is None or found["state"] != "done":
            sleep(LOOK_SECONDS)
        starting.join()
        self.cluster.wait_whole([FAR, NEAR])
        return found

    def close(self) -> None:
        for topic in (FAR, NEAR):
            self.cluster.delete(topic)
        self.cluster.wait_whole()


async def _end_of_near(client: KafkaClient) -> int:
    found = await client.list_offsets(NEAR, {0: -1})
    return found[0].offset


def _fill(cluster: Cluster, size: int) -> None:
    load = Load(topic=FAR, record_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES)

    async def work(client: KafkaClient) -> None:
        generator = LoadGenerator(client, load)
        left = size
        while left > 0:
            left -= (await generator.produce(FILL_SECONDS)).records * RECORD_BYTES

    cluster.ask(work)


def _come_back(bench: Bench, cluster: Cluster, measured: Measured, steps: Steps) -> None:
    """As fast as it can."""
    away = _Away(bench, cluster, steps, _bytes_missing(bench))
    steps.begin("the limit, and others while the node is away")
    copied = copy_synced(away.segments[0])
    measured.add("copy", copied.megabytes_per_second)
    _set_pace(cluster, away.leader, 0)
    bench.settle()
    seconds = bench.subject_seconds
    before = away.load(seconds)
    steps.begin("the node comes back")
    missing = away.bytes_missing
    starting = away.start()
    during = away.load(seconds)
    found = away.wait_done(starting)
    measured.add("rate", found["bytes_sent"] / found["attempt_ms"] / 1000)
    measured.add("bytes", found["bytes_sent"] / missing)
    measured.add("covered", min(found["attempt_ms"] / 1000 / seconds, 1.0))
    _note_latency("unpaced", before, during, measured)
    away.close()


def _come_back_paced(bench: Bench, cluster: Cluster, measured: Measured, steps: Steps) -> None:
    """At a pace that an operator has set."""
    seconds = FORETOLD_AFTER_SECONDS * (1.5 if bench.quick else 2.5)
    away = _Away(bench, cluster, steps, int(PACE_BYTES * seconds))
    _set_pace(cluster, away.leader, PACE_BYTES)
    steps.begin("others while the node is away")
    before = away.load(bench.subject_seconds)
    steps.begin("the node comes back, paced")
    sleep(QUIET_SECONDS)
    starting = away.start()
    began_at = perf_counter()
    during = away.load(FORETOLD_AFTER_SECONDS - 1.0)
    sleep(max(0.0, began_at + FORETOLD_AFTER_SECONDS - perf_counter()))
    foretold = away.catch_up()
    asked_at = perf_counter()
    away.wait_done(starting)
    took = perf_counter() - asked_at
    if foretold is not None and foretold["eta_ms"] is not None:
        measured.add("eta error", 100 * abs(foretold["eta_ms"] / 1000 - took) / took)
    _note_latency("paced", before, during, measured)
    away.close()


def _set_pace(cluster: Cluster, node: NodeId, bytes_per_second: int) -> None:
    change = ConfigChange(name="catchup.bytes.per.second", value=str(bytes_per_second))

    async def work() -> None:
        async with AdminClient(cluster.bootstrap) as client:
            await client.alter_configs(Resource.BROKER, str(node), [change])

    run_fast(work())


def _note_latency(how: str, before: dict[str, float], during: dict[str, float], measured: Measured) -> None:
    for name in ("p50", "p99"):
        measured.add(("before", how, name), before[name])
        measured.add(("during", how, name), during[name])


# A broker that goes for good.


def _drain(bench: Bench, measured: Measured, steps: Steps) -> None:
    steps.begin(f"draining a broker of {DRAINED_PARTITIONS:,} partitions")
    data = bench.fresh("drained")
    try:
        with (cluster := Cluster(data, NODES_TO_DRAIN)):
            wait_until(cluster.is_whole, "the cluster did not form")
            # Three of four hold each partition, so that every broker has about 1,000.
            count = DRAINED_PARTITIONS * NODES_TO_DRAIN // 3
            cluster.create("drained", partitions=count)
            victim = next(n for n in cluster.node_ids if n != cluster.controller())
            held = sum(victim in p.replicas for p in cluster.partitions("drained").values())
            began_at = perf_counter()
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "tidelog.faces.cli",
                    "brokers",
                    "drain",
                    str(victim),
                    "--wait",
                    "--bootstrap",
                    cluster.bootstrap,
                    "--json",
                ],
                check=True,
                capture_output=True,
                timeout=600,
            )
            measured.add("drain", perf_counter() - began_at)
            measured.add("drained", held)
            left = sum(victim in p.replicas for p in cluster.partitions("drained").values())
            assert left == 0, f"{left} replicas are still there"
            assert cluster.interrupt() == 0, "the nodes did not stop cleanly"
    finally:
        bench.remove(data)


def _results(measured: Measured) -> list[Result]:
    rows = [
        result(
            NAME,
            "caught up with",
            measured.of("rate"),
            "MB/s",
            limits=measured.of("copy"),
            limit_name="a plain copy, synced",
            target="half",
        ),
        result(NAME, "bytes sent / bytes missing", measured.of("bytes"), "", target="<= 1.05"),
    ]
    if errors := measured.of("eta error"):
        rows.append(result(NAME, "estimate after 10 s off by", errors, "%", target="<= 25"))
    rows += [
        result(
            NAME,
            f"others, {how}: acknowledged {name}",
            measured.of(("during", how, name)),
            "ms",
            limits=measured.of(("before", how, name)),
            limit_name="while it is away",
            target="< 2x" if name == "p99" else "",
        )
        for how in ("unpaced", "paced")
        for name in ("p50", "p99")
    ]
    rows.append(
        result(NAME, f"drain of {measured.median('drained'):.0f} replicas", measured.of("drain"), "s")
    )
    return rows
