"""How long a cluster of three is without a controller, and what 10,000 partitions cost it.

Rule 1: the clock starts when the controller is killed (SIGKILL) or paused (SIGSTOP), and stops when
        a survivor has decided something new: a topic made through it. Before that, when a survivor
        names another controller.
Rule 2: a kill is compared with the same decision on the calm cluster, right before; a pause with
        the timeout that notices it, which nothing can beat.
Rule 3: every round begins with three nodes that run and are not fenced.
Rule 4: partitions are made in topics of 1,000, three replicas of each: every node has all of them
        on its disk.
"""

import json
import urllib.request
from time import perf_counter, sleep
from typing import Final

from benchmarks.bench import ASK_SECONDS_MAX, Bench, Steps, run_fast
from benchmarks.process import memory_bytes
from benchmarks.report import Measured, Report, Result, result
from tests.support.cluster import ClusterProcess, wait_until
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
    data = bench.fresh("cluster")
    rounds = bench.rounds
    with Steps(NAME, 2 * rounds + 2) as steps:
        try:
            with ClusterProcess(data) as cluster:
                wait_until(cluster.is_whole, "the cluster did not form")
                for number in range(rounds):
                    for how in ("kill", "pause"):
                        steps.begin(f"{how} the controller")
                        _fail_over(cluster, how, f"{how}-{number}", measured)
                steps.begin(f"making {partitions:,} partitions")
                _fill(cluster, partitions, measured)
                steps.begin(f"starting again with {partitions:,} partitions")
                assert cluster.interrupt() == 0
                began = perf_counter()
                cluster.up()
                measured.add("start", perf_counter() - began)
                assert cluster.interrupt() == 0
        finally:
            bench.remove(data)
    return Report(title="three nodes", results=_results(measured, partitions))


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
                    NAME, f"{how}: until {title}", measured.of((what, how)), "s",
                    limits=limits, limit_name=name,
                )
            )  # fmt: skip
    count = f"{partitions:,} partitions x 3"
    rows.append(result(NAME, f"{count}: made", measured.of("fill"), "s"))
    rows.append(result(NAME, f"{count}: memory of a node", measured.of("memory"), "MB"))
    rows.append(result(NAME, f"{count}: start of all nodes to ready", measured.of("start"), "s"))
    return rows


def _fail_over(cluster: ClusterProcess, how: str, name: str, measured: Measured) -> None:
    old: int = cluster.cluster("status")["controller"]
    at = {number: index for index, number in enumerate(range(1, cluster.nodes + 1))}
    survivor = next(number for number in at if number != old)
    kafka, http = cluster.bootstraps[at[survivor]], cluster.ready["http"].split(",")[at[survivor]]
    began = perf_counter()
    _make(kafka, f"calm-{name}")
    measured.add("calm", perf_counter() - began)
    began = perf_counter()
    cluster.cluster(how, old)
    while _controller(http) in (None, old):
        assert perf_counter() < began + LIMIT_SECONDS, "nobody took over"
        sleep(POLL_SECONDS)
    measured.add(("named", how), perf_counter() - began)
    _make(kafka, name)
    measured.add(("made", how), perf_counter() - began)
    cluster.cluster("start" if how == "kill" else "resume", old)
    wait_until(cluster.is_whole, "the old controller did not come back")


def _controller(http: str) -> int | None:
    with urllib.request.urlopen(f"http://{http}/v1/cluster?topics=", timeout=5) as answer:
        found: int | None = json.load(answer)["controller"]
        return found


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


def _fill(cluster: ClusterProcess, partitions: int, measured: Measured) -> None:
    began = perf_counter()
    for number in range(partitions // PER_TOPIC):
        _make(cluster.bootstraps[number % cluster.nodes], f"many-{number}", PER_TOPIC)
    measured.add("fill", perf_counter() - began)
    for pid in cluster.pids():
        measured.add("memory", memory_bytes(pid) / 1e6)
