import struct

import msgspec
import pytest

from tidelog.errors import InvalidRecord
from tidelog.queues.events import Remembered, Swept
from tidelog.queues.message import DEAD
from tidelog.queues.records import (
    PLAIN_HEADERS,
    About,
    Delivery,
    Moved,
    PlaceOf,
    Settings,
    deletion,
    delivery_record,
    job_key,
    job_record,
    message_key,
    message_record,
    number_record,
    pointer_record,
    queue_record,
    request_record,
    sequence_record,
    work_queue_record,
)
from tidelog.queues.restored import check_record
from tidelog.records import Record

PLACE = PlaceOf("jobs", 7)


def written(key, value=b"", headers=()):
    return Record(key=key, value=value, headers=headers, timestamp_ms=1)


@pytest.mark.parametrize(
    "record",
    [
        queue_record(8, made_ms=1),
        queue_record(8, made_ms=1, alive=False),
        message_record(8, 0, b"1", now_ms=1),
        deletion(message_key(8, 0), 1),
        pointer_record(8, "ada", Moved(-1, 3), now_ms=1),
        number_record(9, now_ms=1),
        work_queue_record("jobs", Settings(), now_ms=1),
        work_queue_record("jobs", None, now_ms=1),
        job_record(PLACE, b"1", About(), now_ms=1),
        deletion(job_key(PLACE), 1),
        job_record(PLACE, b"1", About({"a": "b"}, "key", 5), now_ms=1),
        delivery_record(PLACE, Delivery(3, 1, DEAD), now_ms=1),
        delivery_record(PLACE, Delivery(3, 1, DEAD, since=9), now_ms=1),
        sequence_record(65_536, now_ms=1),
        request_record(bytes(16), Remembered(b"", Swept(3, 9)), now_ms=1),
        request_record(bytes(16), Remembered(b"", Swept(3)), now_ms=1),
        written(b"?of a later version"),
    ],
)
def test_what_a_shard_writes_is_taken(record):
    check_record(record)


@pytest.mark.parametrize(
    "record",
    [
        written(b"W\xff\xfe", b"\xc1"),
        written(b"Wjobs", b"\xc1"),
        written(b"Q"),
        written(b"J\0"),
        written(b"R" + bytes(16), b"\xc1"),
        written(b"N", None),
        written(job_key(PLACE), b"1", (("m", b"\xc1"),)),
        written(message_key(8, 0), b"1", (("m", b"\xc1"),)),
        written(b"S", None),
        sequence_record(2**47, now_ms=1),
        sequence_record(-1, now_ms=1),
        delivery_record(PLACE, Delivery(3, 1, DEAD, since=2**47), now_ms=1),
        request_record(bytes(16), Remembered(b"", Swept(3, 2**47)), now_ms=1),
        written(message_key(8, 0), b"1", PLAIN_HEADERS),
        written(None, b"1", PLAIN_HEADERS),
        written(job_key(PLACE) + b"more", b"1", PLAIN_HEADERS),
        written(message_key(8, 0) + b"more"),
        job_record(PlaceOf("jobs", 2**63 - 1), b"1", About(), now_ms=1),
        job_record(PlaceOf("jobs", -1), b"1", About(), now_ms=1),
        message_record(8, 2**63 - 1, b"1", now_ms=1),
        queue_record(-8, made_ms=1),
        number_record(2**63 - 1, now_ms=1),
        work_queue_record("jobs", Settings(first_sequence=2**63 - 1), now_ms=1),
        delivery_record(PLACE, Delivery(3, 1, 2), now_ms=1),
        written(b"P" + struct.pack(">q", 8) + b"\xff", msgspec.msgpack.encode(Moved(0, 1))),
    ],
)
def test_what_no_shard_can_have_written_is_refused(record):
    with pytest.raises(InvalidRecord):
        check_record(record)
