"""Leases across a change of controller: a fenced broker has none, whoever leads the quorum."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.simulation.test_cluster import controller
from tidelog.cluster.leadership import Leadership
from tidelog.controller.image import ClusterImage
from tidelog.controller.leases import Leases
from tidelog.simulation.lease_watch import LEASED
from tidelog.simulation.nodes import real_node
from tidelog.simulation.quorum import QuorumWatch, quorum_of
from tidelog.simulation.world import Violation, World

NODES = 5
SECONDS_MAX = 30.0


@contextmanager
def a_cluster(nodes: int = NODES) -> Iterator[World]:
    quorum = ",".join(f"{n}@node-{n}:9192" for n in range(1, nodes + 1))
    with World(5, nodes=nodes, node_factory=partial(real_node, quorum=quorum)) as world:
        QuorumWatch(world)
        world.start()
        world.run(1)
        yield world


def the_controller(world: World) -> int:
    found = controller(world)
    assert found is not None
    return found


def cut_off(world: World, *nodes: int) -> None:
    """Let nobody else hear these nodes, nor they anybody else."""
    for node in nodes:
        for other in world.machines:
            if other not in nodes:
                world.cut(node, other)
                world.cut(other, node)


def is_fenced(world: World, node: int, by: int) -> bool:
    return bool(world.node(by).broker.image.brokers[node].fenced)


def life_of(world: World, node: int, by: int) -> int:
    return int(world.node(by).broker.image.brokers[node].broker_epoch)


def tell_a_controller_that_dies(*, is_damaged: bool = False) -> None:
    """Only the controller hears a broker, answers its heartbeat, and dies."""
    with a_cluster() as world:
        first = the_controller(world)
        world.machines[first].is_damaged = is_damaged
        broker, *others = (node for node in world.machines if node != first)
        for other in others:
            world.cut(broker, other)
            world.cut(other, broker)
        world.run(1.6)
        world.crash(first)

        world.run_until(lambda: is_fenced(world, broker, others[0]), SECONDS_MAX)
        world.run(2)


def tell_a_damaged_controller_that_dies() -> None:
    """What it said last of the broker excuses nothing of what is decided after it."""
    tell_a_controller_that_dies(is_damaged=True)


def tell_a_controller_that_is_deposed() -> None:
    """A controller is cut off together with a broker, and does not know that it is deposed."""
    with a_cluster() as world:
        first = the_controller(world)
        broker, *others = (node for node in world.machines if node != first)
        cut_off(world, first, broker)

        world.run_until(lambda: any(_leads(world, node) for node in others), SECONDS_MAX)
        world.run_until(lambda: is_fenced(world, broker, others[0]), SECONDS_MAX)
        world.run(2)


def _leads(world: World, node: int) -> bool:
    quorum = quorum_of(world.machines[node])
    return quorum is not None and quorum.leads


def plant_leases_counted_from_what_was_heard(patch: pytest.MonkeyPatch) -> None:
    """A new controller counts from what it has heard itself, not from its own beginning."""
    begin = Leases.begin

    def begin_late(self: Leases, image: ClusterImage, now: float) -> None:
        begin(self, image, now - self._seconds * 3 / 4)

    patch.setattr(Leases, "begin", begin_late)


def plant_a_controller_that_is_always_sure(patch: pytest.MonkeyPatch) -> None:
    """A controller renews leases as long as it believes to be one."""

    async def confirmed(self: Leadership) -> bool:
        return True

    patch.setattr(Leadership, "confirmed", confirmed)


@pytest.mark.parametrize(
    ("tell", "plant"),
    [
        (tell_a_controller_that_dies, plant_leases_counted_from_what_was_heard),
        (tell_a_damaged_controller_that_dies, plant_leases_counted_from_what_was_heard),
        (tell_a_controller_that_is_deposed, plant_a_controller_that_is_always_sure),
    ],
)
def test_a_fenced_broker_has_no_lease_across_a_change_of_controller(
    tell: Any, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell()

    plant(monkeypatch)

    with pytest.raises(Violation) as found:
        tell()
    assert found.value.name == LEASED


def test_an_answer_that_comes_late_gives_no_lease_to_a_broker_that_has_ended_its_part():
    with a_cluster() as world:
        broker = next(node for node in world.machines if node != the_controller(world))
        membership = world.node(broker).broker.membership
        assert membership.has_lease

        membership.end()
        world.run(1)  # answers are on their way

        assert not membership.has_lease


def test_a_lease_is_no_fenced_brokers_where_only_damaged_nodes_know_that_it_is_fenced_no_longer():
    """They lead and vote as others do; nobody sound has come as far."""
    with a_cluster(nodes=3) as world:
        first = the_controller(world)
        broker, sound = (node for node in world.machines if node != first)
        life = world.node(broker).broker.membership.broker_epoch
        world.crash(broker)
        world.run_until(lambda: is_fenced(world, broker, sound), SECONDS_MAX)
        world.machines[first].is_damaged = world.machines[broker].is_damaged = True
        world.restart(broker)
        world.run_until(lambda: life_of(world, broker, sound) > life, SECONDS_MAX)
        assert is_fenced(world, broker, sound)

        cut_off(world, sound)
        world.run_until(lambda: not is_fenced(world, broker, first), SECONDS_MAX)
        world.run(0.5)

        assert world.node(broker).broker.membership.has_lease
        assert is_fenced(world, broker, sound)
