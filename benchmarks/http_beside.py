"""What clients of Kafka feel of those who use HTTP at the same node.

Rule 1: records are due at fixed times, as in `latency`, and are timed from then on: once while
        nobody asks over HTTP, once while 64 connections put and get as fast as they are answered.
Rule 2: who asks over HTTP is a process of its own that gives way to the one that measures: what
        they take from each other on few cores is not the node's.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import sleep
from typing import Final

from benchmarks.bench import Bench, Steps
from benchmarks.closed import Target, ask_closed, http_answer
from benchmarks.http_requests import Nodes, gets, puts
from benchmarks.latency import WARM_UP_SECONDS, OpenLoad
from benchmarks.report import Measured, Result, result

NAME: Final = "http"
RATE: Final = 500
CONNECTIONS: Final = 64
NICENESS: Final = 10
BEGIN_SECONDS: Final = 0.3
IDLE: Final = "HTTP idle"
LOADED: Final = f"{CONNECTIONS} HTTP connections"
FIGURES: Final = ("p50", "p99")


def measure_beside(bench: Bench, nodes: Nodes, measured: Measured, steps: Steps) -> None:
    """At one node whose bucket is filled."""
    seconds = 2 * bench.subject_seconds
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=os.nice, initargs=(NICENESS,)) as pool:
        pool.submit(os.getpid).result()
        for number in range(bench.rounds):
            steps.begin(f"produce at {RATE}/s, {IDLE}")
            bench.settle()
            _produce(nodes, f"idle-{number}", seconds, IDLE, measured)
            steps.begin(f"produce at {RATE}/s, {LOADED}")
            bench.settle()
            mixed = [request for pair in zip(gets(), puts(), strict=True) for request in pair]
            load = pool.submit(
                ask_closed,
                [Target(nodes.http_ports[0], mixed)],
                http_answer,
                connections=CONNECTIONS,
                seconds=BEGIN_SECONDS + WARM_UP_SECONDS + seconds,
            )
            sleep(BEGIN_SECONDS)
            _produce(nodes, f"loaded-{number}", seconds, LOADED, measured)
            measured.add(("beside", "rate"), load.result().per_second)


def _produce(nodes: Nodes, topic: str, seconds: float, how: str, measured: Measured) -> None:
    nodes.ask(lambda client: client.create_topic(topic, partitions=1))
    (port,) = nodes.leader_ports(topic)
    timed = OpenLoad(port, topic, RATE, seconds).run()
    for figure in FIGURES:
        measured.add(("beside", how, "acknowledged", figure), timed.acknowledged[figure])
        measured.add(("beside", how, "consumed", figure), timed.consumed[figure])
        measured.add(("beside", how, "sent", figure), timed.sent[figure])


def beside_results(measured: Measured) -> list[Result]:
    rate = measured.of(("beside", "rate"))
    return [
        *(
            result(
                NAME,
                f"Kafka at {RATE}/s beside {LOADED}: {what} {figure}",
                measured.of(("beside", LOADED, what, figure)),
                "ms",
                limits=measured.of(("beside", IDLE, what, figure)),
                limit_name=f"{IDLE}, {figure}",
            )
            for what in ("acknowledged", "consumed", "sent")
            for figure in (FIGURES if what != "sent" else FIGURES[-1:])
        ),
        result(NAME, f"{LOADED} meanwhile, gets and puts", rate, "requests/s"),
    ]
