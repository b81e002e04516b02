import asyncio
import time

import pytest

from tests.unit.client.fake_broker import FakeBroker
from tidelog.client.cluster import Refused, parse_bootstrap
from tidelog.client.kafka import EARLIEST, LATEST, KafkaClient
from tidelog.client.wire import ConnectionFailed
from tidelog.errors import ConfigError
from tidelog.records import Record, decode_batch, encode_batch, iterate_batches
from tidelog.wire.apis import Api

NOT_LEADER = 6
LEADER_NOT_AVAILABLE = 5
NOT_CONTROLLER = 41
TOPIC_EXISTS = 36


def batch_of(*values):
    return encode_batch([Record(value=value, timestamp_ms=1000) for value in values])


def values_in(records):
    return [record.value for _, batch in iterate_batches(records) for record in decode_batch(batch)]


def with_client(scenario, **options):
    async def run():
        async with FakeBroker() as broker, KafkaClient(broker.address, **options) as client:
            await scenario(broker, client)

    asyncio.run(run())


def test_what_was_produced_is_fetched():
    async def scenario(broker, client):
        await client.create_topic("orders", partitions=2)

        first = await client.produce("orders", 1, batch_of(b"a", b"b"))
        second = await client.produce("orders", 1, batch_of(b"c"))
        fetched = await client.fetch("orders", {0: 0, 1: 0}, wait_ms_max=10)

        assert (first, second) == (0, 2)
        by_partition = {one.partition: one for one in fetched}
        assert values_in(by_partition[1].records) == [b"a", b"b", b"c"]
        assert by_partition[1].high_watermark == 3
        assert by_partition[0].records == b""

    with_client(scenario)


def test_topics_are_created_described_grown_and_deleted():
    async def scenario(broker, client):
        created = await client.create_topic("orders", partitions=2, configs={"a": "b"})
        await client.create_partitions("orders", 5)
        grown = await client.topic("orders")
        listed = await client.topics()
        await client.delete_topic("orders")

        assert [one.partition for one in created.partitions] == [0, 1]
        assert created.partitions[0].leader == 1 and created.partitions[0].epoch == 4
        assert len(grown.partitions) == 5
        assert [topic.name for topic in listed] == ["orders"]
        assert await client.topics() == []

    with_client(scenario)


def test_offsets_are_listed_and_moved_by_deleting_records():
    async def scenario(broker, client):
        await client.create_topic("orders")
        await client.produce("orders", 0, batch_of(b"a", b"b", b"c"))

        starts = await client.delete_records("orders", {0: 2})

        assert starts == {0: 2}
        assert (await client.list_offsets("orders", {0: EARLIEST}))[0].offset == 2
        assert (await client.list_offsets("orders", {0: LATEST}))[0].offset == 3

    with_client(scenario)


def test_metadata_is_asked_once_and_again_after_a_leader_has_moved():
    async def scenario(broker, client):
        await client.create_topic("orders")
        for _ in range(3):
            await client.produce("orders", 0, batch_of(b"a"))
        asked = broker.count(Api.METADATA)
        broker.errors[Api.PRODUCE].extend([NOT_LEADER, NOT_LEADER])

        offset = await client.produce("orders", 0, batch_of(b"d"))

        assert asked <= 2
        assert offset == 3
        assert broker.count(Api.METADATA) > asked

    with_client(scenario)


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.METADATA])
def test_a_lost_connection_is_remade_and_the_request_repeated(api):
    async def scenario(broker, client):
        await client.create_topic("orders")
        broker.drops[api] = 2

        await client.produce("orders", 0, batch_of(b"a"))
        await client.fetch("orders", {0: 0})
        await client.list_offsets("orders", {0: LATEST})
        await client.topics()

        assert broker.drops[api] == 0

    with_client(scenario)


def test_a_topic_without_a_leader_is_waited_for():
    async def scenario(broker, client):
        await client.create_topic("orders")
        client.forget("orders")
        broker.errors[Api.METADATA].extend([LEADER_NOT_AVAILABLE] * 2)

        assert (await client.topic("orders")).name == "orders"

    with_client(scenario)


def test_a_controller_that_moved_is_found_again():
    async def scenario(broker, client):
        broker.errors[Api.CREATE_TOPICS].append(NOT_CONTROLLER)

        await client.create_topic("orders")

        assert "orders" in broker.topics
        assert broker.count(Api.CREATE_TOPICS) == 2

    with_client(scenario)


def test_errors_that_do_not_heal_are_raised_at_once():
    async def scenario(broker, client):
        await client.create_topic("orders")

        with pytest.raises(Refused) as caught:
            await client.create_topic("orders")

        assert caught.value.code == TOPIC_EXISTS
        assert "orders" in str(caught.value) and "choose another name" in str(caught.value)
        assert broker.count(Api.CREATE_TOPICS) == 2

    with_client(scenario)


def test_retries_end():
    async def scenario(broker, client):
        await client.create_topic("orders")
        broker.errors[Api.PRODUCE].extend([NOT_LEADER] * 1000)
        started = time.monotonic()

        with pytest.raises(Refused):
            await client.produce("orders", 0, batch_of(b"a"))

        assert time.monotonic() - started < 5

    with_client(scenario, timeout_seconds=0.5)


def test_an_unknown_topic_is_said_soon_and_how_to_make_it():
    async def scenario(broker, client):
        started = time.monotonic()

        with pytest.raises(Refused, match="tidelog topics create nope"):
            await client.topic("nope", create=True)

        assert time.monotonic() - started < 5

    with_client(scenario)


def test_an_unknown_partition_is_refused_with_those_there_are():
    async def scenario(broker, client):
        await client.create_topic("orders", partitions=3)

        with pytest.raises(Refused, match="partitions 0 to 2"):
            await client.produce("orders", 7, batch_of(b"a"))

    with_client(scenario)


def test_with_acks_0_nothing_is_answered_and_settle_waits_for_the_broker():
    async def scenario(broker, client):
        await client.create_topic("orders")

        answers = [await client.produce("orders", 0, batch_of(b"a"), acks=0) for _ in range(10)]
        await client.settle()

        assert answers == [None] * 10
        assert broker.topics["orders"][0].end == 10

    with_client(scenario)


def test_a_cluster_that_was_never_reached_fails_at_once():
    async def scenario():
        async with FakeBroker() as broker:
            dead = broker.address
        started = time.monotonic()
        with pytest.raises(ConnectionFailed, match="tidelog start"):
            await KafkaClient(dead).topics()
        assert time.monotonic() - started < 5

    asyncio.run(scenario())


def test_any_bootstrap_address_that_answers_is_enough():
    async def scenario():
        async with FakeBroker() as gone:
            dead = gone.address
        async with FakeBroker() as broker, KafkaClient(f"{dead},{broker.address}") as client:
            assert await client.topics() == []

    asyncio.run(scenario())


def test_bootstrap_addresses_are_checked():
    assert [str(one) for one in parse_bootstrap("a:1, b ,[::1]:3")] == ["a:1", "b:9092", "[::1]:3"]
    for wrong in ("", " , ", "host:port", "host:99999"):
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9092"):
            parse_bootstrap(wrong)
