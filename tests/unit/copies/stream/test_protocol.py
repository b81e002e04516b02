"""What a copy in JSON hears of a queue is what the log says."""

from dataclasses import replace

import msgspec
import pytest

from tidelog.copies.stream.protocol import Source, entry_of, record_of
from tidelog.queues.records import (
    About,
    Delivery,
    PlaceOf,
    Settings,
    delivery_record,
    job_record,
    work_queue_record,
)
from tidelog.records import Record

SOURCE = Source(queue="q")
PLACE = PlaceOf("q", 1)


def copied(record: Record, source: Source = SOURCE) -> Record | None:
    entry = entry_of(record, source)
    return None if entry is None else record_of(entry)


@pytest.mark.parametrize(
    "value",
    [b'{"a": 1}', b"1e999", b"[" * 950 + b"]" * 950, b'"text"', b"null"],
    ids=["object", "huge", "deep", "text", "null"],
)
def test_a_message_is_copied_byte_for_byte(value):
    about = About({"a": "1"}, "key", not_before_ms=99, delay_ms=7)
    record = replace(job_record(PLACE, value, about, now_ms=5), offset=7)

    assert copied(record) == record


def test_a_value_that_not_everybody_reads_as_json_is_said_to_be_text():
    record = replace(job_record(PLACE, b"1e999", About(), now_ms=5), offset=7)
    entry = entry_of(record, SOURCE)
    assert entry is not None

    message = msgspec.json.decode(entry.operation)["message"]

    assert (message["value"], message["encoding"]) == ("1e999", "text")
    plain = replace(record, value=b"1")
    entry = entry_of(plain, SOURCE)
    assert entry is not None
    assert "encoding" not in msgspec.json.decode(entry.operation)["message"]


@pytest.mark.parametrize(
    "record",
    [
        delivery_record(PLACE, Delivery(7, 3, 1, 1000, 50, 2, 9), now_ms=6),
        work_queue_record("q", Settings(5, 6, True, 7, 8, 9), now_ms=6),
        work_queue_record("q", None, now_ms=6),
    ],
    ids=["delivery", "made", "deleted"],
)
def test_a_copy_hears_of_deliveries_and_of_the_queue_itself(record):
    record = replace(record, offset=8)

    assert copied(record) == record
    assert copied(record, Source(queue="other")) is None


def test_the_event_of_a_room_says_how_its_data_is_to_be_read():
    entry = entry_of(Record(value=b"1e999", offset=3), Source(room="r"))
    assert entry is not None

    assert msgspec.json.decode(entry.operation)["event"] == {
        "id": 3,
        "event": "message",
        "data": "1e999",
        "encoding": "text",
    }
