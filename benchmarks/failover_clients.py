"""How long clients with their default settings cannot write when the leader of their partition is killed.

Rule 1: a client is told the addresses of the nodes, and nothing else: its pauses are part of what an
        application sees.
Rule 2: the clock starts at SIGKILL, and stops at the first acknowledgement of a record that was sent
        once the process was gone.
Rule 3: all clients write to the same partition at the same time, so that each sees every kill; slowly,
        so that none is in another's way.
Rule 4: a round begins when every replica is in sync and every preferred leader leads. Every other
        victim is also the active controller.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from benchmarks.bench import Bench, Steps
from benchmarks.cluster import Cluster, cluster_of_three
from benchmarks.report import Measured, Report, Result, result
from tests.support.cluster import wait_until

NAME: Final = "failover_clients"
TOPIC: Final = "written"
PARTITIONS: Final = 6
RATE: Final = 50
CALM_SECONDS: Final = 1.0
GAP_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 0.005
VALUE: Final = b"t" * 100
TARGET_SECONDS: Final = 0.4

NOTES: Final = (
    f"from SIGKILL to the next acknowledgement, {RATE} records/s, all clients with their defaults; "
    "`another leads` is the cluster's share of it, as a survivor knows it",
)


def rounds(bench: Bench) -> int:
    return 2 if bench.quick else 20 if bench.full else 6


def run(bench: Bench) -> Report:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # that a leader is gone is no news here
    measured = Measured()
    with cluster_of_three(bench) as cluster, Steps(NAME, rounds(bench)) as steps:
        cluster.create(TOPIC, partitions=PARTITIONS)
        for number in range(rounds(bench)):
            is_controller = number % 2 == 1
            steps.begin(f"kill a leader that is {'also' if is_controller else 'not'} the controller")
            _round(cluster, is_controller, measured)
    return Report(title="default clients and a killed leader", results=_results(measured), notes=NOTES)


def _results(measured: Measured) -> list[Result]:
    led = measured.of("led")
    rows = [result(NAME, "another leads", led, "s")]
    for writer in WRITERS:
        for share in (0.5, 0.95):
            target = f"<= {TARGET_SECONDS:g} s" if share == 0.95 else ""
            row = partial(result, limits=led, limit_name="another leads", share=share, target=target)
            rows.append(row(NAME, f"{writer.name}: p{share * 100:.0f}", measured.of(writer.name), "s"))
    return rows


def _round(cluster: Cluster, is_controller: bool, measured: Measured) -> None:
    cluster.wait_whole([TOPIC], at_home=True)
    controller = cluster.controller()
    partition, victim = next(
        (number, seen.leader)
        for number, seen in cluster.partitions(TOPIC).items()
        if seen.leader is not None and (seen.leader == controller) == is_controller
    )
    survivor = next(node for node in cluster.node_ids if node != victim)
    runs = [_Run(writer(), cluster.bootstraps, partition) for writer in WRITERS]
    try:
        for one in runs:
            one.start()
        for one in runs:
            one.wait_since(perf_counter())
        sleep(CALM_SECONDS)
        began = perf_counter()
        cluster.act("kill", victim)
        gone = perf_counter()
        while cluster.partitions(TOPIC, survivor)[partition].leader in (None, victim):
            assert perf_counter() < began + GAP_SECONDS_MAX, "nobody leads instead"
            sleep(LOOK_SECONDS)
        measured.add("led", perf_counter() - began)
        for one in runs:
            measured.add(one.writer.name, one.wait_since(gone) - began)
    finally:
        for one in runs:
            one.end()
    cluster.act("start", victim)
    wait_until(cluster.is_whole, "the victim did not come back")


class Writer(Protocol):
    """A client that writes one record after the other, with whatever its library has as defaults."""

    name: str

    def open(self, bootstraps: list[str]) -> None: ...

    def send(self, partition: int, acknowledged: Callable[[], None]) -> None:
        """Send a record without waiting; `acknowledged` is called once it is."""
        ...

    def work(self, seconds: float) -> None:
        """Let the library do what it does in the caller's thread."""
        ...

    def close(self) -> None: ...


class Librdkafka(Writer):
    name = "librdkafka (confluent-kafka)"

    def open(self, bootstraps: list[str]) -> None:
        self._producer = Producer({"bootstrap.servers": ",".join(bootstraps), "log_level": 0})

    def send(self, partition: int, acknowledged: Callable[[], None]) -> None:
        def delivered(error: object, _: object) -> None:
            if error is None:
                acknowledged()

        self._producer.produce(TOPIC, VALUE, partition=partition, on_delivery=delivered)

    def work(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def close(self) -> None:
        self._producer.flush(GAP_SECONDS_MAX)


class Aiokafka(Writer):
    name = "aiokafka"

    def open(self, bootstraps: list[str]) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(bootstraps))

    async def _open(self, bootstraps: list[str]) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstraps)
        await self._producer.start()
        self._sent: set[asyncio.Task[None]] = set()

    def send(self, partition: int, acknowledged: Callable[[], None]) -> None:
        async def wait() -> None:
            await self._producer.send_and_wait(TOPIC, VALUE, partition=partition)
            acknowledged()

        async def begin() -> None:
            task = asyncio.create_task(wait())
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)

        self._runner.run(begin())

    def work(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()


class KafkaPython(Writer):
    name = "kafka-python"

    def open(self, bootstraps: list[str]) -> None:
        self._producer = KafkaProducer(bootstrap_servers=bootstraps)

    def send(self, partition: int, acknowledged: Callable[[], None]) -> None:
        sent: Any = self._producer.send(TOPIC, VALUE, partition=partition)
        sent.add_callback(lambda _: acknowledged())

    def work(self, seconds: float) -> None:
        sleep(seconds)

    def close(self) -> None:
        self._producer.close()


WRITERS: Final[tuple[type[Writer], ...]] = (Librdkafka, Aiokafka, KafkaPython)


class _Run(threading.Thread):
    """One client that writes to one partition at a steady rate."""

    def __init__(self, writer: Writer, bootstraps: list[str], partition: int) -> None:
        super().__init__(daemon=True)
        self.writer = writer
        self._bootstraps = bootstraps
        self._partition = partition
        self._heard: list[tuple[float, float]] = []
        """When a record was sent, and when it was acknowledged."""
        self._stopping = threading.Event()

    def run(self) -> None:
        writer = self.writer
        writer.open(self._bootstraps)
        due = perf_counter()
        while not self._stopping.is_set():
            if perf_counter() >= due:
                writer.send(self._partition, partial(self._acknowledged, perf_counter()))
                due += 1 / RATE
            writer.work(max(0.001, min(0.01, due - perf_counter())))
        writer.close()

    def _acknowledged(self, sent: float) -> None:
        self._heard.append((sent, perf_counter()))

    def wait_since(self, moment: float) -> float:
        """Wait for an acknowledgement of a record that was sent after `moment`; when it came."""
        give_up_at = perf_counter() + GAP_SECONDS_MAX
        while True:
            for sent, heard in self._heard:
                if sent > moment:
                    return heard
            assert perf_counter() < give_up_at, f"{self.writer.name}: nothing is acknowledged"
            assert self.is_alive(), f"{self.writer.name} has ended"
            sleep(LOOK_SECONDS)

    def end(self) -> None:
        self._stopping.set()
        self.join()
