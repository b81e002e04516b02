import msgspec
import pytest

from tidelog.controller.records import (
    FORMAT,
    NodeRegistered,
    PartitionsAdded,
    ProducerIdsGranted,
    TopicCreated,
    TopicDeleted,
    decode,
    encode,
)

RECORDS = [
    NodeRegistered(node=1, incarnation="abc"),
    TopicCreated(name="t", id="x", replicas=[[1, 2], [2]], config={"retention.ms": "5"}),
    TopicCreated(name="t", id="x", replicas=[[1]]),
    PartitionsAdded(topic="t", replicas=[[1]]),
    TopicDeleted(name="t"),
    ProducerIdsGranted(node=1, end=2**40),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_as_it_was_written(record):
    assert decode(encode(record)) == record


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_a_format_byte_and_a_map_tagged_with_its_name(record):
    data = encode(record)

    assert data[0] == FORMAT == 1
    assert msgspec.msgpack.decode(data[1:])["type"] == type(record).__name__


def test_a_field_of_a_later_version_is_passed_over():
    data = b"\x01" + msgspec.msgpack.encode({"type": "TopicDeleted", "name": "t", "later": 1})

    assert decode(data) == TopicDeleted(name="t")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02" + encode(TopicDeleted(name="t"))[1:],
        encode(TopicDeleted(name="t"))[:-1],
        b"\x01" + msgspec.msgpack.encode({"type": "QuotaSet", "name": "t"}),
        b"\x01" + msgspec.msgpack.encode({"type": "TopicDeleted"}),
        b"\x01\xff\xff",
    ],
)
def test_what_is_damaged_or_of_a_later_format_stops_the_reader(data):
    with pytest.raises(ValueError):
        decode(data)
