"""Every request, verb and fault that there is comes up in some story.

Seeds are chosen by their plans, which cost little to draw: the fewest with which every story is
played, and every kind of fault and every situation comes up twice. So a new kind is played here
from the day on which it is in a table, and this fails if the kind is never drawn or hits nobody.
"""

from collections import Counter
from typing import Final

import pytest

from tidelog.simulation.campaign import play_seed
from tidelog.simulation.coverage import Met
from tidelog.simulation.faults import KINDS
from tidelog.simulation.operators import VERBS, verb_of
from tidelog.simulation.plan import Plan
from tidelog.simulation.questions import QUESTIONS
from tidelog.simulation.situations import EVERY_KIND, SITUATIONS
from tidelog.simulation.stories import STORIES
from tidelog.simulation.swarm import make_plan

SEEDS: Final = range(150)
"""Of each story; the chosen ones are among them."""
FURTHER: Final = range(150, 158)
"""Of each story: played in turn, but only while something is missing that no plan tells of."""
TIMES: Final = 2
"""In how many chosen seeds each fault and verb is drawn: one alone may find its node down."""

DECISIONS: Final = "decisions of groups"
UNMET: Final = {
    "apis": {
        "DeleteRecords": "no story deletes records yet",
        "RemoveRaftVoter": "no story changes voters yet",
    },
    "peers": {
        "FetchSnapshot": "no story trims the metadata log yet",
        "ForgetReplica": "few seeds have a damaged follower that must leave its in-sync set",
        "FetchRange": "few seeds have rot that a scrubber finds before the end",
    },
}
"""What no story meets, and why."""


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


def choose() -> tuple[list[tuple[str, int]], Counter[str]]:
    """The seeds, each time the one that adds most for its length; and what none of them has."""
    plans = {(story, seed): make_plan(seed, story=story) for story in STORIES for seed in SEEDS}
    held = {
        at: contents(plan)
        for at, plan in plans.items()
        if plan.story == "alone" or plan.nodes > 1  # one node is down too often to be asked
    }
    missing, chosen = wanted(), []
    while held:
        gains = {
            at: len(found & missing.keys()) / (plans[at].nodes * plans[at].chaos_seconds)
            for at, found in held.items()
        }
        best = max(gains, key=gains.__getitem__)
        if not gains[best]:
            break
        chosen.append(best)
        missing = +(missing - Counter(held.pop(best)))
    return chosen, missing


def test_every_story_fault_and_situation_is_drawn():
    _, missing = choose()

    assert not missing


def unmet(met: Met) -> dict[str, list[str]]:
    """By section, what was not met and should have been."""
    return {
        section: names
        for section in ("apis", "peers", "work", "verbs", "faults", "situations")
        if (names := [one for one in met.never(section) if one not in UNMET.get(section, {})])
    }


@pytest.mark.slow
def test_every_request_verb_and_fault_is_met_by_a_story():
    chosen, _ = choose()
    further = [(story, seed) for seed in FURTHER for story in STORIES]
    met = Met()

    for number, (story, seed) in enumerate(chosen + further):
        if number >= len(chosen) and not unmet(met):
            break
        met.add(play_seed(seed, story=story).met)

    assert unmet(met) == {}
