"""Streams and pub/sub on the command line."""

import json

import pytest

from tests.unit.client.http.fleet import events, ok, problem
from tests.unit.faces.cli.http_node import HttpNode

STREAM = ["list", "create", "describe", "publish", "history", "subscribe", "delete"]
PUBSUB = ["publish", "subscribe", "stats"]
LOBBY = "/v1/rooms/lobby"
EVENT = {"id": 7, "event": "joined", "data": {"who": "ada"}, "at_ms": 9}
SAID = f"id: c7\ndata: {json.dumps(EVENT)}\n\n"
TOLD = 'id: 0\ndata: {"topic":"news.sport","data":"goal"}\n\n'


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> HttpNode:
    return HttpNode(monkeypatch)


@pytest.mark.parametrize(
    ("group", "command"), [*(("stream", c) for c in STREAM), *(("pubsub", c) for c in PUBSUB)]
)
def test_every_command_explains_itself_with_examples(tidelog, group, command):
    result = tidelog(group, command, "--help")

    assert result.code == 0
    assert "Examples:" in result.out and f"tidelog {group} {command}" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["stream", "publish", "lobby"], "DATA"),
        (["stream", "describe", ""], "ROOM"),
        (["stream", "create", "lobby", "--retention", "x"], "--retention"),
        (["stream", "history", "lobby", "--from", "then"], "--from"),
        (["stream", "delete", "lobby"], "--yes"),
        (["pubsub", "publish", "a"], "DATA"),
        (["pubsub", "subscribe"], "TOPIC"),
        (["pubsub", "stats", "--http", "x:y"], "HOST:PORT"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_asks_nobody(tidelog, node, arguments, expected):
    result = tidelog(*arguments)

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == "" and node.asked == []


# Rooms.


def test_rooms_are_listed_made_described_and_deleted(tidelog, node):
    described = {"name": "lobby", "first": 0, "next": 1200, "subscribers": 3}
    node.says("/v1/rooms", ok({"rooms": ["lobby"], "next": None}), ok({"rooms": []}))
    node.says(LOBBY, ok(described, 201), ok(described), ok({}), problem(404))

    assert tidelog("stream", "list").out == "lobby\n"
    assert "first event" in tidelog("stream", "list").err
    made = tidelog("stream", "create", "lobby", "--retention", "7d", "--retention-events", "5")
    assert made.out == "room lobby is ready\n"
    assert node.last.body == {"retention_ms": 604_800_000, "retention_events": 5}
    assert "1,200" in tidelog("stream", "describe", "lobby").out
    assert tidelog("stream", "delete", "lobby", "--yes").out == "lobby deleted\n"
    assert "no room 'lobby'" in tidelog("stream", "delete", "lobby", "--yes").err


def test_an_event_is_published_and_found_in_the_history(tidelog, node):
    node.says(
        f"{LOBBY}/events",
        ok({"id": 7}, 201),
        ok({"events": [EVENT], "next": 8}),
        ok({"events": [EVENT], "next": 8}),
        ok({"events": [], "next": 8}),
    )

    made = tidelog("stream", "publish", "lobby", '{"who": "ada"}', "--event", "joined")
    assert made.out == "event 7 appended to lobby\n"
    assert node.last.body == {"data": {"who": "ada"}, "event": "joined"}
    table = tidelog("stream", "history", "lobby", "--from", "7", "--limit", "5").out
    assert "joined" in table and '{"who": "ada"}' in table
    assert node.last.query == {"from": "7", "limit": "5"}
    found = json.loads(tidelog("stream", "history", "lobby", "--json").out)
    assert found == {"events": [EVENT], "next": 8}
    assert "the next one is 8" in tidelog("stream", "history", "lobby").err


def test_events_are_printed_as_they_happen(tidelog, node):
    node.says(f"{LOBBY}/subscribe", events(SAID), events(SAID))

    plain = tidelog("stream", "subscribe", "lobby", "--max", "1", "--from", "earliest")
    as_json = tidelog("stream", "subscribe", "lobby", "--max", "1", "--json")

    assert plain.out == '7\tjoined\t{"who": "ada"}\n'
    assert node.asked[0].query["from"] == "earliest"
    assert json.loads(as_json.out) == {**EVENT, "cursor": "c7"}


def test_a_room_that_is_not_there_is_one_line_that_says_how_to_make_it(tidelog, node):
    node.says(f"{LOBBY}/subscribe", problem(404, "there is no room"))

    result = tidelog("stream", "subscribe", "lobby")

    assert result.code == 1 and "tidelog stream create lobby" in result.err


# Pub/sub.


def test_a_message_tells_how_many_heard_it(tidelog, node):
    node.says("/v1/pubsub/news.sport", ok({"topic": "news.sport", "receivers": 3}))

    assert tidelog("pubsub", "publish", "news.sport", "goal").out == "3 heard it\n"
    assert node.last.body == {"data": "goal"}
    found = json.loads(tidelog("pubsub", "publish", "news.sport", "1", "--json").out)
    assert found == {"topic": "news.sport", "receivers": 3}


def test_messages_are_printed_as_they_come(tidelog, node):
    node.says("/v1/pubsub", events(TOLD), events(TOLD))

    plain = tidelog("pubsub", "subscribe", "news.*", "alerts.#", "--max", "1")
    as_json = tidelog("pubsub", "subscribe", "news.*", "--max", "1", "--json")

    assert plain.out == "news.sport\tgoal\n"
    assert node.asked[0].query == {"topics": "news.*,alerts.#"}
    assert json.loads(as_json.out) == {"topic": "news.sport", "data": "goal"}


def test_who_listens_is_counted(tidelog, node):
    stats = {"subscribers": 2, "topics": {"news.*": 2}}
    node.says("/v1/pubsub/stats", ok(stats), ok(stats), ok({"subscribers": 0, "topics": {}}))

    assert "news.*" in tidelog("pubsub", "stats").out
    assert json.loads(tidelog("pubsub", "stats", "--json").out) == stats
    assert "no subscribers" in tidelog("pubsub", "stats").err
