"""What compaction may rely on when it looks into a batch, and what it writes instead of one."""

import random

import pytest

from tests.support.compaction import broken, record
from tidelog.errors import CorruptMessage, InvalidRecord
from tidelog.host import Bytes
from tidelog.log.unpacking import FAULTS_MAX, empty, find_bounds, rebuild, require_keys, split_records, unpack
from tidelog.records import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Record,
    crc_matches,
    decode_batch,
    encode_batch,
    read_header,
)


@pytest.mark.parametrize("codec", Codec)
def test_batch_without_keys_can_be_refused_before_it_is_written(codec):
    good = encode_batch([record("a"), record("", None)], codec=codec)
    bad = encode_batch([record("a"), record(None), record("b"), record(None)], codec=codec)

    require_keys(read_header(good), good)
    with pytest.raises(InvalidRecord, match="without a key; 2 of 4 have none") as refused:
        require_keys(read_header(bad), bad)
    assert [place for place, _ in refused.value.records] == [1, 3]


def test_only_so_many_records_without_a_key_are_named():
    bad = encode_batch([record(None)] * 5000)

    with pytest.raises(InvalidRecord, match="5000 of 5000") as refused:
        require_keys(read_header(bad), bad)
    assert len(refused.value.records) == FAULTS_MAX


def test_batch_that_cannot_be_read_can_be_refused_before_it_is_written():
    bad = broken([record("a")], damage=0)

    with pytest.raises(InvalidRecord, match="what it can read"):
        require_keys(read_header(bad), bad)


def test_split_tells_where_records_lie_their_offsets_and_keys():
    batch = encode_batch([record("a", "x" * 200), record(None), record("", None)])

    found = split_records(bytes(batch[HEADER_BYTES:]), read_header(batch))

    assert found.keys == [b"a", None, b""]
    assert found.keyless == 1
    assert found.marks == [0, 2, 5]
    assert found.bounds[0] == 0 and found.bounds[-1] == len(batch) - HEADER_BYTES
    assert found.bounds == find_bounds(bytes(batch[HEADER_BYTES:]), 3)


@pytest.mark.parametrize("damage", range(12))
def test_split_refuses_what_is_no_record(damage):
    good = encode_batch([record("key", "val"), record("key", "val")])
    bad = broken([record("key", "val"), record("key", "val")], damage)

    assert split_records(bytes(good[HEADER_BYTES:]), read_header(good)).marks == [0, 2]
    try:
        found = split_records(bad[HEADER_BYTES:], read_header(bad))
    except CorruptMessage:
        return
    # Only what does not decide: attributes, the time, and the bytes of the key and the value.
    assert [mark >> 1 for mark in found.marks] == [0, 1]


def test_split_never_leaves_the_batch():
    generator = random.Random(5)
    good = bytes(encode_batch([record("key", "val", time_ms=t) for t in (5, 500, 70_000)]))
    header = read_header(good)
    for _ in range(3000):
        body = bytearray(good[HEADER_BYTES:])
        for _ in range(generator.randrange(1, 4)):
            body[generator.randrange(len(body))] = generator.randrange(256)
        try:
            found = split_records(bytes(body), header)
        except CorruptMessage:
            continue
        assert found.bounds == sorted(set(found.bounds))
        assert (found.bounds[0], found.bounds[-1]) == (0, len(body))
        assert found.bounds == find_bounds(bytes(body), 3)
        assert found.marks == sorted(found.marks)
        assert len({mark >> 1 for mark in found.marks}) == 3


@pytest.mark.parametrize("size", [0, 40, 100, 20_000, 3_000_000])
def test_bounds_are_found_whatever_the_length_of_a_record(size):
    records = [Record(key=b"k", value=b"v" * size), Record(key=b"l", value=b"")]
    body = bytes(encode_batch(records)[HEADER_BYTES:])

    assert find_bounds(body, 2)[-1] == len(body)
    with pytest.raises(CorruptMessage):
        find_bounds(body, 1)


@pytest.mark.parametrize("size", [1, 200, 20_000])
@pytest.mark.parametrize("codec", Codec)
def test_rebuilt_batch_has_the_newest_time_of_what_is_left(codec, size):
    records = [record("a", time_ms=7000), record("b", time_ms=7500), record("c", "x" * size, 7020)]
    batch = encode_batch(records, codec=codec, base_offset=40)
    body = unpack(read_header(batch), memoryview(batch))
    bounds = find_bounds(body, 3)

    left = [body[: bounds[1]], body[bounds[2] :]]
    header, rebuilt = rebuild(read_header(batch), left, horizon_ms=None)

    assert check_header(header, rebuilt)
    assert [(r.offset, r.key, r.timestamp_ms) for r in decode_batch(rebuilt)] == [
        (40, b"a", 7000),
        (42, b"c", 7020),
    ]
    assert header.max_timestamp == 7020
    assert header.last_offset == 42


def test_horizon_moves_the_base_time_and_no_record():
    batch = encode_batch([record("a", None, 7000), record("b", time_ms=900_000)])
    body = unpack(read_header(batch), memoryview(batch))

    header, rebuilt = rebuild(read_header(batch), [body[: find_bounds(body, 2)[1]]], horizon_ms=9)

    assert check_header(header, rebuilt)
    assert (header.base_timestamp, header.max_timestamp) == (9, 7000)
    assert [r.timestamp_ms for r in decode_batch(rebuilt)] == [7000]


def test_emptied_batch_keeps_its_offsets():
    batch = encode_batch([record("a"), record("b")], codec=Codec.ZSTD, base_offset=40)

    header, emptied = empty(read_header(batch))

    assert check_header(header, emptied)
    assert len(emptied) == HEADER_BYTES
    assert (header.base_offset, header.last_offset, header.record_count) == (40, 41, 0)


def check_header(header: BatchHeader, batch: Bytes) -> bool:
    """Whether what is said of a batch is what it says itself, checksum included."""
    return read_header(batch) == header and crc_matches(batch, header) and header.size == len(batch)
