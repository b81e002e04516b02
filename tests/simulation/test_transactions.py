"""Seeds of transactions, and what must come of each."""

import pytest

from tidelog.simulation.swarm import make_plan, play


@pytest.mark.parametrize("seed", [3])
def test_the_same_seed_gives_the_same_history(seed):
    plan = make_plan(seed, story="transactions", chaos_seconds=3)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 0
