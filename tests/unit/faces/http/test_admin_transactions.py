"""Transactions over HTTP, asked of any node."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.client.transactional import TransactionalClient, TransactionalProducer
from tidelog.records import Record
from tidelog.simulation.nodes import bootstrap


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    with Cluster(3, transaction_state_log_num_partitions=3) as world:
        world.do(world.kafka().create_topic("orders", partitions=2, replication=3))
        yield world


def open_transaction(world: Cluster, name: str, timeout_ms: int = 60_000) -> TransactionalProducer:
    """A transaction that has written to one partition, and is left open."""

    async def work() -> TransactionalProducer:
        client = TransactionalClient(bootstrap(1), network=world.client("story").network)
        producer = await client.begin(name, timeout_ms=timeout_ms)
        await producer.write("orders", 1, [Record(value=b"x")])
        return producer

    return world.do(work())


def state(world: Cluster, name: str) -> Any:
    return world.get(2, f"/v1/transactions/{name}")["state"]


def test_transactions_are_listed_page_by_page_and_by_state(world):
    open_transaction(world, "a/1")
    world.do(open_transaction(world, "b").commit())

    first = world.get(3, "/v1/transactions?limit=1")
    rest = world.get(3, f"/v1/transactions?limit=1000&after={first['next']}")
    ongoing = world.get(1, "/v1/transactions?state=Ongoing")["transactions"]

    assert [one["transactional_id"] for one in first["transactions"]] == ["a/1"]
    assert "b" in [one["transactional_id"] for one in rest["transactions"]]
    assert "b" not in [one["transactional_id"] for one in ongoing]
    assert first["transactions"][0]["state"] == "Ongoing"
    assert world.ask(1, "/v1/transactions?state=Ongoing&hanging=true").status == 400


def test_a_transaction_tells_where_it_keeps_readers_waiting(world):
    open_transaction(world, "spark/orders.0")

    found = world.get(2, "/v1/transactions/spark/orders.0")

    assert (found["state"], found["timeout_ms"], found["overdue"]) == ("Ongoing", 60_000, False)
    (place,) = found["partitions"]
    assert (place["topic"], place["partition"]) == ("orders", 1) and place["first_offset"] >= 0
    assert found["age_ms"] >= 0
    assert world.ask(1, "/v1/transactions/nobody").status == 404
    assert world.ask(1, "/v1/transactions/").status == 404


def test_an_open_transaction_is_aborted_once(world):
    open_transaction(world, "stuck")

    done = world.ask(3, "/v1/transactions/stuck", "DELETE")
    again = world.ask(3, "/v1/transactions/stuck", "DELETE")

    assert done.json["aborted"] and state(world, "stuck") in ("CompleteAbort", "Empty")
    assert again.status == 409 and "no open transaction" in again.json["detail"]
    assert world.ask(1, "/v1/transactions/nobody", "DELETE").status == 404


def test_what_is_open_for_longer_than_it_should_be_hangs(world, monkeypatch):
    open_transaction(world, "late")
    clock = world.node(2).broker.host.clock
    late = world.get(2, "/v1/transactions?hanging=true")
    with monkeypatch.context() as patch:
        now_ms = clock.wall_ms()
        patch.setattr(type(clock), "wall_ms", lambda self: now_ms + 3_600_000)
        found = world.get(2, "/v1/transactions?hanging=true")

    assert late["transactions"] == []
    assert "late" in [one["transactional_id"] for one in found["transactions"]]
    assert found["orphans"] == []
