"""From a seed that fails to the fewest faults that still make it fail.

Rule: what counts is the name of the violation. A smaller plan that fails in another way is another
finding, and is not followed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.swarm import Outcome

T = TypeVar("T")


def shrink(
    plan: Plan,
    play: Callable[[Plan], Outcome],
    *,
    tries_max: int = 200,
    on_try: Callable[[int, int], None] | None = None,
) -> tuple[Plan, Outcome]:
    """A plan with as few faults as were found to fail in the same way, and what came of it.

    `on_try` is told how many plans were tried and how many faults are left.
    """
    outcome = play(plan)
    assert outcome.violation is not None, "a plan that does not fail cannot be shrunk"
    name = outcome.violation.name
    best = (plan, outcome)
    tries = 0

    def fails(faults: Sequence[Fault]) -> bool:
        nonlocal best, tries
        if tries >= tries_max:
            return False
        tries += 1
        smaller = replace(plan, faults=tuple(faults))
        tried = play(smaller)
        same = tried.violation is not None and tried.violation.name == name
        if same:
            best = (smaller, tried)
        if on_try is not None:
            on_try(tries, len(best[0].faults))
        return same

    faults = list(plan.faults)
    before = [fault for fault in faults if fault.at <= outcome.violation.at]
    if len(before) < len(faults) and fails(before):  # what came later did not matter
        faults = before
    minimize(faults, fails)
    return best


def minimize(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """The items without which `fails` no longer holds: Zeller's ddmin, by complements.

    One-minimal, if `fails` may be asked often enough: leaving out any single one heals it.
    """
    items = list(items)
    if items and fails([]):
        return []
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if rest and fails(rest):
                items = rest
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), 2 * parts)
    return items
