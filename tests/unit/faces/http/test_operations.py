"""What operators tell a node over HTTP."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.kafka.test_admin import partition, with_broker, with_partition
from tidelog.controller.reports import ReplicaReport
from tidelog.faces.http.app import make_app
from tidelog.model import NO_NODE
from tidelog.operators.desk import Desk

JSON = {"content-type": "application/json"}


class Face:
    """What the application knows of a node."""

    is_serving, is_stopping = True, False

    def __init__(self, node):
        self.broker = node.broker
        self.desk = Desk(node.broker)
        self.stops = 0
        node.broker.on_stop_asked = self.want_stop

    def want_stop(self):
        self.stops += 1


async def post(node, path, body=None, headers=JSON):
    chunks = (json.dumps({} if body is None else body).encode(),)
    app = make_app(node if isinstance(node, Face) else Face(node))  # type: ignore[arg-type]
    return await ask(app, path, method="POST", headers=headers, chunks=chunks)


def promote(node, body=None, *, topic="t", number=0):
    return post(node, f"/v1/topics/{topic}/partitions/{number}/promote", body)


# Promotion.


def test_a_replica_in_sync_leads_at_once_and_from_now_on():
    async def story(node):
        await with_broker(node, 2)
        await with_partition(node, replicas=(1, 2), in_sync=frozenset({1, 2}))

        answer = await promote(node, {"node": 2})

        assert answer.status == 200
        found = answer.json
        assert (found["leader"], found["previous_leader"], found["changed"]) == (2, 1, True)
        assert (found["clean"], found["records_lost_max"]) == (True, 0)
        assert (partition(node).leader, partition(node).replicas) == (2, (2, 1))

    on_a_node(story)


def test_one_that_leads_already_is_no_error():
    async def story(node):
        await with_partition(node)

        for body in ({}, {"node": 1}):
            answer = await promote(node, body)
            assert (answer.status, answer.json["changed"], answer.json["leader"]) == (200, False, 1)

    on_a_node(story)


def test_a_replica_out_of_sync_is_refused_with_what_to_do():
    async def story(node):
        await with_broker(node, 2)
        await with_partition(node, replicas=(1, 2), in_sync=frozenset({1}))

        answer = await promote(node, {"node": 2})

        assert answer.status == 409
        assert answer.headers["content-type"] == "application/problem+json"
        assert "not in sync" in answer.json["detail"] and "--force" in answer.json["detail"]
        assert partition(node).leader == 1

    on_a_node(story)


def test_a_dry_run_tells_what_may_be_lost_and_does_nothing():
    async def story(node):
        await with_broker(node, 2)
        await with_partition(node, replicas=(3, 2, 4), in_sync=frozenset({3}), leader=NO_NODE)
        cluster_id = partition(node).cluster_id
        reports = node.broker.controller.controller.reports
        reports.take(3, 1, [ReplicaReport(cluster_id, 5, 150, 140)], 0.0)
        reports.take(2, 1000, [ReplicaReport(cluster_id, 4, 120, 110)], 0.0)

        answer = await promote(node, {"node": 2, "force": True, "dry_run": True})

        found = answer.json
        assert (answer.status, found["dry_run"], found["clean"]) == (200, True, False)
        assert (found["end"], found["records_lost_max"], found["high_watermark"]) == (120, 30, 140)
        assert found["longest"] == {"node": 3, "end": 150, "last_epoch": 5}
        assert found["unknown"] == [4]
        assert partition(node).leader == NO_NODE

        forced = await promote(node, {"node": 2, "force": True})

        assert (forced.json["leader"], forced.json["in_sync"]) == (2, [2])
        assert partition(node).leader == 2

    on_a_node(story)


@pytest.mark.parametrize(
    ("topic", "number", "body", "status", "word"),
    [
        ("nope", 0, {}, 404, "nope"),
        ("t", 7, {}, 404, "t-7"),
        ("t", 0, {"node": 9}, 400, "holds no replica"),
        ("t", 0, {"nodes": 9}, 400, "node, force, dry_run"),
        ("t", 0, {"node": "2"}, 400, "node, force, dry_run"),
        ("t", 0, [], 400, "JSON object"),
    ],
)
def test_what_cannot_be_asked_is_a_problem_that_says_so(topic, number, body, status, word):
    async def story(node):
        await with_partition(node)

        answer = await promote(node, body, topic=topic, number=number)

        assert (answer.status, word in answer.json["detail"]) == (status, True), answer.body

    on_a_node(story)


# Stopping.


def test_a_stop_is_what_a_signal_is():
    async def story(node):
        face = Face(node)

        answer = await post(face, "/v1/broker/stop", {"node": 1})

        assert (answer.status, answer.json) == (202, {"node": 1, "stopping": True})
        assert face.stops == 1

    on_a_node(story)


def test_another_node_than_was_meant_does_not_stop():
    async def story(node):
        face = Face(node)

        answer = await post(face, "/v1/broker/stop", {"node": 2})

        assert answer.status == 409 and "node 1, not 2" in answer.json["detail"]
        assert face.stops == 0

    on_a_node(story)


def test_a_page_in_a_browser_cannot_stop_a_node():
    async def story(node):
        face = Face(node)
        for headers in ({}, {"content-type": "text/plain"}):
            answer = await post(face, "/v1/broker/stop", {}, headers=headers)
            assert answer.status == 415 and "application/json" in answer.json["detail"]
        assert (await ask(make_app(face), "/v1/broker/stop")).status == 405  # type: ignore[arg-type]
        assert face.stops == 0

    on_a_node(story)


def test_a_node_that_waits_for_its_quorum_can_be_stopped():
    async def story(node):
        face = Face(node)
        face.is_serving = False
        starting: Any = SimpleNamespace(
            quorum=None,
            on_stop_asked=face.want_stop,
            host=node.broker.host,
            node_id=1,
            config=node.broker.config,
            waits_for_voters=lambda: None,
            authorizer=node.broker.authorizer,
        )
        face.broker = face.desk.broker = starting

        assert (await post(face, "/v1/broker/stop")).status == 202
        assert (await promote(face)).status == 503

    on_a_node(story)
