"""Rows of Spark and records of real clients are the same thing, both ways."""

from typing import Any, Final

import pyarrow as pa
import pytest

from tests.clients.adapters import EARLIEST
from tests.clients.transacting import transact
from tidelog.client.sender import BatchSender, Identity
from tidelog.model import TopicPartition
from tidelog.records import Codec
from tidelog.spark import client_loop
from tidelog.spark.columns import ARROW
from tidelog.spark.encode import cut, encode
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.reading import Reading, read_range

CODECS: Final = tuple(codec.name.lower() for codec in Codec)
NOW_MS: Final = 1_700_000_000_000


def rows_of(bootstrap: str, topic: str, end: int, **reading: Any) -> list[dict[str, Any]]:
    wanted = Reading(bootstrap=bootstrap, columns=tuple(ARROW), **reading)
    batches = read_range(wanted, OffsetRange(topic, 0, 0, end))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_client_writes_is_read_by_the_column(client, node, topic, codec):
    client.admin().create(topic)
    producer = client.producer(codec=codec, linger_ms=20)
    pending = [
        producer.send(
            topic,
            b"v" * n,
            key=b"%d" % n if n % 3 else None,
            headers=[("h", b"%d" % n), ("größe", b"")][: n % 3],
            timestamp_ms=NOW_MS + n,
        )
        for n in range(300)
    ]
    producer.flush()
    assert [each.result().offset for each in pending] == list(range(300))

    rows = rows_of(node.bootstrap, topic, 300)

    messages = client.consumer().assign(topic, {0: EARLIEST}).take(300)
    assert [
        (
            r["key"],
            r["value"],
            r["topic"],
            r["partition"],
            r["offset"],
            round(1000 * r["timestamp"].timestamp()),
            r["timestampType"],
            tuple((h["key"], h["value"]) for h in r["headers"] or ()),
        )
        for r in rows
    ] == [(m.key, m.value, m.topic, m.partition, m.offset, m.timestamp_ms, 0, m.headers) for m in messages]


def test_transactions_of_clients_are_seen_once_they_are_committed(client, node, topic):
    client.admin().create(topic)
    producer = client.transactional(topic)
    for number in range(6):
        producer.begin()
        transact(producer, topic, [b"%d-%d" % (number, each) for each in range(3)])
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    end = client.producer().send(topic, b"end").result().offset + 1

    committed = rows_of(node.bootstrap, topic, end)
    everything = rows_of(node.bootstrap, topic, end, read_committed=False)

    expected = [b"%d-%d" % (n, e) for n in range(6) for e in range(3)]
    assert [r["value"] for r in committed] == [v for v in expected if v[0] % 2 == 0] + [b"end"]
    assert [r["value"] for r in everything] == [*expected, b"end"]


def test_clients_read_what_was_encoded_by_the_column(client, node, topic):
    client.admin().create(topic)
    key = pa.array([None if n % 4 == 0 else b"%d" % n for n in range(2000)], pa.binary())
    value = pa.array([None if n % 7 == 0 else b"v" * (n % 300) for n in range(2000)], pa.binary())
    headers = pa.array(
        [[{"key": "größe", "value": b"%d" % n}] * (n % 3) or None for n in range(2000)], ARROW["headers"]
    )
    parts = cut(key, value, headers, bytes_max=50_000)
    assert len(parts) > len(Codec)

    async def send() -> None:
        connected = client_loop.client(node.bootstrap)
        made = await connected.idempotent_producer()
        sender = BatchSender(connected, Identity(producer_id=made.producer_id, epoch=made.producer_epoch))
        place = TopicPartition(topic, 0)
        for number, part in enumerate(parts):
            rows = part.stop - part.start
            batch = encode(
                key[part],
                value[part],
                headers=headers[part],
                now_ms=NOW_MS,
                codec=Codec(number % len(Codec)),
                producer_id=made.producer_id,
                producer_epoch=made.producer_epoch,
                base_sequence=sender.take_sequence(place, rows),
                is_transactional=False,
            )
            await sender.put(place, batch, rows)
        await sender.flush()

    client_loop.wait(client_loop.start(send()))

    messages = client.consumer().assign(topic, {0: EARLIEST}).take(2000)
    assert [m.offset for m in messages] == list(range(2000))
    assert [m.key for m in messages] == key.to_pylist()
    assert [m.value for m in messages] == value.to_pylist()
    assert [list(m.headers) for m in messages] == [
        [(pair["key"], pair["value"]) for pair in pairs or ()] for pairs in headers.to_pylist()
    ]
    assert {m.timestamp_ms for m in messages} == {NOW_MS}
