"""Seeds of replicated topics, and a few stories of them."""

import pytest

from tidelog.simulation.swarm import make_plan, play


@pytest.mark.parametrize("seed", [1, 3])
def test_the_same_seed_gives_the_same_history(seed):
    plan = make_plan(seed, story="replicated", chaos_seconds=5)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 0


def test_nothing_acknowledged_is_lost_when_every_node_loses_power_at_once():
    acknowledged = 0
    for seed in (1, 2):
        plan = make_plan(seed, story="replicated", nodes=3, chaos_seconds=8, kinds=["lose_power_everywhere"])

        outcome = play(plan)

        assert outcome.violation is None
        assert outcome.faults["lose_power_everywhere"] > 2
        acknowledged += outcome.acknowledged
    assert acknowledged > 50
