"""The frames made by hand are byte for byte what kio makes, and answers are read as kio reads."""

import struct

import pytest

from tidelog.client.cluster import Refused
from tidelog.client.frames import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    ProduceFrame,
    fetch_frame,
    make_batch,
    read_fetched,
)
from tidelog.records import Record, decode_batch, encode_batch
from tidelog.wire.apis import Api
from tidelog.wire.entities import encode, request_entity, response_entity

HEADER = struct.Struct(">ihhih12sB")


def body_after_header(frame, api, version, correlation_id):
    size, key, sent_version, correlation, client_size, client, tags = HEADER.unpack_from(frame)
    assert size == len(frame) - 4
    assert (key, sent_version, correlation) == (api, version, correlation_id)
    assert (client_size, client, tags) == (12, b"tidelog-load", 0)
    return bytes(frame[HEADER.size :])


@pytest.mark.parametrize("partitions", [[0], [3, 1, 2], list(range(200))])
@pytest.mark.parametrize("topic", ["t", "x" * 200])
def test_a_produce_request_is_what_kio_would_send(topic, partitions):
    batch, _ = make_batch(10, 500, now_ms=1)

    frame = b"".join(ProduceFrame.make(topic, partitions, batch, acks=-1).buffers(77))

    expected = request_entity(
        Api.PRODUCE,
        PRODUCE_VERSION,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [
                {"name": topic, "partition_data": [{"index": one, "records": batch} for one in partitions]}
            ],
        },
    )
    assert body_after_header(frame, Api.PRODUCE, PRODUCE_VERSION, 77) == encode(expected)


def test_a_fetch_request_is_what_kio_would_send():
    positions = {0: 5, 7: 2**40}

    frame = fetch_frame(9, "orders", positions, wait_ms=250, bytes_max=1000, partition_bytes_max=500)

    expected = request_entity(
        Api.FETCH,
        FETCH_VERSION,
        {
            "replica_id": -1,
            "max_wait": 250,
            "min_bytes": 1,
            "max_bytes": 1000,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": "orders",
                    "partitions": [
                        {"partition": one, "fetch_offset": at, "partition_max_bytes": 500}
                        for one, at in positions.items()
                    ],
                }
            ],
        },
    )
    assert body_after_header(frame, Api.FETCH, FETCH_VERSION, 9) == encode(expected)


def produced(topic, partitions):
    fields = {"responses": [{"name": topic, "partition_responses": partitions}]}
    body = encode(response_entity(Api.PRODUCE, PRODUCE_VERSION, fields))
    return bytearray(struct.pack(">ib", 1, 0) + body)


def test_a_produce_answer_is_a_success_only_if_every_partition_succeeded():
    request = ProduceFrame.make("orders", [0, 1], b"batch", acks=-1)
    good = [{"index": one, "error_code": 0, "base_offset": 123456} for one in (0, 1)]

    request.check(produced("orders", good), "orders")

    bad = [good[0], {"index": 1, "error_code": 10, "error_message": "too large, sorry"}]
    with pytest.raises(Refused, match="orders-1: too large, sorry"):
        request.check(produced("orders", bad), "orders")


def fetched(partitions, error=0):
    fields = {"error_code": error, "responses": [{"topic": "orders", "partitions": partitions}]}
    body = encode(response_entity(Api.FETCH, FETCH_VERSION, fields))
    return bytearray(struct.pack(">ib", 1, 0) + body)


def test_a_fetch_answer_is_read_for_the_next_offset_and_the_bytes_of_whole_batches():
    one = encode_batch([Record(value=b"a")] * 3, base_offset=10)
    two = encode_batch([Record(value=b"b")] * 2, base_offset=13)
    frame = fetched(
        [
            {"partition_index": 4, "high_watermark": 20, "records": bytes(one + two + one[:30])},
            {"partition_index": 5, "high_watermark": 0, "records": b""},
            {
                "partition_index": 6,
                "high_watermark": 0,
                "records": bytes(one),
                "aborted_transactions": [{"producer_id": 1, "first_offset": 2}],
                "current_leader": {"leader_id": 3, "leader_epoch": 4},
            },
        ]
    )

    assert list(read_fetched(frame, "orders")) == [(4, 15, len(one) + len(two)), (6, 13, len(one))]


def test_errors_in_a_fetch_answer_are_raised():
    with pytest.raises(Refused, match="orders-2"):
        list(read_fetched(fetched([{"partition_index": 2, "error_code": 1}]), "orders"))
    with pytest.raises(Refused):
        list(read_fetched(fetched([], error=70), "orders"))


@pytest.mark.parametrize(("record_bytes", "batch_bytes"), [(100, 1_000_000), (0, 300), (5000, 10)])
def test_a_batch_is_as_large_as_allowed_and_holds_at_least_one_record(record_bytes, batch_bytes):
    batch, count = make_batch(record_bytes, batch_bytes, now_ms=5)

    records = decode_batch(batch)
    assert len(records) == count
    assert all(len(record.value or b"") == record_bytes for record in records)
    assert count == 1 or batch_bytes * 0.6 < len(batch) <= batch_bytes
