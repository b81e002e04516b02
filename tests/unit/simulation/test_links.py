"""How situations part nodes, and what they allow a cluster to take."""

import random

import pytest

from tidelog.simulation.links import draw_ways
from tidelog.simulation.swarm import make_plan


@pytest.mark.parametrize("count", [2, 3, 5])
def test_nodes_are_parted_from_others_and_never_all_from_all(count: int) -> None:
    nodes = range(1, count + 1)
    every = {(a, b) for a in nodes for b in nodes if a != b}
    drawn = {draw_ways(random.Random(seed), nodes) for seed in range(200)}

    assert all(set(ways) <= every and len(set(ways)) == len(ways) for ways in drawn)
    assert count == 2 or all(set(ways) != every for ways in drawn)
    assert any(set(ways) != {(b, a) for a, b in ways} for ways in drawn), "some are one way"


@pytest.mark.parametrize("kind", ["pause_one", "part_one_link"])
def test_a_fault_that_is_judged_while_it_lasts_is_alone_in_its_plan(kind: str) -> None:
    plans = [make_plan(seed, story="replicated", kinds=["crash", kind]) for seed in range(20)]

    for plan in plans:
        (fault,) = plan.faults
        assert fault.arguments["seconds"] > fault.arguments["allowed_seconds"]
        assert plan.chaos_seconds > fault.at + fault.arguments["seconds"]
    assert kind in {plan.faults[0].kind for plan in plans}
