"""Every request, verb and fault that there is comes up in some story.

Seeds are chosen by their plans, which cost little to draw: the fewest with which every story is
played, and every kind of fault and every situation comes up twice. So a new kind is played here
from the day on which it is in a table, and this fails if the kind is never drawn or hits nobody.
"""

from collections import Counter
from collections.abc import Collection
from functools import cache
from typing import Final, TypeAlias

import pytest

from tidelog.simulation.campaign import play_seed
from tidelog.simulation.coverage import never
from tidelog.simulation.faults import KINDS
from tidelog.simulation.met import Met
from tidelog.simulation.operators import VERBS, verb_of
from tidelog.simulation.plan import Plan
from tidelog.simulation.questions import QUESTIONS
from tidelog.simulation.situations import EVERY_KIND, SITUATIONS
from tidelog.simulation.stories import STORIES
from tidelog.simulation.swarm import make_plan

Seed: TypeAlias = tuple[str, int]
"""A story and the number of one of its seeds."""

SEEDS: Final = range(300)
"""Of each story; the chosen ones are among them."""
PLAYED_MAX: Final = 60
"""Seeds that are played in all, while something is missing."""
NEEDS: Final = {
    **dict.fromkeys(("ConfirmWhole", "FetchRange", "ForgetReplica"), "rot_sealed"),
    "FindOpenTransaction": "forge_marker",
}
"""What a plan must have for a message to be sent; otherwise `OPERATORS`, who ask for most."""
OPERATORS: Final = "operators"
TIMES: Final = 2
"""In how many chosen seeds each fault and verb is drawn: one alone may find its node down."""

DECISIONS: Final = "decisions of groups"


def wanted() -> Counter[str]:
    names = [*EVERY_KIND, *(situation.name for situation in SITUATIONS)]
    often = [*KINDS, *map(verb_of, VERBS), *QUESTIONS]
    return Counter(dict.fromkeys([*names, *STORIES, DECISIONS], 1) | dict.fromkeys(often, TIMES))


def contents(plan: Plan) -> set[str]:
    """The story, the situations and the kinds of faults of a plan; of orders, the verbs."""
    asked = (fault.arguments.get(name) for fault in plan.faults for name in ("verb", "what"))
    found = {plan.story, *plan.situations, *filter(None, asked)}
    found |= {fault.kind for fault in plan.faults}
    if plan.story == "transactions" and plan.transaction_pace.queries:
        found.add(DECISIONS)
    return found


def cost(plan: Plan) -> float:
    """About how much there is to play: most where the network is fast, and where scrubbers must
    have been through everything before it ends."""
    is_fast = plan.network["latency_seconds"][1] < 0.01
    scrubs = bool(plan.node.get("scrub_bytes_per_second"))
    return plan.nodes * plan.chaos_seconds * (1 + is_fast) * (1 + scrubs)


@cache
def pool() -> dict[Seed, tuple[set[str], float]]:
    """What each seed's plan has, and its cost."""
    plans = {(story, seed): make_plan(seed, story=story) for story in STORIES for seed in SEEDS}
    return {
        at: (contents(plan), cost(plan))
        for at, plan in plans.items()
        if plan.story == "alone" or plan.nodes > 1  # one node is down too often to be asked
    }


def choose() -> tuple[list[Seed], Counter[str]]:
    """The seeds, each time the one that adds most for its cost; and what none of them has."""
    left = dict(pool())
    missing, chosen = wanted(), []
    while left:
        gains = {at: len(held & missing.keys()) / cost for at, (held, cost) in left.items()}
        best = max(gains, key=gains.__getitem__)
        if not gains[best]:
            break
        chosen.append(best)
        missing = +(missing - Counter(left.pop(best)[0]))
    return chosen, missing


def test_every_story_fault_and_situation_is_drawn():
    _, missing = choose()

    assert not missing


def unmet(met: Met) -> dict[str, list[str]]:
    """By section, what was not met and should have been."""
    return {
        section: names
        for section in ("apis", "peers", "work", "verbs", "faults", "situations")
        if (names := never(met, section))
    }


def further(names: set[str], played: Collection[Seed]) -> Seed:
    """The cheapest seed whose plan has, or may lead to, some of these."""
    left = {at: (held, cost) for at, (held, cost) in pool().items() if at not in played}
    for sought in (names, {NEEDS.get(name, OPERATORS) for name in names}):
        able = {at: cost for at, (held, cost) in left.items() if held & sought}
        if able:
            return min(able, key=able.__getitem__)
    raise AssertionError("every seed of an operator was played")


@pytest.mark.slow
def test_every_request_verb_and_fault_is_met_by_a_story():
    chosen, _ = choose()
    met = Met()
    for story, seed in chosen:
        met.add(play_seed(seed, story=story).met)

    played = set(chosen)
    while (missing := unmet(met)) and len(played) < PLAYED_MAX:
        story, seed = further({name for names in missing.values() for name in names}, played)
        met.add(play_seed(seed, story=story).met)
        played.add((story, seed))

    assert unmet(met) == {}
