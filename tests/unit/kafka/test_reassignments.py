"""Replicas that move, as operators ask for it; other brokers are there in the metadata alone."""

import asyncio
import errno

from tests.unit.broker.node import Machine, batch_of, on_a_node
from tests.unit.controller.histories import registered
from tests.unit.kafka.test_admin import overhear, partition, with_partition
from tidelog.controller.image import Place
from tidelog.controller.records import BrokerFenced, BrokerUnfenced, PartitionChanged
from tidelog.model import TopicPartition
from tidelog.wire.apis import Api

UNKNOWN, BAD_FACTOR, BAD_ASSIGNMENT, BAD_REQUEST = 3, 38, 39, 42
NOT_MOVING, NOT_REGISTERED = 85, 102


async def with_broker(node, number):
    """Another broker, that is there as far as anybody knows."""

    def decide(image):
        epoch = image.broker_epoch_last + 1
        return [registered(number, epoch=epoch), BrokerUnfenced(node=number, broker_epoch=epoch)]

    await node.broker.metadata.change(decide)
    overhear(node, number)


async def with_change(node, **changes):
    """The partition t-0 is as `changes` say, as if a leader or a controller had said so."""

    def decide(image):
        place = Place(image.topics["t"], 0)
        after = place.partition.changed(**changes)
        return PartitionChanged(topic=str(place.topic.id), partition=0, state=after.state)

    await node.broker.metadata.change(decide)


async def until_it_moves_no_more(node):
    async with asyncio.timeout(10):
        while partition(node).is_moving:
            await node.broker.metadata.reached(node.broker.metadata.applied + 1)


async def altered(node, *wanted, version=1, may_resize=True):
    """The errors by (topic, partition), asked for with (topic, partition, replicas)."""
    topics = [
        {"name": topic, "partitions": [{"partition_index": number, "replicas": replicas}]}
        for topic, number, replicas in wanted
    ]
    fields = {"topics": topics, "timeout": 1000, "allow_replication_factor_change": may_resize}
    if version == 0:
        del fields["allow_replication_factor_change"]
    answer = await node.ask(Api.ALTER_PARTITION_REASSIGNMENTS, version, **fields)
    assert answer.error_code == 0, answer
    return {
        (topic.name, one.partition_index): one.error_code
        for topic in answer.responses
        for one in topic.partitions
    }


async def listed(node, topics=None):
    answer = await node.ask(Api.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout=1000)
    assert answer.error_code == 0, answer
    return {
        (topic.name, one.partition_index): (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    }


def test_a_move_is_begun_listed_and_cancelled():
    async def story(node):
        await node.create("t")
        await node.create("u")
        await with_broker(node, 2)

        assert await altered(node, ("t", 0, [2])) == {("t", 0): 0}
        moving = {("t", 0): ((2, 1), (2,), (1,))}
        assert await listed(node) == moving
        assert await listed(node, [{"name": "t", "partition_indexes": [0, 7]}]) == moving
        assert await listed(node, [{"name": "u", "partition_indexes": [0]}]) == {}
        assert await listed(node, [{"name": "nobody", "partition_indexes": [0]}]) == {}
        assert (partition(node).leader, partition(node).in_sync) == (1, {1})

        assert await altered(node, ("t", 0, None), version=0) == {("t", 0): 0}
        assert await listed(node) == {}
        assert partition(node).replicas == (1,)

    on_a_node(story)


def test_what_is_refused_is_told_apart_and_the_rest_is_done():
    async def story(node):
        await node.create("t", partitions=3)
        await with_broker(node, 2)

        fates = await altered(
            node, ("t", 0, [2]), ("t", 1, [9]), ("t", 2, None), ("t", 3, [1]), ("nobody", 0, [1])
        )

        assert fates == {
            ("t", 0): 0,
            ("t", 1): BAD_ASSIGNMENT,
            ("t", 2): NOT_MOVING,
            ("t", 3): UNKNOWN,
            ("nobody", 0): UNKNOWN,
        }
        assert set(await listed(node)) == {("t", 0)}

    on_a_node(story)


def test_a_partition_is_named_once_and_keeps_its_size_if_that_is_asked():
    async def story(node):
        await node.create("t")
        await with_broker(node, 2)

        assert await altered(node, ("t", 0, [2]), ("t", 0, [1])) == {("t", 0): BAD_REQUEST}
        assert await altered(node, ("t", 0, [1, 2]), may_resize=False) == {("t", 0): BAD_FACTOR}
        assert await listed(node) == {}
        assert await altered(node, ("t", 0, [2]), may_resize=False) == {("t", 0): 0}

    on_a_node(story)


def test_a_move_whose_last_replica_comes_in_sync_is_completed_by_the_controller():
    async def story(node):
        await with_broker(node, 2)
        await with_partition(node, replicas=(2, 1), in_sync=frozenset({1, 2}), leader=2)
        assert partition(node).leader == 2

        assert await altered(node, ("t", 0, [1])) == {("t", 0): 0}
        await until_it_moves_no_more(node)

        assert partition(node).replicas == (1,)
        assert (partition(node).leader, partition(node).in_sync) == (1, {1})

    on_a_node(story)


async def moving(node):
    """The partition t-0 moves to broker 2."""
    await node.create("t")
    await with_broker(node, 2)
    assert await altered(node, ("t", 0, [2])) == {("t", 0): 0}


def between(node, monkeypatch, happens, *, is_lost=False):
    """A first decision is stale, or its answer is lost; this happens before the second."""
    metadata = node.broker.metadata
    change = metadata.change

    async def decide_twice(decide):
        monkeypatch.setattr(metadata, "change", change)
        if is_lost:
            metadata.replies_lost += 1
            await happens(decide)
        else:
            decide(metadata.image)
            await happens()
        return await change(decide)

    monkeypatch.setattr(metadata, "change", decide_twice)


def test_a_cancel_that_comes_after_the_end_of_a_move_is_not_told_as_one(monkeypatch):
    async def story(node):
        async def complete():
            await with_change(node, in_sync=frozenset({1, 2}))
            await until_it_moves_no_more(node)

        await moving(node)
        between(node, monkeypatch, complete)

        assert await altered(node, ("t", 0, None)) == {("t", 0): NOT_MOVING}
        assert partition(node).replicas == (2,)

    on_a_node(story)


def test_a_cancel_whose_answer_was_lost_on_the_way_is_told_as_done(monkeypatch):
    async def story(node):
        await moving(node)
        between(node, monkeypatch, node.broker.metadata.change, is_lost=True)

        assert await altered(node, ("t", 0, None)) == {("t", 0): 0}
        assert partition(node).replicas == (1,)

    on_a_node(story)


def test_a_cancel_that_never_arrived_does_not_count_when_the_move_has_ended(monkeypatch):
    async def story(node):
        async def lose_it(decide):
            decide(node.broker.metadata.image)
            await with_change(node, in_sync=frozenset({1, 2}))
            await until_it_moves_no_more(node)

        await moving(node)
        between(node, monkeypatch, lose_it, is_lost=True)

        assert await altered(node, ("t", 0, None)) == {("t", 0): NOT_MOVING}
        assert partition(node).replicas == (2,)

    on_a_node(story)


def test_a_cancel_that_another_was_faster_with_finds_nothing_to_cancel(monkeypatch):
    async def story(node):
        async def cancel():
            assert await altered(node, ("t", 0, None)) == {("t", 0): 0}

        await moving(node)
        between(node, monkeypatch, cancel)

        assert await altered(node, ("t", 0, None)) == {("t", 0): NOT_MOVING}
        assert partition(node).replicas == (1,)

    on_a_node(story)


def test_a_replica_that_has_moved_away_leaves_no_files():
    async def story(node):
        await node.create("t")
        await with_broker(node, 2)
        assert (await node.produce("t", batch_of(b"x"))).error_code == 0
        directory = node.broker.root / "t-0"
        assert node.broker.host.disk.exists(directory)

        await altered(node, ("t", 0, [2]))
        moved = partition(node)
        await with_change(node, in_sync=frozenset({1, 2}))
        await until_it_moves_no_more(node)
        await node.broker.acted()

        assert moved.is_moving
        assert partition(node).leader == 2
        assert not node.broker.host.disk.exists(directory)

    on_a_node(story)


def test_what_a_full_disk_kept_from_being_removed_is_not_taken_for_a_replica_again():
    async def story(node):
        topic_id = await node.create("t")
        assert (await node.produce("t", batch_of(b"of long ago"))).error_code == 0
        await with_broker(node, 2)
        directory, path = node.broker._directory, node.broker.root / "t-0"
        remove = directory.remove

        def refuse(names):
            raise OSError(errno.ENOSPC, "full")

        directory.remove = refuse
        await altered(node, ("t", 0, [2]))
        await with_change(node, in_sync=frozenset({1, 2}))
        await until_it_moves_no_more(node)
        await node.broker.acted()
        assert node.broker.replicas.get(topic_id, 0) is None
        assert node.broker.host.disk.exists(path)
        directory.remove = remove

        await with_change(node, replicas=(2, 1), leader=2)
        await node.broker.acted()

        replica = node.broker.replicas.get(topic_id, 0)
        assert replica is not None
        assert replica.log.end == 0

    on_a_node(story)


def test_what_a_replica_left_behind_is_removed_at_the_next_start_if_others_hold_it():
    machine = Machine()

    async def leave(node):
        topic_id = await node.create("t", partitions=2)
        await with_broker(node, 2)
        await altered(node, ("t", 0, [2]))
        await with_change(node, in_sync=frozenset({1, 2}))
        await until_it_moves_no_more(node)
        await node.broker.acted()
        # As if the process had ended before it came to it.
        node.broker._directory.make_partitions([TopicPartition("t", 0)], topic_id)
        machine.disk.make_directory(node.broker.root / "lost-0")
        machine.disk.sync_everything(node.broker.root)

    async def come_back(node):
        names = machine.disk.list(node.broker.root)
        assert "t-0" not in names
        assert {"t-1", "lost-0"} <= set(names), "what nobody knows anything of is kept"

    machine.live(leave, killed=True)
    machine.live(come_back)


def test_a_broker_is_forgotten_once_it_holds_nothing_and_is_gone():
    async def story(node):
        async def removed(number):
            answer = await node.ask(Api.UNREGISTER_BROKER, 0, broker_id=number)
            return answer.error_code, answer.error_message

        await with_broker(node, 2)
        await with_partition(node, replicas=(1, 2))
        code, why = await removed(2)
        assert code == BAD_REQUEST
        assert "holds replicas of t-0" in why
        await with_change(node, replicas=(1,))
        assert (await removed(2))[1] == "broker 2 is running; stop it first"
        await node.broker.metadata.change(
            lambda image: BrokerFenced(node=2, broker_epoch=image.brokers[2].broker_epoch)
        )

        assert await removed(2) == (0, None)
        assert sorted(node.broker.image.brokers) == [1]
        assert (await removed(2))[0] == NOT_REGISTERED

    on_a_node(story)
