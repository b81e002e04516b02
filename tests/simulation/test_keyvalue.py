"""Seeds of keys and values, and what must come of each."""

import tempfile
from dataclasses import replace

import pytest

from tidelog.simulation.swarm import make_plan, play


@pytest.mark.parametrize("seed", [4])
def test_the_same_seed_gives_the_same_history(seed):
    plan = make_plan(seed, story="kv", chaos_seconds=4)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 0


def test_nothing_acknowledged_is_lost_when_every_node_loses_power_at_once():
    plan = make_plan(6, story="kv", nodes=3, chaos_seconds=6, kinds=["lose_power_everywhere"])

    outcome = play(plan)

    assert outcome.violation is None
    assert outcome.acknowledged > 50
    assert outcome.faults["lose_power_everywhere"] > 2


def test_watches_copies_and_a_bucket_made_anew_leave_a_seed_its_one_history(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = make_plan(9, story="kv", chaos_seconds=4, kinds=["crash", "watches", "copies"])
    plan = replace(plan, kv_pace=replace(plan.kv_pace, remakes=True))

    first, second = play(plan), play(plan)

    assert plan.kv_pace.watchers and plan.kv_pace.copies
    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert not list(tmp_path.iterdir()), "files of copies stay behind"
