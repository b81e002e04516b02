import asyncio

import pytest

from tests.unit.client.fake_broker import FakeBroker
from tidelog.client.cluster import Refused
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load, LoadGenerator, percentiles
from tidelog.wire.apis import Api


def with_load(scenario, *, partitions=1, **options):
    async def run():
        async with FakeBroker() as broker, KafkaClient(broker.address) as client:
            await client.create_topic("load", partitions=partitions)
            generator = LoadGenerator(client, Load(topic="load", batch_bytes=2000, **options))
            await scenario(broker, generator)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("partitions", "options"),
    [
        (1, {}),
        (3, {"connections": 2}),
        (2, {"connections": 5, "pipeline": 1}),
        (5, {"partitions_per_request": 3}),
        (1, {"acks": 0}),
        (2, {"acks": 1}),
    ],
)
def test_what_is_counted_is_in_the_log_and_is_read_back(partitions, options):
    async def scenario(broker, generator):
        produced = await generator.produce(0.1)
        ends = await generator.ends(records=produced.records)
        consumed = await generator.consume(ends)

        assert produced.records > 0
        assert produced.records == sum(log.end for log in broker.topics["load"])
        assert consumed.records == produced.records
        assert produced.payload_bytes == produced.records * 100
        assert produced.records_per_second > 0

    with_load(scenario, partitions=partitions, **options)


def test_single_records_are_timed_to_a_waiting_consumer():
    async def scenario(broker, generator):
        latency = await generator.latency(samples=1, seconds_max=5)

        assert latency["samples"] == 1
        assert 0 < latency["p50"] <= latency["max"]
        assert latency["acknowledged_p50"] > 0

    with_load(scenario)


def test_an_error_ends_the_load():
    async def scenario(broker, generator):
        broker.errors[Api.PRODUCE].extend([0, 0, 10])

        with pytest.raises(Refused):
            await generator.produce(5)

    with_load(scenario)


def test_percentiles_are_in_milliseconds():
    found = percentiles([number / 1000 for number in range(1, 101)])

    assert (found["p50"], found["p99"], found["max"]) == (51, 100, 100)
    assert percentiles([]) == {}
