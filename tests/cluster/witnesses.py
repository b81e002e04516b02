"""Clients that note down everything they ask for and are told, as threads.

Rule 1: a value is sent once. What a producer is not sure of, it does not send again.
Rule 2: a failure that a correct cluster would have kept from the application is noted in
        `failures`; the history does not know of such.
Rule 3: a member of a group notes what it read before it notes that it reads something else now.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.cluster.load import QUICK, WAIT_SECONDS_MAX
from tidelog.model import Offset
from tidelog.simulation.history import History, Polling, Sending

BATCH_RECORDS_MAX: Final = 500
UNACKNOWLEDGED_MAX: Final = 500
SESSION_MS: Final = 6000

Partitions = Mapping[str, int]
"""How many partitions each topic has."""


def all_places(topics: Partitions) -> Iterator[TopicPartition]:
    for topic, count in topics.items():
        for number in range(count):
            yield TopicPartition(topic, number)


def place_name(topic: str | None, partition: int | None) -> str:
    return f"{topic}-{partition}"


class Witness(threading.Thread):
    """Somebody with a name in the history."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.stopping = threading.Event()
        self.is_abandoned = False
        self.failures: list[str] = []

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.failures.append(f"{self.name}: {error!r}")

    def work(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        """End soon, whatever is in flight: nobody waits for answers any more."""
        self.is_abandoned = True
        self.stopping.set()

    def stop(self, seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self.stopping.set()
        self.join(seconds_max)
        if self.is_alive():
            self.failures.append(f"{self.name} does not end")


class ProducerWitness(Witness):
    """An idempotent producer with acks=all that never waits for one answer before the next."""

    def __init__(
        self,
        name: str,
        history: History,
        bootstrap: str,
        topics: Partitions,
        *,
        log: Path,
        in_flight_max: int,
        per_second_max: float,
        linger_ms: int,
        codec: str,
    ) -> None:
        """`log` is where the library tells what it thinks of what it is told."""
        super().__init__(name, history)
        self._places = list(all_places(topics))
        self._pause_seconds = 1 / per_second_max
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": linger_ms,
                "compression.type": codec,
                "message.timeout.ms": 300_000,
                "batch.num.messages": 100,
                "max.in.flight.requests.per.connection": in_flight_max,
                **QUICK,
                "debug": "eos",
                "log_level": 7,
            },
            logger=_logger(name, log),
        )
        self.acknowledged: Counter[str] = Counter()
        """How many records, by topic."""

    def work(self) -> None:
        number, due = 0, time.monotonic()
        while not self.stopping.is_set():
            if due > time.monotonic() or len(self._producer) >= UNACKNOWLEDGED_MAX:
                self._producer.poll(0.01)
                continue
            due = max(due, time.monotonic() - 0.02) + self._pause_seconds
            place = self._places[number % len(self._places)]
            value = f"{self.name}:{number}".encode()
            number += 1
            name = place_name(place.topic, place.partition)
            sending = self.history.begin_send(self.name, name, [value])
            self._producer.produce(
                place.topic, value, partition=place.partition, on_delivery=partial(self._delivered, sending)
            )
            self._producer.poll(0)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while (left := self._producer.flush(0.1)) and not self.is_abandoned:
            if time.monotonic() > deadline:
                self.failures.append(f"{self.name}: {left} records are not acknowledged")
                break
        self._producer.purge()  # what is left is told of as such
        self._producer.flush(1)

    def _delivered(self, sending: Sending, error: KafkaError | None, message: Message) -> None:
        if error is None:
            sending.ok(message.offset())
            self.acknowledged[message.topic() or ""] += 1
        else:
            sending.info()
            if not self.is_abandoned:
                self.failures.append(f"{self.name} was told of {error}")


class MemberWitness(Witness):
    """A member of a group, which commits what it has read."""

    def __init__(
        self, name: str, history: History, bootstrap: str, topics: Partitions, group: str, *, log: Path
    ) -> None:
        super().__init__(name, history)
        self._topics = topics
        self._group = group
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "check.crcs": True,
                **QUICK,
                "debug": "cgrp",
                "log_level": 7,
            },
            logger=_logger(name, log),
        )
        self._polling: Polling | None = None
        self._records: list[tuple[str, Offset, bytes]] = []
        self._uncommitted: dict[str, Offset] = {}
        self.read = 0
        self.commits = 0
        self.committed: dict[str, Offset] = {}
        """What this member has been told is committed."""

    def work(self) -> None:
        self._consumer.subscribe(list(self._topics), on_assign=self._assigned, on_revoke=self._revoked)
        while not self.stopping.is_set():
            self._poll()
            self._note()
            if self._uncommitted:
                self._commit()
        if not self.is_abandoned:  # there may be nobody to say goodbye to
            self._consumer.close()

    def _poll(self) -> None:
        """Take what is there; the callbacks come from here, too."""
        if self._polling is None:
            self._polling = self.history.begin_poll(self.name)
        seconds = 0.1
        while len(self._records) < BATCH_RECORDS_MAX:
            message = self._consumer.poll(seconds)
            seconds = 0
            if message is None:
                return
            if message.error() is not None:
                self.failures.append(f"{self.name} was told of {message.error()}")
                return
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert isinstance(value, bytes)
            name = place_name(message.topic(), message.partition())
            self._records.append((name, offset, value))

    def _note(self) -> None:
        if self._records and self._polling is not None:
            self._polling.ok(self._records)
            self._uncommitted.update((place, offset + 1) for place, offset, _ in self._records)
            self.read += len(self._records)
            self._polling, self._records = None, []

    def _commit(self) -> None:
        """Commit what was read; what nobody is sure of is committed again with the next one."""
        ends, places = dict(self._uncommitted), []
        for name, end in ends.items():
            topic, _, number = name.rpartition("-")
            places.append(TopicPartition(topic, int(number), end))
        committing = self.history.begin_commit(self.name, self._group, ends)
        try:
            done = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            committing.info()  # perhaps it is stored, perhaps somebody else owns them by now
            return
        if any(place.error is not None for place in done or ()):
            committing.info()
            return
        committing.ok()
        self._uncommitted.clear()
        self.committed.update(ends)
        self.commits += 1

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._note()
        names = [place_name(place.topic, place.partition) for place in places]
        self.history.begin_assign(self.name, names).ok()

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._note()
        self._uncommitted.clear()  # whoever gets them reads that again
        self.history.begin_assign(self.name, ()).ok()


def _logger(name: str, file: Path) -> logging.Logger:
    """A logger that nobody else hears."""
    logger = logging.getLogger(f"{__name__}.{name}")
    logger.handlers.clear()
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


def read_everything(
    name: str, history: History, bootstrap: str, topics: Partitions, ends: Mapping[str, Offset]
) -> list[str]:
    """Read every partition from its start to its end; what went wrong."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "client.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            **QUICK,
        }
    )
    left = {place for place, end in ends.items() if end > 0}
    try:
        places = [TopicPartition(p.topic, p.partition, 0) for p in all_places(topics)]
        consumer.assign(places)
        history.begin_assign(name, ends).ok()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while left:
            polling = history.begin_poll(name)
            messages = consumer.consume(5000, 0.2)
            if errors := [m.error() for m in messages if m.error() is not None]:
                return [f"{name} was told of {errors[0]}"]
            polling.ok(_records(messages))
            for message in messages:
                place = place_name(message.topic(), message.partition())
                offset = message.offset()
                assert offset is not None
                if offset + 1 >= ends[place]:
                    left.discard(place)
            if messages:
                deadline = time.monotonic() + WAIT_SECONDS_MAX
            elif time.monotonic() > deadline:
                return [f"{name} does not come to the end of {sorted(left)}"]
        return []
    finally:
        consumer.close()


def _records(messages: Sequence[Message]) -> Iterator[tuple[str, Offset, bytes]]:
    for message in messages:
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        yield place_name(message.topic(), message.partition()), offset, value
