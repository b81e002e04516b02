"""Bug 6 of RELIABILITY, its second half, planted: an unclean restart that nobody minds.

With `durability: replicated` what was committed may be in memory alone. Who restarts without having
stopped may lack the end of it, and must not lead as if it had it all (KIP-966).
"""

from collections.abc import Callable

import pytest

from tests.simulation.test_planted_replication import Stage, a_stage
from tidelog.config import TopicConfig
from tidelog.controller import registration
from tidelog.controller.elections import Electorate
from tidelog.controller.image import PartitionImage, Place
from tidelog.model import NodeId, Offset
from tidelog.simulation import replica_watch as watch
from tidelog.simulation.world import Violation

IN_MEMORY = TopicConfig(durability="replicated")
SEEDS = range(8, 16)
"""Tried in turn: where the loss of power leaves a torn tail, its cut guards against the bug, too."""


def plant_an_unclean_restart_that_nobody_minds(patch: pytest.MonkeyPatch) -> None:
    """6: who restarts after a loss of power counts as before, though its page cache is gone."""

    def keep(place: Place, after: PartitionImage, node: NodeId, electorate: Electorate) -> PartitionImage:
        return after

    patch.setattr(registration, "_without_cache", keep)


def _written(stage: Stage, node: int) -> Offset:
    partition = stage.partition(node)
    assert partition is not None
    return partition.log.written_end


def _shorten(stage: Stage) -> tuple[int, int]:
    """Commit to two replicas, then leave one in sync and the other eligible; these two."""
    first, second, third = stage.nodes
    stage.commit(3)
    stage.world.isolate(third)
    stage.run_until(lambda: stage.state.in_sync == {first, second})
    stage.commit(5)
    assert _written(stage, first) == _written(stage, second) == 8
    stage.world.isolate(second)
    stage.run_until(lambda: stage.state.in_sync == {first})
    assert stage.state.eligible == {second}
    return first, second


def tell_of_the_last_in_sync(seed: int) -> None:
    """It loses power and comes back; who is eligible has everything, and is away a while longer."""
    with a_stage(seed=seed, topic_defaults=IN_MEMORY) as stage:
        world = stage.world
        last, eligible = _shorten(stage)
        world.lose_power(last)
        world.restart(last)
        stage.run_until(lambda: world.is_up(last))
        world.run(3)
        world.heal()
        stage.run_until(lambda: stage.state.in_sync == set(stage.nodes))
        assert _written(stage, eligible) >= 8


def tell_of_the_eligible(seed: int) -> None:
    """It loses power and comes back; then the last in sync, which has everything, is away."""
    with a_stage(seed=seed, topic_defaults=IN_MEMORY) as stage:
        world = stage.world
        last, eligible = _shorten(stage)
        world.lose_power(eligible)
        world.heal()
        stage.part(last, eligible)
        third = stage.nodes[2]
        stage.part(last, third)
        world.restart(eligible)
        stage.run_until(lambda: world.is_up(eligible))
        world.pause(last)
        stage.run_until(lambda: stage.state.leader != last)
        world.run(3)
        world.heal()
        stage.run_until(lambda: stage.state.in_sync == set(stage.nodes))
        assert all(_written(stage, node) >= 8 for node in stage.nodes)


def found_in(tell: Callable[[int], None], seed: int) -> str | None:
    """The invariant that the tale breaks with the bug in, if it does."""
    with pytest.MonkeyPatch.context() as patch:
        plant_an_unclean_restart_that_nobody_minds(patch)
        try:
            tell(seed)
        except Violation as violation:
            return violation.name
    return None


@pytest.mark.parametrize("tell", [tell_of_the_last_in_sync, tell_of_the_eligible])
def test_who_may_have_lost_its_tail_is_not_counted_on(tell):
    tell(SEEDS[0])

    found = (found_in(tell, seed) for seed in SEEDS)

    assert next(filter(None, found), None) == watch.JOINED
