"""Consumer groups over HTTP, asked of any node of a cluster."""

import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.client.cluster import check
from tidelog.client.wire import Connection
from tidelog.model import TopicPartition
from tidelog.records import Record, encode_batch
from tidelog.wire.apis import Api

MEMBER_ID_REQUIRED = 79
NUMBERS = count()


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    """Three nodes; `orders` has two partitions of ten records."""
    with Cluster(3) as world:
        world.do(with_orders(world))
        yield world


@pytest.fixture
def group(world: Cluster) -> str:
    """A group of this test alone that has read some of `orders`."""
    name = f"billing/{next(NUMBERS)}"
    places = {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 7}
    world.do(world.kafka().commit_offsets(name, places))
    return name


async def with_orders(world: Cluster) -> None:
    client = world.kafka()
    await client.create_topic("orders", partitions=2, replication=3)
    batch = bytes(encode_batch([Record(value=b"x", timestamp_ms=1000)] * 10))
    for number in (0, 1):
        await client.produce("orders", number, bytearray(batch))


async def join(world: Cluster, group: str) -> None:
    """A consumer that has all of `orders`, and says nothing more."""
    client = world.kafka()
    data = struct.pack(">hih6sii", 0, 1, 6, b"orders", 2, 0) + struct.pack(">ii", 1, -1)

    async def ask(connection: Connection) -> None:
        fields: dict[str, Any] = {
            "group_id": group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "reason": None,
            "protocols": [{"name": "range", "metadata": b""}],
        }
        answer = await connection.call(Api.JOIN_GROUP, member_id="", **fields)
        assert answer.error_code == MEMBER_ID_REQUIRED
        answer = await connection.call(Api.JOIN_GROUP, member_id=answer.member_id, **fields)
        check(answer.error_code, group)
        synced = await connection.call(
            Api.SYNC_GROUP,
            group_id=group,
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": answer.member_id, "assignment": data}],
        )
        check(synced.error_code, group)

    await client.ask_group_coordinator(group, ask)


def committed(world: Cluster, group: str) -> list[int]:
    found = world.get(2, f"/v1/groups/{group}")
    return [one["committed"] for one in found["partitions"]]


def test_groups_are_listed_page_by_page_and_by_state(world, group):
    for name in ("a", "b"):
        world.do(world.kafka().commit_offsets(name, {TopicPartition("orders", 0): 1}))

    first = world.get(2, "/v1/groups?limit=2")
    rest = world.get(3, f"/v1/groups?limit=1000&after={first['next']}")

    assert [one["group"] for one in first["groups"]] == ["a", "b"]
    assert group in [one["group"] for one in rest["groups"]] and rest["next"] is None
    assert first["groups"][0]["state"] == "Empty"
    assert world.get(1, "/v1/groups?state=Dead")["groups"] == []
    assert world.ask(1, "/v1/groups?state=Tired").status == 400


def test_a_group_tells_how_far_it_is_in_each_partition(world, group):
    found = world.get(3, f"/v1/groups/{group}")

    assert (found["group"], found["state"], found["members"]) == (group, "Empty", [])
    assert found["partitions"] == [
        {"topic": "orders", "partition": 0, "committed": 3, "end": 10, "lag": 7, "owner": None},
        {"topic": "orders", "partition": 1, "committed": 7, "end": 10, "lag": 3, "owner": None},
    ]
    assert (found["lag"], found["next"]) == (10, None)


def test_the_partitions_of_a_group_come_in_pages_and_its_lag_is_that_of_all(world, group):
    first = world.get(1, f"/v1/groups/{group}?limit=1")
    second = world.get(1, f"/v1/groups/{group}?limit=1&after={first['next']}")

    assert [one["partition"] for one in first["partitions"]] == [0]
    assert [one["partition"] for one in second["partitions"]] == [1]
    assert (first["lag"], first["next"], second["next"]) == (10, "orders-0", None)
    wrong = world.ask(1, f"/v1/groups/{group}?after=orders")
    assert wrong.status == 400 and "orders-3" in wrong.json["detail"]


def test_members_are_shown_and_keep_their_group_from_being_changed(world):
    world.do(join(world, "live"))

    found = world.get(2, "/v1/groups/live")
    refused = [
        world.ask(1, "/v1/groups/live", "DELETE"),
        world.ask(1, "/v1/groups/live/reset", "POST", {"topic": "orders", "to": "latest"}),
    ]

    (member,) = found["members"]
    assert found["state"] == "Stable"
    assert member["assignment"] == [{"topic": "orders", "partitions": [0, 1]}]
    assert {one["owner"] for one in found["partitions"]} == {member["member"]}
    for answer in refused:
        assert answer.status == 409 and "stop its consumers first" in answer.json["detail"]


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [10, 10]),
        ({"to": "current"}, [3, 7]),
        ({"offset": 5}, [5, 5]),
        ({"offset": 99}, [10, 10]),
        ({"time_ms": 0}, [0, 0]),
        ({"shift": -5}, [0, 2]),
        ({"to": "latest", "partitions": [1]}, [3, 10]),
        ({"to": "latest", "dry_run": True}, [3, 7]),
    ],
    ids=str,
)
def test_a_group_goes_on_from_where_it_is_told(world, group, body, after):
    done = world.post(2, f"/v1/groups/{group}/reset", {"topic": "orders", **body})

    assert committed(world, group) == after
    assert (done["new_group"], done["dry_run"]) == (False, body.get("dry_run", False))
    assert done["partitions"][0]["from"] == (7 if "partitions" in body else 3)


def test_a_reset_may_found_a_group_and_says_so(world):
    done = world.post(1, "/v1/groups/fresh/reset", {"topic": "orders", "to": "earliest"})

    assert done["new_group"] and done["partitions"][0] == {"partition": 0, "from": None, "to": 0}
    assert committed(world, "fresh") == [0, 0]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"topic": "orders"}, 400, "say where to, once"),
        ({"topic": "orders", "to": "latest", "offset": 1}, 400, "say where to, once"),
        ({"topic": "orders", "to": "middle"}, 400, "topic, partitions, to"),
        ({"topic": "orders", "offset": -1}, 400, "topic, partitions, to"),
        ({"topic": "orders", "to": "latest", "partitions": []}, 400, "length >= 1"),
        ({"topic": "orders", "to": "latest", "partitions": [2]}, 404, "partitions 0 to 1"),
        ({"topic": "nope", "to": "latest"}, 404, "nope"),
    ],
    ids=str,
)
def test_what_cannot_be_reset_is_refused(world, group, body, status, word):
    answer = world.ask(1, f"/v1/groups/{group}/reset", "POST", body)

    assert (answer.status, word in answer.json["detail"]) == (status, True), answer.json
    assert committed(world, group) == [3, 7]


def test_offsets_of_a_topic_are_forgotten_and_others_stay(world, group):
    one = world.ask(3, f"/v1/groups/{group}/offsets?topic=orders&partition=1", "DELETE")
    again = world.ask(3, f"/v1/groups/{group}/offsets?topic=orders&partition=1", "DELETE")
    unsaid = world.ask(3, f"/v1/groups/{group}/offsets", "DELETE")

    assert one.json["offsets"] == [{"topic": "orders", "partition": 1, "offset": 7}]
    assert (again.status, unsaid.status) == (404, 400)
    assert committed(world, group) == [3]


def test_a_group_is_deleted_with_its_offsets(world, group):
    answer = world.ask(2, f"/v1/groups/{group}", "DELETE")

    assert answer.json == {"group": group, "deleted": True, "offsets": 2}
    assert world.ask(1, f"/v1/groups/{group}").status == 404
    assert world.ask(1, f"/v1/groups/{group}", "DELETE").status == 404
    assert world.ask(1, "/v1/groups/").status == 404


def test_a_topic_that_was_deleted_and_made_again_is_seen_as_it_is(world):
    reset = {"topic": "again", "to": "latest"}
    world.do(world.kafka().create_topic("again", partitions=1, replication=1))
    world.post(1, "/v1/groups/again/reset", reset)
    world.do(world.kafka().delete_topic("again"))
    world.do(world.kafka().create_topic("again", partitions=3, replication=1))

    done = world.post(1, "/v1/groups/again/reset", reset)

    assert [one["to"] for one in done["partitions"]] == [0, 0, 0]


def test_a_node_that_starts_or_stops_asks_nobody(world):
    node = world.node(1)
    node.is_serving, node.is_stopping = False, True
    try:
        answer = world.ask(1, "/v1/groups")
    finally:
        node.is_serving, node.is_stopping = True, False

    assert answer.status == 503 and "stopping" in answer.json["detail"]


def test_a_node_asks_itself_until_it_stops_and_a_cluster_that_is_away_is_said_to_be():
    with Cluster(3) as world:
        for node in (1, 2):
            world.get(node, "/v1/groups")
        world.stop(2)
        world.run_until(lambda: not world.is_up(2), 30.0)
        world.crash(3)

        answer = world.ask(1, "/v1/groups/billing")

        assert answer.status == 503
        assert answer.headers["content-type"] == "application/problem+json"
