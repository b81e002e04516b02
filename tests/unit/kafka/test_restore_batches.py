"""Batches of a backup at one node: where they were, or not at all."""

import asyncio

import pytest

from tests.unit.broker.node import Machine, batch_of, on_a_node, placed
from tests.unit.services.test_kv import Bucket
from tests.unit.services.test_queues import Desk
from tidelog.backup.batches import fillers, without_holes
from tidelog.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTopic,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.log.unpacking import empty
from tidelog.model import OFFSETS_TOPIC, QUEUES_TOPIC
from tidelog.records import Codec, Record, decode_batch, encode_batch, iterate_batches
from tidelog.wire.apis import Api


async def restore(node, topic_id, data, *, partition=0):
    return await node.ask(
        Api.RESTORE_BATCHES, 0, topic_id=topic_id, partition=partition, timeout=5000, records=data
    )


def filler(start, end):
    return b"".join(fillers(start, end, 1000))


async def records(node, topic, offset=0):
    data = (await node.fetch_one(topic, offset)).records
    return [
        (record.offset, record.value) for _, batch in iterate_batches(data) for record in decode_batch(batch)
    ]


def test_records_come_back_at_the_offsets_that_they_had():
    async def story(node):
        topic = await node.create("t")
        data = filler(0, 7) + placed(batch_of(b"a", b"b"), 7) + filler(9, 20)

        answer = await restore(node, topic, data)

        assert (answer.error_code, answer.log_end) == (0, 20)
        assert await records(node, "t") == [(7, b"a"), (8, b"b")]
        assert (await node.produce("t", batch_of(b"next"))).base_offset == 20

    on_a_node(story)


def test_restored_records_are_committed_and_survive_a_kill():
    machine = Machine()

    async def first(node):
        topic = await node.create("t")
        await restore(node, topic, filler(0, 2**31 + 5))
        answer = await restore(node, topic, placed(batch_of(b"a"), 2**31 + 5))
        assert answer.error_code == 0

    async def second(node):
        assert await records(node, "t", 2**31 + 5) == [(2**31 + 5, b"a")]
        assert (await node.produce("t", batch_of(b"b"))).base_offset == 2**31 + 6

    machine.live(first, killed=True)
    machine.live(second)


def test_nothing_is_restored_over_what_is_there():
    async def story(node):
        topic = await node.create("t")
        await node.produce("t", batch_of(b"mine"))

        answer = await restore(node, topic, placed(batch_of(b"theirs"), 0))

        assert (answer.error_code, answer.log_end) == (OffsetOutOfRange.code, 1)
        assert await records(node, "t") == [(0, b"mine")]

    on_a_node(story)


def test_a_request_is_taken_whole_or_not_at_all():
    async def story(node):
        topic = await node.create("t")
        damaged = bytearray(placed(batch_of(b"b"), 1))
        damaged[-1] ^= 1

        answer = await restore(node, topic, placed(batch_of(b"a"), 0) + damaged)

        assert (answer.error_code, answer.log_end) == (CorruptMessage.code, 0)
        assert await records(node, "t") == []

    on_a_node(story)


def test_a_producer_of_this_cluster_is_not_taken_for_one_of_another():
    async def story(node):
        topic = await node.create("t")
        theirs = batch_of(b"theirs", producer_id=0, producer_epoch=0, base_sequence=0)

        answer = await restore(node, topic, placed(theirs, 0))

        assert answer.error_code == InvalidRecord.code
        assert "producer 0" in answer.error_message

    on_a_node(story)


def test_an_idempotency_key_is_known_though_its_record_was_compacted_away():
    stored = []

    async def original(node):
        bucket = await Bucket(node).make()
        await bucket.put(b"k", b"old", once="order-17")
        await bucket.put(b"k", b"new")
        data = (await node.fetch_one("b")).records
        (first, _), (second, newest) = iterate_batches(data)
        compacted = [(first, memoryview(empty(first)[1])), (second, newest)]
        stored.append(b"".join(without_holes(compacted, position=0, start=0, end=2)))

    async def copy(node):
        bucket = await Bucket(node).make()
        topic = node.broker.image.topics["b"].id
        assert (await restore(node, topic, stored[0])).error_code == 0

        assert (await bucket.put(b"k", b"old", once="order-17")).offset == 0
        assert await bucket.get(b"k") == (b"new", 1)

    on_a_node(original)
    on_a_node(copy)


def test_sizes_and_times_that_are_refused_today_were_fine_when_they_were_written():
    async def story(node):
        topic = await node.create(
            "t", max_message_bytes="100", message_timestamp_before_max_ms="1000", cleanup_policy="compact"
        )
        old = batch_of(b"x" * 1000, time_ms=1)

        assert (await restore(node, topic, placed(old, 0))).error_code == 0

    on_a_node(story)


def test_topics_are_known_by_their_ids():
    async def story(node):
        before = await node.create("t")
        await node.ask(Api.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}])
        await node.create("t")

        for topic in (before, None):
            answer = await restore(node, topic, placed(batch_of(b"a"), 0))
            assert answer.error_code in (UnknownTopicId.code, UnknownTopicOrPartition.code)

    on_a_node(story)


def test_the_cluster_s_own_topics_are_not_restored():
    async def story(node):
        await node.ask(Api.FIND_COORDINATOR, 2, key="g", key_type=0)
        topic = node.broker.image.topics[OFFSETS_TOPIC].id

        answer = await restore(node, topic, placed(batch_of(b"a"), 0))

        assert answer.error_code == InvalidTopic.code

    on_a_node(story, offsets_topic_num_partitions=1)


async def queues_topic(node):
    """Make the topic of the queues, as a restore does; its id."""
    answer = await node.ask(
        Api.CREATE_TOPICS,
        7,
        topics=[{"name": QUEUES_TOPIC, "num_partitions": 1, "replication_factor": -1, "configs": []}],
    )
    assert answer.topics[0].error_code == 0, answer
    return answer.topics[0].topic_id


def driver_of(desk):
    driver = desk.queues.driver_of(0)
    assert driver is not None
    return driver


@pytest.fixture(scope="module")
def queue_batches():
    """Of a queue with pointers: 0 and messages 1 to 3, of which ada has read the first."""
    stored: list[bytes] = []

    async def original(node):
        desk = Desk(node)
        queue = await desk.create()
        for value in (b"1", b"2", b"3"):
            await desk.append(queue, value)
        await desk.read(queue, "ada")
        data = bytes((await node.fetch_one(QUEUES_TOPIC)).records)
        stored.extend(bytes(batch) for _, batch in iterate_batches(data))

    on_a_node(original, queues_topic_num_partitions=1)
    return stored


def test_queues_are_restored_with_their_messages_and_pointers(queue_batches):
    async def story(node):
        desk, topic = Desk(node), await queues_topic(node)

        assert (await restore(node, topic, b"".join(queue_batches))).error_code == 0
        assert (await restore(node, topic, b"")).error_code == 0

        assert await desk.read(0, "ada") == (2, b"2")
        assert await desk.read(0, "bob") == (1, b"1")
        assert await desk.create() == 1

    on_a_node(story)


def test_queues_serve_nobody_before_all_is_restored_however_long_that_takes(queue_batches):
    async def story(node):
        desk, topic = Desk(node), await queues_topic(node)
        log = node.broker.partition(QUEUES_TOPIC, 0).log
        for at, batch in enumerate(queue_batches):
            assert (await restore(node, topic, batch)).error_code == 0
            await asyncio.sleep(500)
            assert not driver_of(desk).shard.is_loaded
            assert log.end == at + 1

        answer = await restore(node, topic, b"")

        assert (answer.error_code, answer.log_end) == (0, len(queue_batches))
        assert await desk.read(0, "ada") == (2, b"2")

    on_a_node(story)


def test_queues_whose_restore_nobody_goes_on_with_are_served(queue_batches):
    async def story(node):
        desk, topic = Desk(node), await queues_topic(node)
        await restore(node, topic, b"".join(queue_batches[:3]))

        for second in range(700):  # none of these brings anything
            await restore(node, topic, filler(3 + second, 4 + second))
            await asyncio.sleep(1)

        assert await desk.append(0, b"new") == 703

    on_a_node(story)


def test_whoever_says_that_a_restore_has_ended_ends_no_service():
    async def story(node):
        desk = Desk(node)
        queue = await desk.create()
        topic = node.broker.image.topics[QUEUES_TOPIC].id
        driver = driver_of(desk)
        shard = driver.shard

        assert (await restore(node, topic, b"")).error_code == 0

        assert driver.shard is shard and shard.is_loaded
        assert await desk.append(queue, b"1") == 1

    on_a_node(story, queues_topic_num_partitions=1)


def test_queues_that_are_in_use_are_not_restored(queue_batches):
    async def story(node):
        desk = Desk(node)
        queue = await desk.create()
        topic = node.broker.image.topics[QUEUES_TOPIC].id

        for data in (queue_batches[1], filler(1, 2)):
            answer = await restore(node, topic, data)
            assert (answer.error_code, answer.log_end) == (PolicyViolation.code, 1)

        assert driver_of(desk).shard.is_loaded
        assert await desk.append(queue, b"1") == 1

    on_a_node(story, queues_topic_num_partitions=1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_what_no_queue_has_written_does_not_go_into_their_log(codec):
    async def story(node):
        desk = Desk(node)
        queue = await desk.create()
        topic, log = node.broker.image.topics[QUEUES_TOPIC], node.broker.partition(QUEUES_TOPIC, 0)
        end = log.log.end
        poison = Record(key=b"W\xff\xfe", value=b"\xc1", timestamp_ms=1)
        data = encode_batch([poison], base_offset=end, codec=codec)

        answer = await restore(node, topic.id, bytes(data))

        assert (answer.error_code, answer.log_end) == (InvalidRecord.code, end)
        assert "is no queue's" in answer.error_message
        assert await desk.append(queue, b"1") == end

    on_a_node(story, queues_topic_num_partitions=1)


def test_the_settings_of_the_queues_topic_are_the_cluster_s_own():
    async def story(node):
        answer = await node.ask(
            Api.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": QUEUES_TOPIC,
                    "num_partitions": 1,
                    "replication_factor": -1,
                    "configs": [{"name": "retention.ms", "value": "1"}],
                }
            ],
        )
        assert answer.topics[0].error_code == 42

    on_a_node(story)


def test_a_partition_that_is_not_there_is_said_to_be_unknown():
    async def story(node):
        topic = await node.create("t")

        answer = await restore(node, topic, placed(batch_of(b"a"), 0), partition=9)

        assert (answer.error_code, answer.log_end) == (UnknownTopicOrPartition.code, -1)

    on_a_node(story)
