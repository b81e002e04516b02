"""`/health/replication`: masters and replicas, as whoever monitors them knows them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.faces.http.standing import Status, followers_of, following_of, rfc3339
from tidelog.model import TopicPartition
from tidelog.partition.follower import Follower
from tidelog.partition.leader import Leader
from tidelog.records import Record, encode_batch
from tidelog.replication.follower_sessions import Session

BATCH = bytes(encode_batch([Record(key=b"k", value=bytes(100_000), timestamp_ms=5)] * 5))


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    """Three nodes; each leads one partition of `orders`, which has five records in each."""
    with Cluster(3) as world:
        create(world, "orders", partitions=3)
        yield world


def create(world: Cluster, topic: str, *, partitions: int = 1, failover: str = "auto") -> None:
    client, configs = world.kafka(), {"failover.mode": failover}
    world.do(client.create_topic(topic, partitions=partitions, replication=3, configs=configs))
    for number in range(partitions):
        world.do(client.produce(topic, number, bytearray(BATCH)))
    world.run(1.0)


def leader_of(world: Cluster, topic: str, number: int = 0) -> int:
    live = next(node for node in world.machines if world.is_up(node))
    leader: int = world.node(live).broker.image.topics[topic].partitions[number].leader
    return leader


def health(world: Cluster, node: int, topic: str = "", number: int | None = None) -> Any:
    query = (f"?topic={topic}" if topic else "") + ("" if number is None else f"&partition={number}")
    return world.get(node, f"/health/replication{query}")


# The two shapes.


def test_who_leads_a_partition_answers_as_its_master(world):
    leader = leader_of(world, "orders", 1)

    found = health(world, leader, "orders", 1)

    others = [node for node in (1, 2, 3) if node != leader]
    assert found == {
        "role": "master",
        "position": "leader",
        "node": leader,
        "status": "in_sync",
        "topic": "orders",
        "partition": 1,
        "current_offset": 5,
        "replicas": [
            {"id": str(node), "node": node, "offset": 5, "lag_entries": 0, "lag_ms": 0, "status": "in_sync"}
            for node in others
        ],
    }


def test_who_follows_it_answers_as_a_replica(world):
    leader = leader_of(world, "orders", 1)
    node = leader % 3 + 1

    found = health(world, node, "orders", 1)

    last_sync = datetime.fromisoformat(found.pop("last_sync"))
    now_ms = world.node(node).broker.host.clock.wall_ms()
    assert 0 <= now_ms - last_sync.timestamp() * 1000 < 2000 and last_sync.tzinfo == UTC
    assert found == {
        "role": "replica",
        "position": "follower",
        "node": node,
        "status": "in_sync",
        "topic": "orders",
        "partition": 1,
        "master_host": f"node-{leader}",
        "master_id": str(leader),
        "master_offset": 5,
        "local_offset": 5,
        "lag_entries": 0,
        "lag_ms": 0,
    }


def test_a_whole_node_is_a_master_of_what_it_leads_and_tells_what_it_follows(world):
    found = health(world, 2)

    assert (found["role"], found["current_offset"]) == ("master", 5)
    assert (found["leads"], found["follows"]) == (1, 2)
    assert [(one["id"], one["offset"]) for one in found["replicas"]] == [("1", 5), ("3", 5)]
    assert (found["following"]["local_offset"], found["following"]["status"]) == (10, "in_sync")
    assert sorted(one["partition"] for one in found["partitions"]) == [0, 1, 2]
    assert [one["role"] for one in found["partitions"]].count("replica") == 2


def test_what_the_node_does_not_hold_is_asked_elsewhere(world):
    world.do(world.kafka().create_topic("once", partitions=1, replication=1))
    world.run(0.5)
    holder = leader_of(world, "once")
    other = holder % 3 + 1

    elsewhere = world.ask(other, "/health/replication?topic=once&partition=0")

    assert elsewhere.status == 404 and elsewhere.json["replicas"] == [holder]
    assert health(world, holder, "once", 0)["replicas"] == []
    for query in ("topic=nope", "topic=once&partition=1"):
        assert world.ask(holder, f"/health/replication?{query}").status == 404
    assert world.ask(1, "/health/replication?partition=0").status == 400


def test_a_node_that_is_alone_is_a_master_without_replicas():
    with Cluster(1) as world:
        found = health(world, 1)

    assert (found["role"], found["replicas"], found["status"]) == ("master", [], "in_sync")
    assert found["partitions"] == []


# What befalls replicas.


def test_a_replica_that_dies_is_disconnected_and_syncs_when_it_comes_back():
    with Cluster(3) as world:
        create(world, "orders")
        leader = leader_of(world, "orders")
        lost = leader % 3 + 1
        other = ({1, 2, 3} - {leader, lost}).pop()

        def word(node: int = leader) -> str:
            found = health(world, node, "orders", 0)
            replicas = {one["node"]: one["status"] for one in found.get("replicas", ())}
            return replicas[lost] if replicas else found["status"]

        world.crash(lost)
        world.run_until(lambda: not world.node(leader).broker.image.is_alive(lost), 30.0)
        away = word()
        path = "/v1/configs/brokers/default"
        assert world.ask(other, path, "PATCH", {"catchup.bytes.per.second": 1}).status == 200
        for _ in range(60):
            world.do(world.kafka(leader).produce("orders", 0, bytearray(BATCH)))
        behind = health(world, leader, "orders", 0)
        world.restart(lost)
        world.run_until(lambda: world.is_up(lost), 30.0)
        world.run(0.2)
        coming, itself = word(), health(world, lost, "orders", 0)
        world.ask(other, path, "PATCH", {"catchup.bytes.per.second": 0})
        world.run_until(
            lambda: lost in world.node(leader).broker.image.topics["orders"].partitions[0].in_sync, 60.0
        )
        world.run(1.0)

        assert away == "disconnected" and behind["status"] == "disconnected"
        assert (coming, itself["status"]) == ("syncing", "syncing")
        assert itself["lag_entries"] > 0 and itself["role"] == "replica"
        assert (word(), word(lost)) == ("in_sync", "in_sync")


def test_a_replica_whose_master_is_gone_is_disconnected_until_it_has_another():
    with Cluster(3) as world:
        create(world, "manual", failover="manual")
        leader = leader_of(world, "manual")
        node = leader % 3 + 1
        world.crash(leader)
        world.run_until(lambda: leader_of(world, "manual") == -1, 30.0)
        world.run(0.5)

        found = health(world, node, "manual", 0)

        assert (found["role"], found["status"]) == ("replica", "disconnected")
        assert found["master_host"] is None and found["local_offset"] == 5


# The words.


def led(*, in_sync: bool, offset: int, level_at: float, connected_at: float | None = 5.0) -> Status:
    """How a follower stands that reads at `offset` of 1,000, at the time 100."""
    members = (1, 2) if in_sync else (1,)
    leader = Leader(
        me=1, epoch=1, log_end=1000, held=1000, high_watermark=0, in_sync=members, replicas=(1, 2), now=1.0
    )
    view = leader.followers[2]
    view.offset, view.level_at = offset, level_at
    session = None if connected_at is None else Session(connected_at, 99.0, None)
    broker: Any = SimpleNamespace(
        replication=SimpleNamespace(feeding=SimpleNamespace(session=lambda node: session)),
        image=SimpleNamespace(is_alive=lambda node: True),
        config=SimpleNamespace(catchup_threshold_records=100, replication_lagging_ms=100),
    )
    partition: Any = SimpleNamespace(log=SimpleNamespace(end=1000))
    (standing,) = followers_of(broker, partition, leader, 100.0)
    return standing.status


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"in_sync": True, "offset": 1000, "level_at": 50.0}, Status.IN_SYNC),
        ({"in_sync": True, "offset": 950, "level_at": 99.95}, Status.IN_SYNC),
        ({"in_sync": True, "offset": 800, "level_at": 99.95}, Status.LAGGING),
        ({"in_sync": True, "offset": 999, "level_at": 99.0}, Status.LAGGING),
        ({"in_sync": False, "offset": 10, "level_at": 1.0}, Status.SYNCING),
        ({"in_sync": False, "offset": 10, "level_at": 4.0}, Status.SYNCING),
        ({"in_sync": False, "offset": 10, "level_at": 60.0}, Status.LAGGING),
        ({"in_sync": True, "offset": 1000, "level_at": 99.0, "connected_at": None}, Status.DISCONNECTED),
    ],
)
def test_a_follower_has_one_word(facts, status):
    assert led(**facts) is status


def followed(
    *, in_sync: bool, behind: int, level_at: float | None, is_connected: bool = True, is_aligned: bool = True
) -> Any:
    """How this node stands to its leader, at the time 100."""
    follower = Follower(epoch=1, leader=2)
    follower.is_aligned, follower.watermark, follower.level_at = is_aligned, 500 + behind, level_at
    fetcher = SimpleNamespace(connected_at=5.0 if is_connected else None, answered_at=90.0)
    members = {1, 2} if in_sync else {2}
    topic = SimpleNamespace(partitions=[SimpleNamespace(in_sync=members)])
    broker: Any = SimpleNamespace(
        node_id=1,
        replication=SimpleNamespace(fetching=SimpleNamespace(fetcher=lambda node: fetcher)),
        image=SimpleNamespace(topics_by_id={"id": topic}),
        config=SimpleNamespace(catchup_threshold_records=100, replication_lagging_ms=100),
    )
    partition: Any = SimpleNamespace(
        follower=follower,
        log=SimpleNamespace(end=500),
        records_behind=behind,
        topic_id="id",
        name=TopicPartition("t", 0),
    )
    return following_of(broker, partition, 100.0)


@pytest.mark.parametrize(
    ("facts", "status", "lag_ms"),
    [
        ({"in_sync": True, "behind": 0, "level_at": 50.0}, Status.IN_SYNC, 0),
        ({"in_sync": True, "behind": 9, "level_at": 99.0}, Status.LAGGING, 1000),
        ({"in_sync": False, "behind": 900, "level_at": None}, Status.SYNCING, 95_000),
        ({"in_sync": False, "behind": 900, "level_at": 60.0}, Status.LAGGING, 40_000),
        ({"in_sync": True, "behind": 0, "level_at": 60.0, "is_aligned": False}, Status.SYNCING, 0),
        (
            {"in_sync": True, "behind": 0, "level_at": 60.0, "is_connected": False},
            Status.DISCONNECTED,
            10_000,
        ),
    ],
)
def test_a_replica_has_one_word_for_itself(facts, status, lag_ms):
    found = followed(**facts)

    assert (found.status, found.lag_ms) == (status, lag_ms)
    assert found.offset == 500 and found.lag == facts["behind"]


def test_moments_are_written_as_other_programs_read_them():
    clock = SimpleNamespace(wall_ms=lambda: 1_760_557_530_250, monotonic=lambda: 100.0)
    broker: Any = SimpleNamespace(host=SimpleNamespace(clock=clock))

    assert rfc3339(broker, 99.75) == "2025-10-15T19:45:30.000Z"
    assert rfc3339(broker, None) is None
