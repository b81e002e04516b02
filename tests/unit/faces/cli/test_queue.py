import json
import time

import pytest

from tests.unit.client.http.fleet import ok, problem
from tests.unit.faces.cli.http_node import HttpNode

COMMANDS = [
    "list",
    "create",
    "describe",
    "publish",
    "receive",
    "ack",
    "nack",
    "extend",
    "purge",
    "redrive",
    "delete",
    "delete-numbered",
]
JOBS = "/v1/queues/jobs"
SHOWN = {
    "name": "jobs",
    "visibility_ms": 30_000,
    "max_deliveries": 10,
    "ordered": False,
    "messages_max": 1_000_000,
    "depth": 1234,
    "in_flight": 2,
    "delayed": 3,
    "oldest_ms": 4,
    "dead": 5,
}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> HttpNode:
    return HttpNode(monkeypatch)


def message(number: int = 1, value: object = "hello") -> dict[str, object]:
    return {
        "id": number,
        "receipt": f"{number}-1",
        "value": value,
        "delivery_count": 1,
        "attributes": {"to": "ada"},
        "key": "k",
        "published_at_ms": time.time_ns() // 1_000_000,
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(tidelog, command):
    result = tidelog("queue", command, "--help")

    assert result.code == 0
    assert "Examples:" in result.out and f"tidelog queue {command}" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["publish", "jobs"], "VALUE"),
        (["publish", "", "1"], "QUEUE"),
        (["publish", "jobs", "1", "--delay", "soon"], "--delay"),
        (["publish", "jobs", "1", "--attribute", "x"], "--attribute"),
        (["create", "jobs", "--visibility", "1"], "--visibility"),
        (["receive", "jobs", "--max", "0"], "--max"),
        (["receive", "jobs", "--wait", "5m"], "at most 30s"),
        (["ack", "jobs"], "RECEIPT"),
        (["purge", "jobs"], "--yes"),
        (["delete", "jobs"], "--yes"),
        (["delete-numbered", "12"], "--yes"),
        (["list", "--http", "nowhere:port"], "HOST:PORT"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_asks_nobody(tidelog, node, arguments, expected):
    result = tidelog("queue", *arguments)

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == "" and node.asked == []


def test_queues_are_listed(tidelog, node):
    node.says("/v1/queues", ok({"queues": ["jobs"], "next": None}), ok({"queues": []}))

    assert tidelog("queue", "list").out == "jobs\n"
    assert "tidelog queue create" in tidelog("queue", "list").err


def test_a_queue_is_made_with_its_settings(tidelog, node):
    node.says(JOBS, ok(SHOWN, 201))

    result = tidelog("queue", "create", "jobs", "--visibility", "5m", "--ordered")

    assert "holds a message for 30 s" in result.out
    assert node.last.body == {"visibility_ms": 300_000, "ordered": True}
    assert json.loads(tidelog("queue", "create", "jobs", "--json").out) == SHOWN


def test_a_queue_is_described(tidelog, node):
    node.says(JOBS, ok(SHOWN))

    out = tidelog("queue", "describe", "jobs").out

    assert "1,234" in out and "oldest_ms" in out
    assert json.loads(tidelog("queue", "describe", "jobs", "--json").out) == SHOWN


def test_a_message_is_published_as_json_or_text(tidelog, node):
    node.says(f"{JOBS}/messages", ok({"ids": [7]}, 201))

    result = tidelog(
        "queue", "publish", "jobs", '{"a": 1}', "--attribute", "to=ada", "--key", "k", "--delay", "10m"
    )
    first = node.last.body["messages"][0]
    tidelog("queue", "publish", "jobs", "-", "--text", stdin=b"5")

    assert result.out == "message 7 published to jobs\n"
    assert first == {"value": {"a": 1}, "attributes": {"to": "ada"}, "key": "k", "delay_ms": 600_000}
    assert node.last.body["messages"] == [{"value": "5"}]
    assert json.loads(tidelog("queue", "publish", "jobs", "x", "--json").out) == {"id": 7}


def test_messages_are_received_with_their_receipts(tidelog, node):
    node.says(f"{JOBS}/receive", ok({"messages": [message()]}))

    result = tidelog("queue", "receive", "jobs", "--max", "5", "--wait", "10s")
    as_json = json.loads(tidelog("queue", "receive", "jobs", "--json").out)

    assert "1-1" in result.out and "hello" in result.out
    assert node.asked[0].body == {"max": 5, "wait_ms": 10_000}
    assert as_json["messages"][0]["attributes"] == {"to": "ada"}
    assert [one.path for one in node.asked] == [f"{JOBS}/receive"] * 2


def test_messages_may_be_acknowledged_as_soon_as_they_are_printed(tidelog, node):
    node.says(f"{JOBS}/receive", ok({"messages": [message(1), message(2)]}))
    node.says(f"{JOBS}/ack", ok({"results": []}))

    tidelog("queue", "receive", "jobs", "--ack")

    assert node.last.body == {"receipts": ["1-1", "2-1"]}


def test_that_there_is_nothing_to_receive_is_said_beside_the_result(tidelog, node):
    node.says(f"{JOBS}/receive", ok({"messages": []}))

    result = tidelog("queue", "receive", "jobs", "--ack")

    assert (result.code, result.out) == (0, "")
    assert "no message" in result.err
    assert json.loads(tidelog("queue", "receive", "jobs", "--json").out) == {"messages": []}


def test_receipts_are_settled(tidelog, node):
    for path in ("ack", "nack", "extend"):
        node.says(f"{JOBS}/{path}", ok({"results": []}))

    assert tidelog("queue", "ack", "jobs", "1-1", "2-1").out == "2 messages done\n"
    assert tidelog("queue", "nack", "jobs", "1-1", "--delay", "1m").out == "1 message put back\n"
    assert node.last.body == {"receipts": ["1-1"], "delay_ms": 60_000}
    assert tidelog("queue", "extend", "jobs", "1-1").out == "1 message kept\n"
    assert node.last.body["visibility_ms"] == 300_000
    found = json.loads(tidelog("queue", "ack", "jobs", "1-1", "--json").out)
    assert found == {"receipts": ["1-1"], "outcome": "done"}


def test_a_receipt_that_is_none_any_more_is_one_line(tidelog, node):
    node.says(f"{JOBS}/ack", problem(409, "receipt '1-1' is expired: its time was over"))

    result = tidelog("queue", "ack", "jobs", "1-1")

    assert (result.code, result.out) == (1, "")
    assert result.err == "tidelog: receipt '1-1' is expired: its time was over\n"


def test_queues_are_purged_redriven_and_deleted(tidelog, node):
    node.says(f"{JOBS}/purge", ok({"messages": 3}))
    node.says(f"{JOBS}/redrive", ok({"messages": 1}))
    node.says(JOBS, ok({"name": "jobs", "deleted": True}), problem(404))

    assert tidelog("queue", "purge", "jobs", "--yes").out == "3 messages deleted\n"
    assert tidelog("queue", "redrive", "jobs").out == "1 message brought back\n"
    assert tidelog("queue", "delete", "jobs", "--yes").out == "jobs deleted\n"
    assert "there is no queue 'jobs'" in tidelog("queue", "delete", "jobs", "--yes").err
    node.says("/delete_queue", ok({"deleted": True}), problem(404))
    assert tidelog("queue", "delete-numbered", "12", "--yes").out == "queue 12 deleted\n"
    assert "no queue 12" in tidelog("queue", "delete-numbered", "12", "--yes").err


def test_a_queue_that_is_not_there_is_one_line_that_says_how_to_make_it(tidelog, node):
    node.says("/v1/queues/none.dead/receive", problem(404, "there is no queue"))

    result = tidelog("queue", "receive", "none.dead")

    assert result.code == 1 and "tidelog queue create none`" in result.err


def test_without_a_node_the_error_says_where_and_what_to_do(tidelog, node):
    node.goes_away()

    result = tidelog("queue", "list")

    assert result.code == 1 and result.err.count("\n") == 1
    assert "node:8080" in result.err and "tidelog start" in result.err
