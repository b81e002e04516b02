"""The operator's commands at a real node: what they show, change, refuse and leave alone."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.node import NodeProcess
from tidelog.faces.cli import main

SECONDS_MAX = 30.0
PARTITIONS = 3
RECORDS = 10
"""In each partition."""


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def tidelog(node: NodeProcess, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run `tidelog ARGUMENTS` at the shared node."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([*map(str, arguments), "--bootstrap", node.bootstrap])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def orders(node: NodeProcess, tidelog: Callable[..., Result], topic: str) -> str:
    """A topic with ten records in each of its three partitions."""
    assert tidelog("topics", "create", topic, "--partitions", PARTITIONS).code == 0
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(topic, b"x", partition=partition, timestamp=1000 * (number + 1))
    assert producer.flush(SECONDS_MAX) == 0
    return topic


@pytest.fixture
def group(topic: str) -> str:
    return f"group-{topic}"


def committed(tidelog: Callable[..., Result], group: str) -> list[int | None]:
    described = tidelog("groups", "describe", group, "--json").json
    return [one["committed"] for one in described["partitions"]]


def commit(node: NodeProcess, group: str, topic: str, offsets: list[int]) -> None:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
    places = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


@contextmanager
def consuming(node: NodeProcess, group: str, topic: str, **settings: Any) -> Iterator[None]:
    """Meanwhile a member owns every partition."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": group, "enable.auto.commit": False}
        | {"auto.offset.reset": "earliest"}
        | settings
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + SECONDS_MAX
        while len(consumer.assignment()) < PARTITIONS:
            assert time.monotonic() < deadline, "the member was given no partitions"
            consumer.poll(0.1)
        yield
    finally:
        consumer.close()


# Groups.


def test_a_group_is_described_with_its_members_offsets_and_lag(tidelog, node, orders, group):
    commit(node, group, orders, [4, 10])

    with consuming(node, group, orders, **{"client.id": "c\x1b[31m"}):
        shown = tidelog("groups", "describe", group)
        described = tidelog("groups", "describe", group, "--json").json
        listed = tidelog("groups", "list", "--state", "stable", "--json").json

    assert {"group": group, "state": "Stable", "type": "consumer"} in listed["groups"]
    (member,) = described["members"]
    assert member["assignment"] == [{"topic": orders, "partitions": [0, 1, 2]}]
    assert (member["client"], member["host"]) == ("c\x1b[31m", "/127.0.0.1")
    assert [(one["committed"], one["end"], one["lag"], one["owner"]) for one in described["partitions"]] == [
        (4, 10, 6, member["member"]),
        (10, 10, 0, member["member"]),
        (None, 10, None, member["member"]),
    ]
    assert described["lag"] == 6
    assert shown.code == 0 and "c\\x1b[31m" in shown.out and "\x1b" not in shown.out


def test_groups_are_listed_by_state(tidelog, node, orders, group):
    commit(node, group, orders, [1])

    def names(*arguments: str) -> list[str]:
        listed = tidelog("groups", "list", *arguments, "--json").json
        return [one["group"] for one in listed["groups"]]

    assert group in names()
    assert group in names("--state", "Empty", "--state", "Dead")
    assert group not in names("--state", "Stable")
    assert group in tidelog("groups", "list").out


def test_an_unknown_group_is_an_error_of_one_line(tidelog):
    for command in (["describe"], ["delete", "--yes"], ["delete-offsets", "--topic", "t"]):
        result = tidelog("groups", command[0], "nobody", *command[1:])

        assert (result.code, result.out) == (1, "")
        assert result.err.count("\n") == 1 and "nobody" in result.err


@pytest.mark.parametrize(
    ("target", "after"),
    [
        (["--to-earliest"], [0, 0, 0]),
        (["--to-latest"], [10, 10, 10]),
        (["--to-offset", 7], [7, 7, 7]),
        (["--to-offset", 700], [10, 10, 10]),
        (["--to-time", 3500], [3, 3, 3]),
        (["--to-time", "1970-01-01T00:00:05"], [4, 4, 4]),
        (["--to-time", "2100-01-01"], [10, 10, 10]),
        (["--shift", -4], [0, 1, 5]),
        (["--shift", 4], [6, 9, 10]),
        (["--to-current"], [2, 5, 9]),
        (["--to-latest", "--partition", 2, "--partition", 0], [10, 5, 10]),
    ],
)
def test_a_reset_shows_first_and_moves_when_told(tidelog, node, orders, group, target, after):
    commit(node, group, orders, [2, 5, 9])

    dry = tidelog("groups", "reset", group, "--topic", orders, *target)
    untouched = committed(tidelog, group)
    done = tidelog("groups", "reset", group, "--topic", orders, *target, "--execute", "--json").json

    assert dry.code == 0 and "dry run" in dry.err and orders in dry.out
    assert untouched == [2, 5, 9]
    assert committed(tidelog, group) == after
    assert done["executed"] and not done["new_group"]
    assert {one["partition"]: (one["from"], one["to"]) for one in done["partitions"]} == {
        number: ([2, 5, 9][number], after[number])
        for number in ([0, 2] if "--partition" in target else [0, 1, 2])
    }


def test_a_consumer_goes_on_from_where_its_group_was_reset_to(tidelog, node, orders, group):
    tidelog("groups", "reset", group, "--topic", orders, "--to-offset", 9, "--execute")

    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
    consumer.subscribe([orders])
    offsets: list[int | None] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(offsets) < PARTITIONS and time.monotonic() < deadline:
        if (message := consumer.poll(0.1)) is not None:
            offsets.append(message.offset())
    consumer.close()

    assert offsets == [9, 9, 9]


def test_a_reset_may_found_a_group_and_says_so(tidelog, orders, group):
    dry = tidelog("groups", "reset", group, "--topic", orders, "--to-earliest")
    missing = tidelog("groups", "describe", group)
    done = tidelog("groups", "reset", group, "--topic", orders, "--to-earliest", "--execute")

    assert dry.code == 0 and "no group" in dry.err
    assert missing.code == 1
    assert done.code == 0 and committed(tidelog, group) == [0, 0, 0]


def test_what_cannot_be_reset_is_refused_in_one_line(tidelog, orders, group):
    for arguments, expected in [
        (["--topic", orders, "--shift", 1], "--to-earliest"),
        (["--topic", orders, "--to-latest", "--partition", 3], "partitions 0 to 2"),
        (["--topic", "no-such-topic", "--to-latest"], "does not exist"),
    ]:
        result = tidelog("groups", "reset", group, *arguments, "--execute")

        assert (result.code, result.out) == (1, "")
        assert result.err.count("\n") == 1 and expected in result.err


def test_a_group_with_members_is_neither_reset_nor_deleted(tidelog, node, orders, group):
    commit(node, group, orders, [2, 5, 9])

    with consuming(node, group, orders):
        results = [
            tidelog("groups", "reset", group, "--topic", orders, "--to-latest", "--execute"),
            tidelog("groups", "delete", group, "--yes"),
            tidelog("groups", "delete-offsets", group, "--topic", orders, "--yes"),
        ]
        unharmed = committed(tidelog, group)

    assert [result.code for result in results] == [1, 1, 1]
    assert all("stop" in result.err and "first" in result.err for result in results)
    assert unharmed == [2, 5, 9]


def test_a_group_is_deleted_only_after_a_yes_and_what_was_lost_is_told(tidelog, node, orders, group):
    commit(node, group, orders, [2, 5])

    refused = tidelog("groups", "delete", group)
    unharmed = committed(tidelog, group)
    deleted = tidelog("groups", "delete", group, "--yes", "--json").json

    assert refused.code == 1 and "2 committed offsets" in refused.err and "--yes" in refused.err
    assert unharmed == [2, 5]
    assert deleted["offsets"] == [
        {"topic": orders, "partition": 0, "offset": 2},
        {"topic": orders, "partition": 1, "offset": 5},
    ]
    assert tidelog("groups", "describe", group).code == 1


def test_offsets_of_one_partition_are_deleted_and_others_stay(tidelog, node, orders, group):
    commit(node, group, orders, [2, 5, 9])
    command = ["groups", "delete-offsets", group, "--topic", orders, "--partition", 1, "--yes"]

    first = tidelog(*command)
    again = tidelog(*command)

    assert first.code == 0 and committed(tidelog, group) == [2, 9]
    assert again.code == 1 and "no such offsets" in again.err


# Settings.


def settings(tidelog: Callable[..., Result], *arguments: object) -> dict[str, tuple[str, str]]:
    """Value and source, by name."""
    described = tidelog("configs", "describe", *arguments, "--json").json
    return {one["name"]: (one["value"], one["source"]) for one in described["configs"]}


def test_only_what_is_not_at_its_default_is_shown_unless_all_is_asked_for(tidelog, topic):
    tidelog("topics", "create", topic, "--config", "retention.ms=1000")

    everything = tidelog("configs", "describe", "--topic", topic, "--all")

    assert settings(tidelog, "--topic", topic) == {"retention.ms": ("1000", "topic")}
    assert "segment.bytes" in everything.out and "Start a new segment" in everything.out
    assert settings(tidelog, "--topic", topic, "--all")["segment.bytes"][1] == "default"
    assert settings(tidelog, "--broker", 1)["kafka"][1] == "at start"


def test_settings_are_set_and_unset_and_a_dry_run_changes_nothing(tidelog, topic):
    tidelog("topics", "create", topic)
    change = ["configs", "set", "--topic", topic, "retention.ms=1000", "segment.ms=5000"]

    dry = tidelog(*change, "--dry-run")
    untouched = settings(tidelog, "--topic", topic)
    done = tidelog(*change, "--json").json
    changed = settings(tidelog, "--topic", topic)
    undone = tidelog("configs", "unset", "--topic", topic, "retention.ms", "--json").json

    assert dry.code == 0 and "dry run" in dry.err and "may be deleted" in dry.err
    assert untouched == {}
    assert done["changes"][0] == {"name": "retention.ms", "before": "604800000", "after": "1000"}
    assert changed == {"retention.ms": ("1000", "topic"), "segment.ms": ("5000", "topic")}
    assert undone["changes"] == [{"name": "retention.ms", "before": "1000", "after": "604800000"}]
    assert settings(tidelog, "--topic", topic) == {"segment.ms": ("5000", "topic")}


def test_a_brokers_setting_is_changed_and_given_back(tidelog):
    done = tidelog("configs", "set", "--broker", 1, "connections.max=9999")
    changed = settings(tidelog, "--broker", 1)
    tidelog("configs", "unset", "--broker", 1, "connections.max")

    assert done.code == 0
    assert changed["connections.max"] == ("9999", "broker")
    assert "connections.max" not in settings(tidelog, "--broker", 1)


def test_settings_that_cannot_be_are_refused_by_name_and_none_is_changed(tidelog, topic):
    tidelog("topics", "create", topic)
    for arguments, expected in [
        (["set", "--topic", topic, "segment.ms=5000", "retention.ms=soon"], "retention.ms"),
        (["set", "--topic", topic, "segment.ms=5000", "nonsense=1"], "nonsense"),
        (["set", "--topic", topic, "segment.ms=5000", "segment.ms=6000"], "segment.ms"),
        (["unset", "--topic", topic, "nonsense"], "nonsense"),
        (["set", "--topic", "no-such-topic", "segment.ms=5000"], "no-such-topic"),
        (["set", "--broker", 1, "node.id=7"], "node.id"),
        (["set", "--broker", 77, "connections.max=9999"], "77"),
    ]:
        result = tidelog("configs", *arguments)

        assert (result.code, result.out) == (1, "")
        assert result.err.count("\n") == 1 and expected in result.err
    assert settings(tidelog, "--topic", topic) == {}


# Topics.


def partitions(tidelog: Callable[..., Result], topic: str) -> int:
    return len(tidelog("topics", "describe", topic, "--json").json["partitions"])


def test_a_topic_is_altered_and_a_dry_run_leaves_it_alone(tidelog, topic):
    tidelog("topics", "create", topic, "--partitions", 2, "--config", "segment.ms=5000")
    change = ["topics", "alter", topic, "--partitions", 5, "--config", "retention.ms=1000"]
    change += ["--delete-config", "segment.ms"]

    dry = tidelog(*change, "--dry-run")
    untouched = partitions(tidelog, topic), settings(tidelog, "--topic", topic)
    done = tidelog(*change, "--json").json

    assert dry.code == 0 and "dry run" in dry.err
    assert "other partitions" in dry.err and "may be deleted" in dry.err
    assert untouched == (2, {"segment.ms": ("5000", "topic")})
    assert [(one["name"], one["before"], one["after"]) for one in done["changes"]] == [
        ("partitions", "2", "5"),
        ("retention.ms", "604800000", "1000"),
        ("segment.ms", "5000", "604800000"),
    ]
    assert partitions(tidelog, topic) == 5
    assert settings(tidelog, "--topic", topic) == {"retention.ms": ("1000", "topic")}


def test_a_topic_is_altered_as_a_whole_or_not_at_all(tidelog, topic):
    tidelog("topics", "create", topic, "--partitions", 2)

    for wrong in (
        ["--partitions", 5, "--config", "retention.ms=soon"],
        ["--partitions", 5, "--delete-config", "nonsense"],
        ["--partitions", 1, "--config", "retention.ms=1000"],
    ):
        result = tidelog("topics", "alter", topic, *wrong)

        assert (result.code, result.out) == (1, "")
        assert result.err.count("\n") == 1
    assert partitions(tidelog, topic) == 2
    assert settings(tidelog, "--topic", topic) == {}
