"""Producers that never stop, and the account of what they were promised."""

import random
import threading
import time
from collections import defaultdict
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

WAIT_SECONDS_MAX: Final = 60.0
UNACKNOWLEDGED_MAX: Final = 1000

QUICK: Final[dict[str, str | int | float]] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 10_000,
    "metadata.recovery.strategy": "none",  # to begin from the bootstrap servers takes a second
    "log_level": 0,
}
"""A client that comes back at once when its node does."""


def create_topic(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])
    made[topic].result(WAIT_SECONDS_MAX)


class Load(threading.Thread):
    """One idempotent producer with acks=all, writing unique rising values to every partition.

    `acknowledged[partition]` holds (offset, number) in the order in which the promises came, where
    the offset was told.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        seed: int,
        *,
        per_second_max: float = float("inf"),
        unacknowledged_max: int = UNACKNOWLEDGED_MAX,
    ) -> None:
        """A pause is not made up for: after it, the load goes on at the same rate."""
        super().__init__(name=name, daemon=True)
        self._topic = topic
        self._partitions = partitions
        self._pause_seconds = 1 / per_second_max
        self._unacknowledged_max = unacknowledged_max
        self._random = random.Random(f"{seed} {name}")
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": self._random.choice((0, 2, 5)),
                "compression.type": self._random.choice(("none", "lz4", "zstd")),
                "message.timeout.ms": 300_000,
                "batch.num.messages": 200,
                **QUICK,
            }
        )
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.count_acknowledged = 0
        self.failure: str | None = None

    def partition(self, number: int) -> int:
        return self._random.randrange(self._partitions)

    def key(self, number: int) -> bytes | None:
        return None

    def value(self, number: int) -> bytes | None:
        """Some hundred bytes, hard to compress, behind the producer's name and the number."""
        noise = random.Random(number).randbytes(number % 600)
        return b"%s:%d:" % (self.name.encode(), number) + noise

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._fail(repr(error))

    def _run(self) -> None:
        number, due = 0, time.monotonic()
        while not self._stopping.is_set() and self.failure is None:
            is_early = due > time.monotonic()
            if is_early or len(self._producer) >= self._unacknowledged_max:
                self._producer.poll(0.01)
                continue
            # Polls last as long as a few records take: those may follow at once.
            due = max(due, time.monotonic() - 0.02) + self._pause_seconds
            partition = self.partition(number)
            self.sent[partition].append(number)
            self._producer.produce(
                self._topic,
                self.value(number),
                key=self.key(number),
                partition=partition,
                on_delivery=partial(self._delivered, number),
            )
            number += 1
            self._producer.poll(0)
        left = self._producer.flush(WAIT_SECONDS_MAX)
        if left and self.failure is None:
            self._fail(f"{left} records were never acknowledged")

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._fail(f"record {number} failed: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        with self._changed:
            if offset is not None:  # else librdkafka has concluded it from a later batch's answer
                self.acknowledged[partition].append((offset, number))
            self.count_acknowledged += 1
            self._changed.notify_all()

    def _fail(self, what: str) -> None:
        with self._changed:
            self.failure = f"{self.name}: {what}"
            self._changed.notify_all()

    def wait_acknowledged(self, more: int) -> None:
        """Wait until so many more records are acknowledged than are now."""
        with self._changed:
            target = self.count_acknowledged + more
            self._changed.wait_for(
                lambda: self.failure is not None or self.count_acknowledged >= target, WAIT_SECONDS_MAX
            )
            assert self.failure is None, self.failure
            assert self.count_acknowledged >= target, f"{self.name}: nothing is acknowledged"

    def stop(self) -> None:
        """Send nothing more; everything sent is acknowledged when this returns."""
        self._stopping.set()
        self.join(WAIT_SECONDS_MAX + 5)
        assert not self.is_alive()
        assert self.failure is None, self.failure

    def abandon(self) -> None:
        """End without a word, whatever is in flight; for when the test has failed or is done."""
        self._fail("abandoned")
        self._producer.purge()


def _watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Where a partition begins and ends. A lead may move home just now: this alone is not retried
    by the library."""
    moving = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            found = consumer.get_watermark_offsets(place, WAIT_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() not in moving or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            assert found is not None
            return found


def read_back(bootstrap: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Every record of a partition with its offset, as a consumer gets them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-back",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            **QUICK,
        }
    )
    try:
        low, high = _watermarks(consumer, TopicPartition(topic, partition))
        consumer.assign([TopicPartition(topic, partition, low)])
        found: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(found) < high - low:
            for message in consumer.consume(5000, 0.2):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert isinstance(value, bytes)
                found.append((offset, value))
            assert time.monotonic() < deadline, f"{len(found)} of {high - low} records came"
        return found
    finally:
        consumer.close()


def check_account(loads: list[Load], bootstrap: str, topic: str, partitions: int) -> int:
    """Everything acknowledged is there once, in order, at its offset; nothing else is."""
    total = 0
    for partition in range(partitions):
        found = read_back(bootstrap, topic, partition)
        total += len(found)
        assert [offset for offset, _ in found] == list(range(len(found))), "a gap or a repetition"
        values = dict(found)
        for load in loads:
            for offset, number in load.acknowledged[partition]:
                assert values.get(offset) == load.value(number), (
                    f"{load.name}'s record {number} was acknowledged at {topic}-{partition} "
                    f"offset {offset}, which holds {values.get(offset)!r}"
                )
            mine = [value for _, value in found if value.startswith(load.name.encode() + b":")]
            assert mine == [load.value(number) for number in load.sent[partition]], (
                f"{load.name}'s records in {topic}-{partition} are not those it sent, in order"
            )
        assert len(found) == sum(len(load.sent[partition]) for load in loads), "a stranger's record"
    return total
