"""How long a cluster of three is without a controller, how long a client cannot write when a leader
goes, and what 10,000 partitions cost.

Rule 1: the clock starts when the controller is killed (SIGKILL) or paused (SIGSTOP), and stops when
        a survivor has decided something new: a topic made through it. Before that, when a survivor
        names another controller.
Rule 2: a kill is compared with the same decision on the calm cluster, right before; a pause with
        the timeout that notices it, which nothing can beat.
Rule 3: every round begins with three nodes that run and are not fenced.
Rule 4: partitions are made in topics of 1,000, three replicas of each: every node has all of them
        on its disk.

Writes are a client's: see `writes.py`.
"""

from time import perf_counter, sleep
from typing import Final

from benchmarks import writes
from benchmarks.bench import ASK_SECONDS_MAX, Bench, Steps, run_fast
from benchmarks.cluster import Cluster, cluster_of_three
from benchmarks.process import memory_bytes
from benchmarks.report import Measured, Report, Result, result
from tests.support.cluster import wait_until
from tidelog.client.kafka import KafkaClient
from tidelog.config import NodeConfig
from tidelog.errors import TidelogError

NAME: Final = "failover"

PER_TOPIC: Final = 1000
PARTITIONS: Final = 10_000
PARTITIONS_QUICK: Final = 2000
POLL_SECONDS: Final = 0.005
LIMIT_SECONDS: Final = 30.0


def run(bench: Bench) -> Report:
    measured = Measured()
    partitions = PARTITIONS_QUICK if bench.quick else PARTITIONS
    rounds = bench.rounds
    with cluster_of_three(bench) as cluster, Steps(NAME, 2 * rounds + writes.steps(bench) + 2) as steps:
        for number in range(rounds):
            for how in ("kill", "pause"):
                steps.begin(f"{how} the controller")
                _fail_over(cluster, how, f"{how}-{number}", measured)
        writes.measure(bench, cluster, measured, steps)
        steps.begin(f"making {partitions:,} partitions")
        _fill(cluster, partitions, measured)
        steps.begin(f"starting again with {partitions:,} partitions")
        assert cluster.interrupt() == 0
        began = perf_counter()
        cluster.up()
        measured.add("start", perf_counter() - began)
    return Report(
        title="three nodes",
        results=[*_results(measured, partitions), *writes.results(NAME, measured)],
        notes=writes.NOTES,
    )


def _results(measured: Measured, partitions: int) -> list[Result]:
    rows = []
    silence = [NodeConfig().quorum_fetch_timeout_ms / 1000]
    for how, limits, name in (
        ("kill", measured.of("calm"), "a topic made on the calm cluster"),
        ("pause", silence, "quorum.fetch.timeout.ms"),
    ):
        for what, title in (("named", "another controller is named"), ("made", "a topic is made")):
            rows.append(
                result(
                    NAME,
                    f"{how}: until {title}",
                    measured.of((what, how)),
                    "s",
                    limits=limits,
                    limit_name=name,
                )
            )
    count = f"{partitions:,} partitions x 3"
    rows.append(result(NAME, f"{count}: made", measured.of("fill"), "s"))
    rows.append(result(NAME, f"{count}: memory of a node", measured.of("memory"), "MB"))
    rows.append(result(NAME, f"{count}: start of all nodes to ready", measured.of("start"), "s"))
    return rows


def _fail_over(cluster: Cluster, how: str, name: str, measured: Measured) -> None:
    old = cluster.controller()
    assert old is not None, "the cluster is whole"
    survivor = next(node for node in cluster.node_ids if node != old)
    kafka = cluster.bootstraps[survivor - 1]
    began = perf_counter()
    _make(kafka, f"calm-{name}")
    measured.add("calm", perf_counter() - began)
    began = perf_counter()
    cluster.act(how, old)
    while cluster.controller(survivor) in (None, old):
        assert perf_counter() < began + LIMIT_SECONDS, "nobody took over"
        sleep(POLL_SECONDS)
    measured.add(("named", how), perf_counter() - began)
    _make(kafka, name)
    measured.add(("made", how), perf_counter() - began)
    cluster.act("start" if how == "kill" else "resume", old)
    wait_until(cluster.is_whole, "the old controller did not come back")


def _make(kafka: str, name: str, partitions: int = 1) -> None:
    async def make() -> None:
        async with KafkaClient(kafka, timeout_seconds=ASK_SECONDS_MAX) as client:
            await client.create_topic(name, partitions=partitions)

    while True:
        try:
            run_fast(make())
            return
        except TidelogError as error:
            if "exists" in str(error):  # the answer was lost
                return
            sleep(POLL_SECONDS)


def _fill(cluster: Cluster, partitions: int, measured: Measured) -> None:
    began = perf_counter()
    for number in range(partitions // PER_TOPIC):
        _make(cluster.bootstraps[number % cluster.nodes], f"many-{number}", PER_TOPIC)
    measured.add("fill", perf_counter() - began)
    for pid in cluster.pids():
        measured.add("memory", memory_bytes(pid) / 1e6)
