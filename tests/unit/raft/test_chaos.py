"""A quorum under faults keeps its promises, and planted bugs are found.

`TIDELOG_SEEDS=5000` runs more seeds; `python -m tests.support.raft_cluster SEED` replays one.
"""

import os

import pytest

from tests.support.raft_cluster import Cluster
from tests.support.raft_faults import FAULTS, Fault
from tests.support.raft_invariants import Violation

SEEDS = int(os.environ.get("TIDELOG_SEEDS", "200"))
PARTS = 8
SEEDS_UNTIL_FOUND_MAX = 400


def run(fault: Fault, *, seeds: int) -> None:
    for seed in range(seeds):
        Cluster(seed, nodes=fault.nodes, swarm=fault.swarm).story()


@pytest.mark.timeout(60 + SEEDS)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_quorum_keeps_its_promises_whatever_fails(part):
    for seed in range(part, SEEDS, PARTS):
        Cluster(seed).story()


def test_the_same_seed_gives_the_same_history():
    first, again = Cluster(11), Cluster(11)
    first.story()
    again.story()

    assert list(first.trace) == list(again.trace)
    assert first.steps == again.steps


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_bug_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch):
    fault.plant(monkeypatch)

    with pytest.raises(Violation) as found:
        run(fault, seeds=SEEDS_UNTIL_FOUND_MAX)

    assert found.value.name in fault.found_by


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_same_weather_is_harmless_without_the_bug(fault: Fault):
    run(fault, seeds=10)
