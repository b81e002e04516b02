"""A node killed under load loses nothing that it acknowledged."""

import random
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.node import NodeProcess

ROUNDS = 50
PARTITIONS = 4
WAIT_SECONDS_MAX = 60.0
SETTINGS = {
    "num.partitions": PARTITIONS,
    "log.segment.bytes": 1024 * 1024,  # so that rolls are interrupted too
    "checkpoint.ms": 200,
}


class Load:
    """An idempotent producer that never stops, and what it was told."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all",
                "linger.ms": 1, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20,
                "delivery.timeout.ms": 120_000, "log_level": 0,
            }
        )  # fmt: skip
        self._told = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._in_flight = threading.Semaphore(2000)
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        """Value by offset, by partition."""
        self.count = 0
        self.sent = 0
        self.errors: list[KafkaError] = []

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            while not self._in_flight.acquire(blocking=False):
                self._producer.poll(0.05)
            value = self.sent
            self.sent += 1
            self._producer.produce(
                self._topic, value=b"%d %s" % (value, b"." * (value % 500)),
                partition=value % PARTITIONS, on_delivery=self._delivered,
            )  # fmt: skip
            self._producer.poll(0)
        assert self._producer.flush(WAIT_SECONDS_MAX) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._in_flight.release()
        with self._told:
            if error is not None:
                self.errors.append(error)
            else:
                value = int(message.value().split()[0])
                self.acknowledged[message.partition()][message.offset()] = value
                self.count += 1
            self._told.notify_all()

    def wait_for(self, more: int) -> None:
        """Wait until `more` records have been acknowledged from now on."""
        with self._told:
            wanted = self.count + more
            assert self._told.wait_for(lambda: self.count >= wanted, WAIT_SECONDS_MAX), self.errors


def read_back(bootstrap: str, topic: str) -> dict[int, dict[int, int]]:
    """Every record of the topic: value by offset, by partition; in the order it was read."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    found: dict[int, dict[int, int]] = {number: {} for number in range(PARTITIONS)}
    ends = {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1]
        for number in found
    }
    consumer.assign([TopicPartition(topic, number, 0) for number in found])
    left = {number for number, end in ends.items() if end > 0}
    while left:
        messages = consumer.consume(10_000, timeout=10)
        assert messages, f"nothing more came, though {left} are not at their ends"
        for message in messages:
            assert message.error() is None, message.error()
            found[message.partition()][message.offset()] = int(message.value().split()[0])
            if message.offset() + 1 >= ends[message.partition()]:
                left.discard(message.partition())
    consumer.close()
    return found


def check(load: Load, found: dict[int, dict[int, int]]) -> None:
    assert load.errors == []
    for number in range(PARTITIONS):
        acknowledged = load.acknowledged[number]
        lost = {o: v for o, v in acknowledged.items() if found[number].get(o) != v}
        assert not lost, f"partition {number} lost or moved {len(lost)}: {list(lost.items())[:5]}"
        values = list(found[number].values())
        assert values == sorted(set(values)), f"partition {number} repeats or reorders"
        assert set(values) <= set(range(number, load.sent, PARTITIONS)), "something never sent"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_acknowledged_record_survives_fifty_kills_in_order_and_once(tmp_path: Path) -> None:
    choose = random.Random(50)
    with NodeProcess(tmp_path / "data", SETTINGS) as node:
        with Load(node.bootstrap, "orders") as load:
            for _ in range(ROUNDS):
                load.wait_for(more=choose.randrange(1, 3000))
                node.kill()
                node.start()
            load.wait_for(more=1)
        found = read_back(node.bootstrap, "orders")

    assert load.count > ROUNDS
    check(load, found)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_clean_stop_under_load_loses_nothing_and_leaves_its_marker(tmp_path: Path) -> None:
    choose = random.Random(7)
    with NodeProcess(tmp_path / "data", SETTINGS) as node:
        with Load(node.bootstrap, "orders") as load:
            for _ in range(3):
                load.wait_for(more=choose.randrange(1, 3000))
                assert node.stop() == 0
                assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
                node.start()
                assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
            load.wait_for(more=1)
        found = read_back(node.bootstrap, "orders")

    check(load, found)
