import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tidelog.client.cluster import Refused
from tidelog.errors import BrokerError, UnknownTopicOrPartition
from tidelog.faces.cli import transactions
from tidelog.model import NO_TIMESTAMP, TopicPartition
from tidelog.operators.table import VERBS
from tidelog.operators.transactions import ORPHAN_MS, Aborted, Coordinated, OpenFound, Orphan, show
from tidelog.operators.values import place_of
from tidelog.txn.events import TransactionView

NOW_MS = 10_000_000
MINUTE = 60_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def info(
    name: str,
    state: str = "Ongoing",
    *,
    age_ms: int | None = 0,
    producer: int = 7,
    places: tuple[TopicPartition, ...] = (T0, T1),
) -> TransactionView:
    started_ms = NO_TIMESTAMP if age_ms is None else NOW_MS - age_ms
    return TransactionView(
        transactional_id=name,
        state=state,
        producer_id=producer,
        epoch=3,
        timeout_ms=MINUTE,
        started_ms=started_ms,
        updated_ms=started_ms,
        places=places,
        unmarked=(),
    )


def opened(place: TopicPartition, producer: int, age_ms: int = 0) -> Orphan:
    return Orphan(
        topic=place.topic,
        partition=place.partition,
        producer_id=producer,
        producer_epoch=3,
        first_offset=40,
        last_timestamp_ms=NOW_MS - age_ms,
    )


@pytest.fixture
def cluster(monkeypatch):
    """A cluster whose verbs are done, on coordinators and leaders that only remember."""
    clock = SimpleNamespace(wall_ms=lambda: NOW_MS)
    broker: Any = SimpleNamespace(node_id=1, host=SimpleNamespace(clock=clock))
    world = SimpleNamespace(infos=[], opened=[], aborted=[], asked_places=[])

    class Coordinators:
        """What the verbs are done with."""

        broker: Any

        def shows(self, needed: Any, name: str) -> bool:
            return True

        async def ask(self, name: str, asked: Any) -> Any:
            for one in world.infos:
                if one.transactional_id == asked.id:
                    break
            else:
                raise UnknownTopicOrPartition("nobody has begun a transaction")
            if name == "transactions.look":
                return show(broker, one)
            assert name == "transactions.abort_here"
            world.aborted.append(one.transactional_id)
            return Aborted(transactional_id=asked.id, aborted=True, producer_id=7, producer_epoch=4)

        async def ask_all(self, name: str, asked: Any, *, of: str | None = None) -> list[Any]:
            if name == "transactions.list_here":
                return [Coordinated(served=[0], transactions=[show(broker, one) for one in world.infos])]
            world.asked_places.append(asked.places)
            wanted = None if asked.places is None else {(one.topic, one.partition) for one in asked.places}
            found = [one for one in world.opened if wanted is None or (one.topic, one.partition) in wanted]
            return [OpenFound(open=found)]

    desk: Any = Coordinators()
    desk.broker = broker

    class Client:
        def __init__(self, bootstrap: str) -> None:
            assert bootstrap == "127.0.0.1:9092"

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def perform(self, verb: str, **asked: Any) -> Any:
            if verb == "transactions.abort_orphan":
                world.aborted.append(
                    (TopicPartition(asked["topic"], asked["partition"]), asked["producer_id"])
                )
                return {}
            row = VERBS[verb]
            try:
                done = await row.do(desk, msgspec.convert(asked, row.asks))
            except BrokerError as error:
                raise Refused(error.code, "", str(error)) from None
            return msgspec.to_builtins(done)

    monkeypatch.setattr("tidelog.client.kafka.KafkaClient", Client)
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

    everything = tidelog("transactions", "list")

    assert result.code == 0 and "Ongoing" in result.out and "Empty" not in result.out
    assert "Empty" in everything.out and "\x1b" not in everything.out
    documents = json.loads(tidelog("transactions", "list", "--json").out)["transactions"]
    assert documents[0] == {"transactional_id": "a", "state": "Ongoing", "producer_id": 7, "coordinator": 1}


def test_an_empty_list_is_said_to_be_one(tidelog, cluster):
    result = tidelog("transactions", "list")

    assert (result.code, result.out) == (0, "")
    assert "no transactional ids" in result.err


def test_only_what_is_open_for_longer_than_its_timeout_hangs(tidelog, cluster):
    cluster.infos = [
        info("young", age_ms=MINUTE),
        info("old", age_ms=MINUTE + 1),
        info("ended", "CompleteCommit", age_ms=9 * MINUTE),
        info("none", "Empty", age_ms=None),
        info("stuck", "PrepareAbort", age_ms=5 * MINUTE),
    ]

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
    cluster.opened = [opened(T0, 7, long), opened(T0, 8, long), opened(T1, 8, long - 1), opened(T1, 9, long)]

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
    assert cluster.asked_places[0] == [place_of(T0), place_of(T1)]


def test_an_id_without_a_transaction_asks_no_partition(tidelog, cluster):
    cluster.infos = [info("tx", "Empty", age_ms=None, places=())]

    result = tidelog("transactions", "describe", "tx")

    assert "tx  Empty, timeout 60 s" in result.out and "no partition" in result.err
    assert cluster.asked_places == []


# Aborting.


def test_an_open_transaction_is_aborted(tidelog, cluster):
    cluster.infos = [info("tx")]

    result = tidelog("transactions", "abort", "tx", "--yes")
    document = json.loads(tidelog("transactions", "abort", "tx", "--yes", "--json").out)

    assert result.code == 0 and "aborted in 2 partitions" in result.out
    assert cluster.aborted == ["tx", "tx"]
    assert document == {"transactional_id": "tx", "aborted": True, "producer_id": 7, "producer_epoch": 4}


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
