"""Batches that must not get into a log."""

import itertools
import struct
import time
from collections.abc import Callable
from uuid import UUID

import pytest
from crc32c import crc32c

from tests.faces.arena import Arena
from tests.faces.raw import RawClient, fetch_fields, produce_fields, request
from tidelog.records import CONTROL, CRC_AT, CRC_FROM, HEADER_BYTES, TRANSACTIONAL, Record, encode_batch
from tidelog.wire.apis import APIS, Api

CORRUPT, UNKNOWN_TOPIC, TOO_LARGE, BAD_ACKS, BAD_TIMESTAMP = 2, 3, 10, 21, 32
INVALID_REQUEST, OLD_FORMAT, OUT_OF_ORDER, OLD_PRODUCER = 42, 43, 45, 47
UNKNOWN_CODEC, INVALID_RECORD, UNKNOWN_TOPIC_ID = 76, 87, 100

NOW_MS = time.time_ns() // 1_000_000
GOOD = bytes(encode_batch([Record(key=b"k", value=b"good", timestamp_ms=NOW_MS)] * 3))

_names = itertools.count()


def sealed(batch: bytearray) -> bytes:
    """With the checksum that fits, so that what else is wrong shows."""
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


def altered(at: int, layout: str, value: int, *, seal: bool = True) -> bytes:
    """A good batch with one field changed."""
    batch = bytearray(GOOD)
    struct.pack_into(">" + layout, batch, at, value)
    return sealed(batch) if seal else bytes(batch)


def old_message_set(magic: int) -> bytes:
    timestamp = struct.pack(">q", NOW_MS) if magic else b""
    content = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">ii3s", -1, 3, b"old")
    message = struct.pack(">I", 0) + content
    return struct.pack(">qi", 0, len(message)) + message


def flipped(at: int) -> bytes:
    batch = bytearray(GOOD)
    batch[at] ^= 1
    return bytes(batch)


LENGTH_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, MAX_TIME_AT, COUNT_AT = 8, 16, 21, 23, 35, 57

BAD = {
    "checksum": (altered(CRC_AT, "I", 12345, seal=False), CORRUPT),
    "flipped record": (flipped(HEADER_BYTES + 3), CORRUPT),
    "flipped attribute": (flipped(ATTRIBUTES_AT), CORRUPT),
    "empty": (b"", CORRUPT),
    "one byte": (b"\0", CORRUPT),
    "header alone": (GOOD[:HEADER_BYTES], CORRUPT),
    "cut header": (GOOD[: HEADER_BYTES - 1], CORRUPT),
    "cut": (GOOD[:-1], CORRUPT),
    "one byte more": (GOOD + b"\0", CORRUPT),
    "length -1": (altered(LENGTH_AT, "i", -1), CORRUPT),
    "length least": (altered(LENGTH_AT, "i", -(2**31)), CORRUPT),
    "length 0": (altered(LENGTH_AT, "i", 0), CORRUPT),
    "length 48": (altered(LENGTH_AT, "i", 48), CORRUPT),
    "length most": (altered(LENGTH_AT, "i", 2**31 - 1), CORRUPT),
    "format 3": (altered(MAGIC_AT, "b", 3), CORRUPT),
    "format -1": (altered(MAGIC_AT, "b", -1), CORRUPT),
    "format 0": (old_message_set(0), OLD_FORMAT),
    "format 1": (old_message_set(1), OLD_FORMAT),
    "two batches": (GOOD + GOOD, INVALID_RECORD),
    "count 0": (altered(COUNT_AT, "i", 0), INVALID_RECORD),
    "count too low": (altered(COUNT_AT, "i", 2), INVALID_RECORD),
    "count too high": (altered(COUNT_AT, "i", 4), INVALID_RECORD),
    "count -1": (altered(COUNT_AT, "i", -1), INVALID_RECORD),
    "count most": (altered(COUNT_AT, "i", 2**31 - 1), INVALID_RECORD),
    "last delta -1": (altered(LAST_DELTA_AT, "i", -1), INVALID_RECORD),
    "last delta most": (altered(LAST_DELTA_AT, "i", 2**31 - 1), INVALID_RECORD),
    "codec 5": (altered(ATTRIBUTES_AT, "h", 5), UNKNOWN_CODEC),
    "codec 7": (altered(ATTRIBUTES_AT, "h", 7), UNKNOWN_CODEC),
    "control": (altered(ATTRIBUTES_AT, "h", CONTROL), INVALID_RECORD),
    "transactional": (altered(ATTRIBUTES_AT, "h", TRANSACTIONAL), INVALID_RECORD),
    "far future": (altered(MAX_TIME_AT, "q", 2**63 - 1), BAD_TIMESTAMP),
    "tomorrow": (altered(MAX_TIME_AT, "q", NOW_MS + 86_400_000), BAD_TIMESTAMP),
    "sequence -1": (
        bytes(encode_batch([Record()], producer_id=5, producer_epoch=0, base_sequence=-1)),
        INVALID_RECORD,
    ),
    "too large": (bytes(encode_batch([Record(value=bytes(1024 * 1024), timestamp_ms=NOW_MS)])), TOO_LARGE),
}


@pytest.fixture
def client(arena: Arena) -> RawClient:
    return arena.connect()


@pytest.fixture
def topic(client: RawClient) -> str:
    name = f"produce-{next(_names)}"
    client.create_topic(name, partitions=2)
    return name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_gets_its_error_and_leaves_no_trace(client: RawClient, topic: str, name: str) -> None:
    batch, error = BAD[name]
    client.produce(GOOD, topic)

    answer = client.produce(batch, topic)

    assert answer.error_code == error, answer
    assert answer.base_offset == -1
    assert answer.error_message
    assert client.produce(GOOD, topic).base_offset == 3  # on the same connection, right behind
    assert client.values(topic) == [b"good"] * 6


@pytest.mark.parametrize("version", range(APIS[Api.PRODUCE].taken_from, APIS[Api.PRODUCE].most))
def test_every_version_carries_the_error(client: RawClient, topic: str, version: int) -> None:
    answer = client.ask(Api.PRODUCE, version, produce_fields(flipped(70), topic))

    assert answer.responses[0].partition_responses[0].error_code == CORRUPT


def test_no_records_at_all_are_refused(client: RawClient, topic: str) -> None:
    assert client.produce(None, topic).error_code == CORRUPT


def test_a_bad_batch_spoils_only_its_own_partition(client: RawClient, topic: str) -> None:
    data = [
        {"index": 0, "records": GOOD},
        {"index": 1, "records": flipped(70)},
        {"index": 2, "records": GOOD},
        {"index": -1, "records": GOOD},
        {"index": 2**31 - 1, "records": GOOD},
        {"index": 1, "records": GOOD},
    ]
    fields = {"acks": -1, "topic_data": [{"name": topic, "partition_data": data}]}

    answers = client.ask(Api.PRODUCE, 9, fields).responses[0].partition_responses

    assert [(a.index, a.error_code) for a in answers] == [
        (0, 0),
        (1, CORRUPT),
        (2, UNKNOWN_TOPIC),
        (-1, UNKNOWN_TOPIC),
        (2**31 - 1, UNKNOWN_TOPIC),
        (1, 0),
    ]
    assert client.end_offset(topic, 0) == client.end_offset(topic, 1) == 3


def test_unknown_topics_are_refused_by_name_and_by_id(client: RawClient) -> None:
    assert client.produce(GOOD, "no-such-topic").error_code == UNKNOWN_TOPIC
    by_id = {
        "acks": -1,
        "topic_data": [{"topic_id": UUID(int=77), "partition_data": [{"index": 0, "records": GOOD}]}],
    }

    answer = client.ask(Api.PRODUCE, 13, by_id)

    assert answer.responses[0].partition_responses[0].error_code == UNKNOWN_TOPIC_ID


def test_nobody_writes_to_the_metadata_log(client: RawClient) -> None:
    assert client.produce(GOOD, "__cluster_metadata").error_code == UNKNOWN_TOPIC


@pytest.mark.parametrize("acks", [5, 2, -2, 32_767, -32_768])
def test_acks_that_do_not_exist_are_refused(client: RawClient, topic: str, acks: int) -> None:
    answer = client.ask(Api.PRODUCE, 9, produce_fields(GOOD, topic, acks=acks))

    assert answer.responses[0].partition_responses[0].error_code == BAD_ACKS
    assert client.end_offset(topic) == 0


def test_without_acks_a_good_batch_gets_no_answer_and_is_stored(client: RawClient, topic: str) -> None:
    client.send(request(Api.PRODUCE, 9, produce_fields(GOOD, topic, acks=0)))

    assert client.produce(GOOD, topic).base_offset == 3  # the next answer is the next request's


@pytest.mark.parametrize("name", ["checksum", "two batches", "format 0", "too large"])
def test_without_acks_a_bad_batch_closes_the_connection(
    arena: Arena, client: RawClient, topic: str, name: str
) -> None:
    client.send(request(Api.PRODUCE, 9, produce_fields(BAD[name][0], topic, acks=0)))

    assert client.is_closed()
    assert arena.connect().end_offset(topic) == 0


def test_a_batch_behind_a_bad_one_without_acks_is_not_stored_twice_or_lost(
    arena: Arena, client: RawClient, topic: str
) -> None:
    good = request(Api.PRODUCE, 9, produce_fields(GOOD, topic, acks=0))
    bad = request(Api.PRODUCE, 9, produce_fields(flipped(70), topic, acks=0))

    client.send(good + bad + good)  # whoever sends on after a refusal talks to a closed door

    assert client.is_closed()
    assert arena.connect().produce(GOOD, topic).base_offset in (3, 6)


def idempotent(sequence: int, *, epoch: int = 0) -> bytes:
    return bytes(
        encode_batch(
            [Record(value=b"once", timestamp_ms=NOW_MS)],
            producer_id=1_000_000,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def test_sequences_must_follow_each_other(client: RawClient, topic: str) -> None:
    produce: Callable[[bytes], tuple[int, int]] = lambda batch: (  # noqa: E731
        (answer := client.produce(batch, topic)).error_code,
        answer.base_offset,
    )

    assert produce(idempotent(0)) == (0, 0)
    assert produce(idempotent(2)) == (OUT_OF_ORDER, -1)
    assert produce(idempotent(1)) == (0, 1)
    assert produce(idempotent(1)) == (0, 1)  # a retry: its first offset, and not stored again
    assert produce(idempotent(0, epoch=1)) == (0, 2)
    assert produce(idempotent(2)) == (OLD_PRODUCER, -1)
    assert client.values(topic) == [b"once"] * 3


def test_a_request_with_nothing_in_it_is_answered(client: RawClient) -> None:
    for version in range(APIS[Api.PRODUCE].taken_from, APIS[Api.PRODUCE].most + 1):
        assert client.ask(Api.PRODUCE, version, {"acks": 1, "topic_data": []}).responses == ()


def test_a_stored_batch_whose_records_lie_is_the_readers_problem_alone(client: RawClient, topic: str) -> None:
    """The node never unpacks what it stores. It must survive those who make it look inside."""
    lie = bytearray(GOOD)
    lie[HEADER_BYTES:] = b"\xff" * (len(GOOD) - HEADER_BYTES)
    assert client.produce(sealed(lie), topic).error_code == 0

    by_time = {
        "replica_id": -1,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": 0, "timestamp": 1, "current_leader_epoch": -1},
                    {"partition_index": 0, "timestamp": -3, "current_leader_epoch": -1},
                ],
            }
        ],
    }
    found = client.ask(Api.LIST_OFFSETS, 7, by_time).topics[0].partitions

    # It counts as one record, at the time that its header tells, and hides no other.
    assert [(partition.error_code, partition.offset) for partition in found] == [(0, 0), (0, 0)]
    assert client.ask(Api.FETCH, 11, fetch_fields(topic)).responses[0].partitions[0].records
