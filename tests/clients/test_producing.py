"""What a producer is promised: acknowledgements, partitions, limits, and once only."""

import time
from collections.abc import Iterator

import pytest

from tests.clients.adapters import EARLIEST, SECONDS_MAX, Client, Message, Producer, Refused
from tests.clients.nodes import no_complaints, stored_batches
from tests.clients.proxy import LossyProxy
from tests.support.node import NodeProcess
from tidelog.records import Record, encode_batch

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024 + 12
MESSAGE_TOO_LARGE = 10
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From the UtilsTest of Kafka, whose producers place keys by it."""


def value_for_a_batch_of(size: int) -> bytes:
    """A value whose record, alone in its batch and without a key, makes `size` bytes."""
    value = bytes(size)
    while excess := len(encode_batch([Record(value=value, timestamp_ms=0)])) - size:
        value = bytes(len(value) - excess)  # again, as lengths themselves take more or less room
    return value


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LossyProxy, NodeProcess]]:
    """A node that clients reach only through a proxy that can lose answers."""
    with LossyProxy() as proxy:
        data = tmp_path_factory.mktemp("lossy") / "data"
        with NodeProcess(data, {"kafka.advertised": proxy.address}) as node:
            proxy.point_at(node.port)
            yield proxy, node


@pytest.fixture
def lossy_client(
    library: type[Client], lossy: tuple[LossyProxy, NodeProcess]
) -> Iterator[tuple[Client, LossyProxy]]:
    proxy, node = lossy
    with no_complaints(node), library(proxy.address) as client:
        yield client, proxy


# Acknowledgements.


@pytest.mark.parametrize("acks", [1, "all"])
def test_an_acknowledged_record_has_an_offset_and_can_be_read(client, topic, acks):
    sent = client.producer(acks=acks).send(topic, b"value").result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert (sent.partition, sent.offset) == (0, 0)
    assert (message.offset, message.value) == (0, b"value")


def test_records_without_acknowledgement_arrive_in_order(client, topic):
    values = [b"%d" % number for number in range(100)]

    client.producer(acks=0).send_all(topic, values)

    messages = client.consumer().assign(topic, {0: EARLIEST}).take(100)
    assert [m.value for m in messages] == values


def test_a_record_refused_without_acknowledgement_spoils_nothing_else(client, topic):
    client.admin().create(topic, config={"max.message.bytes": "1000"})
    producer = client.producer(acks=0)
    consumer = client.consumer().assign(topic, {0: EARLIEST})

    producer.send(topic, bytes(2000)).result()  # the node closes the connection, as Kafka does
    messages: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while not messages and time.monotonic() < deadline:
        producer.send(topic, b"small")  # may be lost with the connection: that is acks=0
        messages = consumer.poll(0.1)

    assert messages[0].offset == 0
    assert {m.value for m in messages} == {b"small"}


def test_a_producer_without_acknowledgement_gets_no_answer(lossy_client, topic):
    client, proxy = lossy_client
    client.admin().create(topic, partitions=3)
    producer = client.producer(acks=0, linger_ms=20)
    asked, answered = proxy.produces, proxy.produce_answers

    # Requests for one partition and for several, and time for answers to come between them.
    consumer = client.consumer()
    for partitions in ((0,), (0,), (0, 1, 2), (0, 1, 2)):
        consumer.assign(topic, {p: consumer.latest(topic, p) for p in partitions})
        for partition in partitions:
            producer.send(topic, b"value", partition=partition)
        producer.flush()
        consumer.take(len(partitions))

    assert proxy.produces > asked
    assert proxy.produce_answers == answered


# Partitions.


def test_a_record_goes_to_the_partition_it_was_sent_to(client, topic):
    client.admin().create(topic, partitions=3)
    producer = client.producer()

    sent = [producer.send(topic, b"to %d" % p, partition=p).result() for p in (2, 0, 1, 2)]

    assert [(s.partition, s.offset) for s in sent] == [(2, 0), (0, 0), (1, 0), (2, 1)]
    messages = client.consumer().assign(topic, dict.fromkeys(range(3), EARLIEST)).take(4)
    assert sorted((m.partition, m.offset, m.value) for m in messages) == [
        (0, 0, b"to 0"),
        (1, 0, b"to 1"),
        (2, 0, b"to 2"),
        (2, 1, b"to 2"),
    ]


def test_records_of_one_key_share_a_partition_and_stay_in_order(client, topic):
    client.admin().create(topic, partitions=4)
    producer = client.producer(linger_ms=5)
    written = [(b"key %d" % (n % 20), b"%d" % n) for n in range(400)]

    for key, value in written:
        producer.send(topic, value, key=key)
    producer.flush()

    messages = client.consumer().assign(topic, dict.fromkeys(range(4), EARLIEST)).take(400)
    assert {m.partition for m in messages} == {0, 1, 2, 3}
    for key in {key for key, _ in written}:
        of_key = [m for m in messages if m.key == key]
        assert len({m.partition for m in of_key}) == 1
        assert [m.value for m in of_key] == [value for k, value in written if k == key]


def test_all_clients_put_a_key_into_the_same_partition(client, topic):
    client.admin().create(topic, partitions=6)
    producer = client.producer()

    found = {key: producer.send(topic, b"", key=key).result().partition for key in MURMUR2}

    assert found == {key: (code & 0x7FFFFFFF) % 6 for key, code in MURMUR2.items()}


# Limits.


def test_a_batch_of_exactly_the_default_limit_is_taken_and_read(client, topic):
    value = value_for_a_batch_of(DEFAULT_MAX_MESSAGE_BYTES)

    client.producer(request_bytes_max=3_000_000).send(topic, value).result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert message.value == value


def test_a_batch_one_byte_over_the_default_limit_is_refused(client, topic):
    value = value_for_a_batch_of(DEFAULT_MAX_MESSAGE_BYTES + 1)
    producer = client.producer(request_bytes_max=3_000_000)

    with pytest.raises(Refused) as refused:
        producer.send(topic, value).result()

    assert refused.value.code == MESSAGE_TOO_LARGE
    assert producer.send(topic, b"small").result().offset == 0


def test_a_topics_own_max_message_bytes_holds_to_the_byte(client, topic):
    client.admin().create(topic, config={"max.message.bytes": "5000"})
    producer = client.producer()

    assert producer.send(topic, value_for_a_batch_of(5000)).result().offset == 0
    with pytest.raises(Refused) as refused:
        producer.send(topic, value_for_a_batch_of(5001)).result()

    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.consumer().latest(topic) == 1


def test_max_message_bytes_counts_what_is_left_after_compression(client, topic):
    client.admin().create(topic, config={"max.message.bytes": "5000"})

    client.producer(codec="gzip").send(topic, bytes(500_000)).result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert message.value == bytes(500_000)


def test_a_topic_may_allow_more_than_the_default(client, topic):
    client.admin().create(topic, config={"max.message.bytes": "4000000"})
    value = bytes(range(256)) * 12_000

    client.producer(request_bytes_max=4_000_000).send(topic, value).result()

    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert message.value == value


# Idempotence.


def test_an_idempotent_producers_batches_carry_its_id_and_their_sequence(client, node, topic):
    client.producer(idempotent=True, linger_ms=5).send_all(topic, [b"value"] * 300)

    batches = stored_batches(node.data, topic)
    assert all(batch.producer_id >= 0 and batch.producer_epoch == 0 for batch in batches)
    assert len({batch.producer_id for batch in batches}) == 1
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]


def test_two_idempotent_producers_never_share_an_id(client, node, topic):
    client.producer(idempotent=True).send(topic, b"first").result()
    client.producer(idempotent=True).send(topic, b"second").result()

    first, second = stored_batches(node.data, topic)
    assert first.producer_id != second.producer_id


def _send_while_losing_answers(
    producer: Producer, proxy: LossyProxy, topic: str, *, rounds: int
) -> list[int | None]:
    """Ten records a round, in each of which the first answer is lost; the offsets learnt."""
    producer.send(topic, b"before").result()
    offsets = []
    for number in range(rounds):
        proxy.lose_next_answer()
        pending = [producer.send(topic, b"%d-%d" % (number, n)) for n in range(10)]
        assert proxy.lost.acquire(timeout=SECONDS_MAX), "no answer was lost"
        offsets += [each.result().offset for each in pending]
    return offsets


def test_an_idempotent_producer_writes_once_though_answers_are_lost(lossy_client, topic):
    client, proxy = lossy_client
    producer = client.producer(idempotent=True)

    offsets = _send_while_losing_answers(producer, proxy, topic, rounds=3)

    expected = [b"%d-%d" % (number, n) for number in range(3) for n in range(10)]
    messages = client.consumer().read_all(topic)
    assert [m.value for m in messages] == [b"before", *expected]
    # A repeat is answered with the offset of the original.
    assert offsets == list(range(1, 31))


def test_a_plain_producer_writes_again_when_an_answer_is_lost(lossy_client, topic):
    """The control of the test above: without sequences nobody can tell a repeat."""
    client, proxy = lossy_client

    _send_while_losing_answers(client.producer(idempotent=False), proxy, topic, rounds=1)

    values = [m.value for m in client.consumer().read_all(topic)]
    assert set(values) == {b"before", *[b"0-%d" % n for n in range(10)]}
    assert len(values) > 11
