import json
from types import SimpleNamespace

import pytest

from tidelog.client.transactional import GroupDecision
from tidelog.spark.proofs import Proof
from tidelog.wire.batches_decided import Counting

QUERY, APPLICATION, OLD = "spark.q1@orders", "spark.app:orders", "spark.q0"


def decision(group, batch, proof, counting=Counting.QUERY) -> GroupDecision:
    return GroupDecision(
        group=group,
        batch_id=batch,
        decided_ms=1_700_000_000_000,
        members=2,
        after=None,
        counting=counting,
        proof=proof,
        coordinator=1,
    )


@pytest.fixture
def cluster(monkeypatch):
    known = Proof.of_rows(12, [{"in": {"0": 40}}]).encode()
    world = SimpleNamespace(
        reset=[],
        found=[
            decision(APPLICATION, 7, Proof.of_rows(3).encode(), Counting.APPLICATION),
            decision(OLD, 2, None, None),
            decision(QUERY, 4, known),
        ],
    )

    class Client:
        def __init__(self, bootstrap: str) -> None:
            assert bootstrap == "127.0.0.1:9092"

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def list_decisions(self) -> list[GroupDecision]:
            return world.found

        async def forget_decision(self, group: str, batch_id: int, *, is_reset: bool) -> None:
            world.reset.append((group, batch_id, is_reset))

    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)
    monkeypatch.setattr("tidelog.client.transactional.TransactionalClient", Client)
    return world


def test_decisions_are_listed_with_their_rows(tidelog, cluster):
    result = tidelog("pipeline", "decisions", "list")

    assert result.code == 0
    lines = {line.split()[0]: line.split() for line in result.out.splitlines() if line.split()}
    assert lines[QUERY][1:3] == ["4", "12"]
    assert lines[APPLICATION][1:] == ["7", "3", "2023-11-14", "22:13:20Z"]
    assert lines[OLD][1:3] == ["2", "-"]
    cluster.found = []
    assert "no query has written" in tidelog("pipeline", "decisions", "list").err


@pytest.mark.parametrize("name", [QUERY, "q1@orders", "q1", "spark.q1"])
def test_one_is_shown_by_its_name_or_as_much_of_it_as_is_needed(tidelog, cluster, name):
    shown = tidelog("pipeline", "decisions", "show", name, "--json")

    assert json.loads(shown.out) == {
        "name": QUERY,
        "batch": 4,
        "decided_ms": 1_700_000_000_000,
        "tasks": 2,
        "before": None,
        "counting": "query",
        "rows": 12,
        "ends": [{"in": {"0": 40}}],
        "coordinator": 1,
    }
    assert 'end      {"in": {"0": 40}}' in tidelog("pipeline", "decisions", "show", name).out


def test_a_name_that_is_none_or_several_is_told(tidelog, cluster):
    assert "has no decisions" in tidelog("pipeline", "decisions", "show", "nobody").err
    cluster.found.append(decision("spark.q1@other", 1, None))

    result = tidelog("pipeline", "decisions", "reset", "q1", "--yes")

    assert result.code != 0
    assert "name one of spark.q1@orders, spark.q1@other" in result.err
    assert "not known" in tidelog("pipeline", "decisions", "show", "q0").out


def test_a_reset_asks_first_and_names_the_batch_that_was_seen(tidelog, cluster):
    refused = tidelog("pipeline", "decisions", "reset", QUERY)
    assert refused.code != 0 and "--yes" in refused.err
    assert cluster.reset == []

    assert tidelog("pipeline", "decisions", "reset", QUERY, "--yes").code == 0
    assert cluster.reset == [(QUERY, 4, True)]


def test_a_reset_leaves_no_decision_under_the_name_from_before_topics_were_named(tidelog, cluster):
    cluster.found.append(decision("spark.q1", 3, None))

    assert tidelog("pipeline", "decisions", "reset", QUERY, "--yes").code == 0

    assert cluster.reset == [("spark.q1", 3, True), (QUERY, 4, True)]


@pytest.mark.parametrize("command", ["list", "show", "reset"])
def test_help_shows_an_example(tidelog, command):
    result = tidelog("pipeline", "decisions", command, "--help")

    assert f"tidelog pipeline decisions {command}" in result.out
