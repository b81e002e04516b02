"""Where a log begins and ends, what lies at a time, and what happens outside of it."""

import time

import aiokafka
import confluent_kafka as ck
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.clients.adapters import EARLIEST, LATEST, SECONDS_MAX, Client, Consumer, Message, Refused
from tests.clients.adapters.aio import AioKafkaClient
from tests.clients.nodes import stored_batches

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
LIBRDKAFKA_AUTO_OFFSET_RESET = -140
LIBRDKAFKA_UNKNOWN_PARTITION = -190
BASE_MS = time.time_ns() // 1_000_000 - 60 * 60 * 1000


def produce(client: Client, topic: str, count: int, *, start: int = 0) -> None:
    values = [b"%d" % number for number in range(start, start + count)]
    client.producer(linger_ms=5).send_all(topic, values)


# Ends, and places between them.


def test_an_empty_partition_begins_and_ends_at_zero(client, topic):
    client.admin().create(topic, partitions=2)

    consumer = client.consumer()

    assert (consumer.earliest(topic, 1), consumer.latest(topic, 1)) == (0, 0)


def test_the_latest_offset_is_one_past_the_last_acknowledged_record(client, topic):
    producer, consumer = client.producer(), client.consumer()

    for number in range(5):
        producer.send(topic, b"value").result()
        assert (consumer.earliest(topic), consumer.latest(topic)) == (0, number + 1)


def test_a_consumer_starts_at_the_offset_it_was_given(client, topic):
    produce(client, topic, 50)

    messages = client.consumer().assign(topic, {0: 42}).take(8)

    assert [m.value for m in messages] == [b"%d" % number for number in range(42, 50)]


def test_a_consumer_that_starts_at_the_end_sees_only_what_comes_later(client, topic):
    produce(client, topic, 5)
    consumer = client.consumer().assign(topic, {0: LATEST})

    # It finds the end in its own time: write until it has seen something.
    first_seen = _write_until_read(client, consumer, topic, start=5)

    assert first_seen.offset >= 5


def test_seeking_moves_back_and_forth(client, topic):
    produce(client, topic, 100)
    consumer = client.consumer().assign(topic, {0: EARLIEST})
    assert len(consumer.take(100)) == 100

    seen = []
    for offset in (10, 99, 0, 57):
        consumer.seek(topic, 0, offset)
        messages = consumer.take(100 - offset)
        seen.append((messages[0].offset, messages[-1].offset))

    assert seen == [(10, 99), (99, 99), (0, 99), (57, 99)]


def test_an_offset_within_a_batch_is_a_place_to_start(client, node, topic):
    producer = client.producer(linger_ms=200)
    producer.send_all(topic, [b"0"])
    producer.send_all(topic, [b"%d" % number for number in range(1, 11)])
    assert [batch.record_count for batch in stored_batches(node.data, topic)] == [1, 10]

    (message,) = client.consumer().assign(topic, {0: 10}).take(1)
    messages = client.consumer().assign(topic, {0: 4}).take(7)

    assert message.value == b"10"
    assert [m.value for m in messages] == [b"%d" % number for number in range(4, 11)]


def test_an_unknown_partition_has_no_offsets(confluent, topic):
    """The other clients never ask for a partition that is not in their metadata."""
    produce(confluent, topic, 1)

    with pytest.raises(Refused) as refused:
        confluent.consumer().latest(topic, 7)

    assert refused.value.code in (UNKNOWN_TOPIC_OR_PARTITION, LIBRDKAFKA_UNKNOWN_PARTITION)


# By time.


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_time_finds_the_first_record_of_that_time_or_later(client, node, topic, codec):
    producer = client.producer(codec=codec, linger_ms=100)
    producer.send(topic, b"first", timestamp_ms=BASE_MS).result()
    for number in range(1, 10):
        producer.send(topic, b"same" * 100, timestamp_ms=BASE_MS + number * 1000)
    producer.flush()
    assert [batch.record_count for batch in stored_batches(node.data, topic)] == [1, 9]

    consumer = client.consumer()
    found = {
        delta: consumer.offset_at(topic, BASE_MS + delta)
        for delta in (-5000, 0, 1, 1000, 4999, 5000, 9000, 9001)
    }

    assert found == {-5000: 0, 0: 0, 1: 1, 1000: 1, 4999: 5, 5000: 5, 9000: 9, 9001: None}


def test_a_time_finds_the_first_such_record_in_the_log_where_times_run_backwards(client, topic):
    producer = client.producer()
    for delta in (3000, 1000, 5000, 2000, 5000):
        producer.send(topic, b"value", timestamp_ms=BASE_MS + delta).result()

    consumer = client.consumer()
    found = [consumer.offset_at(topic, BASE_MS + d) for d in (0, 1500, 3001, 5000, 5001)]

    assert found == [0, 0, 2, 2, None]


def test_a_time_in_an_empty_partition_finds_nothing(client, topic):
    client.admin().create(topic)

    assert client.consumer().offset_at(topic, BASE_MS) is None


def test_a_time_is_looked_up_in_each_partition_by_itself(client, topic):
    client.admin().create(topic, partitions=3)
    producer = client.producer()
    for partition in (0, 1):
        for number in range(3):
            time_ms = BASE_MS + partition * 10_000 + number * 1000
            producer.send(topic, b"value", partition=partition, timestamp_ms=time_ms).result()

    consumer = client.consumer()
    found = [consumer.offset_at(topic, BASE_MS + 1500, partition) for partition in range(3)]

    assert found == [2, 0, None]


def test_append_times_are_found_where_the_broker_stamps(client, topic):
    client.admin().create(topic, config={"message.timestamp.type": "LogAppendTime"})
    producer = client.producer()
    for _ in range(3):
        producer.send(topic, b"value", timestamp_ms=1000).result()
    times = [m.timestamp_ms for m in client.consumer().read_all(topic)]

    consumer = client.consumer()

    assert consumer.offset_at(topic, 2000) == 0
    assert consumer.offset_at(topic, times[-1]) == times.index(times[-1])
    assert consumer.offset_at(topic, times[-1] + 1) is None


# Outside of the log.


@pytest.mark.parametrize("offset", [5, 1000])
def test_an_offset_past_the_end_is_reset_to_the_earliest(client, topic, offset):
    """5 is the end itself, which is in range: nothing is reset, nothing is read again."""
    produce(client, topic, 5)
    consumer = client.consumer(reset="earliest").assign(topic, {0: offset})

    if offset == 5:
        assert _write_until_read(client, consumer, topic, start=5).offset == 5
    else:
        assert [m.offset for m in consumer.take(5)] == [0, 1, 2, 3, 4]


def test_an_offset_past_the_end_is_reset_to_the_latest(client, topic):
    produce(client, topic, 5)
    consumer = client.consumer(reset="latest").assign(topic, {0: 1000})

    assert 5 <= _write_until_read(client, consumer, topic, start=5).offset < 1000


def test_an_offset_past_the_end_is_an_error_without_a_reset(client, topic):
    produce(client, topic, 5)
    consumer = client.consumer(reset="none").assign(topic, {0: 1000})

    with pytest.raises(Refused) as refused:
        consumer.take(1)

    assert refused.value.code in (OFFSET_OUT_OF_RANGE, LIBRDKAFKA_AUTO_OFFSET_RESET)


def test_deleted_records_are_gone_and_the_others_stay(client, topic):
    produce(client, topic, 10)
    admin, consumer = client.admin(), client.consumer()

    assert admin.delete_records(topic, {0: 4}) == {0: 4}

    assert (consumer.earliest(topic), consumer.latest(topic)) == (4, 10)
    messages = consumer.assign(topic, {0: EARLIEST}).take(6)
    assert [m.value for m in messages] == [b"%d" % number for number in range(4, 10)]


def test_deleting_up_to_minus_one_empties_a_partition_that_goes_on_counting(client, topic):
    produce(client, topic, 10)
    consumer = client.consumer()

    assert client.admin().delete_records(topic, {0: -1}) == {0: 10}

    assert (consumer.earliest(topic), consumer.latest(topic)) == (10, 10)
    assert client.producer().send(topic, b"next").result().offset == 10
    (message,) = consumer.assign(topic, {0: EARLIEST}).take(1)
    assert (message.offset, message.value) == (10, b"next")


def test_records_past_the_end_cannot_be_deleted(client, topic):
    produce(client, topic, 3)

    with pytest.raises(Refused) as refused:
        client.admin().delete_records(topic, {0: 4})

    assert refused.value.code == OFFSET_OUT_OF_RANGE
    assert client.consumer().earliest(topic) == 0


def test_a_deleted_offset_is_reset_to_what_is_left(client, topic):
    produce(client, topic, 10)
    client.admin().delete_records(topic, {0: 7})

    messages = client.consumer(reset="earliest").assign(topic, {0: 2}).take(3)

    assert [m.offset for m in messages] == [7, 8, 9]


def test_records_are_deleted_under_a_reading_consumer(client, topic):
    produce(client, topic, 10)
    consumer = client.consumer().assign(topic, {0: EARLIEST})
    consumer.take(10)

    client.admin().delete_records(topic, {0: 10})
    produce(client, topic, 5, start=10)

    assert [m.value for m in consumer.take(5)] == [b"%d" % number for number in range(10, 15)]


def test_a_time_does_not_find_deleted_records(client, node, topic):
    producer = client.producer(linger_ms=100)
    producer.send(topic, b"first", timestamp_ms=BASE_MS).result()
    for number in range(1, 5):
        producer.send(topic, b"value", timestamp_ms=BASE_MS + number * 1000)
    producer.flush()
    assert [batch.record_count for batch in stored_batches(node.data, topic)] == [1, 4]

    client.admin().delete_records(topic, {0: 3})  # within the second batch, which stays whole

    assert client.consumer().offset_at(topic, BASE_MS) == 3
    assert [m.offset for m in client.consumer().read_all(topic)] == [3, 4]


# What only some clients can ask.


def test_the_newest_time_is_found_wherever_it_lies(confluent, node, topic):
    producer = confluent.producer()
    for delta in (1000, 9000, 3000):
        producer.send(topic, b"value", timestamp_ms=BASE_MS + delta).result()
    asked = ck.TopicPartition(topic, 0)

    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    listed = admin.list_offsets({asked: OffsetSpec.max_timestamp()})

    found = listed[asked].result(SECONDS_MAX)
    assert (found.offset, found.timestamp) == (1, BASE_MS + 9000)


def test_a_found_time_is_told_with_its_offset(kafka_python, node, topic):
    kafka_python.producer().send(topic, b"value", timestamp_ms=BASE_MS + 77).result()

    consumer = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap)
    try:
        tp = kafka.TopicPartition(topic, 0)
        found = consumer.offsets_for_times({tp: BASE_MS}, timeout_ms=int(SECONDS_MAX * 1000))[tp]
    finally:
        consumer.close()

    assert (found.offset, found.timestamp) == (0, BASE_MS + 77)


def test_highwater_and_last_stable_offset_come_with_every_fetch(node, topic):
    with AioKafkaClient(node.bootstrap) as client:
        produce(client, topic, 7)
        consumer = client.consumer(isolation="read_committed").assign(topic, {0: EARLIEST})
        consumer.take(7)
        inner, tp = consumer.inner, aiokafka.TopicPartition(topic, 0)

        assert inner.highwater(tp) == 7
        assert inner.last_stable_offset(tp) == 7


def _write_until_read(client: Client, consumer: Consumer, topic: str, *, start: int) -> Message:
    """Send record after record until the consumer sees one; the first that it saw."""
    producer = client.producer()
    deadline = time.monotonic() + SECONDS_MAX
    number = start
    while time.monotonic() < deadline:
        producer.send(topic, b"%d" % number).result()
        number += 1
        if messages := consumer.poll(0.1):
            return messages[0]
    raise AssertionError("the consumer saw nothing")
