"""Operators' work over HTTP on a real node: its own connections, its answers, its stop."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.faces.raw import RawClient
from tests.support.cluster import wait_until
from tests.support.node import NodeProcess
from tidelog.records import Record, encode_batch

SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with the settings of a master's file, and a topic of three records."""
    settings = {"replication.log_max_entries": 1_000_000, "replication.batch_size": 7}
    with NodeProcess(tmp_path_factory.mktemp("admin") / "data", settings) as node:
        with RawClient(node.port) as client:
            client.create_topic("orders", partitions=2)
            client.produce(bytes(encode_batch([Record(key=b"k", value=b"v")] * 3)), "orders")
        yield node
        assert " ERROR " not in node.log.read_text()


def ask(node: NodeProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    host, _, port = node.http.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=SECONDS_MAX)
    headers = {} if body is None else {"content-type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a_group_is_reset_described_and_deleted(node):
    path = f"/v1/groups/{quote('billing/eu', safe='')}"

    status, reset = ask(node, "POST", f"{path}/reset", {"topic": "orders", "to": "earliest"})
    _, found = ask(node, "GET", path)
    _, listed = ask(node, "GET", "/v1/groups")
    deleted, _ = ask(node, "DELETE", path)

    assert (status, reset["new_group"]) == (200, True)
    assert [(one["committed"], one["lag"]) for one in found["partitions"]] == [(0, 3), (0, 0)]
    assert [one["group"] for one in listed["groups"]] == ["billing/eu"]
    assert deleted == 200 and ask(node, "GET", path)[0] == 404


def test_settings_brokers_moves_and_the_quorum_are_told_and_changed(node):
    changed, change = ask(node, "PATCH", "/v1/configs/topics/orders", {"segment.ms": 60000})
    _, brokers = ask(node, "GET", "/v1/brokers")
    _, moved = ask(node, "POST", "/v1/reassignments", {"balance": True, "dry_run": True})
    _, elected = ask(node, "POST", "/v1/elections", {"type": "preferred"})
    _, quorum = ask(node, "GET", "/v1/quorum")
    alone, _ = ask(node, "DELETE", "/v1/quorum/voters/1")
    runs, refusal = ask(node, "DELETE", "/v1/brokers/1")

    assert changed == 200 and change["changes"][0]["after"] == "60000"
    assert [one["id"] for one in brokers["brokers"]] == [1]
    assert (moved["partitions"], elected["partitions"]) == ([], [])
    assert [one["node"] for one in quorum["voters"]] == [1]
    assert alone == 400 and runs == 409 and "holds replicas" in refusal["detail"]


def test_a_masters_settings_have_their_effect(node):
    _, found = ask(node, "GET", "/v1/configs/brokers/1?changed=true&limit=1000")

    values = {one["name"]: one["value"] for one in found["configs"]}
    assert values["log.retention.records"] == "1000000"
    assert values["replication.stream.batch.size"] == "7"


def test_health_and_storage_are_told_as_masters_tell_them(node):
    _, health = ask(node, "GET", "/health/replication?topic=orders&partition=0")
    _, metrics = ask(node, "GET", "/v1/replication?topics=orders")
    body = {"topic": "orders", "partition": 0, "followerId": 1, "startOffset": 1}
    _, fetched = ask(node, "POST", "/api/v1/storage/fetch-replication", body)

    assert (health["role"], health["current_offset"], health["replicas"]) == ("master", 3, [])
    assert metrics["metrics"]["master"]["log_size"] == 3
    assert [one["offset"] for one in fetched["messages"]] == [1, 2]
    assert ask(node, "POST", "/api/v1/storage/replicate", {})[0] == 410


def test_a_node_stops_itself_and_leaves_nothing_open(tmp_path: Path):
    with NodeProcess(tmp_path / "data") as node:
        assert ask(node, "GET", "/v1/groups")[0] == 200

        status, told = ask(node, "POST", "/v1/brokers/1/stop", {})

        assert (status, told["stopping"]) == (202, True)
        wait_until(lambda: not node.is_running, "it does not stop", SECONDS_MAX)
        assert node.stop() == 0
