"""Writes that must go on while a fault lasts, because the design covers it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from tidelog.client.cluster import Refused
from tidelog.client.kafka import KafkaClient
from tidelog.records import Record, encode_batch
from tidelog.simulation.during import GOES_ON, writes_go_on
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.world import Violation, World

SECONDS = 30.0
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

        writes_go_on(world, begin, what="the test's", seconds=SECONDS, allowed_seconds=ALLOWED_SECONDS)
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


@pytest.mark.slow
def test_a_client_gets_on_that_knew_only_a_node_that_the_controller_does_not_hear() -> None:
    node = partial(real_node, quorum=QUORUM, replica_lag_time_max_ms=2000)
    with World(1, node_factory=node) as world:
        world.start()
        controller = next(n for n in world.machines if world.node(n).broker.member.quorum.leads)
        stale = controller % 3 + 1
        client = KafkaClient(bootstrap(stale), network=world.client("client").network, timeout_seconds=1)
        batch = encode_batch([Record(value=b"x", timestamp_ms=0)])

        async def write_everywhere() -> None:
            for partition in range(6):
                while True:
                    with suppress(Refused):
                        await client.produce("everywhere", partition, bytearray(batch))
                        break

        world.do(client.create_topic("everywhere", partitions=6, replication=3))
        world.do(write_everywhere())
        cut(world, (controller, stale), (stale, controller))
        world.run(ALLOWED_SECONDS)

        world.do(write_everywhere(), seconds_max=ALLOWED_SECONDS)

        assert world.network.is_cut(f"node-{controller}", f"node-{stale}")


def test_writes_that_stop_are_found() -> None:
    with pytest.raises(Violation, match="has waited for") as caught:
        befall(1, lambda world: pause(world, 1, 2))

    assert caught.value.name == GOES_ON
