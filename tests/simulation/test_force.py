"""Elections that may lose records: what they lose, and what they must not."""

from typing import Any

import pytest

from tests.simulation.test_planted_replication import PLACE, Stage, a_stage
from tidelog.log import recovery
from tidelog.log.directory import DataDirectory
from tidelog.model import NodeId
from tidelog.services.promotion import promote
from tidelog.simulation import replica_watch as watch
from tidelog.simulation.losses import Losses, agreement
from tidelog.simulation.node_calls import ask_node
from tidelog.simulation.replicated import EpochClient
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.world import Violation


def leave_behind(stage: Stage) -> None:
    """The third replica has 5 records, and is kept from the 15 that are committed then."""
    first, second, third = stage.nodes
    stage.commit(5)
    stage.run_until(lambda: stage.has(third, 5))
    for other in (first, second):
        stage.part(other, third)
    stage.run_until(lambda: third not in stage.state.in_sync)
    stage.commit(15)


def force(stage: Stage, node: NodeId) -> None:
    """Let a node lead, whatever it lacks."""

    def order(machine: Any) -> Any:
        return promote(machine.node.broker, PLACE, node, force=True, dry_run=False)

    stage.world.do(ask_node(stage.world, stage.controller, order, 5.0))
    stage.run_until(lambda: stage.leads(node))


def tell_of_force(losses: Losses | None, *, is_asked: bool = True) -> None:
    with a_stage(losses, replica_lag_time_max_ms=1000) as stage:
        leave_behind(stage)
        third = stage.nodes[-1]
        if is_asked:
            stage.world.may_lose.add(PLACE)
        force(stage, third)
        stage.world.heal()
        stage.run_until(lambda: stage.state.in_sync == set(stage.nodes))
        stage.commit(3)
        for node in stage.nodes:
            stage.run_until(lambda node=node: stage.has(node, 8))  # type: ignore[misc]
        stage.world.check_now()
        stage.watch.check_producers()


def test_what_the_new_leader_lacks_is_lost_and_nothing_else() -> None:
    losses = Losses()

    tell_of_force(losses)

    kept = losses.of(str(PLACE))
    assert [cut.offset for cut in kept.cuts] == [5]
    assert (kept.end, kept.chain.epoch_at(4), kept.chain.epoch_at(5)) == (8, 0, kept.cuts[0].epoch)


def test_nobody_may_lose_what_no_operator_gave_up() -> None:
    with pytest.raises(Violation, match=watch.JOINED):
        tell_of_force(Losses(), is_asked=False)


def tell_of_a_crash_after_the_cut(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A follower crashes before its next checkpoint; the logs that its start calls damaged."""
    damaged: list[str] = []
    refuse = recovery._refuse

    def note(disk: Any, state: Any, durable_mark: int) -> None:
        damaged.append(state.segments[-1].directory.name)
        refuse(disk, state, durable_mark)

    with a_stage(Losses(), replica_lag_time_max_ms=1000, checkpoint_ms=5000) as stage:
        leave_behind(stage)
        _, second, third = stage.nodes
        stage.world.run(6)  # the watermark is noted
        stage.world.may_lose.add(PLACE)
        force(stage, third)
        stage.world.heal()
        stage.run_until(lambda: stage.has(second, 5))
        monkeypatch.setattr(recovery, "_refuse", note)
        stage.world.crash(second)
        stage.world.restart(second)
        stage.run_until(lambda: stage.state.in_sync == set(stage.nodes))
    return damaged


def test_a_follower_that_lost_what_was_committed_is_whole_when_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tell_of_a_crash_after_the_cut(monkeypatch) == []

    monkeypatch.setattr(DataDirectory, "lower_watermark", lambda *_: None)
    assert tell_of_a_crash_after_the_cut(monkeypatch) == [str(PLACE)]


def test_a_reader_of_what_is_lost_is_told_where_it_ends() -> None:
    with a_stage(Losses(), replica_lag_time_max_ms=1000) as stage:
        _, second, third = stage.nodes
        leave_behind(stage)
        stage.promote(second)
        stage.commit(2)  # in an epoch of which the third has nothing
        epoch = stage.state.epoch
        stage.world.may_lose.add(PLACE)
        force(stage, third)

        async def ask() -> tuple[int, int]:
            async with stage.client(EpochClient, third) as client:
                found: tuple[int, int] = await client.end_of(PLACE, epoch)
                return found

        assert stage.world.do(ask()) == (0, 5)


def test_two_logs_agree_up_to_where_others_wrote() -> None:
    assert agreement([(0, 0)], 0, 12, [(0, 0), (2, 10)], 20) == 10
    assert agreement([(0, 0), (2, 10)], 0, 15, [(0, 0), (2, 10)], 20) == 15
    assert agreement([(3, 957)], 957, 1572, [(0, 0), (3, 512), (5, 957)], 2958) == 957
    assert agreement([], 957, 957, [(3, 512)], 1572) == 957


@pytest.mark.parametrize(("seed", "others"), [(4, ()), (145, ("delete_records",))])
def test_only_what_may_be_lost_is_lost_while_nodes_crash(seed: int, others: Any) -> None:
    plan = make_plan(seed, story="replicated", nodes=3, kinds=("force", *others), chaos_seconds=8)

    outcome = play(plan)

    assert outcome.violation is None
    assert outcome.acknowledged > 0
