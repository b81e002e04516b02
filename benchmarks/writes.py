"""How long a client cannot write when the leader of its partition goes.

Rule 1: the client is librdkafka with an idempotent producer and acks=all, as applications have it,
        except that it asks again at once: its own pauses would hide the cluster's.
Rule 2: the gap is the longest silence between two acknowledgements, from the last one before the
        signal until writes have gone on for a while. Nothing is subtracted.
Rule 3: a round begins when every replica is in sync and every preferred leader leads, and its
        victim leads the partition. Whether the victim is the active controller, too, is told apart:
        then nobody can choose a new leader before a new controller is chosen.
Rule 4: every record is acknowledged in the end, or the run fails.
"""

import threading
from bisect import bisect_right
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter, sleep
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.bench import Bench, Steps
from benchmarks.cluster import Cluster
from benchmarks.report import Measured, Result, result
from tidelog.config import NodeConfig

TOPIC: Final = "writes"
PARTITIONS: Final = 6
RATE: Final = 500
CALM_SECONDS: Final = 1.0
AFTERWARDS_SECONDS: Final = 0.5
GAP_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 0.01

QUICK: Final[dict[str, str | int | float | bool]] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0,
    "message.timeout.ms": 120_000,
    "request.timeout.ms": 500,
    "socket.timeout.ms": 500,
    "socket.nagle.disable": True,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "topic.metadata.refresh.interval.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "metadata.recovery.strategy": "none",  # to begin from the bootstrap servers takes a second
    "log_level": 0,
}

TARGETS: Final = {"kill": 0.5, "pause": 3.0, "stop": 0.2}
SIGNALS: Final = {"kill": "SIGKILL", "pause": "SIGSTOP", "stop": "SIGTERM"}
BACK: Final = {"kill": "start", "pause": "resume", "stop": "start"}
VICTIMS: Final = {False: "not the controller", True: "also the controller"}
NOTES: Final = (
    "writes: the gap between two acknowledgements as an idempotent librdkafka producer sees it, "
    f"at {RATE} records/s; `another leads` is the cluster's share of it, as a survivor knows it",
)


def rounds(bench: Bench) -> int:
    """Of each signal and each kind of victim."""
    return 3 if bench.quick else 10


def steps(bench: Bench) -> int:
    return rounds(bench) * len(TARGETS) * len(VICTIMS)


def measure(bench: Bench, cluster: Cluster, measured: Measured, steps: Steps) -> None:
    cluster.create(TOPIC, partitions=PARTITIONS)
    for _ in range(rounds(bench)):
        for how in TARGETS:
            for is_controller, title in VICTIMS.items():
                steps.begin(f"{how} a leader that is {title}")
                _round(cluster, how, is_controller, measured)


def _round(cluster: Cluster, how: str, is_controller: bool, measured: Measured) -> None:
    cluster.wait_whole([TOPIC], at_home=True)
    controller = cluster.controller()
    partition, victim = next(
        (number, seen.leader)
        for number, seen in cluster.partitions(TOPIC).items()
        if seen.leader is not None and (seen.leader == controller) == is_controller
    )
    survivor = next(node for node in cluster.node_ids if node != victim)
    writer = _Writer(cluster.bootstrap, partition)
    writer.start()
    try:
        writer.wait_acknowledged()
        sleep(CALM_SECONDS)
        began = perf_counter()
        acting = threading.Thread(target=cluster.act, args=(how, victim))
        acting.start()  # a stop returns when it is over
        while cluster.partitions(TOPIC, survivor)[partition].leader in (None, victim):
            assert perf_counter() < began + GAP_SECONDS_MAX, "nobody leads instead"
            sleep(LOOK_SECONDS)
        measured.add(("led", how, is_controller), perf_counter() - began)
        acting.join()
        writer.wait_acknowledged()
        sleep(AFTERWARDS_SECONDS)
    finally:
        writer.end()
    measured.add(("gap", how, is_controller), writer.gap_seconds(began))
    measured.add(("calm ack", how, is_controller), writer.calm_seconds(began))
    cluster.act(BACK[how], victim)


class _Writer(threading.Thread):
    """Writes to one partition at a steady rate, and notes when it hears of each record."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, **QUICK})
        self._partition = partition
        self._sent: list[float] = []
        self._heard: list[float] = []
        self._took: list[float] = []
        self._stopping = threading.Event()
        self.failure = ""

    def run(self) -> None:
        due = perf_counter()
        while not self._stopping.is_set() and not self.failure:
            now = perf_counter()
            if now >= due:
                self._sent.append(now)
                self._producer.produce(
                    TOPIC, b"t" * 100, partition=self._partition, on_delivery=partial(self._delivered, now)
                )
                due += 1 / RATE
            self._producer.poll(max(0.0, min(0.001, due - perf_counter())))
        if self._producer.flush(GAP_SECONDS_MAX):
            self.failure = self.failure or "records were never acknowledged"

    def _delivered(self, sent: float, error: KafkaError | None, _: Message) -> None:
        now = perf_counter()
        if error is not None:
            self.failure = str(error)
            return
        self._heard.append(now)
        self._took.append(now - sent)

    def wait_acknowledged(self) -> None:
        """Wait until a record is acknowledged that was not sent yet when this was called."""
        number, began = len(self._sent), perf_counter()
        while len(self._heard) <= number:
            assert not self.failure, self.failure
            assert perf_counter() < began + GAP_SECONDS_MAX, "nothing is acknowledged"
            sleep(LOOK_SECONDS)

    def end(self) -> None:
        self._stopping.set()
        self.join()
        assert not self.failure, self.failure

    def gap_seconds(self, signalled: float) -> float:
        """The longest silence since the last acknowledgement before the signal."""
        heard = self._heard[bisect_right(self._heard, signalled) - 1 :]
        return max(after - before for before, after in pairwise(heard))

    def calm_seconds(self, signalled: float) -> float:
        return median(self._took[: bisect_right(self._heard, signalled)])


def results(name: str, measured: Measured) -> list[Result]:
    rows = []
    silence = [NodeConfig().broker_session_timeout_ms / 1000]
    for how, target in TARGETS.items():
        for is_controller, title in VICTIMS.items():
            key = (how, is_controller)
            limits, limit_name = measured.of(("calm ack", *key)), "an acknowledgement when calm"
            if how == "pause":
                limits, limit_name = silence, "broker.session.timeout.ms"
            rows += [
                result(
                    name,
                    f"writes, {SIGNALS[how]}, {title}: gap p{share * 100:.0f}",
                    measured.of(("gap", *key)),
                    "s",
                    limits=limits,
                    limit_name=limit_name,
                    share=share,
                    target=f"<= {target:g} s" if share == 0.95 else "",
                )
                for share in (0.5, 0.95)
            ]
            rows.append(
                result(
                    name,
                    f"writes, {SIGNALS[how]}, {title}: another leads",
                    measured.of(("led", *key)),
                    "s",
                    limits=limits,
                    limit_name=limit_name,
                )
            )
    return rows
