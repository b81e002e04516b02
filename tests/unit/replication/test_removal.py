"""Log starts that are noted, and starts of nodes, through removals and full disks."""

import asyncio

import pytest

from tests.unit.broker.node import Machine, Node, batch_of
from tidelog.broker.broker import Broker
from tidelog.host import Path
from tidelog.log.directory import LOG_STARTS
from tidelog.model import TopicPartition
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.wire.apis import Api

NAME = TopicPartition("t", 0)


def noted_start(broker: Broker) -> int:
    return broker._directory.read_checkpoint(LOG_STARTS).get(NAME, 0)


async def delete_before(node: Node, offset: int) -> int:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = await node.ask(Api.DELETE_RECORDS, 2, topics=topics, timeout=10_000)
    error: int = answer.topics[0].partitions[0].error_code
    return error


async def fill(node: Node) -> None:
    await node.create("t")
    assert (await node.produce("t", batch_of(*[b"x"] * 100))).error_code == 0


def lead_anew(partition: Partition) -> Leader:
    """Let this node lead in a later epoch."""
    partition.lead(partition.leading().epoch + 2, [partition.me], replication=1)
    return partition.leading()


def test_a_removal_that_waited_notes_no_earlier_start_than_the_log_has():
    machine = Machine()

    async def delete(node: Node) -> None:
        await fill(node)
        assert await delete_before(node, 50) == 0
        broker = node.broker
        partition = broker.partition("t", 0)
        async with partition.files:
            deleting = asyncio.ensure_future(delete_before(node, 80))
            await asyncio.sleep(0.1)
            removing = asyncio.ensure_future(
                broker.replication.removal.advance_start(partition, partition.log.start)
            )
            await asyncio.sleep(0.1)
        assert await deleting == 0
        await removing
        assert noted_start(broker) == 80

    async def look(node: Node) -> None:
        assert node.broker.partition("t", 0).log.start == 80

    machine.live(delete, killed=True)
    machine.live(look)


def test_a_leader_wants_the_start_that_its_disk_was_noting_when_it_led_before():
    async def delete(node: Node) -> None:
        await fill(node)
        partition = node.broker.partition("t", 0)
        async with partition.files:
            partition.log_start.want(80)
            await asyncio.sleep(0.1)
            leader = lead_anew(partition)
            assert leader.start_wanted == 80, "followers would take their promises back"
            assert not leader.knows_watermark
        await asyncio.sleep(0.1)
        assert partition.log.start == partition.log_start.noted == leader.start == 80
        assert leader.knows_watermark

    Machine().live(delete, killed=True)


def test_a_start_that_was_agreed_on_in_an_earlier_epoch_is_not_begun_in_a_later_one():
    async def delete(node: Node) -> None:
        await fill(node)
        partition = node.broker.partition("t", 0)
        partition.log_start.want(80)
        leader = lead_anew(partition)
        await asyncio.sleep(0.1)
        assert leader.start_wanted == partition.log.start == 0

        partition.log_start.want(80)
        await asyncio.sleep(0.1)
        assert partition.log.start == 80

    Machine().live(delete, killed=True)


def test_a_later_epoch_that_agrees_on_the_same_start_gets_it():
    async def delete(node: Node) -> None:
        await fill(node)
        partition = node.broker.partition("t", 0)
        partition.log_start.want(80)
        leader = lead_anew(partition)
        partition.log_start.want(70)
        await asyncio.sleep(0.1)
        assert leader.start == partition.log.start == 70

    Machine().live(delete, killed=True)


def test_a_log_that_is_opened_again_begins_where_its_disk_knows():
    machine = Machine(disk_reserve_bytes=0, checkpoint_ms=500)

    async def delete(node: Node) -> None:
        await fill(node)
        broker, disk = node.broker, machine.disk
        partition = broker.partition("t", 0)
        disk.capacity_bytes = disk._used_bytes
        assert await delete_before(node, 50) != 0, "it cannot be noted"
        assert (await node.produce("t", batch_of(b"x" * 100))).error_code != 0
        await partition.mending.quiet()

        answered = await delete_before(node, 50)

        assert answered != 0
        assert noted_start(broker) == partition.log.start == 0
        disk.capacity_bytes = None
        await asyncio.sleep(2)
        assert await delete_before(node, 50) == 0
        assert noted_start(broker) == partition.log_start.noted == 50
        assert partition.leader is not None
        assert partition.leader.start == 50

    machine.live(delete, killed=True)


def test_a_start_that_cannot_be_noted_is_not_shown_before_the_files_are_gone(monkeypatch):
    machine = Machine(disk_reserve_bytes=0)
    shown: list[int] = []

    async def delete(node: Node) -> None:
        await node.create("t", segment_bytes="1000")
        for _ in range(10):
            assert (await node.produce("t", batch_of(b"x" * 400))).error_code == 0
        broker, disk = node.broker, machine.disk
        partition = broker.partition("t", 0)
        assert [segment.base for segment in partition.log.segments] == [0, 2, 4, 6, 8]
        leader, remove = partition.leader, disk.remove
        assert leader is not None

        def look_and_remove(path: Path) -> None:
            if path.name.endswith(".log"):
                shown.append(partition.log.start if leader.knows_watermark else -1)
                assert partition.log_start.noted == 0
            remove(path)

        monkeypatch.setattr(disk, "remove", look_and_remove)
        disk.capacity_bytes = disk._used_bytes
        assert await delete_before(node, 7) == 0
        assert leader.knows_watermark
        assert noted_start(broker) == partition.log_start.noted == partition.log.start == 7

    async def look(node: Node) -> None:
        assert node.broker.partition("t", 0).log.start == 7

    machine.live(delete, killed=True)
    assert shown == [-1, -1, -1], "a crash could have brought back what was deleted"
    machine.live(look)


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_node_starts_on_a_disk_that_has_no_room_for_another_name(is_noted):
    machine = Machine(checkpoint_ms=500)

    async def write(node: Node) -> None:
        await fill(node)
        if is_noted:
            await asyncio.sleep(1)
            node.broker.partition("t", 0).log.roll()  # this segment's name may not be durable
            assert (await node.produce("t", batch_of(b"x"))).error_code == 0

    async def look(node: Node) -> None:
        assert node.broker.partition("t", 0).log.end == 100 + is_noted

    machine.live(write, killed=True)
    machine.disk.capacity_bytes = machine.disk._used_bytes
    machine.disk.names_need_room = True
    machine.live(look, killed=True)


def test_a_log_is_opened_again_on_a_disk_that_has_no_room_for_another_name():
    machine = Machine()

    async def write(node: Node) -> None:
        await node.create("t", durability="replicated")  # so its segment is not synced yet
        assert (await node.produce("t", batch_of(b"x"))).error_code == 0
        machine.disk.capacity_bytes = machine.disk._used_bytes
        machine.disk.names_need_room = True

        assert (await node.produce("t", batch_of(b"x" * 1000))).error_code != 0

        partition = node.broker.partition("t", 0)
        await partition.mending.quiet()
        assert partition.disk_full
        assert (await node.fetch_one("t")).high_watermark == 1

    machine.live(write, killed=True)
