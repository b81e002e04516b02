"""The directories of partitions that a full disk kept from being opened."""

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.node import Machine, Node, batch_of
from tidelog.broker.broker import Broker
from tidelog.controller.difference import Closed, Replica, Role
from tidelog.errors import StorageError
from tidelog.host import Path, read_file
from tidelog.log.directory import PARTITION_METADATA
from tidelog.model import TopicPartition
from tidelog.wire.apis import Api

NAME = TopicPartition("t", 0)
NAMED_BYTES = len("version: 0\ntopic_id: ") + 22
"""Of `partition.metadata`, but for the end of its last line: the topic id can be read."""
SEGMENT = "00000000000000000000.log"


def directory_of(broker: Broker) -> Path:
    return broker.root / str(NAME)


def replica_of(broker: Broker) -> Replica:
    topic = broker.image.topics["t"]
    return Replica(name=NAME, topic_id=topic.id, role=Role.LEAD, partition=topic.partitions[NAME.partition])


def closed(replica: Replica, *, is_deleted: bool = False) -> Closed:
    return Closed(name=replica.name, topic_id=replica.topic_id, is_deleted=is_deleted)


async def half_made(machine: Machine, node: Node, *, room_bytes: int = 0) -> Replica:
    """A replica that could not be opened: the full disk has room for its directory alone."""
    broker = node.broker
    await node.create("t")
    replica = replica_of(broker)
    await broker.replicas.close([closed(replica)])  # as if others held it
    assert not machine.disk.exists(directory_of(broker))
    machine.disk.capacity_bytes = machine.disk.used_bytes + room_bytes
    with pytest.raises(StorageError):
        await broker.replicas.open([replica], broker.image)
    assert machine.disk.list(directory_of(broker)) == [PARTITION_METADATA]
    assert len(read_file(machine.disk, directory_of(broker) / PARTITION_METADATA)) == room_bytes
    return replica


def put_segment(machine: Machine, broker: Broker) -> Path:
    """Let the directory hold what may be records."""
    machine.disk.capacity_bytes = None
    path = directory_of(broker) / SEGMENT
    machine.disk.open(path, create=True).write(0, [b"records"])
    return path


def hold_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the next change of the disk wait for an event; those after it do not wait."""
    change_disk, let_go = broker.replicas._change_disk, asyncio.Event()

    async def wait_and_change(work: Callable[[], Any]) -> Any:
        monkeypatch.setattr(broker.replicas, "_change_disk", change_disk)
        await let_go.wait()
        return await change_disk(work)

    monkeypatch.setattr(broker.replicas, "_change_disk", wait_and_change)
    return let_go


@pytest.mark.parametrize("room_bytes", [0, 10, NAMED_BYTES])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_half_made_directory_goes_when_its_replica_is_closed(room_bytes, is_deleted):
    machine = Machine()

    async def story(node: Node) -> None:
        replica = await half_made(machine, node, room_bytes=room_bytes)

        await node.broker.replicas.close([closed(replica, is_deleted=is_deleted)])

        assert not machine.disk.exists(directory_of(node.broker))

    machine.live(story, killed=True)


def test_a_half_made_directory_that_cannot_be_removed_is_tried_again():
    machine = Machine()

    async def story(node: Node) -> None:
        replica = await half_made(machine, node)
        machine.disk.names_need_room = True
        with pytest.raises(StorageError):
            await node.broker.replicas.close([closed(replica)])
        assert machine.disk.exists(directory_of(node.broker))

        machine.disk.capacity_bytes = None
        await node.broker.replicas.retry_removal()

        assert not machine.disk.exists(directory_of(node.broker))

    machine.live(story)


def test_a_served_partition_is_not_removed_for_holding_no_file():
    machine = Machine()

    async def story(node: Node) -> None:
        await node.create("t")
        assert machine.disk.list(directory_of(node.broker)) == [PARTITION_METADATA]

        await node.broker.replicas.remove_half_made([NAME])

        assert machine.disk.list(directory_of(node.broker)) == [PARTITION_METADATA]

    machine.live(story)


def test_a_directory_that_may_hold_records_stays_if_its_replica_was_never_opened():
    machine = Machine()

    async def story(node: Node) -> None:
        replica = await half_made(machine, node)
        path = put_segment(machine, node.broker)

        await node.broker.replicas.close([closed(replica)])
        await node.broker.replicas.retry_removal()

        assert read_file(machine.disk, path) == b"records"

    machine.live(story)


def test_a_directory_that_cannot_be_listed_does_not_count_as_empty():
    machine = Machine()

    async def story(node: Node) -> None:
        replica = await half_made(machine, node)
        path = put_segment(machine, node.broker)
        machine.disk.fail_looks(errno.EMFILE, times=1)

        with pytest.raises(StorageError):
            await node.broker.replicas.close([closed(replica)])

        assert read_file(machine.disk, path) == b"records"

    machine.live(story)


def test_a_half_made_directory_is_not_kept_as_another_topics():
    machine = Machine()

    async def story(node: Node) -> None:
        broker = node.broker
        replica = await half_made(machine, node, room_bytes=NAMED_BYTES)
        machine.disk.names_need_room = True
        with pytest.raises(StorageError):
            await broker.replicas.close([closed(replica, is_deleted=True)])
        machine.disk.capacity_bytes = None
        await node.ask(Api.DELETE_TOPICS, 5, topic_names=["t"])

        await node.create("t")

        assert [name for name in machine.disk.list(broker.root) if "stray" in name] == []

    machine.live(story)


def test_a_replica_that_came_back_is_not_removed_for_having_been_half_made():
    machine = Machine()

    async def story(node: Node) -> None:
        broker = node.broker
        replica = await half_made(machine, node)
        machine.disk.names_need_room = True
        with pytest.raises(StorageError):
            await broker.replicas.close([closed(replica)])
        machine.disk.capacity_bytes = None

        await broker.replicas.open([replica], broker.image)
        await broker.replicas.retry_removal()

        assert machine.disk.list(directory_of(broker)) == [PARTITION_METADATA]
        assert (await node.produce("t", batch_of(b"x"))).error_code == 0
        assert SEGMENT in machine.disk.list(directory_of(broker))

    machine.live(story)


def test_a_replica_that_is_closed_while_others_are_removed_is_not_forgotten(monkeypatch):
    machine = Machine()

    async def story(node: Node) -> None:
        replicas = node.broker.replicas
        replica = await half_made(machine, node)
        never = Closed(name=TopicPartition("never", 0), topic_id=replica.topic_id, is_deleted=False)
        let_go = hold_back(node.broker, monkeypatch)
        first = asyncio.ensure_future(replicas.close([never]))
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(replicas.close([closed(replica)]))
        await asyncio.sleep(0.1)

        let_go.set()
        await asyncio.gather(first, second)

        assert not machine.disk.exists(directory_of(node.broker))

    machine.live(story, killed=True)


def test_a_removal_that_is_tried_again_spares_a_replica_that_came_back_meanwhile(monkeypatch):
    machine = Machine()

    async def story(node: Node) -> None:
        broker, disk = node.broker, machine.disk
        await node.create("t")
        replica = replica_of(broker)
        disk.capacity_bytes, disk.names_need_room = disk.used_bytes, True
        with pytest.raises(StorageError):
            await broker.replicas.close([closed(replica)])
        disk.capacity_bytes = None
        let_go = hold_back(broker, monkeypatch)
        retrying = asyncio.ensure_future(broker.replicas.retry_removal())
        await asyncio.sleep(0.1)
        opening = asyncio.ensure_future(broker.replicas.open([replica], broker.image))
        await asyncio.sleep(0.1)

        let_go.set()
        await asyncio.gather(retrying, opening)

        assert disk.list(directory_of(broker)) == [PARTITION_METADATA]
        assert (await node.produce("t", batch_of(b"x"))).error_code == 0

    machine.live(story)


def test_a_removal_that_is_tried_again_waits_for_who_reads_the_files():
    machine = Machine()

    async def story(node: Node) -> None:
        broker = node.broker
        await node.create("t")
        assert (await node.produce("t", batch_of(b"x"))).error_code == 0
        replica, partition = replica_of(broker), broker.partition("t", 0)
        async with partition.files:
            closing = asyncio.ensure_future(broker.replicas.close([closed(replica)]))
            await asyncio.sleep(0.1)

            await broker.replicas.retry_removal()

            assert SEGMENT in machine.disk.list(directory_of(broker))
        await closing
        assert not machine.disk.exists(directory_of(broker))

    machine.live(story)
