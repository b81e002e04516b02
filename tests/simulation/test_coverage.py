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
from tidelog.simulation.situations import EVERY_KIND, SITUATIONS
from tidelog.simulation.stories import STORIES
from tidelog.simulation.swarm import make_plan

SEEDS: Final = range(60)
"""Of each story; the chosen ones are among them."""
TIMES: Final = 2
"""In how many chosen seeds each kind must be drawn: one alone may hit a node that is down."""

_LATER: Final = "no story sends it yet"
UNMET: Final = {
    "apis": dict.fromkeys(
        (
            "LeaveGroup", "DescribeGroups", "ListGroups", "DeleteRecords", "OffsetForLeaderEpoch",
            "WriteTxnMarkers", "DescribeConfigs", "AlterConfigs", "DescribeLogDirs", "DeleteGroups",
            "ElectLeaders", "ListPartitionReassignments", "OffsetDelete", "DescribeQuorum",
            "DescribeCluster", "DescribeProducers", "UnregisterBroker", "DescribeTransactions",
            "ListTransactions", "DescribeTopicPartitions", "AddRaftVoter", "RemoveRaftVoter",
            "ForgetDecision", "RestoreBatches",
        ),
        _LATER,
    ),
    "peers": dict.fromkeys(("ChangeVoters", "FanOut", "FetchSnapshot", "StopNode"), _LATER),
    "work": dict.fromkeys(
        ("DropWork", "ForgetWork", "MoveWork", "ProduceWork", "ReadForReplica", "ReadWork"), _LATER
    ),
    "verbs": dict.fromkeys(Met().names("verbs"), _LATER),
}  # fmt: skip
"""What no story meets, and why."""


def wanted() -> Counter[str]:
    situations = [situation.name for situation in SITUATIONS]
    return Counter(dict.fromkeys([*EVERY_KIND, *situations], TIMES) | dict.fromkeys(STORIES, 1))


def contents(story: str, seed: int) -> set[str]:
    plan = make_plan(seed, story=story)
    return {story, *plan.situations, *(fault.kind for fault in plan.faults)}


def choose() -> tuple[list[tuple[str, int]], Counter[str]]:
    """The seeds, each time the one that adds most; and what none of them has."""
    plans = {(story, seed): contents(story, seed) for story in STORIES for seed in SEEDS}
    missing, chosen = wanted(), []
    while plans:
        best = max(plans, key=lambda at: len(plans[at] & missing.keys()))
        found = plans.pop(best) & missing.keys()
        if not found:
            break
        chosen.append(best)
        missing = +(missing - Counter(found))
    return chosen, missing


def test_every_story_fault_and_situation_is_drawn():
    _, missing = choose()

    assert not missing


@pytest.mark.slow
def test_every_request_verb_and_fault_is_met_by_a_story():
    chosen, _ = choose()

    met = Met()
    findings = []
    for story, seed in chosen:
        played = play_seed(seed, story=story)
        met.add(played.met)
        findings += [] if played.finding is None else [(story, seed, played.finding.problem)]

    assert findings == []
    for section in ("apis", "peers", "work", "verbs", "faults", "situations"):
        never = set(met.never(section)) - UNMET.get(section, {}).keys()
        assert not never, f"{section} that no story meets: {sorted(never)}"
