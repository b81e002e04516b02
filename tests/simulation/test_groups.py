"""Seeds of consumer groups, a story of a coordinator left alone, and bugs planted in both.

The bugs are 8 and 14 of RELIABILITY; the half of 14 about groups half loaded is in
`test_planted_rot`.
"""

from dataclasses import replace

import pytest

from tests.simulation.test_planted_replication import PLACE, Stage, a_stage, plant_a_lease_without_end
from tests.simulation.test_planted_rot import _commit, _coordinator, _group_elsewhere
from tidelog.errors import TidelogError
from tidelog.groups.events import Commit
from tidelog.groups.group import Group
from tidelog.shards.effects import Moment
from tidelog.simulation import history_check
from tidelog.simulation.groups import OneTryAdmin
from tidelog.simulation.history import History
from tidelog.simulation.swarm import make_plan, play


@pytest.mark.parametrize("seed", [5, 20])
def test_the_same_seed_gives_the_same_history(seed):
    plan = make_plan(seed, story="groups", chaos_seconds=5)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 0


# Generations that have passed.


def plant_commits_of_any_generation(patch: pytest.MonkeyPatch) -> None:
    """14: a member may commit what an earlier generation had given it."""
    check_commit = Group.check_commit

    def check_member_alone(self: Group, event: Commit, at: Moment) -> None:
        if event.generation >= 0:
            event = replace(event, generation=self.generation)
        check_commit(self, event, at)

    patch.setattr(Group, "check_commit", check_member_alone)


def test_a_commit_of_an_old_generation_is_found(monkeypatch):
    seeds, found = (18, 37, 47), []
    plans = [
        make_plan(seed, story="groups", nodes=3, kinds=["crash", "pause"], chaos_seconds=4) for seed in seeds
    ]
    with monkeypatch.context() as patch:
        plant_commits_of_any_generation(patch)
        for plan in plans:
            violation = play(plan).violation
            found.append(None if violation is None else violation.name)
            if found[-1] == history_check.GROUP_REGRESSED:
                break

    assert found[-1] == history_check.GROUP_REGRESSED, f"seeds {seeds} found {found}"
    assert play(plans[len(found) - 1]).violation is None


# A coordinator that was replaced, and does not know it.


def tell_a_coordinator_left_alone() -> History:
    """It is cut off from all nodes, but not from a client, which asks it where the group is."""
    told = History()
    with a_stage() as stage:
        group = _group_elsewhere(stage)
        _commit_as_told(stage, told, group, 4)
        alone = _coordinator(stage, group)
        for other in stage.world.machines:
            if other != alone:
                stage.world.cut(alone, other)
                stage.world.cut(other, alone)
        stage.run_until(lambda: _coordinator(stage, group) != alone)
        _commit_as_told(stage, told, group, 9)
        looking = told.begin_commit("member", group)
        found = stage.world.do(_ask_one(stage, alone, group))
        if found is not None:
            looking.ok({str(PLACE): found})
    return told


def _commit_as_told(stage: Stage, told: History, group: str, offset: int) -> None:
    writing = told.begin_commit("member", group, {str(PLACE): offset})
    stage.world.do(_commit(stage, group, offset))
    writing.ok()


async def _ask_one(stage: Stage, node: int, group: str) -> int | None:
    """What a node says; None if it does not."""
    async with stage.client(OneTryAdmin, node) as client:
        try:
            found = (await client.group_offsets(group)).get(PLACE)
        except TidelogError:
            return None
        return -1 if found is None else int(found.offset)


def test_a_coordinator_without_a_lease_tells_nobody_of_offsets(monkeypatch):
    assert history_check.check(tell_a_coordinator_left_alone()) == []

    plant_a_lease_without_end(monkeypatch)

    found = history_check.check(tell_a_coordinator_left_alone())
    assert [anomaly.rule for anomaly in found] == [history_check.GROUP_REGRESSED]
