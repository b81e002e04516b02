import json
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.client.cluster import Refused
from tidelog.client.transactions import (
    ORPHAN_MS,
    Fenced,
    ListedTransaction,
    OpenTransaction,
    TransactionInfo,
)
from tidelog.faces.cli import transactions
from tidelog.model import TopicPartition

NOW_MS = 10_000_000
MINUTE = 60_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def info(name: str, state: str = "Ongoing", *, age_ms: int | None = 0, producer: int = 7,
         places: tuple[TopicPartition, ...] = (T0, T1)) -> TransactionInfo:  # fmt: skip
    return TransactionInfo(
        transactional_id=name, state=state, producer_id=producer, producer_epoch=3,
        timeout_ms=MINUTE, started_ms=None if age_ms is None else NOW_MS - age_ms, places=places,
        coordinator=1,
    )  # fmt: skip


def opened(place: TopicPartition, producer: int, age_ms: int = 0) -> OpenTransaction:
    return OpenTransaction(
        place=place, producer_id=producer, producer_epoch=3, first_offset=40,
        last_timestamp_ms=NOW_MS - age_ms,
    )  # fmt: skip


@pytest.fixture
def cluster(monkeypatch):
    """A cluster that is asked through a client that only remembers."""
    world = SimpleNamespace(infos=[], opened=[], aborted=[], states=None, asked_places=[])

    class Client:
        def __init__(self, bootstrap: str) -> None:
            assert bootstrap == "127.0.0.1:9092"

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def list_transactions(self, states: Any = ()) -> list[ListedTransaction]:
            world.states = list(states)
            return [
                ListedTransaction(
                    transactional_id=one.transactional_id, state=one.state,
                    producer_id=one.producer_id, coordinator=one.coordinator,
                )
                for one in world.infos
            ]  # fmt: skip

        async def describe_listed(self, listed: Any) -> list[TransactionInfo]:
            names = {one.transactional_id for one in listed}
            return [one for one in world.infos if one.transactional_id in names]

        async def describe_transaction(self, name: str) -> TransactionInfo:
            for one in world.infos:
                if one.transactional_id == name:
                    return one
            raise Refused(105, f"transactional id {name!r}", "there is none")

        async def open_transactions(self, places: Any = None) -> list[OpenTransaction]:
            world.asked_places.append(places)
            return [one for one in world.opened if places is None or one.place in places]

        async def abort_transaction(self, name: str, *, timeout_ms: int) -> Fenced:
            world.aborted.append((name, timeout_ms))
            return Fenced(producer_id=7, producer_epoch=4)

        async def abort_orphan(self, orphan: OpenTransaction) -> None:
            world.aborted.append((orphan.place, orphan.producer_id))

    monkeypatch.setattr("tidelog.client.transactions.TransactionsClient", Client)
    monkeypatch.setattr(transactions, "_now_ms", lambda: NOW_MS)
    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)
    return world


@pytest.mark.parametrize("command", ["list", "describe", "abort", "abort-orphans"])
def test_every_command_explains_itself_with_examples(tidelog, command):
    result = tidelog("transactions", command, "--help")

    assert result.code == 0
    assert f"tidelog transactions {command}" in result.out and "Examples:" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["list", "--state", "Tired"], "Tired"),
        (["list", "--state", "Ongoing", "--hanging"], "--state"),
        (["describe"], "ID"),
        (["abort"], "ID"),
        (["describe", "nobody"], "there is none"),
        (["abort", "nobody", "--yes"], "there is none"),
    ],
)
def test_what_cannot_be_done_is_one_line(tidelog, cluster, arguments, expected):
    result = tidelog("transactions", *arguments)

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == ""


# Listing.


def test_transactions_are_listed(tidelog, cluster):
    cluster.infos = [info("a"), info("b\x1b[2J", "Empty")]

    result = tidelog("transactions", "list", "--state", "ongoing")

    assert result.code == 0 and cluster.states == ["Ongoing"]
    assert "a" in result.out and "Empty" in result.out and "\x1b" not in result.out
    documents = json.loads(tidelog("transactions", "list", "--json").out)["transactions"]
    assert documents[0] == {
        "transactional_id": "a", "state": "Ongoing", "producer_id": 7, "coordinator": 1,
    }  # fmt: skip


def test_an_empty_list_is_said_to_be_one(tidelog, cluster):
    result = tidelog("transactions", "list")

    assert (result.code, result.out) == (0, "")
    assert "no transactional ids" in result.err


def test_only_what_is_open_for_longer_than_its_timeout_hangs(tidelog, cluster):
    cluster.infos = [
        info("young", age_ms=MINUTE), info("old", age_ms=MINUTE + 1),
        info("ended", "CompleteCommit", age_ms=9 * MINUTE), info("none", "Empty", age_ms=None),
        info("stuck", "PrepareAbort", age_ms=5 * MINUTE),
    ]  # fmt: skip

    found = json.loads(tidelog("transactions", "list", "--hanging", "--json").out)
    result = tidelog("transactions", "list", "--hanging")

    assert [one["transactional_id"] for one in found["transactions"]] == ["old", "stuck"]
    assert found["transactions"][1]["age_ms"] == 5 * MINUTE
    assert found["orphans"] == []
    assert "stuck" in result.out and "5 min" in result.out and "young" not in result.out
    assert "tidelog transactions abort" in result.err


def test_what_partitions_hold_open_and_nobody_knows_of_hangs_too(tidelog, cluster):
    long = ORPHAN_MS + 1
    cluster.infos = [info("known", producer=7), info("ended", "CompleteAbort", producer=9)]
    cluster.opened = [
        opened(T0, 7, long), opened(T0, 8, long), opened(T1, 8, long - 1), opened(T1, 9, long),
    ]  # fmt: skip

    found = json.loads(tidelog("transactions", "list", "--hanging", "--json").out)
    result = tidelog("transactions", "list", "--hanging")

    assert [(one["partition"], one["producer_id"]) for one in found["orphans"]] == [(0, 8), (1, 9)]
    assert found["orphans"][0]["first_offset"] == 40
    assert "15 min ago" in result.out and "no coordinator" in result.err


def test_nothing_hangs_where_nothing_does(tidelog, cluster):
    result = tidelog("transactions", "list", "--hanging")

    assert (result.code, result.out, result.err) == (0, "", "no transaction hangs\n")


# Describing.


def test_a_transaction_is_described_with_where_readers_wait(tidelog, cluster):
    cluster.infos = [info("tx", age_ms=2 * MINUTE)]
    cluster.opened = [opened(T0, 7), opened(T1, 8)]

    document = json.loads(tidelog("transactions", "describe", "tx", "--json").out)
    result = tidelog("transactions", "describe", "tx")

    assert document["partitions"] == [
        {"topic": "t", "partition": 0, "first_offset": 40},
        {"topic": "t", "partition": 1, "first_offset": None},
    ]
    assert document["overdue"] is True and document["age_ms"] == 2 * MINUTE
    assert "Ongoing, open for 2 min (overdue), timeout 60 s, producer 7 epoch 3" in result.out
    assert set(cluster.asked_places[0]) == {T0, T1}


def test_an_id_without_a_transaction_asks_no_partition(tidelog, cluster):
    cluster.infos = [info("tx", "Empty", age_ms=None, places=())]

    result = tidelog("transactions", "describe", "tx")

    assert "tx  Empty, timeout 60 s" in result.out and "no partition" in result.err
    assert cluster.asked_places == []


# Aborting.


def test_an_open_transaction_is_aborted_with_the_timeout_that_it_had(tidelog, cluster):
    cluster.infos = [info("tx")]

    result = tidelog("transactions", "abort", "tx", "--yes")
    document = json.loads(tidelog("transactions", "abort", "tx", "--yes", "--json").out)

    assert result.code == 0 and "aborted in 2 partitions" in result.out
    assert cluster.aborted == [("tx", MINUTE)] * 2
    assert document == {
        "transactional_id": "tx", "aborted": True, "producer_id": 7, "producer_epoch": 4,
    }  # fmt: skip


def test_orphans_are_aborted_each_where_it_is_open(tidelog, cluster):
    cluster.infos = [info("known", producer=7)]
    cluster.opened = [opened(T0, 7, ORPHAN_MS + 1), opened(T1, 9, ORPHAN_MS + 1)]

    refused = tidelog("transactions", "abort-orphans")
    assert refused.code != 0 and "--yes" in refused.err and "t-1" in refused.err
    assert cluster.aborted == []
    result = tidelog("transactions", "abort-orphans", "--yes")
    document = json.loads(tidelog("transactions", "abort-orphans", "--yes", "--json").out)

    assert result.out == "producer 9 aborted in t-1\n"
    assert cluster.aborted == [(T1, 9)] * 2
    assert [one["producer_id"] for one in document["aborted"]] == [9]


def test_without_orphans_nothing_is_aborted(tidelog, cluster):
    result = tidelog("transactions", "abort-orphans")

    assert (result.code, result.err, cluster.aborted) == (0, "there are none\n", [])


@pytest.mark.parametrize(
    ("state", "arguments", "expected"),
    [
        ("Ongoing", [], "--yes"),
        ("Empty", ["--yes"], "no open transaction"),
        ("CompleteAbort", ["--yes"], "no open transaction"),
        ("PrepareCommit", ["--yes"], "is committed"),
    ],
)
def test_what_is_not_open_or_not_meant_is_left_alone(tidelog, cluster, state, arguments, expected):
    cluster.infos = [info("tx", state)]

    result = tidelog("transactions", "abort", "tx", *arguments)

    assert result.code == 1 and expected in result.err and result.err.count("\n") == 1
    assert cluster.aborted == []
