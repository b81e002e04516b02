"""A bug planted in how a log's start moves, found by the situation that the swarm draws.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

import pytest

from tidelog.partition.leader import Leader
from tidelog.simulation import replica_watch as watch
from tidelog.simulation.swarm import make_plan, play

FAULTS = ("delete_records", "cut", "clog", "crash", "pause")


def plant_a_start_of_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    """A leader moves its log's start without asking its followers."""

    def agree(self: Leader) -> None:
        self.start_agreed = min(self.start_wanted, self.high_watermark)

    patch.setattr(Leader, "_agree_on_start", agree)


def test_a_start_that_the_leader_moves_alone_is_found(monkeypatch):
    plan = make_plan(1, story="replicated", kinds=FAULTS, chaos_seconds=8, nodes=3)
    assert play(plan).violation is None
    plant_a_start_of_the_leader_alone(monkeypatch)

    found = play(plan).violation

    assert found is not None
    assert found.name in (watch.STARTS, watch.DELETED)
