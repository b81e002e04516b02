"""Writes that must go on while a fault lasts, because the design covers it."""

from collections.abc import Callable
from functools import partial

import pytest

from tidelog.simulation.during import GOES_ON, writes_go_on
from tidelog.simulation.nodes import real_node
from tidelog.simulation.world import Violation, World

SECONDS = 20.0
ALLOWED_SECONDS = 10.0
QUORUM = "1@node-1:9192,2@node-2:9192,3@node-3:9192"


def pause(world: World, *nodes: int) -> None:
    for node in nodes:
        world.pause(node, SECONDS)


def cut(world: World, *ways: tuple[int, int]) -> None:
    for source, target in ways:
        world.cut(source, target, SECONDS)


def befall(seed: int, fault: Callable[[World], None]) -> None:
    node = partial(real_node, quorum=QUORUM, replica_lag_time_max_ms=2000)
    with World(seed, node_factory=node) as world:
        world.start()
        begun: list[float] = []

        def begin() -> None:
            begun.append(world.now)
            fault(world)

        writes_go_on(
            world, begin, what="the test's", seconds=SECONDS, allowed_seconds=ALLOWED_SECONDS
        )
        world.run_until(lambda: begun, 20)
        world.run(SECONDS + 1)


@pytest.mark.slow
@pytest.mark.parametrize("node", [1, 2, 3])
def test_writes_go_on_while_one_node_of_three_is_paused(node: int) -> None:
    befall(node, lambda world: pause(world, node))


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 3), (3, 1)])
def test_writes_go_on_while_two_nodes_do_not_hear_each_other(one: int, other: int) -> None:
    befall(one, lambda world: cut(world, (one, other), (other, one)))


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [(1, 2), (2, 1), (3, 2), (2, 3)])
def test_writes_go_on_while_one_node_does_not_hear_another(source: int, target: int) -> None:
    befall(source, lambda world: cut(world, (source, target)))


def test_writes_that_stop_are_found() -> None:
    with pytest.raises(Violation, match="has waited for") as caught:
        befall(1, lambda world: pause(world, 1, 2))

    assert caught.value.name == GOES_ON
