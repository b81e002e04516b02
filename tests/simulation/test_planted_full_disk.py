"""A bug planted again: preferred leadership goes back to a node whose disk is full.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

from dataclasses import replace

import pytest

from tidelog.controller.reports import ReplicaReports
from tidelog.partition.leader import Leader
from tidelog.simulation.during import GOES_ON
from tidelog.simulation.plan import Plan
from tidelog.simulation.swarm import make_plan, play

SEED = 4


def plan_of(seed: int) -> Plan:
    plan = make_plan(seed, kinds=["fill_one_disk"], story="cluster", nodes=3)
    return replace(plan, admin_pace=replace(plan.admin_pace, clients=1, think_seconds=1.0))


def plant_full_leaders(patch: pytest.MonkeyPatch) -> None:
    """Neither the controller nor the leaders know which disks are full."""
    patch.setattr(ReplicaReports, "is_full", lambda self, node: False)
    patch.setattr(ReplicaReports, "full", lambda self: [])
    patch.setattr(Leader, "found_full", lambda self, node, broker_epoch: None)


@pytest.mark.slow
def test_leaders_on_a_full_disk_are_found(monkeypatch):
    plant_full_leaders(monkeypatch)

    violation = play(plan_of(SEED)).violation

    assert violation is not None and violation.name == GOES_ON


@pytest.mark.slow
def test_without_the_bug_the_same_plan_passes():
    assert play(plan_of(SEED)).violation is None
