from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.faces.http.replication import LISTED_MAX, _catching_up
from tidelog.model import TopicPartition
from tidelog.partition.catchup import CatchUps, Key, Pace
from tidelog.records import Record, encode_batch


def test_of_very_many_catch_ups_some_are_listed_and_all_are_counted():
    found = CatchUps(pace=Pace(0), concurrent_max=8)
    for number in range(LISTED_MAX + 500):
        found.asks(
            Key(number, 3), TopicPartition("tide", number), 4, at=0, target=1000, bytes_left=100_000, now=0.0
        )
    last = Key(LISTED_MAX + 499, 3)
    found.interrupt(last, "node 3 is away", 1.0)
    broker: Any = SimpleNamespace(replication=SimpleNamespace(catching_up=SimpleNamespace(all=found)))

    told = _catching_up(broker, 2.0)

    waiting = LISTED_MAX + 500 - 8 - 1
    assert told["states"] == {"waiting": waiting, "running": 8, "stalled": 0, "interrupted": 1}
    assert len(told["running"]) == LISTED_MAX
    assert [one["state"] for one in told["running"][:9]] == ["running"] * 8 + ["interrupted"]


# The numbers of masters and replicas.


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    """Three nodes; each leads one partition of `orders`, which has four records in each."""
    with Cluster(3) as world:
        client = world.kafka()
        world.do(client.create_topic("orders", partitions=3, replication=3))
        world.do(client.create_topic("once", partitions=1, replication=1))
        batch = bytes(encode_batch([Record(key=b"k", value=b"v", timestamp_ms=5)] * 4))
        for number in range(3):
            world.do(client.produce("orders", number, bytearray(batch)))
        world.run(1.0)
        yield world


def metrics(world: Cluster, node: int = 1, query: str = "?topics=orders") -> Any:
    return world.get(node, f"/v1/replication{query}")["metrics"]


def test_a_node_has_the_numbers_of_a_master_and_of_a_replica(world):
    found = metrics(world)

    master, replica = found["master"], found["replica"]
    assert found["role"] == "master"
    assert {name: master[name] for name in master if name != "replicas"} == {
        "enabled": True,
        "current_offset": 4,
        "log_size": 4,
        "log_oldest_offset": 0,
    }
    one = master["replicas"][0]
    assert (one["id"], one["status"], one["offset"], one["lag_entries"], one["lag_ms"]) == (
        "2",
        "in_sync",
        4,
        0,
        0,
    )
    connected_at, last_ack = map(datetime.fromisoformat, (one["connected_at"], one["last_ack"]))
    assert connected_at <= last_ack
    assert (replica["enabled"], replica["master_id"] in ("2", "3")) == (True, True)
    assert (replica["master_offset"], replica["local_offset"]) == (8, 8)
    assert (replica["lag_entries"], replica["lag_ms"], replica["status"]) == (0, 0, "in_sync")
    assert (replica["operations_applied"], replica["errors"]) == (8, 0)
    assert replica["last_sync"].endswith("Z")


def test_a_node_without_replicas_replicates_nothing(world):
    (holder,) = world.node(1).broker.image.topics["once"].partitions[0].replicas

    found = metrics(world, holder, "?topics=once")

    assert not found["master"]["enabled"] and found["master"]["replicas"] == []
    assert not found["replica"]["enabled"] and found["replica"]["master_id"] is None


def test_errors_of_fetching_are_counted_where_prometheus_sees_them():
    with Cluster(3) as world:
        world.do(world.kafka().create_topic("orders", partitions=3, replication=3))
        world.run(1.0)
        world.crash(3)
        world.run(1.0)

        errors = metrics(world)["replica"]["errors"]
        lines = world.ask(1, "/metrics").body.decode().splitlines()

        counted = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert errors > 0 and int(counted["tidelog_replication_errors_total"]) >= errors


# The scrubber.


def test_what_the_scrubber_has_found_is_told(world):
    scrubber = world.node(2).broker.replication.scrubber
    assert "rotten" not in world.get(2, "/health/replication")
    rot = scrubber._cycle.found(TopicPartition("orders", 1), 7, "its checksum does not match", 5)

    told = world.get(2, "/v1/replication")["scrub"]

    assert (told["state"], told["found"], told["healed"], told["rotten"]) == ("off", 1, 0, 1)
    [one] = told["rot"]
    assert (one["topic"], one["partition"], one["offset"]) == ("orders", 1, 7)
    assert (one["what"], one["state"]) == ("its checksum does not match", "open")
    assert world.get(2, "/health/replication")["rotten"] == 1
    assert "tidelog_scrub_rot 1" in world.ask(2, "/metrics").body.decode().splitlines()

    scrubber._cycle.healed(rot, 9, source=3, size=61)

    told = world.get(2, "/v1/replication")["scrub"]
    assert (told["healed"], told["rotten"], told["rot"]) == (1, 0, [])
    assert (told["recent"][0]["source"], told["recent"][0]["bytes"]) == (3, 61)
    assert "rotten" not in world.get(2, "/health/replication")
    assert "tidelog_scrub_rot_healed_total 1" in world.ask(2, "/metrics").body.decode().splitlines()
