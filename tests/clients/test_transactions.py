"""What users of transactions are promised: all or nothing, once, and nobody waits for ever."""

import pytest

from tests.clients.adapters import EARLIEST, Refused
from tests.clients.nodes import stored_batches
from tests.clients.transacting import (
    COMMITTED,
    UNCOMMITTED,
    UNSTABLE_OFFSET_COMMIT,
    committed,
    decided,
    eventually,
    seen,
    transact,
)

FENCED = {90, 47, -144}
"""ProducerFenced and InvalidProducerEpoch of Kafka; librdkafka has a number of its own."""
QUIET_SECONDS = 0.3
"""So long nothing comes where nothing should."""


# All or nothing.


def test_readers_of_committed_records_see_commits_and_no_aborts(client, topic):
    client.admin().create(topic)
    producer = client.transactional(topic)

    for number in range(6):
        producer.begin()
        transact(producer, topic, [b"%d-%d" % (number, each) for each in range(3)])
        if number % 2:
            producer.abort()
        else:
            producer.commit()

    assert seen(client, topic, COMMITTED) == [b"%d-%d" % (n, e) for n in (0, 2, 4) for e in range(3)]
    assert seen(client, topic, UNCOMMITTED) == [b"%d-%d" % (n, e) for n in range(6) for e in range(3)]


def test_a_transaction_over_partitions_and_topics_is_seen_whole_or_not_at_all(client, topic):
    other = f"{topic}-other"
    for name in (topic, other):
        client.admin().create(name, partitions=3)
    producer = client.transactional(topic)

    for value, end in ((b"yes", producer.commit), (b"no", producer.abort)):
        producer.begin()
        for name in (topic, other):
            for partition in range(3):
                transact(producer, name, [value], partition)
        end()

    for name in (topic, other):
        for partition in range(3):
            assert seen(client, name, COMMITTED, partition) == [b"yes"]
            assert seen(client, name, UNCOMMITTED, partition) == [b"yes", b"no"]


def test_an_undecided_transaction_holds_back_only_readers_of_committed_records(client, node, topic):
    client.admin().create(topic)
    producer = client.transactional(topic)
    client.producer().send(topic, b"before").result()
    producer.begin()
    transact(producer, topic, [b"inside"])
    client.producer().send(topic, b"after").result()

    reader = client.consumer(isolation=COMMITTED).assign(topic, {0: EARLIEST})
    assert [message.value for message in reader.take(1)] == [b"before"]
    assert reader.poll(QUIET_SECONDS) == []
    assert reader.latest(topic) == 1
    everything = client.consumer(isolation=UNCOMMITTED).assign(topic, {0: EARLIEST})
    assert [m.value for m in everything.take(3)] == [b"before", b"inside", b"after"]
    assert everything.latest(topic) == 3

    producer.commit()

    assert [message.value for message in reader.take(2)] == [b"inside", b"after"]
    assert [batch.is_control for batch in stored_batches(node.data, topic)][-1]


def test_transactions_of_two_producers_may_interleave_and_end_differently(client, topic):
    client.admin().create(topic)
    first, second = client.transactional(f"{topic}-1"), client.transactional(f"{topic}-2")
    first.begin()
    second.begin()
    for number in range(3):
        transact(first, topic, [b"first-%d" % number])
        transact(second, topic, [b"second-%d" % number])

    second.abort()
    first.commit()

    assert seen(client, topic, COMMITTED) == [b"first-0", b"first-1", b"first-2"]


def test_an_empty_transaction_ends_as_well(client, topic):
    client.admin().create(topic)
    producer = client.transactional(topic)

    for end in (producer.commit, producer.abort):
        producer.begin()
        end()
    producer.begin()
    transact(producer, topic, [b"value"])
    producer.commit()

    assert seen(client, topic, COMMITTED) == [b"value"]


# Offsets that move with the transaction.


def test_inputs_are_transformed_once_also_if_some_attempts_are_aborted(client, node, topic):
    source, target, group = f"{topic}-in", f"{topic}-out", f"{topic}-group"
    for name in (source, target):
        client.admin().create(name)
    client.producer().send_all(source, [b"%d" % number for number in range(10)], partition=0)
    producer = client.transactional(topic)

    attempts = 0
    while (position := decided(node, group, source)) < 10:
        reader = client.consumer(isolation=COMMITTED).assign(source, {0: position})
        message = reader.take(10 - position)[0]
        producer.begin()
        transact(producer, target, [b"out-" + (message.value or b"")])
        producer.send_offsets(group, {(source, 0): message.offset + 1})
        attempts += 1
        if attempts % 3 == 0:
            producer.abort()
        else:
            producer.commit()

    assert attempts > 10
    assert seen(client, target, COMMITTED) == [b"out-%d" % number for number in range(10)]
    assert len(seen(client, target, UNCOMMITTED)) == attempts


def test_an_aborted_transaction_does_not_move_a_groups_offsets(client, node, topic):
    client.admin().create(topic)
    client.producer().send_all(topic, [b"value"] * 10, partition=0)
    producer = client.transactional(topic)
    producer.begin()
    producer.send_offsets(topic, {(topic, 0): 4})
    producer.commit()
    eventually(lambda: committed(node, topic, topic) == 4, "the offset never moved")

    producer.begin()
    producer.send_offsets(topic, {(topic, 0): 9})
    assert committed(node, topic, topic, stable=True) == -UNSTABLE_OFFSET_COMMIT
    assert committed(node, topic, topic) == 4
    producer.abort()

    eventually(lambda: committed(node, topic, topic, stable=True) == 4, "the offset is unstable")


# Only one producer.


def test_a_new_producer_fences_the_old_one_and_aborts_what_it_left(client, library, node, topic):
    client.admin().create(topic)
    old = client.transactional(topic)
    old.begin()
    transact(old, topic, [b"old"])

    with library(node.bootstrap) as another:
        new = another.transactional(topic)
        with pytest.raises(Refused) as refused:
            old.commit()
        new.begin()
        transact(new, topic, [b"new"])
        new.commit()

    assert refused.value.code in FENCED
    assert seen(client, topic, COMMITTED) == [b"new"]
    assert seen(client, topic, UNCOMMITTED) == [b"old", b"new"]


def test_a_fenced_producer_cannot_write_any_more(client, library, node, topic):
    client.admin().create(topic)
    old = client.transactional(topic)
    old.begin()
    transact(old, topic, [b"first"])

    with library(node.bootstrap) as another:
        another.transactional(topic)
        with pytest.raises(Refused) as refused:
            transact(old, topic, [b"second"])

    assert refused.value.code in FENCED
    assert seen(client, topic, COMMITTED) == []
    assert seen(client, topic, UNCOMMITTED) == [b"first"]


# Time.


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_told(client, topic):
    client.admin().create(topic)
    producer = client.transactional(topic, timeout_ms=1000)
    producer.begin()
    transact(producer, topic, [b"late"])

    assert seen(client, topic, COMMITTED) == []  # the end is reached, so nothing waits any more
    with pytest.raises(Refused):
        producer.commit()

    assert seen(client, topic, COMMITTED) == []
    assert seen(client, topic, UNCOMMITTED) == [b"late"]
