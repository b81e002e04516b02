"""`tidelog transactions` at a node with real producers: what is open, since when, and its end."""

from collections.abc import Callable

import pytest

from tests.clients.adapters import Client, Refused
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.test_commands import Result, tidelog
from tests.clients.transacting import COMMITTED, eventually, seen, transact

__all__ = ["tidelog"]  # the fixture


@pytest.fixture
def library() -> type[Client]:
    """One is enough: what is tested is not its."""
    return ConfluentClient


def test_transactions_are_listed_with_their_states(client, tidelog, topic):
    client.admin().create(topic)
    producer = client.transactional(topic)

    assert state_of(tidelog, topic) == "Empty"
    producer.begin()
    transact(producer, topic, [b"value"])
    assert state_of(tidelog, topic) == "Ongoing"
    producer.commit()
    eventually(lambda: state_of(tidelog, topic) == "CompleteCommit", "it is not complete")

    listed = tidelog("transactions", "list", "--state", "Ongoing", "--json").json["transactions"]
    assert topic not in [one["transactional_id"] for one in listed]


def state_of(tidelog: Callable[..., Result], name: str) -> str:
    listed = tidelog("transactions", "list", "--json").json["transactions"]
    return next(one["state"] for one in listed if one["transactional_id"] == name)


def test_an_open_transaction_is_described_with_where_its_readers_wait(client, tidelog, topic):
    client.admin().create(topic, partitions=2)
    client.producer().send(topic, b"plain", partition=1).result()
    producer = client.transactional(topic, timeout_ms=30_000)
    producer.begin()
    for partition in (0, 1):
        transact(producer, topic, [b"value"], partition)

    found = tidelog("transactions", "describe", topic, "--json").json

    assert (found["state"], found["timeout_ms"], found["overdue"]) == ("Ongoing", 30_000, False)
    assert 0 <= found["age_ms"] < 30_000
    assert found["partitions"] == [
        {"topic": topic, "partition": 0, "first_offset": 0},
        {"topic": topic, "partition": 1, "first_offset": 1},
    ]


def test_an_operator_can_abort_a_transaction_and_fences_its_producer(client, tidelog, topic):
    client.admin().create(topic)
    producer = client.transactional(topic)
    producer.begin()
    transact(producer, topic, [b"value"])

    unsure = tidelog("transactions", "abort", topic)
    assert (unsure.code, state_of(tidelog, topic)) == (1, "Ongoing")
    done = tidelog("transactions", "abort", topic, "--yes", "--json").json

    assert done["transactional_id"] == topic
    assert done["aborted"] is True
    assert seen(client, topic, COMMITTED) == []
    with pytest.raises(Refused):
        producer.commit()
    again = tidelog("transactions", "abort", topic, "--yes")
    assert again.code == 1
    assert "no open transaction" in again.err


def test_an_unknown_transactional_id_is_said_to_be_unknown(tidelog, topic):
    for command in (["describe", topic], ["abort", topic, "--yes"]):
        result = tidelog("transactions", *command)
        assert result.code == 1
        assert topic in result.err


def test_nothing_hangs_while_producers_are_in_time(client, tidelog, topic):
    client.admin().create(topic)
    producer = client.transactional(topic)
    producer.begin()
    transact(producer, topic, [b"value"])

    found = tidelog("transactions", "list", "--hanging", "--json").json

    assert found == {"transactions": [], "orphans": []}
