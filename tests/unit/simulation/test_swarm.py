"""One seed, one plan."""

from collections import Counter
from functools import partial

import pytest

from tests.unit.simulation.test_world import Counter as CountingNode
from tidelog.faces.cli.simulate import Story
from tidelog.simulation.faults import DAMAGING, FORGETTING, KINDS
from tidelog.simulation.plan import Fault
from tidelog.simulation.situations import EVERY_KIND
from tidelog.simulation.stories import STORIES
from tidelog.simulation.swarm import make_plan
from tidelog.simulation.world import World


def test_a_plan_depends_on_its_seed_alone():
    for seed in range(20):
        assert make_plan(seed) == make_plan(seed)
    assert len({str(make_plan(seed)) for seed in range(20)}) == 20


def test_faults_come_in_order_and_within_the_chaos():
    for seed in range(50):
        times = [fault.at for fault in make_plan(seed, chaos_seconds=7).faults]
        assert times == sorted(times)
        assert all(0 <= at < 7 for at in times)


def test_each_seed_enables_some_kinds_and_all_of_them_come_up():
    plans = [make_plan(seed) for seed in range(300)]
    kinds = [{fault.kind for fault in plan.faults} for plan in plans]

    assert set.union(*kinds) == set(EVERY_KIND)
    assert max(map(len, kinds)) < len(EVERY_KIND)
    faults, seconds = sum(len(p.faults) for p in plans), sum(p.chaos_seconds for p in plans)
    assert faults / seconds >= 1


def test_the_kinds_can_be_chosen():
    plan = make_plan(3, kinds=["crash", "pause"])

    assert {fault.kind for fault in plan.faults} == {"crash", "pause"}
    assert make_plan(3, kinds=[]).faults == ()


def test_only_one_machine_is_damaged():
    for seed in range(100):
        plan = make_plan(seed, kinds=DAMAGING)
        assert {fault.arguments["node"] for fault in plan.faults} <= {plan.nodes}


def test_every_story_comes_up():
    assert {make_plan(seed).story for seed in range(50)} == set(STORIES)


def test_every_story_can_be_asked_for():
    assert [story.value for story in Story] == list(STORIES)


def test_replicas_are_many_and_disks_keep_what_they_promise():
    plans = [make_plan(seed, story="replicated") for seed in range(200)]

    assert {plan.nodes for plan in plans} == {3, 5}
    assert {plan.pace.replication for plan in plans} == {2, 3}
    for plan in plans:
        assert {fault.kind for fault in plan.faults}.isdisjoint(DAMAGING)


def test_writes_count_in_memory_only_where_no_fault_makes_disks_forget():
    plans = [make_plan(seed, story="replicated") for seed in range(200)]
    by_memory = [p for p in plans if ("durability", "replicated") in p.pace.topic_configs]

    assert by_memory
    for plan in by_memory:
        assert FORGETTING.isdisjoint(fault.kind for fault in plan.faults)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_befalls_and_heals(kind):
    for seed in range(5):
        with World(seed, nodes=3, node_factory=CountingNode, restart_after_seconds=1.0) as world:
            for number in world.machines:
                world.client(f"client-{number}")
            world.start()
            faults: list[Fault] = [
                fault for fault in make_plan(seed, kinds=[kind]).faults if fault.arguments.get("node", 1) <= 3
            ]
            for fault in faults[:5]:
                world.after(fault.at, partial(KINDS[kind][1], world, **fault.arguments))
            world.run(20)
            world.heal()
            world.restart_everyone()
            world.run_until(world.all_up, seconds_max=30)
            assert isinstance(world.faults, Counter)
