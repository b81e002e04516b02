"""What a producer writes is what a consumer reads: every field, in order, once."""

import time

import pytest

from tests.clients.adapters import EARLIEST, SECONDS_MAX, Client, Refused
from tests.clients.libraries import CLIENTS
from tests.clients.nodes import stored_batches
from tests.support.node import NodeProcess

HOUR_MS = 60 * 60 * 1000
INVALID_TIMESTAMP = 32


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_records_come_back_in_order_with_the_offsets_their_producer_was_told(client, topic):
    values = [b"value %d" % number for number in range(500)]

    sent = client.producer(linger_ms=5).send_all(topic, values)

    messages = client.consumer().assign(topic, {0: EARLIEST}).take(500)
    assert [m.value for m in messages] == values
    assert [m.offset for m in messages] == [s.offset for s in sent] == list(range(500))


def test_records_sent_one_at_a_time_get_one_offset_after_the_other(client, topic):
    producer = client.producer()

    offsets = [producer.send(topic, b"%d" % number).result().offset for number in range(20)]

    assert offsets == list(range(20))
    assert [m.value for m in client.consumer().read_all(topic)] == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"key", b"value", id="both"),
        pytest.param(None, b"value", id="null-key"),
        pytest.param(b"", b"value", id="empty-key"),
        pytest.param(b"key", None, id="tombstone"),
        pytest.param(b"key", b"", id="empty-value"),
        pytest.param(bytes(range(256)), bytes(range(256)) * 10, id="every-byte"),
    ],
)
def test_keys_and_values_come_back_as_sent_and_null_is_not_empty(client, topic, key, value):
    client.producer().send(topic, value, key=key).result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert (message.key, message.value) == (key, value)
    assert (message.topic, message.partition, message.offset) == (topic, 0, 0)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((("trace", b"1"), ("source", b"web")), id="two"),
        pytest.param((("a", b"1"), ("b", b"2"), ("a", b"1"), ("a", b"3")), id="repeated-in-order"),
        pytest.param((("größe", b"\x00\xff"), ("", b"no name")), id="unicode-and-unnamed"),
    ],
)
def test_headers_come_back_in_order_with_repeats(client, topic, headers):
    client.producer().send(topic, b"value", headers=headers).result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert message.headers == headers


@pytest.mark.parametrize("writer", ["confluent", "aiokafka"])
def test_a_null_header_is_not_an_empty_one(client, node, topic, writer):
    """kafka-python can read such a header, though it does not write one."""
    headers = (("null", None), ("empty", b""), ("null", None))
    with CLIENTS[writer](node.bootstrap) as other:
        other.producer().send(topic, b"value", headers=headers).result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert message.headers == headers


def test_create_time_is_the_producers(client, topic):
    written_ms = now_ms() - HOUR_MS

    sent = client.producer().send(topic, b"value", timestamp_ms=written_ms).result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert (message.timestamp_ms, message.timestamp_type) == (written_ms, "CreateTime")
    assert sent.timestamp_ms == written_ms


def test_every_record_of_a_batch_keeps_its_own_create_time(client, topic):
    times = [now_ms() - HOUR_MS + delta for delta in (0, 5, 3, 9000, 1)]
    producer = client.producer(linger_ms=50)

    pending = [producer.send(topic, b"value", timestamp_ms=time_ms) for time_ms in times]
    producer.flush()

    assert [p.result().offset for p in pending] == [0, 1, 2, 3, 4]
    messages = client.consumer().assign(topic, {0: EARLIEST}).take(len(times))
    assert [m.timestamp_ms for m in messages] == times


def test_a_record_without_a_time_gets_the_producers_clock(client, topic):
    before_ms = now_ms()

    client.producer().send(topic, b"value").result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert before_ms <= message.timestamp_ms <= now_ms()


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_log_append_time_replaces_the_producers(client, topic, codec):
    client.admin().create(topic, config={"message.timestamp.type": "LogAppendTime"})
    before_ms = now_ms()

    producer = client.producer(codec=codec, linger_ms=50)
    pending = [producer.send(topic, b"value", timestamp_ms=1000 + n) for n in range(3)]
    producer.flush()
    sent = [p.result() for p in pending]

    after_ms = now_ms()
    messages = client.consumer().assign(topic, {0: EARLIEST}).take(3)
    assert {m.timestamp_type for m in messages} == {"LogAppendTime"}
    assert all(before_ms <= m.timestamp_ms <= after_ms for m in messages)
    assert [s.timestamp_ms for s in sent] == [m.timestamp_ms for m in messages]


def test_a_time_too_far_ahead_of_the_broker_is_refused(client, topic):
    producer = client.producer()

    with pytest.raises(Refused) as refused:
        producer.send(topic, b"from tomorrow", timestamp_ms=now_ms() + 24 * HOUR_MS).result()

    assert refused.value.code == INVALID_TIMESTAMP
    assert producer.send(topic, b"from today").result().offset == 0


def test_many_records_of_many_sizes_come_back_whole(client, topic):
    values = [bytes([number % 256]) * (number * 97 % 3000) for number in range(1, 601)]

    client.producer(linger_ms=5).send_all(topic, values)

    assert [m.value for m in client.consumer().read_all(topic)] == values


def test_one_clients_batch_is_one_batch_in_the_log(client: Client, node: NodeProcess, topic: str):
    values = [b"%d" % number for number in range(10)]

    # The first record makes the topic known, so that nothing holds the burst up.
    producer = client.producer(linger_ms=200)
    producer.send_all(topic, [b"first"])
    producer.send_all(topic, values)

    batches = stored_batches(node.data, topic)
    assert [batch.record_count for batch in batches] == [1, 10]
    messages = client.consumer().assign(topic, {0: EARLIEST}).take(11, SECONDS_MAX)
    assert [m.value for m in messages] == [b"first", *values]
