import asyncio

import pytest

from tests.unit.client.fake_broker import FakeBroker
from tidelog.client.cluster import Refused
from tidelog.client.consumer import Consumer
from tidelog.client.kafka import Fetched, KafkaClient
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.records import CONTROL, TRANSACTIONAL, Record, encode_batch

ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


class OneAnswer:
    """A client whose every fetch returns the same bytes."""

    def __init__(self, records, aborted=()):
        self._records = records
        self._aborted = aborted

    async def fetch(self, topic, offsets, **_):
        return [
            Fetched(
                partition=0,
                high_watermark=100,
                last_stable=100,
                log_start=0,
                aborted=tuple(self._aborted),
                records=bytes(self._records),
            )
        ]


def batch(base, *values, producer=-1, attributes=0, key=None):
    records = [Record(key=key, value=value, timestamp_ms=1) for value in values]
    return encode_batch(records, base_offset=base, producer_id=producer, attributes=attributes)


def marker(base, producer, kind):
    return batch(base, b"", producer=producer, key=kind, attributes=CONTROL | TRANSACTIONAL)


def poll(records, *, position=0, aborted=()):
    consumer = Consumer(OneAnswer(records, aborted), "orders", {0: position})  # type: ignore[arg-type]
    found = asyncio.run(consumer.poll())
    return [record.value for _, records in found for record in records], consumer.positions[0]


def test_records_come_in_order_and_the_position_follows():
    values, position = poll(batch(0, b"a", b"b") + batch(2, b"c"))

    assert values == [b"a", b"b", b"c"]
    assert position == 3


def test_a_batch_that_begins_before_the_position_is_read_from_the_position_on():
    values, position = poll(batch(0, b"a", b"b", b"c"), position=1)

    assert values == [b"b", b"c"]
    assert position == 3


def test_a_partial_batch_at_the_end_is_left_for_the_next_poll():
    values, position = poll(batch(0, b"a") + batch(1, b"b")[:-3])

    assert values == [b"a"]
    assert position == 1


def test_a_first_batch_that_is_not_whole_is_an_error():
    with pytest.raises(TidelogError, match="cut off"):
        poll(batch(0, b"a" * 100)[:80])


def test_control_batches_take_offsets_but_are_not_shown():
    values, position = poll(batch(0, b"a") + marker(1, 7, COMMIT) + batch(2, b"b"))

    assert values == [b"a", b"b"]
    assert position == 3


def test_what_an_aborted_transaction_wrote_is_not_shown():
    log = (
        batch(0, b"aborted", producer=7, attributes=TRANSACTIONAL)
        + batch(1, b"plain")
        + batch(2, b"other", producer=8, attributes=TRANSACTIONAL)
        + marker(3, 7, ABORT)
        + batch(4, b"again", producer=7, attributes=TRANSACTIONAL)
    )

    values, position = poll(log, aborted=[(7, 0)])

    assert values == [b"plain", b"other", b"again"]
    assert position == 5


def test_a_damaged_batch_is_named_by_its_offset():
    damaged = batch(5, b"value")
    damaged[-2] ^= 1

    with pytest.raises(CorruptMessage, match="orders-0 at 5"):
        poll(damaged, position=5)


def test_a_position_outside_of_the_log_is_told():
    async def scenario():
        async with FakeBroker() as broker, KafkaClient(broker.address) as client:
            await client.create_topic("orders")
            consumer = Consumer(client, "orders", {0: 50})

            with pytest.raises(Refused) as caught:
                await consumer.poll(wait_ms_max=10)

            assert caught.value.code == 1

    asyncio.run(scenario())
