"""Bugs planted in a cluster: a simulator that cannot find them finds nothing.

Many more are planted in the quorum's machine alone (`tests/unit/raft`); here are those that need
whole nodes.
"""

from dataclasses import replace
from functools import partial

import pytest

from tidelog.cluster.quorum import Quorum
from tidelog.faces.node import Node
from tidelog.host import Clock, Host
from tidelog.raft.voters import VoterSet
from tidelog.simulation.nodes import real_node
from tidelog.simulation.quorum import AGREE, VOTERS, WHOLE, QuorumWatch
from tidelog.simulation.story import LIVENESS
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.world import World

QUORUM = ",".join(f"{n}@node-{n}:9192" for n in (1, 2, 3))
SECONDS_MAX = 30.0


class OneClock:
    """RELIABILITY 17, planted: leases and elections by the clock that jumps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.wall_ms() / 1000

    def wall_ms(self) -> int:
        return self._clock.wall_ms()


def with_one_clock(host: Host, number: int) -> Node:
    return real_node(replace(host, clock=OneClock(host.clock)), number, quorum=QUORUM)


@pytest.mark.parametrize(
    ("factory", "is_planted"), [(partial(real_node, quorum=QUORUM), False), (with_one_clock, True)]
)
def test_a_clock_that_jumps_expires_nothing_early(factory, is_planted):
    with World(6, nodes=3, node_factory=factory) as world:
        QuorumWatch(world)
        world.start()
        epoch = world.node(1).broker.image.quorum_epoch
        registered = dict(world.node(1).broker.image.brokers)

        for node, seconds in ((1, 3600), (2, 60), (3, 3600), (1, -3600)):
            world.jump_clock(node, seconds)
            world.run(seconds=3)

        image = world.node(1).broker.image
        is_calm = image.quorum_epoch == epoch and all(
            not image.brokers[node].fenced
            and image.brokers[node].broker_epoch == registered[node].broker_epoch
            for node in (1, 2, 3)
        )
        assert is_calm != is_planted


async def _keep_no_promise(self: Quorum, state: bytes) -> None:
    """The quorum's own, planted: epochs and votes are not written down."""


def test_promises_forgotten_over_a_restart_are_found(monkeypatch):
    """Epochs begin anew, and nobody can lead a log of later ones."""
    plan = make_plan(
        0, story="cluster", nodes=3, chaos_seconds=3, kinds=["crash", "lose_power_everywhere", "isolate"]
    )
    assert play(plan).violation is None

    monkeypatch.setattr(Quorum, "_persist", _keep_no_promise)

    violation = play(plan).violation
    assert violation is not None and violation.name == LIVENESS


def _forget_changes_of_voters(self: Quorum, first: VoterSet) -> None:
    """RELIABILITY 18, planted: the machine is made anew with the voters of the start."""
    self._decided_voters = first
    _BUILD(self)


_BUILD = Quorum._build


def test_voters_forgotten_over_a_full_disk_are_found(monkeypatch):
    """Five nodes, of which an operator removes voters and adds them again, on disks that fill."""
    plan = make_plan(3, story="cluster", nodes=5, chaos_seconds=8, kinds=["change_voter", "fill_disk"])
    assert play(plan).violation is None
    first: dict[object, VoterSet] = {}

    def build(self: Quorum) -> None:
        _forget_changes_of_voters(self, first.setdefault(self, self._decided_voters))

    monkeypatch.setattr(Quorum, "_build", build)
    monkeypatch.setattr(Quorum, "_check_voters", lambda self: None)

    violation = play(plan).violation
    assert violation is not None and violation.name in (VOTERS, AGREE, WHOLE)
