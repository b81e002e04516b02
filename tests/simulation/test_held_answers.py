"""Answers that name a leader in doubt wait for its election, and never for long."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tidelog.broker.leader_doubts import DOUBT_SECONDS_MAX, LeaderDoubts
from tidelog.client.admin import AdminClient
from tidelog.model import NodeId
from tidelog.simulation.held_answer_watch import HELD, HeldAnswerWatch
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.plan import Plan
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.world import Violation, World

QUORUM = ",".join(f"{n}@node-{n}:9192" for n in (1, 2, 3))
TOPIC = "tide"
GROUP = "group"


@pytest.fixture
def world() -> Iterator[World]:
    with World(7, nodes=3, node_factory=partial(real_node, quorum=QUORUM)) as world:
        HeldAnswerWatch(world)
        world.start()

        async def create() -> None:
            network = world.client("story").network
            async with AdminClient(bootstrap(1), network=network) as client:
                await client.create_topic(TOPIC, partitions=6, replication=3)

        world.do(create())
        world.run(1)
        yield world


def leader_in(world: World, node: NodeId) -> NodeId:
    """Of the topic's first partition, as a node knows it."""
    return int(world.node(node).broker.image.topics[TOPIC].partitions[0].leader)


async def ask(world: World, node: NodeId) -> tuple[NodeId, float]:
    """Whom a node tells as the leader, and after how many seconds."""
    began = world.now
    async with AdminClient(bootstrap(node), network=world.client("story").network) as client:
        topic = await client.topic(TOPIC)
    return topic.partitions[0].leader, world.now - began


def lose_leader(world: World) -> tuple[NodeId, NodeId]:
    """Kill the leader of the first partition; it, and a survivor that doubts it."""
    leader = leader_in(world, 1)
    survivor = next(node for node in world.machines if node != leader)
    doubts: LeaderDoubts = world.node(survivor).broker.leader_doubts
    world.crash(leader)
    world.run_until(lambda: leader in doubts.doubted, 1)
    return leader, survivor


def test_a_client_that_asks_at_once_is_told_the_next_leader(world: World) -> None:
    leader, survivor = lose_leader(world)
    assert leader_in(world, survivor) == leader, "it is not elected yet"

    told, seconds = world.do(ask(world, survivor))

    assert told not in (leader, -1)
    assert seconds < DOUBT_SECONDS_MAX + 0.1


def test_a_node_that_is_cut_off_answers_at_once(world: World) -> None:
    leader = leader_in(world, 1)
    survivor, other = (node for node in world.machines if node != leader)
    world.crash(leader)
    world.crash(other)
    world.run(0.1)

    told, seconds = world.do(ask(world, survivor))

    assert told == leader
    assert seconds < 0.1


def test_an_answer_that_is_held_for_ever_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.leader_doubts.DOUBT_SECONDS_MAX", 60)
    monkeypatch.setattr(LeaderDoubts, "applied", lambda self: None)
    _, survivor = lose_leader(world)

    with pytest.raises(Violation, match=HELD):
        world.do(ask(world, survivor))


@pytest.mark.parametrize(("pause", "is_found"), [(5.0, False), (0.0, True)])
def test_a_pause_that_nobody_looked_into_does_not_count(pause: float, is_found: bool) -> None:
    with World(7, nodes=1, node_factory=partial(real_node, quorum="1@node-1:9192")) as world:
        watch = HeldAnswerWatch(world)
        world.start()
        held = object()
        world.node(1).broker.leader_doubts.waiting[held] = None
        watch._check()
        if pause:
            world.pause(1, pause)
        world.run(pause + 0.3)
        watch._check()

        if not is_found:
            return
        with pytest.raises(Violation, match=HELD):
            world.run(0.5)


def of_crashes() -> Plan:
    return make_plan(1, story="replicated", kinds=["crash"], nodes=3, chaos_seconds=10)


def test_clients_of_a_story_meet_held_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[NodeId] = []
    settled = LeaderDoubts.settled

    async def settle(self: LeaderDoubts, names: Any) -> None:
        met.extend(filter(names, self.doubted))
        await settled(self, names)

    monkeypatch.setattr(LeaderDoubts, "settled", settle)

    assert play(of_crashes()).violation is None
    assert met
