"""What many partitions cost an idle cluster, and one that loses a node and gets it back.

Rule 1: three nodes, every partition on all of them: a third of all is led by the node that goes.
Rule 2: *led again* is when a survivor knows a leader of every partition, and none is the victim;
        *whole* when every partition has all replicas in sync again; *at home* when the preferred
        leaders lead again. The last two count from when the node that was started again is ready.
Rule 3: idle is nothing but heartbeats, parked fetches and looks at the clock; it is compared with
        the same cluster without a topic, right after its start. Nobody asks anything meanwhile.
Rule 4: CPU is that of all nodes that run, as a share of one core; network is what passes between
        the nodes in both directions, and nothing of what others do on this machine.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Final

from benchmarks.bench import Bench, Steps
from benchmarks.cluster import Cluster, PeerTraffic, cluster_of_three
from benchmarks.report import Measured, Report, Result, result
from tidelog.model import NodeId

NAME: Final = "storms"

PER_TOPIC: Final = 1000
PARTITIONS: Final = 10_000
PARTITIONS_QUICK: Final = 1000
IDLE_SECONDS: Final = 20.0
IDLE_SECONDS_QUICK: Final = 5.0
SETTLE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02
LOOK_SECONDS: Final = 0.2
STORM_SECONDS_MAX: Final = 300.0

CPU_UNIT: Final = "CPU s/s"
NETWORK_UNIT: Final = "KB/s peers"

PHASES: Final = {
    "kill": "a node is killed, until all are led",
    "return": "it returns, until all are whole",
    "home": "until all are at home",
}


def run(bench: Bench) -> Report:
    partitions = PARTITIONS_QUICK if bench.quick else PARTITIONS
    topics = [f"many-{number}" for number in range(partitions // PER_TOPIC)]
    rounds = 1 if bench.quick else 3
    measured = Measured()
    with cluster_of_three(bench) as cluster, Steps(NAME, 3 + rounds) as steps:
        steps.begin("idle, without a topic")
        sleep(SETTLE_SECONDS)
        _idle(bench, cluster, "empty", measured)
        steps.begin(f"making {partitions:,} partitions")
        for topic in topics:
            cluster.create(topic, partitions=PER_TOPIC)
        cluster.wait_whole(topics, at_home=True)
        steps.begin(f"idle, with {partitions:,} partitions")
        sleep(SETTLE_SECONDS)
        _idle(bench, cluster, "full", measured)
        for number in range(rounds):
            victim = cluster.node_ids[number % cluster.nodes]
            steps.begin(f"kill node {victim}, and bring it back")
            _storm(cluster, victim, partitions, topics, measured)
    notes = [] if PeerTraffic.can_be_seen() else ["network is left out: no ss (Debian: iproute2)"]
    return Report(title=f"{partitions:,} partitions x 3", results=_results(measured), notes=notes)


# Measuring.


def _idle(bench: Bench, cluster: Cluster, name: str, measured: Measured) -> None:
    with _costs(cluster, name, measured):
        sleep(IDLE_SECONDS_QUICK if bench.quick else IDLE_SECONDS)


def _storm(cluster: Cluster, victim: NodeId, partitions: int, topics: list[str], measured: Measured) -> None:
    survivor = next(node for node in cluster.node_ids if node != victim)
    began = perf_counter()
    cluster.act("kill", victim)
    with _costs(cluster, "kill", measured):
        while not _are_led(cluster, survivor, victim, partitions):
            assert perf_counter() < began + STORM_SECONDS_MAX, "some are not led"
            sleep(POLL_SECONDS)
        measured.add(("seconds", "kill"), perf_counter() - began)
    began = perf_counter()
    cluster.act("start", victim)
    measured.add("ready", perf_counter() - began)
    began = perf_counter()
    with _costs(cluster, "return", measured):
        cluster.wait_whole(topics)
        measured.add(("seconds", "return"), perf_counter() - began)
    with _costs(cluster, "home", measured):
        cluster.wait_whole(topics, at_home=True)
        measured.add(("seconds", "home"), perf_counter() - began)


def _are_led(cluster: Cluster, survivor: NodeId, victim: NodeId, partitions: int) -> bool:
    leads = {broker["id"]: broker["leads"] for broker in cluster.view(survivor)["brokers"]}
    return leads[victim] == 0 and sum(leads.values()) >= partitions


@contextmanager
def _costs(cluster: Cluster, name: str, measured: Measured) -> Iterator[None]:
    """What the nodes spend while this lasts, per second; the same nodes run from begin to end."""
    traffic = PeerTraffic(cluster) if PeerTraffic.can_be_seen() else None
    done = threading.Event()

    def look() -> None:
        while traffic is not None and not done.wait(LOOK_SECONDS):
            traffic.look()

    looking = threading.Thread(target=look, daemon=True)
    cluster.forget_peak()
    cpu, began = cluster.cpu_seconds(), perf_counter()
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()
    seconds, cpu = perf_counter() - began, cluster.cpu_seconds() - cpu
    measured.add(("cpu", name), cpu / seconds)
    measured.add(("peak", name), cluster.peak_memory_bytes() / 1e6)
    if traffic is not None:
        measured.add(("network", name), traffic.look() / seconds / 1e3)


# Telling.


def _results(measured: Measured) -> list[Result]:
    rows = [
        result(NAME, PHASES["kill"], measured.of(("seconds", "kill")), "s"),
        result(NAME, "it starts again, until it is ready", measured.of("ready"), "s"),
        result(NAME, PHASES["return"], measured.of(("seconds", "return")), "s"),
        result(NAME, PHASES["home"], measured.of(("seconds", "home")), "s"),
    ]
    titles = {"empty": "idle, no topic", "full": "idle", **PHASES}
    for what, unit in (("cpu", CPU_UNIT), ("network", NETWORK_UNIT), ("peak", "MB peak RSS")):
        for name, title in titles.items():
            if values := measured.of((what, name)):
                rows.append(
                    result(
                        NAME,
                        title,
                        values,
                        unit,
                        limits=measured.of((what, "empty")) if name != "empty" else (),
                        limit_name="idle, no topic",
                    )
                )
    return rows
