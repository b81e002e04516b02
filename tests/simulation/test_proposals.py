"""Nodes that decide about different things at once, some of them far from the controller."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest

from tidelog.broker.topics import create_topic
from tidelog.controller.decisions import NewTopic
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord, PartitionChanged, ProducerIdsGranted
from tidelog.host import Host, Path
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.nodes import real_node
from tidelog.simulation.world import World

QUORUM = "1@node-1:9192,2@node-2:9192,3@node-3:9192"
NEAR, FAR = 1, 4
FAR_SECONDS = 0.1
CHANGES = 10

Decide: TypeAlias = Callable[[ClusterImage], MetadataRecord]


def node(host: Host, number: int) -> Any:
    if number <= 3:
        return real_node(host, number, quorum=QUORUM)
    return real_node(host, number, quorum=QUORUM, peer=f"node-{number}:9192")


@pytest.fixture
def world() -> Iterator[World]:
    """Three voters, and a broker that hears of everything a tenth of a second later."""
    with World(11, nodes=4, node_factory=node) as world:
        for voter in ("node-1", "node-2", "node-3"):
            for link in (("node-4", voter), (voter, "node-4")):
                world.network.link(*link).seconds_least = FAR_SECONDS
        world.start()
        yield world


def metadata_of(world: World, number: int) -> Any:
    return world.node(number).broker.metadata


def nudged(topic: str, number: int, image: ClusterImage) -> PartitionChanged:
    """The partition as it is, one partition epoch later."""
    found = image.topics[topic]
    state = found.partitions[number].changed().state
    return PartitionChanged(topic=str(found.id), partition=number, state=state)


def granted(number: int, image: ClusterImage) -> ProducerIdsGranted:
    return ProducerIdsGranted(node=number, end=image.producer_ids_end + 1)


async def change_often(world: World, number: int, decide: Decide, tries: list[int]) -> None:
    """Make `CHANGES` changes at a node, one after the other; count how often each is decided."""
    for _ in range(CHANGES):
        count = 0

        def counted(image: ClusterImage) -> MetadataRecord:
            nonlocal count
            count += 1
            return decide(image)

        await metadata_of(world, number).change(counted)
        tries.append(count)


def spawn(world: World, number: int, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Run `work` as a part of the node."""
    process = world.machines[number].process
    assert process is not None
    return world.loop.create_task(work, context=process.context.copy())


def run_beside(world: World, near: Decide, far: Decide) -> tuple[list[int], list[int]]:
    """Both nodes change things at once, the near one all the while; how often each decided."""
    tries: dict[int, list[int]] = {NEAR: [], FAR: []}

    async def busily() -> None:
        while not away.done():
            await change_often(world, NEAR, near, tries[NEAR])

    away = spawn(world, FAR, change_often(world, FAR, far, tries[FAR]))
    beside = spawn(world, NEAR, busily())
    world.run_until(lambda: away.done() and beside.done(), 120)
    away.result()
    beside.result()
    return tries[NEAR], tries[FAR]


def make_topic(world: World, name: str) -> None:
    wanted = NewTopic(name=name, partitions=2, replication=1, config={})
    spawn(world, NEAR, create_topic(world.node(NEAR).broker, wanted))
    world.run_until(lambda: name in world.node(FAR).broker.image.topics, 10)


def test_who_is_far_away_is_not_starved_by_changes_to_other_partitions(world):
    make_topic(world, "t")

    near, far = run_beside(world, partial(nudged, "t", 0), partial(nudged, "t", 1))

    assert len(near) > 3 * len(far), "there was always something new"
    assert sum(far) == CHANGES, "each was decided once, though the log grew meanwhile"


def test_who_is_far_away_is_not_starved_by_changes_of_another_kind(world):
    make_topic(world, "t")

    near, far = run_beside(world, partial(granted, NEAR), partial(nudged, "t", 1))

    assert len(near) > 3 * len(far)
    assert sum(far) == CHANGES


@pytest.fixture
def voters() -> Iterator[World]:
    with World(5, nodes=3, node_factory=partial(real_node, quorum=QUORUM)) as world:
        world.start()
        world.run(seconds=3)
        yield world


def controller_of(world: World) -> int:
    return next(n for n in (1, 2, 3) if world.node(n).broker.member.quorum.leads)


def refuse_metadata(disk: SimulatedDisk) -> None:
    """Let the disk have no room for records of the metadata log."""

    def refuse(operation: str, path: Path) -> None:
        if "__cluster_metadata" in str(path) and operation == "write":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    disk.on_operation = refuse


def test_a_change_is_not_refused_for_want_of_room_that_other_voters_have_and_commit(voters):
    first = controller_of(voters)
    disk = voters.machines[first].disk
    refuse_metadata(disk)

    decide = partial(granted, first)
    end = voters.node(first).broker.image.producer_ids_end + 1
    change = spawn(voters, first, metadata_of(voters, first).change(decide))
    voters.run(seconds=1)
    disk.on_operation = None
    voters.run_until(change.done, seconds_max=60)

    assert change.exception() is None
    assert voters.node(first).broker.image.producer_ids_end >= end


def test_who_asked_a_voter_whose_log_is_opened_again_is_told_at_once(voters):
    first = controller_of(voters)
    quorum = voters.node(first).broker.member.quorum
    refuse_metadata(voters.machines[first].disk)
    spawn(voters, first, metadata_of(voters, first).change(partial(granted, first)))

    machine, waiting = quorum.raft, 0
    while quorum.raft is machine:
        waiting = len(quorum._places)
        voters.run(seconds=0.001)

    assert waiting, "the other voters wait for records"
    assert not quorum._places
