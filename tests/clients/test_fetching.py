"""How records reach a consumer: at once, in portions, from many partitions, committed only."""

import time
from collections.abc import Iterator

import kafka
import pytest

from tests.clients.adapters import EARLIEST, SECONDS_MAX, Client
from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.clients.nodes import no_complaints
from tests.support.node import NodeProcess

LONG_WAIT_MS = 30_000
"""A fetch that waits this long fails its test; it must be answered by an event."""


def test_a_waiting_fetch_is_answered_as_soon_as_a_record_is_written(client, topic):
    producer = client.producer()
    producer.send(topic, b"start").result()
    consumer = client.consumer(wait_ms=LONG_WAIT_MS).assign(topic, {0: EARLIEST})
    consumer.take(1)
    began = time.monotonic()

    # Each record is written only after the one before was read, so the fetches in between wait.
    for number in range(20):
        producer.send(topic, b"%d" % number).result()
        (message,) = consumer.take(1)
        assert message.value == b"%d" % number

    assert time.monotonic() - began < LONG_WAIT_MS / 1000 / 3


def test_a_waiting_fetch_hears_of_any_of_its_partitions(client, topic):
    client.admin().create(topic, partitions=10)
    producer = client.producer()
    # Offsets, not ends: a lookup of an end would wait behind the parked fetch, as with Kafka.
    consumer = client.consumer(wait_ms=LONG_WAIT_MS).assign(topic, dict.fromkeys(range(10), 0))
    # A client's first fetch may name only some partitions; one round later all of them are in it.
    for partition in range(10):
        producer.send(topic, b"warm", partition=partition).result()
    consumer.take(10)
    began = time.monotonic()

    for partition in (3, 9, 0, 5, 3):
        producer.send(topic, b"value", partition=partition).result()
        (message,) = consumer.take(1)
        assert message.partition == partition

    assert time.monotonic() - began < LONG_WAIT_MS / 1000 / 3


def test_too_few_bytes_are_held_back_until_the_wait_is_over(client, topic):
    client.producer().send(topic, b"small").result()
    consumer = client.consumer(wait_ms=700, bytes_min=100_000)
    began = time.monotonic()

    consumer.assign(topic, {0: EARLIEST}).take(1)

    assert 0.65 <= time.monotonic() - began < SECONDS_MAX


def test_enough_bytes_end_the_wait(client, topic):
    producer = client.producer()
    producer.send(topic, b"small").result()
    consumer = client.consumer(wait_ms=LONG_WAIT_MS, bytes_min=10_000).assign(topic, {0: EARLIEST})
    assert consumer.poll(0.3) == []
    began = time.monotonic()

    producer.send(topic, bytes(12_000)).result()

    assert [len(m.value or b"") for m in consumer.take(2)] == [5, 12_000]
    assert time.monotonic() - began < LONG_WAIT_MS / 1000 / 3


def test_a_batch_larger_than_the_partitions_share_still_gets_through(client, topic):
    values = [bytes([number]) * 50_000 for number in range(5)]
    producer = client.producer()
    for value in values:
        producer.send(topic, value).result()

    consumer = client.consumer(partition_bytes_max=1000)

    assert [m.value for m in consumer.assign(topic, {0: EARLIEST}).take(5)] == values


def test_large_batches_in_every_partition_starve_none(client, topic):
    client.admin().create(topic, partitions=4)
    producer = client.producer()
    for number in range(12):
        producer.send(topic, bytes(50_000), key=b"%d" % number, partition=number % 4).result()

    consumer = client.consumer(partition_bytes_max=1000)
    messages = consumer.assign(topic, dict.fromkeys(range(4), EARLIEST)).take(12)

    assert sorted(int(m.key or b"") for m in messages) == list(range(12))


def test_a_consumer_of_fifty_partitions_sees_every_record_of_each_in_order(client, topic):
    client.admin().create(topic, partitions=50)
    producer = client.producer()
    consumer = client.consumer().assign(topic, dict.fromkeys(range(50), EARLIEST))
    read: dict[int, list[int]] = {partition: [] for partition in range(50)}

    # In each round other partitions are silent, so that incremental sessions have news to tell.
    for step in (1, 7, 3, 50, 2):
        partitions = range(0, 50, step)
        for partition in partitions:
            producer.send(topic, b"value", partition=partition)
        producer.flush()
        for message in consumer.take(len(partitions)):
            read[message.partition].append(message.offset)

    rounds = {p: sum(p % step == 0 for step in (1, 7, 3, 50, 2)) for p in range(50)}
    assert read == {partition: list(range(count)) for partition, count in rounds.items()}


def test_a_consumer_changes_its_partitions_and_reads_only_those(client, topic):
    client.admin().create(topic, partitions=6)
    producer = client.producer()
    consumer = client.consumer()

    seen = []
    for partitions in ((0, 1, 2), (2, 3), (0, 5), (0, 1, 2, 3, 4, 5)):
        starts = {p: consumer.latest(topic, p) for p in partitions}
        consumer.assign(topic, starts)
        for partition in range(6):
            producer.send(topic, b"value", partition=partition)
        producer.flush()
        seen.append(sorted(m.partition for m in consumer.take(len(partitions))))

    assert seen == [[0, 1, 2], [2, 3], [0, 5], [0, 1, 2, 3, 4, 5]]


def test_a_committed_reader_reads_everything_where_there_are_no_transactions(client, topic):
    values = [b"%d" % number for number in range(100)]
    client.producer(idempotent=True, linger_ms=5).send_all(topic, values)

    consumer = client.consumer(isolation="read_committed")

    assert consumer.latest(topic) == 100
    assert [m.value for m in consumer.read_all(topic)] == values


def test_two_consumers_read_the_same_records_independently(client, topic):
    values = [b"%d" % number for number in range(50)]
    client.producer(linger_ms=5).send_all(topic, values)
    ahead = client.consumer().assign(topic, {0: EARLIEST})
    behind = client.consumer().assign(topic, {0: 40})

    assert [m.value for m in ahead.take(50)] == values
    assert [m.value for m in behind.take(10)] == values[40:]


# Incremental fetch sessions, which only kafka-python keeps.


@pytest.fixture
def one_session_client(data) -> Iterator[Client]:
    """A client of a node that keeps a single fetch session."""
    with (
        NodeProcess(data, {"fetch.sessions.max": 1}) as node,
        no_complaints(node),
        KafkaPythonClient(node.bootstrap) as client,
    ):
        yield client


def test_a_consumer_goes_on_when_its_fetch_session_is_dropped(one_session_client, topic):
    client = one_session_client
    client.admin().create(topic, partitions=3)
    producer = client.producer()
    everywhere = dict.fromkeys(range(3), EARLIEST)
    first = client.consumer().assign(topic, everywhere)
    second = client.consumer().assign(topic, everywhere)

    # Each one's session costs the other its own. What a consumer does not name again after that
    # is what its session was to remember: all partitions but the one it has read from last.
    for number in range(6):
        producer.send(topic, b"%d" % number, partition=number % 3).result()
        for consumer in (first, second):
            assert [m.value for m in consumer.take(1)] == [b"%d" % number]


def test_a_consumer_without_sessions_reads_the_same(node: NodeProcess, topic: str):
    with KafkaPythonClient(node.bootstrap) as client:
        client.producer(linger_ms=5).send_all(topic, [b"value"] * 30)
    consumer = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap, enable_incremental_fetch_sessions=False)
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        count, deadline = 0, time.monotonic() + SECONDS_MAX
        while count < 30 and time.monotonic() < deadline:
            count += sum(map(len, consumer.poll(timeout_ms=1000).values()))
    finally:
        consumer.close()

    assert count == 30
