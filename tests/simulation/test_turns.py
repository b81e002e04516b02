"""No turn of a node's loop grows with its partitions: the work is counted, in calls of functions.

A call takes about a fifth of a microsecond, so the limit stands for a millisecond or two.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

from tidelog.client.admin import AdminClient
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.offload import VirtualOffload
from tidelog.simulation.world import World

PARTITIONS = 900
PER_TOPIC = 100
CALLS_MAX = 8000
pytestmark = pytest.mark.slow

QUORUM = "1@node-1:9192,2@node-2:9192,3@node-3:9192"


class Turns:
    """Counts what each callback of a node calls, but for the work of a disk's threads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls: Counter[CodeType] = Counter()
        self._is_counted: bool | None = None
        self.longest = 0
        self.what = ""
        world.invariant("turns", self._ended)

    def count(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        if self._is_counted is None:
            name = self._world.loop.process.name
            if name == "world":
                return  # between two callbacks
            is_disk = frame.f_code is VirtualOffload._perform.__code__
            self._is_counted = name.startswith("node-") and not is_disk
        if self._is_counted:
            self._calls[frame.f_code] += 1

    def _ended(self) -> None:
        calls, self._calls, self._is_counted = self._calls, Counter(), False
        if calls.total() > self.longest:
            self.longest = calls.total()
            most = calls.most_common(6)
            self.what = ", ".join(f"{code.co_qualname} {count}" for code, count in most)
        self._is_counted = None

    def check(self) -> None:
        assert self.longest < CALLS_MAX, f"{self.longest} calls in one turn: {self.what}"
        self.longest = 0


@pytest.fixture
def world() -> Iterator[World]:
    factory = partial(real_node, quorum=QUORUM, metadata_snapshot_records=50)
    with World(7, nodes=3, node_factory=factory) as world:
        world.start()
        yield world


async def create(world: World, name: str) -> None:
    network = world.client("story").network
    async with AdminClient(bootstrap(1), network=network, timeout_seconds=30.0) as client:
        await client.create_topic(name, partitions=PER_TOPIC, replication=3)


async def list_all(world: World) -> None:
    network = world.client("story").network
    async with AdminClient(bootstrap(1), network=network, timeout_seconds=30.0) as client:
        await client.topics()


def has_all_in_sync(world: World) -> bool:
    image = world.node(2).broker.image
    return len(image.places) == PARTITIONS and all(
        len(place.partition.in_sync) == 3 and place.partition.leader == place.partition.replicas[0]
        for place in image.places.values()
    )


def test_no_turn_grows_with_the_partitions_of_a_cluster(world):
    turns = Turns(world)
    sys.setprofile(turns.count)
    try:
        for number in range(PARTITIONS // PER_TOPIC):
            world.do(create(world, f"t{number}"))
        world.run_until(lambda: has_all_in_sync(world), 60)
        turns.check()

        world.run(seconds=10)  # nobody asks for anything
        turns.check()

        world.do(list_all(world))
        turns.check()

        world.crash(1)
        world.run(seconds=4)
        turns.check()

        world.restart(1)
        world.run_until(lambda: has_all_in_sync(world), 60)
        turns.check()
    finally:
        sys.setprofile(None)


def test_a_node_that_was_away_long_takes_a_snapshot_in_many_turns(world):
    for number in range(PARTITIONS // PER_TOPIC):
        world.do(create(world, f"t{number}"))
    world.run_until(lambda: has_all_in_sync(world), 60)
    world.crash(3)
    world.run(seconds=8)
    turns = Turns(world)
    sys.setprofile(turns.count)
    try:
        world.machines[3].disk.remove_tree(world.node(1).broker.root / "__cluster_metadata-0")
        world.restart(3)
        world.run_until(lambda: world.is_up(3) and has_all_in_sync(world), 60)
    finally:
        sys.setprofile(None)

    turns.check()
