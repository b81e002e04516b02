"""Topics over HTTP."""

import json
from typing import Any

import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import Answer, ask
from tests.unit.faces.http.test_records import serving
from tidelog.errors import NotController
from tidelog.faces.http.topics import SLICE


async def send(app, method: str, path: str, body: Any = None) -> Answer:
    chunks = (b"" if body is None else json.dumps(body).encode(),)
    headers = {} if body is None else {"content-type": "application/json"}
    return await ask(app, path, method=method, headers=headers, chunks=chunks)


def test_a_topic_is_made_and_described_and_its_place_is_told():
    async def story(node):
        app = serving(node)
        wanted = {
            "name": "orders",
            "partitions": 2,
            "replication": 1,
            "config": {"retention.ms": 1000, "cleanup.policy": "compact"},
        }

        made = await send(app, "POST", "/v1/topics", wanted)
        described = await ask(app, "/v1/topics/orders")

        assert (made.status, made.headers["location"]) == (201, "/v1/topics/orders")
        assert (described.status, described.json) == (200, made.json)
        found = dict(made.json)
        assert len(found.pop("id")) == 22
        assert found == {
            "name": "orders",
            "partition_count": 2,
            "replication": 1,
            "internal": False,
            "config": {"retention.ms": "1000", "cleanup.policy": "compact"},
            "partitions": [
                {"partition": n, "leader": 1, "epoch": 0, "replicas": [1], "in_sync": [1]} for n in range(2)
            ],
        }

    on_a_node(story)


def test_a_topic_that_says_nothing_has_the_defaults_of_the_cluster():
    async def story(node):
        made = await send(serving(node), "POST", "/v1/topics", {"name": "plain"})
        assert (made.json["partition_count"], made.json["config"]) == (3, {})

    on_a_node(story, num_partitions=3)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"name": "there"}, 409, "there"),
        ({"name": "a b"}, 400, "letters"),
        ({"name": "x", "partitions": 0}, 400, "partitions"),
        ({"name": "x", "replication": 3}, 400, "replica"),
        ({"name": "x", "config": {"retention.mss": 1}}, 400, "retention.ms"),
        ({"name": "x", "config": {"retention.ms": "soon"}}, 400, "retention.ms"),
        ({"name": "x", "partition": 3}, 400, "partition"),
        ({}, 400, "name"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(body, status, says):
    async def story(node):
        await node.create("there")
        answer = await send(serving(node), "POST", "/v1/topics", body)

        assert answer.status == status and says in answer.json["detail"]
        assert list(node.broker.image.topics) == ["there"]

    on_a_node(story)


def test_topics_are_listed_by_name_page_by_page():
    async def story(node):
        app = serving(node)
        for name in ("c", "a", "b"):
            await node.create(name, 2)

        first = (await ask(app, "/v1/topics?limit=2")).json
        rest = (await ask(app, f"/v1/topics?limit=2&after={first['next']}")).json

        assert [topic["name"] for topic in first["topics"]] == ["a", "b"]
        assert [topic["name"] for topic in rest["topics"]] == ["c"] and rest["next"] is None
        assert first["topics"][0]["partition_count"] == 2 and "partitions" not in first["topics"][0]

    on_a_node(story)


def test_a_topic_grows_and_has_other_settings_and_loses_some():
    async def story(node):
        app = serving(node)
        await node.create("t", 2, retention_ms="1000", max_message_bytes="5000")

        answer = await send(
            app,
            "PATCH",
            "/v1/topics/t",
            {"partitions": 5, "config": {"retention.ms": None, "segment.bytes": 1048576}},
        )

        assert answer.status == 200
        assert answer.json["partition_count"] == len(answer.json["partitions"]) == 5
        assert answer.json["config"] == {"max.message.bytes": "5000", "segment.bytes": "1048576"}
        same = await send(app, "PATCH", "/v1/topics/t", {"partitions": 5})
        assert same.json == answer.json

    on_a_node(story)


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 1, "config": {"segment.bytes": 1048576}},
        {"partitions": 9, "config": {"segment.bytes": "large"}},
        {"partitions": 9, "config": {"segment.byte": None}},
    ],
)
def test_a_change_that_cannot_be_done_in_part_is_not_done_at_all(change):
    async def story(node):
        await node.create("t", 2)
        answer = await send(serving(node), "PATCH", "/v1/topics/t", change)

        assert answer.status == 400
        topic = node.broker.image.topics["t"]
        assert (len(topic.partitions), topic.config) == (2, {})

    on_a_node(story)


def test_a_topic_that_is_deleted_is_unknown():
    async def story(node):
        app = serving(node)
        await node.create("t")

        assert (await send(app, "DELETE", "/v1/topics/t")).json == {"name": "t", "deleted": True}

        for method, body in (("GET", None), ("DELETE", None), ("PATCH", {})):
            answer = await send(app, method, "/v1/topics/t", body)
            assert answer.status == 404 and "t" in answer.json["detail"]

    on_a_node(story)


def test_a_topic_of_very_many_partitions_is_told_whole():
    async def story(node):
        await node.create("many", 2 * SLICE + 1)
        answer = await ask(serving(node), "/v1/topics/many")
        assert [one["partition"] for one in answer.json["partitions"]] == list(range(2 * SLICE + 1))

    on_a_node(story)


def test_a_change_whose_answer_was_lost_on_the_way_is_done_once_and_answered():
    async def story(node):
        app = serving(node)
        metadata = node.broker.metadata
        commit = metadata._commit

        async def commit_and_lose(records):
            metadata._commit = commit
            await commit(records)
            raise NotController("it has resigned, after it had committed this")

        for method, path, body, status in (
            ("POST", "/v1/topics", {"name": "t"}, 201),
            ("PATCH", "/v1/topics/t", {"partitions": 2}, 200),
            ("DELETE", "/v1/topics/t", None, 200),
        ):
            metadata._commit = commit_and_lose
            answer = await send(app, method, path, body)
            assert answer.status == status, answer.json
        assert "t" not in node.broker.image.topics

    on_a_node(story)
