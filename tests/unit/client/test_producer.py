import asyncio

import pytest

from tests.unit.client.fake_broker import FakeBroker
from tidelog.client.cluster import Refused
from tidelog.client.kafka import KafkaClient
from tidelog.client.producer import Producer
from tidelog.records import Codec, Record, decode_batch, read_header
from tidelog.wire.apis import Api

NOT_LEADER = 6
MESSAGE_TOO_LARGE = 10


def with_producer(scenario, *, partitions=1, **options):
    async def run():
        async with FakeBroker() as broker, KafkaClient(broker.address) as client:
            await client.create_topic("orders", partitions=partitions)
            producer = Producer(client, "orders", partitions=partitions, **options)
            await scenario(broker, producer)

    asyncio.run(run())


def record(value, key=None):
    return Record(key=key, value=value, timestamp_ms=1)


def stored(broker, partition=0):
    return [
        one.value for _, _, batch in broker.topics["orders"][partition].batches for one in decode_batch(batch)
    ]


def test_order_holds_through_retries():
    async def scenario(broker, producer):
        broker.errors[Api.PRODUCE].extend([0, NOT_LEADER, 0, NOT_LEADER])
        values = [b"%d" % number for number in range(1000)]

        for value in values:
            producer.add(record(value))
            await producer.room()
        await producer.flush()

        assert stored(broker) == values
        assert producer.sent[0].records == 1000
        assert (producer.sent[0].first_offset, producer.sent[0].last_offset) == (0, 999)

    with_producer(scenario, batch_bytes=500)


def test_batches_stay_below_their_limit_and_a_larger_record_goes_alone():
    async def scenario(broker, producer):
        for value in (b"a" * 100, b"b" * 100, b"c" * 5000, b"d" * 100):
            producer.add(record(value))
        await producer.flush()

        sizes = [len(batch) for _, _, batch in broker.topics["orders"][0].batches]
        counts = [end - first for first, end, _ in broker.topics["orders"][0].batches]
        assert counts == [2, 1, 1]
        assert sizes[0] < 500 + 61

    with_producer(scenario, batch_bytes=500)


def test_records_added_together_leave_in_one_batch():
    async def scenario(broker, producer):
        for number in range(100):
            producer.add(record(b"%d" % number))
        await producer.flush()

        assert len(broker.topics["orders"][0].batches) == 1

    with_producer(scenario)


def test_a_record_leaves_by_itself_after_the_linger():
    async def scenario(broker, producer):
        producer.add(record(b"a"))
        await asyncio.sleep(0.3)

        assert stored(broker) == [b"a"]

    with_producer(scenario)


def test_keyless_records_are_spread_batch_by_batch_and_a_given_partition_is_kept():
    async def scenario(broker, producer):
        for number in range(100):
            producer.add(record(b"%03d" % number * 10))
        producer.add(record(b"mine"), 2)
        await producer.flush()

        counts = [len(stored(broker, partition)) for partition in range(3)]
        assert sum(counts) == 101
        assert min(counts) > 10
        assert b"mine" in stored(broker, 2)

    with_producer(scenario, partitions=3, batch_bytes=500)


def test_the_first_failure_is_raised_and_ends_it():
    async def scenario(broker, producer):
        broker.errors[Api.PRODUCE].append(MESSAGE_TOO_LARGE)
        producer.add(record(b"a"))

        with pytest.raises(Refused) as caught:
            await producer.flush()

        assert caught.value.code == MESSAGE_TOO_LARGE
        with pytest.raises(Refused):
            producer.add(record(b"b"))

    with_producer(scenario)


def test_unsent_bytes_are_bounded():
    async def scenario(broker, producer):
        for _ in range(50):
            producer.add(record(b"x" * 100))
            await producer.room()
            assert producer.has_room

        await producer.flush()
        assert len(stored(broker)) == 50

    with_producer(scenario, unsent_bytes_max=300, batch_bytes=200)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_sent_as_asked(codec):
    async def scenario(broker, producer):
        producer.add(record(b"value " * 100))
        await producer.flush()

        (_, _, batch) = broker.topics["orders"][0].batches[0]
        assert read_header(batch).codec is codec
        assert stored(broker) == [b"value " * 100]

    with_producer(scenario, codec=codec)
