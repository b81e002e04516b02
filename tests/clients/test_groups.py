"""Consumer groups with real clients: members that come, go, die and come back."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.node import NodeProcess

LIBRARIES = ["confluent", "kafka-python", "aiokafka"]
PARTITIONS = 4
SECONDS_MAX = 40.0


class Member:
    """A consumer in a process of its own, and what it said."""

    def __init__(
        self, library: str, bootstrap: str, group: str, topic: str, instance: str | None = None
    ) -> None:
        arguments = [library, bootstrap, group, topic]
        arguments += ["--instance", instance] if instance else []
        self._name = " ".join(arguments)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.member", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._changed = threading.Condition()
        self._assignments: list[list[int]] = []
        self._generations: list[int] = []
        self._values: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            with self._changed:
                if "assigned" in said:
                    self._assignments.append(said["assigned"])
                    self._generations.append(said.get("generation", -1))
                self._values += said.get("values", [])
                self._changed.notify_all()

    @property
    def values(self) -> list[str]:
        with self._changed:
            return list(self._values)

    @property
    def partitions(self) -> list[int]:
        with self._changed:
            return list(self._assignments[-1]) if self._assignments else []

    @property
    def generation(self) -> int:
        """Of the last assignment; -1 before the first."""
        with self._changed:
            return self._generations[-1] if self._generations else -1

    def end(self, *, cleanly: bool) -> None:
        if cleanly:
            self._process.terminate()
        else:
            self._process.kill()
        self._process.wait(SECONDS_MAX)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def __str__(self) -> str:
        code = self._process.poll()
        state = "runs" if code is None else f"ended with {code}"
        had = list(zip(self._generations, self._assignments, strict=True))
        return f"{self._name}: {state}, had {had}, read {len(self.values)}"


class Members:
    """Starts members, and ends them with the test."""

    def __init__(self) -> None:
        self._members: list[Member] = []

    def start(self, *arguments: Any, **named: Any) -> Member:
        member = Member(*arguments, **named)
        self._members.append(member)
        return member

    def end_all(self) -> None:
        for member in self._members:
            print(member)  # shown if the test has failed
            if member.is_running:
                member.end(cleanly=False)


@pytest.fixture
def members() -> Iterator[Members]:
    members = Members()
    yield members
    members.end_all()


def until(condition: Callable[[], object], what: str) -> None:
    """Members speak from other processes: look often, for a bounded time."""
    deadline = time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX} s: {what}"
        pause.wait(0.02)


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(10)


def produce(bootstrap: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value=str(value), partition=value % PARTITIONS)
    assert producer.flush(20) == 0


def share(*members: Member) -> bool:
    """Whether the members hold every partition, each one of them."""
    held = [p for member in members for p in member.partitions]
    return sorted(held) == list(range(PARTITIONS)) and all(m.partitions for m in members)


@pytest.mark.parametrize("library", LIBRARIES)
def test_members_share_the_partitions_and_take_over_from_one_that_was_killed(
    library: str, node: NodeProcess, topic: str, members: Members
) -> None:
    create(node.bootstrap, topic)
    produce(node.bootstrap, topic, range(200))
    first = members.start(library, node.bootstrap, topic, topic)
    until(lambda: first.partitions == list(range(PARTITIONS)), "the first has everything")
    second = members.start(library, node.bootstrap, topic, topic)
    until(lambda: share(first, second), "the two share")

    second.end(cleanly=False)
    produce(node.bootstrap, topic, range(200, 400))
    until(lambda: first.partitions == list(range(PARTITIONS)), "the first has everything again")

    def seen() -> set[str]:
        return set(first.values) | set(second.values)

    until(lambda: seen() == set(map(str, range(400))), "everything was consumed")
    third = members.start(library, node.bootstrap, topic, topic)
    until(lambda: share(first, third), "a new member gets its share")


def test_clients_of_three_libraries_live_in_one_node_each_in_its_group(
    node: NodeProcess, topic: str, members: Members
) -> None:
    create(node.bootstrap, topic)
    produce(node.bootstrap, topic, range(100))

    everyone = [members.start(library, node.bootstrap, f"{topic}-{library}", topic) for library in LIBRARIES]

    expected = set(map(str, range(100)))
    for member in everyone:
        until(lambda m=member: set(m.values) == expected, "each group consumes everything")  # type: ignore[misc]


@pytest.mark.parametrize("library", ["confluent", "kafka-python"])
def test_a_static_member_restarts_without_a_rebalance(
    library: str, node: NodeProcess, topic: str, members: Members
) -> None:
    create(node.bootstrap, topic)
    stays = members.start(library, node.bootstrap, topic, topic, instance="stays")
    until(lambda: stays.partitions == list(range(PARTITIONS)), "the first has everything")
    restarts = members.start(library, node.bootstrap, topic, topic, instance="restarts")
    until(
        lambda: share(stays, restarts) and stays.generation == restarts.generation,
        "the two share, and both know it",
    )
    generation, held = restarts.generation, restarts.partitions

    restarts.end(cleanly=False)
    again = members.start(library, node.bootstrap, topic, topic, instance="restarts")
    until(lambda: again.partitions == held, "it gets back what it had")

    assert again.generation == generation
    assert stays.generation == generation


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_goes_on_where_it_was_after_the_node_restarts(
    library: str, data: Path, topic: str, members: Members
) -> None:
    with NodeProcess(data) as node:
        create(node.bootstrap, topic)
        produce(node.bootstrap, topic, range(100))
        member = members.start(library, node.bootstrap, topic, topic)
        until(lambda: len(member.values) == 100, "everything was consumed")

        node.kill()
        node.start()
        produce(node.bootstrap, topic, range(100, 200))

        until(lambda: set(member.values) == set(map(str, range(200))), "the rest was consumed")


def test_a_commit_of_an_earlier_generation_is_refused(node: NodeProcess, topic: str) -> None:
    create(node.bootstrap, topic)
    config: dict[str, Any] = {
        "bootstrap.servers": node.bootstrap,
        "group.id": topic,
        "session.timeout.ms": 6000,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "max.poll.interval.ms": 6000,
    }
    slow = Consumer(config)
    slow.subscribe([topic])
    until(lambda: slow.poll(0.05) or slow.assignment(), "the slow one is assigned")
    # It no longer polls, so it does not rejoin when another comes, and the group goes on.
    quick = Consumer(config)
    quick.subscribe([topic])
    until(
        lambda: quick.poll(0.05) or len(quick.assignment()) == PARTITIONS,
        "the group goes on without the slow one",
    )

    with pytest.raises(KafkaException) as refused:
        slow.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)

    assert refused.value.args[0].code() in (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._STATE,
        KafkaError.REBALANCE_IN_PROGRESS,
    )
    committed = quick.committed([TopicPartition(topic, 0)], timeout=10)
    assert committed[0].offset < 0
    quick.close()
    slow.close()


def test_groups_are_listed_described_and_deleted(node: NodeProcess, topic: str) -> None:
    create(node.bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.05) or consumer.assignment(), "it is assigned")
    consumer.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})

    listed = {group.group_id for group in admin.list_consumer_groups().result(10).valid}
    described = admin.describe_consumer_groups([topic])[topic].result(10)
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([topic])[topic].result(10)
    consumer.close()
    admin.delete_consumer_groups([topic])[topic].result(10)

    assert topic in listed
    assert described.state.name == "STABLE"
    assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    left = {group.group_id for group in admin.list_consumer_groups().result(10).valid}
    assert topic not in left
