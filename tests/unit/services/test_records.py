"""Records for who does not speak Kafka, on a node that leads them itself."""

import asyncio
import errno
from dataclasses import replace

import pytest

from tests.unit.broker.node import Machine, batch_of, on_a_node
from tests.unit.coordinators.transacting import Producer, on_a_coordinator
from tidelog.broker.cold_reads import load
from tidelog.broker.topics import delete_topic
from tidelog.broker.writing import once_of
from tidelog.config import TopicConfig
from tidelog.errors import (
    BrokerError,
    InvalidPartitions,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    LeaderNotAvailable,
    MessageTooLarge,
    OutcomeUnknown,
    OutOfOrderSequence,
    StorageError,
    UnknownTopicOrPartition,
)
from tidelog.log.reading import Read
from tidelog.model import NO_PRODUCER
from tidelog.records import Codec, Record, encode_batch, iterate_batches
from tidelog.services.packing import NewRecord, PartlyWritten, Placed, pack
from tidelog.services.records import ASIDE_BYTES, LATEST, ReadOutside, RecordService
from tidelog.wire.apis import Api
from tidelog.wire.partitioner import partition_for

SECONDS = 5.0


async def write(service, topic, *values: bytes, key: str | None = None, **options):
    records = [NewRecord(value=value) for value in values]
    return await service.produce(topic, records, seconds_max=SECONDS, once=once_of(key), **options)


async def values_of(service, topic="t", partition=0, *, many=100, size=2**20, **options):
    """The values that a reader sees, and where it goes on."""
    found = await service.read(topic, partition, records_max=many, bytes_max=size, **options)
    records, next_offset = found.unpack(many, size)
    return [record.value for record in records], next_offset


# Writing.


def test_records_stand_in_the_log_in_their_order_with_all_that_they_have():
    async def story(node):
        await node.create("t", 2)
        service = RecordService(node.broker)
        now_ms = node.clock.wall_ms()
        wanted = NewRecord(
            key=b"k", value=b"v", headers=(("h", b"1"), ("h", None)), timestamp_ms=now_ms - 7, partition=1
        )

        written = await service.produce(
            "t", [wanted, NewRecord(value=None, key=b"gone", partition=1)], seconds_max=SECONDS
        )

        assert [(one.partition, one.offset) for one in written] == [(1, 0), (1, 1)]
        records, _ = (await service.read("t", 1)).unpack(9, 2**20)
        assert records[0] == Record(
            key=b"k", value=b"v", headers=(("h", b"1"), ("h", None)), timestamp_ms=now_ms - 7
        )
        assert (records[1].value, records[1].timestamp_ms) == (None, now_ms)

    on_a_node(story)


def test_a_key_decides_the_partition_as_for_every_client_and_those_without_stay_together():
    async def story(node):
        await node.create("t", 5)
        service = RecordService(node.broker)
        keys = [b"a", None, b"b", None, b"c", None]

        written = await service.produce(
            "t", [NewRecord(key=key, value=b"") for key in keys], seconds_max=SECONDS
        )

        by_key = [one.partition for one, key in zip(written, keys, strict=True) if key is not None]
        keyless = {one.partition for one, key in zip(written, keys, strict=True) if key is None}
        assert by_key == [partition_for(key, 5) for key in (b"a", b"b", b"c")]
        assert len(keyless) == 1
        turns = [(await write(service, "t", b""))[0].partition for _ in range(5)]
        assert sorted(turns) == [0, 1, 2, 3, 4]

    on_a_node(story)


@pytest.mark.parametrize("size", [10, ASIDE_BYTES])
def test_a_repeated_request_writes_nothing_and_has_the_same_answer(size):
    async def story(node):
        await node.create("t", 7)
        first = RecordService(node.broker)
        values = [b"x" * size, b"y"]

        written = await write(first, "t", *values, key="request 1")
        repeated = await write(RecordService(node.broker), "t", *values, key="request 1")
        other = await write(first, "t", *values, key="request 1'")

        assert repeated == written
        assert other != written
        assert sum(node.broker.partition("t", n).log.end for n in range(7)) == 4

    on_a_node(story)


def test_a_repeated_request_is_recognised_after_a_restart():
    machine = Machine()
    answers: list[list[Placed]] = []

    async def life(node):
        if not answers:
            await node.create("t", 3)
        answers.append(await write(RecordService(node.broker), "t", b"a", b"b", key="once"))

    machine.live(life)
    machine.live(life)

    assert answers[0] == answers[1]


@pytest.mark.parametrize("is_begun", [False, True], ids=["whole", "begun"])
def test_a_repeated_request_is_recognised_after_partitions_were_added(is_begun):
    async def story(node):
        service = RecordService(node.broker)
        await node.create("t", partitions=2)
        records = [NewRecord(b"%d" % n, key=b"k%d" % n) for n in range(8)]

        async def write():
            once = once_of("key")
            return await service.produce("t", records, seconds_max=SECONDS, once=once)

        if is_begun:
            node.broker.partition("t", 1).log.refusal = "the disk is full"
            with pytest.raises(PartlyWritten):
                await write()
            node.broker.partition("t", 1).log.refusal = None
        before = None if is_begun else await write()
        for count in (3, 8):
            await node.ask(
                Api.CREATE_PARTITIONS,
                3,
                timeout=9000,
                validate_only=False,
                topics=[{"name": "t", "count": count, "assignments": None}],
            )

        first, again = await write(), await write()

        assert first == again
        assert before in (None, first)
        assert {one.partition for one in first} == {0, 1}
        ends = [node.broker.partition("t", number).log.end for number in range(8)]
        assert sum(ends) == len(records)

    on_a_node(story)


def test_a_key_of_another_request_is_refused_and_nothing_is_written():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)
        await write(service, "t", b"a", b"b", key="once")

        for values in ((b"a",), (b"a", b"x")):
            with pytest.raises(OutOfOrderSequence, match="used for another request"):
                await write(service, "t", *values, key="once")

        assert node.broker.partition("t", 0).log.end == 2

    on_a_node(story)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"partition": 3}, InvalidPartitions),
        ({"partition": -1}, InvalidPartitions),
        ({"key": None}, InvalidRecord),
        ({"timestamp_ms": 0}, InvalidTimestamp),
        ({"timestamp_ms": 2**62}, InvalidTimestamp),
        ({"value": bytes(4000)}, MessageTooLarge),
    ],
)
def test_one_wrong_record_keeps_the_whole_request_from_being_written(bad, error):
    async def story(node):
        await node.create(
            "t", 3, cleanup_policy="compact", max_message_bytes="3000", message_timestamp_before_max_ms="1000"
        )
        service = RecordService(node.broker)
        good = [NewRecord(key=b"%d" % n, value=b"", partition=n) for n in range(3)]
        wrong = NewRecord(**{"key": b"k", "value": b"", "partition": 1} | bad)

        with pytest.raises(error, match=r"records\[3\]|bytes"):
            await service.produce("t", [*good, wrong], seconds_max=SECONDS)

        assert [node.broker.partition("t", n).log.end for n in range(3)] == [0, 0, 0]

    on_a_node(story)


def test_a_topic_that_is_missing_is_made_if_settings_allow_that():
    async def story(node):
        assert (await write(RecordService(node.broker), "new", b"a"))[0].offset == 0
        assert "new" in node.broker.image.topics

    async def strict(node):
        with pytest.raises(UnknownTopicOrPartition):
            await write(RecordService(node.broker), "new", b"a")

    on_a_node(story)
    on_a_node(strict, auto_create_topics_enable=False)


def test_what_some_partitions_did_and_others_did_not_is_told_record_by_record():
    async def story(node):
        await node.create("t", 2)
        service = RecordService(node.broker)
        node.broker.partition("t", 1).log.refusal = "broken"

        records = [NewRecord(value=b"", partition=n % 2) for n in range(4)]
        with pytest.raises(PartlyWritten, match="partition 1: broken") as raised:
            await service.produce("t", records, seconds_max=SECONDS)

        told = raised.value.outcomes
        assert [one.placed for one in told] == [Placed(0, 0), None, Placed(0, 1), None]
        assert [one.partition for one in told] == [0, 1, 0, 1]
        assert [one.error is not None for one in told] == [False, True, False, True]
        with pytest.raises(BrokerError, match="broken"):  # alone, it is the error itself
            await service.produce("t", records[1:2], seconds_max=SECONDS)

    on_a_node(story)


def test_more_copies_than_there_are_replicas_are_refused_before_anything_is_written():
    async def story(node):
        await node.create("t")
        with pytest.raises(InvalidRequest, match="min_replicas_ack"):
            await write(RecordService(node.broker), "t", b"a", copies=1)
        assert node.broker.partition("t", 0).log.end == 0

    on_a_node(story)


def test_a_write_that_is_not_committed_in_time_has_an_outcome_that_is_unknown():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)

        with pytest.raises(OutcomeUnknown) as raised:
            await service.produce("t", [NewRecord(value=b"a")], seconds_max=0.0)

        assert raised.value.known["offset"] == 0 and raised.value.known["committed"] is False

    on_a_node(story)


def test_small_requests_of_one_turn_are_one_batch_in_each_partition():
    async def story(node):
        await node.create("t", partitions=2)
        service = RecordService(node.broker)

        placed = await asyncio.gather(
            *(
                service.produce("t", [NewRecord(value=b"%d" % n, partition=n % 2)], seconds_max=SECONDS)
                for n in range(8)
            )
        )

        assert placed == [[Placed(n % 2, n // 2)] for n in range(8)]
        for number in range(2):
            partition = node.broker.partition("t", number)
            found = partition.read(0, 2**20, partition.log.end)
            counts = [h.record_count for data in found.buffers for h, _ in iterate_batches(data)]
            assert counts == [4]

    on_a_node(story)


def test_what_a_topic_takes_alone_it_takes_in_a_turn_with_others():
    """The batch that they share has a header, too, and may be no larger than the topic allows."""

    async def story(node):
        await node.create("t", **{"max.message.bytes": "1000"})
        service = RecordService(node.broker)

        placed = await asyncio.gather(
            *(service.produce("t", [NewRecord(value=b"x" * 466)], seconds_max=SECONDS) for _ in range(4))
        )

        assert placed == [[Placed(0, offset)] for offset in range(4)]

    on_a_node(story)


def test_a_request_that_leaves_or_runs_out_of_time_takes_none_of_its_turn_with_it():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)

        def write(value, seconds=SECONDS):
            record = NewRecord(value=value)
            return asyncio.ensure_future(service.produce("t", [record], seconds_max=seconds))

        leaving, late, whole = write(b"a"), write(b"b", 0.0), write(b"c")
        await asyncio.sleep(0)
        leaving.cancel()

        with pytest.raises(OutcomeUnknown) as raised:
            await late
        assert raised.value.known["offset"] == 0 and raised.value.known["committed"] is False
        assert await whole == [Placed(0, 1)]

    on_a_node(story)


def test_who_has_no_key_takes_no_other_with_it_where_the_topic_is_compacted_in_between():
    async def story(node):
        await node.create("t")
        service, partition = RecordService(node.broker), node.broker.partition("t", 0)

        def write(key):
            record = NewRecord(value=b"v", key=key)
            return asyncio.ensure_future(service.produce("t", [record], seconds_max=SECONDS))

        keyless, keyed = write(None), write(b"k")
        await asyncio.sleep(0)
        partition.configure(replace(partition.config, cleanup_policy="compact"))

        with pytest.raises(InvalidRecord):
            await keyless
        assert await keyed == [Placed(0, 0)]

    on_a_node(story)


# Reading.


def test_a_reader_gets_what_there_is_piece_by_piece_and_knows_where_to_go_on():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)
        for codec in (Codec.NONE, Codec.ZSTD, Codec.NONE):
            await node.produce("t", batch_of(b"a", b"bb", b"c", b"d", codec=codec))
        everything = [b"a", b"bb", b"c", b"d"] * 3

        for many, size in ((100, 2**20), (1, 2**20), (3, 2**20), (5, 2**20), (100, 1), (100, 3)):
            found: list[bytes | None] = []
            offset = 0
            while offset < 12:
                values, after = await values_of(service, offset=offset, many=many, size=size)
                assert after == offset + len(values) > offset and len(values) <= many
                found, offset = found + values, after
            assert found == everything

        whole = await service.read("t", 0)
        assert (whole.offset, whole.high_watermark, whole.log_start) == (0, 12, 0)
        assert await values_of(service, offset=LATEST) == ([], 12)

    on_a_node(story)


def test_what_an_earlier_life_wrote_is_read_from_its_files():
    machine = Machine()

    async def first(node):
        await node.create("t")
        for n in range(4):
            await node.produce("t", batch_of(b"%d" % n * 100))

    async def second(node):
        service = RecordService(node.broker)
        assert await values_of(service, offset=1, many=2) == ([b"1" * 100, b"2" * 100], 3)
        assert (await values_of(service, offset=3, size=1))[0] == [b"3" * 100]

    machine.live(first)
    machine.live(second)


def test_a_reader_who_waits_is_woken_by_the_next_record_and_by_nothing_else():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)
        partition = node.broker.partition("t", 0)
        began = node.clock.monotonic()

        waiting = asyncio.create_task(values_of(service, wait_seconds=20.0))
        await asyncio.sleep(7)
        assert not waiting.done() and len(partition._watchers) == 1
        await node.produce("t", batch_of(b"news"))

        assert await waiting == ([b"news"], 1)
        assert node.clock.monotonic() - began < 8
        assert not partition._watchers

        began = node.clock.monotonic()
        assert await values_of(service, offset=1, wait_seconds=20.0) == ([], 1)
        assert 20 <= node.clock.monotonic() - began < 21

    on_a_node(story)


def test_a_reader_who_goes_leaves_nothing_behind():
    async def story(node):
        await node.create("t")
        waiting = asyncio.create_task(values_of(RecordService(node.broker), wait_seconds=20.0))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not node.broker.partition("t", 0)._watchers

    on_a_node(story)


def test_a_reader_by_time_begins_with_the_first_record_since_then():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)
        for time_ms in (1000, 2000, 3000):
            await node.produce("t", batch_of(b"%d" % time_ms, time_ms=time_ms))

        assert await values_of(service, time_ms=0) == ([b"1000", b"2000", b"3000"], 3)
        assert await values_of(service, time_ms=2000) == ([b"2000", b"3000"], 3)
        assert await values_of(service, time_ms=2001) == ([b"3000"], 3)
        assert await values_of(service, time_ms=3001) == ([], 3)

    on_a_node(story)


def test_an_offset_that_the_log_does_not_hold_is_told_with_those_that_it_does():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)
        await node.produce("t", batch_of(b"a", b"b", b"c"))
        await node.broker.advance_start(node.broker.partition("t", 0), 2)

        for offset in (1, 4):
            with pytest.raises(ReadOutside) as raised:
                await service.read("t", 0, offset=offset, wait_seconds=9.0)
            assert (raised.value.log_start, raised.value.high_watermark) == (2, 3)
        assert await values_of(service) == ([b"c"], 3)

    on_a_node(story)


def test_a_topic_or_partition_that_is_not_there_is_unknown_and_not_made():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)
        for topic, partition in (("nobody", 0), ("t", 1)):
            with pytest.raises(UnknownTopicOrPartition):
                await service.read(topic, partition)
        assert list(node.broker.image.topics) == ["t"]

    on_a_node(story)


def test_a_reader_who_waits_is_told_that_the_topic_was_deleted():
    async def story(node):
        await node.create("t")
        waiting = asyncio.create_task(RecordService(node.broker).read("t", 0, wait_seconds=20.0))
        await asyncio.sleep(1)
        await delete_topic(node.broker, "t", None)
        with pytest.raises(UnknownTopicOrPartition):
            await waiting

    on_a_node(story)


def test_only_what_is_decided_is_shown_unless_somebody_asks_for_more():
    async def story(node):
        service = RecordService(node.broker)
        producer = Producer(node)
        await producer.init()
        await node.produce("t", batch_of(b"before"))
        await producer.write(b"aborted")
        await producer.end(commits=False)
        await producer.completed()
        await producer.write(b"committed")
        await producer.end(commits=True)
        await producer.completed()
        await producer.write(b"open")
        await node.produce("t", batch_of(b"after"))

        seen, after = await values_of(service, committed_only=False)
        assert seen == [b"before", b"aborted", b"committed", b"open", b"after"]
        assert await values_of(service) == ([b"before", b"committed"], after - 2)
        assert await values_of(service, offset=1, many=1) == ([b"committed"], 4)
        assert (await service.read("t", 0, offset=LATEST)).offset == after - 2

        waiting = asyncio.create_task(values_of(service, offset=after - 2, wait_seconds=9.0))
        await asyncio.sleep(1)
        assert not waiting.done()
        await producer.end(commits=False)
        assert (await waiting)[0] == [b"after"]

    on_a_coordinator(story)


def test_a_reader_passes_over_what_it_may_not_see_though_it_does_not_wait():
    async def story(node):
        service = RecordService(node.broker)
        producer = Producer(node)
        await producer.init()
        for n in range(5):
            await producer.write(b"%d" % n)
        await producer.end(commits=False)
        await producer.completed()
        await node.produce("t", batch_of(b"after"))

        assert await values_of(service, many=1) == ([b"after"], 7)

    on_a_coordinator(story)


def test_a_large_batch_is_unpacked_no_further_than_it_is_asked_for():
    async def story(node):
        await node.create("t")
        service = RecordService(node.broker)
        records = [Record(value=b"", timestamp_ms=1000)] * 50_000
        await node.produce("t", encode_batch(records, codec=Codec.ZSTD))

        found = await service.read("t", 0, offset=49_000, records_max=10)

        assert [record.offset for record in found.unpack(10, 2**20)[0]] == list(range(49_000, 49_010))

    on_a_node(story)


def test_nobody_leads_for_long_and_a_reader_hears_of_it():
    async def story(node):
        await node.create("t")
        node.broker.image.topics["t"].partitions[0] = (
            node.broker.image.topics["t"].partitions[0].edited(leader=-1)
        )
        with pytest.raises(LeaderNotAvailable):
            await RecordService(node.broker).read("t", 0)

    on_a_node(story)


def test_a_disk_that_does_not_read_is_told_as_such_and_may_be_asked_again():
    class Unreadable:
        offset = 0

        def perform_checked(self, disk, *, has_gaps):
            raise OSError(errno.EIO, "Input/output error")

    async def story(node):
        await node.create("t")
        partition = node.broker.partition("t", 0)

        with pytest.raises(StorageError, match="cannot be read") as raised:
            await load(node.broker, partition, Read((), 0, 1, Unreadable()))  # type: ignore[arg-type]

        assert raised.value.retriable

    on_a_node(story)


@pytest.mark.parametrize("timestamp_ms", [0, 1])
def test_a_record_with_a_time_of_its_own_shares_no_batch(timestamp_ms: int) -> None:
    own = NewRecord(key=b"k", value=b"v", timestamp_ms=timestamp_ms)

    assert pack(1, TopicConfig(), [own], NO_PRODUCER, 0, 1000)[0].data
