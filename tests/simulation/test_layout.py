"""Clusters whose brokers do not all vote, whose consumers read nearby, and whose operators lead."""

import random
from typing import Any

import pytest

from tidelog.simulation import layout
from tidelog.simulation.swarm import make_plan, play


def plan_of(seed: int, *kinds: str, chaos_seconds: float = 5) -> Any:
    return make_plan(seed, story="replicated", kinds=kinds, chaos_seconds=chaos_seconds)


@pytest.mark.parametrize("seed", range(20))
def test_some_brokers_do_not_vote_and_faults_hit_them_too(seed: int) -> None:
    before = make_plan(seed, story="replicated")

    plan = layout.observers(before, random.Random(seed), ())

    assert plan.voters is not None
    assert 1 <= plan.voters < plan.nodes
    assert [fault.kind for fault in plan.faults] == [fault.kind for fault in before.faults]
    assert plan.voters % 2 == 1, "a quorum has an odd number of voters"


def test_who_does_not_vote_is_no_member_of_the_quorum_and_says_where_it_is() -> None:
    plan = plan_of(1, "observers", chaos_seconds=1)
    made: dict[int, Any] = {}

    def note(host: Any, number: int, **settings: Any) -> Any:
        made[number] = settings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "real_node", note)
        for number in range(1, plan.nodes + 1):
            layout.node_factory(plan)(None, number)  # type: ignore[arg-type]

    assert plan.voters is not None
    quorum = made[plan.nodes]["quorum"]
    assert quorum.count("@") == plan.voters
    assert f"node-{plan.nodes}" not in quorum
    assert made[plan.nodes]["peer"] == f"node-{plan.nodes}:9192"
    assert "peer" not in made[1]


@pytest.mark.parametrize(
    ("kinds", "met"),
    [
        (("crash", "observers"), "crash"),
        (("isolate", "racks"), "isolate"),
        (("crash", "promote", "elect_preferred"), "promote"),
        (("crash", "manual_failover"), "manual_failover"),
    ],
)
def test_nothing_is_lost_in_such_clusters(kinds: tuple[str, ...], met: str) -> None:
    outcome = play(plan_of(3, *kinds))

    assert outcome.violation is None
    assert outcome.acknowledged > 0
    assert outcome.faults[met] > 0
