"""`/api/v1/storage/...`: logs for replicas, lags, and what is gone."""

from base64 import b64decode
from collections.abc import Iterator

import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.records import Record, encode_batch
from tidelog.services.replica_reads import RECORDS_BYTES_MAX

FETCH = "/api/v1/storage/fetch-replication"


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    """Three nodes; `orders` has two batches of three records."""
    with Cluster(3) as world:
        client = world.kafka()
        world.do(client.create_topic("orders", partitions=1, replication=2))
        for first in (0, 3):
            records = [
                Record(key=b"k%d" % at, value=b"v%d" % at, timestamp_ms=5, headers=(("h", b"x"),))
                for at in range(first, first + 3)
            ]
            world.do(client.produce("orders", 0, bytearray(encode_batch(records))))
        world.run(0.5)
        yield world


def wanted(world: Cluster, **more: object) -> dict[str, object]:
    _, follower = world.node(1).broker.image.topics["orders"].partitions[0].replicas
    return {"topic": "orders", "partition": 0, "followerId": follower, **more}


def test_a_replica_reads_the_leaders_log_at_any_node(world):
    answers = [world.post(node, FETCH, wanted(world, startOffset=2, maxMessages=2)) for node in (1, 2, 3)]

    assert answers[0] == answers[1] == answers[2]
    found = answers[0]
    assert (found["startOffset"], found["endOffset"], found["leaderLEO"]) == (2, 4, 6)
    assert (found["success"], found["errorMessage"]) == (True, None)
    message = found["messages"][0]
    assert (message["offset"], message["key"], message["timestamp"]) == (2, "k2", 5)
    assert b64decode(message["value"]) == b"v2" and b64decode(message["headers"]["h"]) == b"x"


def test_it_is_read_to_its_end_in_steps(world):
    offset, read = 0, []
    while True:
        found = world.post(1, FETCH, wanted(world, startOffset=offset, maxMessages=4))
        if not found["messages"]:
            break
        read += [one["offset"] for one in found["messages"]]
        offset = found["endOffset"]

    assert read == list(range(6)) and offset == found["leaderLEO"] == 6


def test_what_is_not_committed_is_read_too_and_nothing_is_acknowledged_by_it():
    with Cluster(3) as world:
        client = world.kafka()
        world.do(client.create_topic("orders", partitions=1, replication=3))
        partition = world.node(1).broker.image.topics["orders"].partitions[0]
        leader, lost = partition.replicas[0], partition.replicas[1:]
        for node in lost:
            world.crash(node)
        batch = bytearray(encode_batch([Record(value=b"x")]))
        world.do(world.kafka(leader).produce("orders", 0, batch, acks=1))

        found = world.post(leader, FETCH, {"topic": "orders", "partition": 0, "followerId": lost[0]})

        mine = world.node(leader).broker.partition("orders", 0)
        assert [one["offset"] for one in found["messages"]] == [0] and found["leaderLEO"] == 1
        world.post(
            leader, FETCH, {"topic": "orders", "partition": 0, "followerId": lost[0], "startOffset": 1}
        )
        assert mine.high_watermark == 0
        assert all(view.held <= 0 for view in mine.leader.followers.values())


def test_records_that_are_no_text_and_those_that_are_many_bytes(world):
    client = world.kafka()
    world.do(
        client.create_topic(
            "bytes", partitions=1, replication=1, configs={"max.message.bytes": str(16 * 1024 * 1024)}
        )
    )
    large = Record(key=b"\xff", value=bytes(RECORDS_BYTES_MAX - 100))
    records = [large, large, Record(key=None, value=None)]
    world.do(client.produce("bytes", 0, bytearray(encode_batch(records))))
    world.run(0.5)
    (holder,) = world.node(1).broker.image.topics["bytes"].partitions[0].replicas
    body = {"topic": "bytes", "partition": 0, "followerId": holder}

    first = world.post(2, FETCH, body)
    last = world.post(2, FETCH, body | {"startOffset": 2})

    assert [one["offset"] for one in first["messages"]] == [0] and first["endOffset"] == 1
    assert (first["messages"][0]["key"], first["messages"][0]["keyEncoding"]) == ("/w==", "base64")
    assert last["messages"][0]["key"] is None and last["messages"][0]["value"] is None


@pytest.mark.parametrize(
    ("more", "status"),
    [({"followerId": 99}, 403), ({"partition": 7}, 404), ({"topic": "nope"}, 404), ({"startOffset": 7}, 416)],
    ids=str,
)
def test_what_fails_says_so_as_was_promised_and_as_a_problem(world, more, status):
    answer = world.ask(2, FETCH, "POST", wanted(world) | more)

    found = answer.json
    assert answer.status == found["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert (found["success"], found["messages"]) == (False, [])
    assert found["errorMessage"] == found["detail"] != ""


@pytest.mark.parametrize("more", [{"maxMessages": 0}, {"startOffset": -1}, {"from": 1}], ids=str)
def test_a_request_that_makes_no_sense_is_refused(world, more):
    assert world.ask(1, FETCH, "POST", wanted(world) | more).status == 400


def test_lags_are_told_of_what_a_node_leads(world):
    leader, follower = world.node(1).broker.image.topics["orders"].partitions[0].replicas

    led = world.get(leader, "/api/v1/storage/lag?topic=orders")
    others = world.get(follower, "/api/v1/storage/lag?topic=orders&partition=0")

    assert led == {
        "brokerId": leader,
        "next": None,
        "partitions": [
            {
                "topic": "orders",
                "partition": 0,
                "followerId": follower,
                "followerLogEndOffset": 6,
                "offsetLag": 0,
                "timeSinceCaughtUp": 0,
                "isOutOfSync": False,
            }
        ],
    }
    assert others["partitions"] == []


@pytest.mark.parametrize("path", ["/replicate", "/api/v1/storage/replicate"])
def test_a_push_is_told_what_replaced_it(world, path):
    answer = world.ask(1, path, "POST", {"messages": []})

    assert answer.status == 410 and FETCH in answer.json["detail"]
    assert FETCH in answer.json["replaced_by"]
