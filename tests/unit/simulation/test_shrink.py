"""The fewest faults that still do it."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.shrink import minimize, shrink
from tidelog.simulation.swarm import Outcome, make_plan
from tidelog.simulation.world import Violation


@pytest.mark.parametrize(
    "guilty", [[], [3], [0, 99], [7, 8, 9], [5, 25, 45, 65, 85], list(range(0, 100, 10))]
)
def test_only_what_is_needed_is_left(guilty):
    def fails(items: Sequence[int]) -> bool:
        return set(guilty) <= set(items)

    assert minimize(range(100), fails) == guilty


def test_the_order_stays():
    assert minimize("abcdef", lambda items: {"e", "b"} <= set(items)) == ["b", "e"]


def outcome(plan: Plan, violation: Violation | None) -> Outcome:
    return Outcome(
        seed=plan.seed,
        violation=violation,
        events=0,
        simulated_seconds=0,
        operations=0,
        acknowledged=0,
        faults=Counter(),
        effects=Counter(),
        trace_hash="",
        trace=[],
    )


def violation(name: str, at: float = 1e9) -> Violation:
    return Violation(name, "problem", seed=1, at=at, trace=[], replay="")


def plan(*kinds: str) -> Plan:
    faults = tuple(Fault(float(at), kind, {}) for at, kind in enumerate(kinds))
    return Plan(seed=1, nodes=1, chaos_seconds=10, faults=faults)


def test_a_plan_that_fails_in_another_way_is_not_followed():
    def play(plan: Plan) -> Outcome:
        kinds = {fault.kind for fault in plan.faults}
        if {"a", "b"} <= kinds:
            return outcome(plan, violation("lost"))
        return outcome(plan, violation("other") if "a" in kinds else None)

    smallest, found = shrink(plan("x", "a", "y", "b", "z"), play)

    assert [fault.kind for fault in smallest.faults] == ["a", "b"]
    assert found.violation is not None and found.violation.name == "lost"


def test_what_came_after_the_violation_is_left_out_first():
    played = []

    def play(plan: Plan) -> Outcome:
        played.append(len(plan.faults))
        return outcome(plan, violation("lost", at=1.5) if plan.faults else None)

    shrink(plan(*"abcdefgh"), play)

    assert played[:2] == [8, 2]


def test_it_gives_up_after_enough_tries_and_keeps_the_best():
    def play(plan: Plan) -> Outcome:
        return outcome(plan, violation("lost") if len(plan.faults) > 5 else None)

    smallest, _ = shrink(plan(*"abcdefghijklmnopqrst"), play, tries_max=3)

    assert 5 < len(smallest.faults) < 20


def test_a_fault_reads_as_what_it_does():
    fault = make_plan(1, kinds=["crash"]).faults[0]

    assert "crash(node=" in str(fault) and " s  " in str(fault)
