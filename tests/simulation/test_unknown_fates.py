"""What a client may be told of a write: never that it failed, if it may be committed yet."""

from functools import partial
from typing import Any

import pytest

from tests.simulation.test_cluster import controller
from tidelog.cluster.messages import Register, RegisterAnswer
from tidelog.errors import OutcomeUnknown
from tidelog.model import QUEUES_TOPIC
from tidelog.partition.driver import Partition
from tidelog.queues.records import About, Settings
from tidelog.services.queue_work import DeclareWork, PublishWork, ReceiveWork
from tidelog.simulation.node_calls import ask_node
from tidelog.simulation.nodes import real_node
from tidelog.simulation.world import World

QUORUM = ",".join(f"{node}@node-{node}:9192" for node in (1, 2, 3))


def a_world(seed: int) -> World:
    factory = partial(real_node, quorum=QUORUM, queues_topic_num_partitions=1)
    world = World(seed, nodes=3, node_factory=factory)
    world.start()
    return world


def do(world: World, work: Any, node: int, seconds: float = 5.0) -> Any:
    async def ask(machine: Any) -> Any:
        queues = machine.node.services.queues
        return await queues.have_done(await queues.place_of("jobs"), work, seconds=seconds)

    return world.do(ask_node(world, node, ask, seconds))


def partition_of(world: World, node: int) -> Partition:
    found: Partition = world.node(node).broker.partition(QUEUES_TOPIC, 0)
    return found


def test_a_message_that_followers_may_hold_is_not_said_to_be_lost_when_the_disk_is_full() -> None:
    with a_world(9) as world:
        do(world, DeclareWork(name="jobs", settings=Settings(), request=b""), 1)
        world.run(3)
        leader = next(n for n in world.machines if partition_of(world, n).leader is not None)
        world.fill_disk(leader, 0)
        world.stall_disk(leader, 0.1)

        publish = PublishWork(name="jobs", messages=((b"pay 100", About()),))
        with pytest.raises(OutcomeUnknown):
            do(world, publish, leader)

        world.heal()
        world.run(10)
        receive = ReceiveWork(name="jobs", lane=0, count_max=5, wait_seconds=0, visibility_ms=None)
        assert len(do(world, receive, leader).messages) <= 1


def test_a_registration_that_was_held_up_does_not_end_the_life_of_a_later_process() -> None:
    with a_world(3) as world:
        decides = controller(world)
        assert decides is not None
        node = next(n for n in world.machines if n != decides)
        late = Register(registration=world.node(node).broker.membership._newest_registration())
        world.crash(node)
        world.restart(node)
        world.run_until(lambda: world.is_up(node), 20)
        epoch = world.node(node).broker.membership.broker_epoch

        hub = world.node(node).broker.member.hub
        process = world.machines[node].process
        assert process is not None
        asking = world.loop.create_task(
            hub.ask(decides, late, RegisterAnswer, seconds_max=2.0), context=process.context.copy()
        )
        world.run_until(asking.done, 5)

        assert asking.result().broker_epoch == epoch
        world.run(2)
        assert world.node(node).broker.membership.broker_epoch == epoch
