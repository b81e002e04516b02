import contextlib
import struct

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import CorruptMessage, InvalidRecord, UnsupportedCompression, UnsupportedForMessageFormat
from tidelog.model import NO_PRODUCER
from tidelog.records import (
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Codec,
    Marker,
    Record,
    batch_size_at,
    check_batch,
    compress,
    crc_matches,
    decode_batch,
    decompress,
    encode_batch,
    encode_empty,
    encode_marker,
    iterate_batches,
    iterate_times,
    read_header,
    read_marker,
    stamp,
    stamp_append_time,
)

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
TIMES = st.integers(-1, 100) | st.integers(-1, 2**53)
MAYBE_BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        Record,
        key=MAYBE_BYTES,
        value=MAYBE_BYTES,
        timestamp_ms=TIMES,
        headers=st.lists(st.tuples(st.text(max_size=5), MAYBE_BYTES), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def numbered(records, base_offset):
    return [
        Record(
            key=r.key,
            value=r.value,
            headers=r.headers,
            timestamp_ms=r.timestamp_ms,
            offset=base_offset + number,
        )
        for number, r in enumerate(records)
    ]


def reseal(batch):
    """Make length and checksum fit the bytes again: damage that a checksum does not show."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[CRC_FROM:])))
    return batch


def batch_around(payload, *, count=1, codec=Codec.NONE):
    """A batch with a sound header and checksum around any payload."""
    batch = encode_batch([Record(value=b"")] * count)[:HEADER_BYTES] + payload
    struct.pack_into(">h", batch, 21, codec)
    return reseal(batch)


def altered(batch, form, at, value):
    struct.pack_into(form, batch, at, value)
    return reseal(batch)


# Round trips.


@given(records=RECORDS, codec=st.sampled_from(Codec), base_offset=st.integers(min_value=0, max_value=2**40))
def test_records_come_back_as_they_went_in_with_every_codec(records, codec, base_offset):
    batch = encode_batch(records, codec=codec, base_offset=base_offset)

    assert decode_batch(batch) == numbered(records, base_offset)
    assert list(iterate_times(batch, size_max=10**6)) == [
        (base_offset + number, record.timestamp_ms) for number, record in enumerate(records)
    ]
    header = check_batch(batch)
    assert header.codec is codec
    assert header.size == len(batch)
    assert header.record_count == len(records)
    assert header.next_offset == base_offset + len(records)
    assert header.max_timestamp == max(record.timestamp_ms for record in records)


def test_the_encoding_is_kafkas_byte_for_byte():
    # By hand from the grammar: length 12, no attributes, no deltas, key, value, one header.
    record = b"\x18" + b"\x00\x00\x00" + b"\x02k" + b"\x04vv" + b"\x02" + b"\x02h" + b"\x01"

    batch = encode_batch([Record(key=b"k", value=b"vv", headers=[("h", None)], timestamp_ms=7)])

    assert bytes(batch[HEADER_BYTES:]) == record
    assert batch[:12] == bytes(8) + struct.pack(">i", 49 + len(record))
    assert batch[12:17] == b"\xff\xff\xff\xff\x02"
    assert batch[21:61] == struct.pack(">hiqqqhii", 0, 0, 7, 7, -1, -1, -1, 1)


def test_a_batch_without_a_producer_is_not_idempotent():
    batch = encode_batch([Record(value=b"a")])
    header = read_header(batch)

    assert header.producer_id == NO_PRODUCER
    assert not header.is_idempotent
    assert read_header(encode_batch([Record()], producer_id=0)).is_idempotent


def test_sequence_numbers_wrap_to_zero_after_the_largest():
    batch = encode_batch([Record()] * 3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)

    assert read_header(batch).last_sequence == 0


@given(cut=st.integers(min_value=0, max_value=300))
def test_a_partial_batch_at_the_end_of_a_fetch_is_passed_over(cut):
    batches = [encode_batch([Record(value=b"x" * 10)], base_offset=o) for o in range(3)]
    data = b"".join(batches)[:cut]
    whole = min(cut // len(batches[0]), 3)

    found = list(iterate_batches(data))

    assert [bytes(view) for _, view in found] == [bytes(b) for b in batches[:whole]]


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_an_absurd_length_ends_the_walk_over_batches(length):
    batch = encode_batch([Record()])
    struct.pack_into(">i", batch, 8, length)

    assert batch_size_at(batch, 0, len(batch)) == 0
    assert list(iterate_batches(batch)) == []


# What a broker checks.


def test_a_batch_as_a_producer_sends_it_passes():
    assert check_batch(encode_batch([Record(value=b"a")] * 2)).last_offset_delta == 1


@given(at=st.integers(min_value=CRC_AT, max_value=100), bit=st.integers(min_value=0, max_value=7))
def test_any_flipped_bit_under_the_checksum_is_noticed(at, bit):
    batch = encode_batch([Record(value=b"x" * 60)])
    batch[at] ^= 1 << bit

    with pytest.raises(CorruptMessage):
        check_batch(batch)
    with pytest.raises(CorruptMessage):
        decode_batch(batch)


@given(size=st.integers(min_value=0, max_value=70))
def test_a_batch_that_is_cut_off_is_corrupt(size):
    with pytest.raises(CorruptMessage):
        check_batch(encode_batch([Record(value=b"x" * 10)])[:size])
    with pytest.raises(CorruptMessage):
        decode_batch(encode_batch([Record(value=b"x" * 10)])[:size])


def test_bytes_after_the_batch_are_refused():
    with pytest.raises(CorruptMessage, match="79 bytes, 80 came"):
        check_batch(encode_batch([Record(value=b"x" * 11)]) + b"\0")


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_told_apart_from_damage(magic):
    batch = encode_batch([Record()])
    batch[16] = magic

    with pytest.raises(UnsupportedForMessageFormat, match=f"format {magic}"):
        check_batch(batch)
    with pytest.raises(UnsupportedForMessageFormat):
        check_batch(batch[:30])  # old messages are shorter than a batch's header


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_message_formats_are_corrupt(magic):
    batch = encode_batch([Record()])
    batch[16] = magic

    with pytest.raises(CorruptMessage):
        check_batch(batch)


@pytest.mark.parametrize(("count", "last_delta"), [(0, -1), (0, 0), (-1, -2), (2, 0), (1, 1)])
def test_records_must_span_as_many_offsets_as_there_are(count, last_delta):
    batch = encode_batch([Record()])
    struct.pack_into(">i", batch, 23, last_delta)
    altered(batch, ">i", 57, count)

    with pytest.raises(InvalidRecord):
        check_batch(batch)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec):
    batch = altered(encode_batch([Record()]), ">h", 21, codec)

    with pytest.raises(UnsupportedCompression):
        check_batch(batch)
    with pytest.raises(CorruptMessage):
        decode_batch(batch)


def test_two_batches_for_one_partition_are_refused_and_not_called_damaged():
    with pytest.raises(InvalidRecord, match="more than one batch"):
        check_batch(encode_batch([Record()]) + encode_batch([Record()]))


def test_an_idempotent_batch_needs_a_sequence():
    with pytest.raises(InvalidRecord, match="producer 7 sent sequence -1"):
        check_batch(encode_batch([Record()], producer_id=7, producer_epoch=0))


# Stamping.


@given(
    base_offset=st.integers(min_value=0, max_value=2**63 - 1),
    epoch=st.integers(min_value=0, max_value=2**31 - 1),
)
def test_a_stamp_moves_the_batch_and_leaves_its_checksum_right(base_offset, epoch):
    batch = encode_batch([Record(value=b"a")] * 2)
    before = bytes(batch)

    stamp(memoryview(batch), base_offset, epoch)

    header = check_batch(batch)
    assert (header.base_offset, header.leader_epoch) == (base_offset, epoch)
    assert batch[16:] == before[16:]
    assert batch[8:12] == before[8:12]


@pytest.mark.parametrize("codec", Codec)
def test_the_append_time_becomes_every_records_time_under_a_new_checksum(codec):
    batch = encode_batch(
        [Record(value=b"a", timestamp_ms=5), Record(value=b"b", timestamp_ms=9)], codec=codec
    )
    before = read_header(batch)

    stamp_append_time(memoryview(batch), 1234)

    header = check_batch(batch)
    assert header._replace(crc=0) == before._replace(
        crc=0, attributes=before.attributes | LOG_APPEND_TIME, max_timestamp=1234
    )
    assert [record.timestamp_ms for record in decode_batch(batch)] == [1234, 1234]
    assert list(iterate_times(batch, size_max=1000)) == [(0, 1234), (1, 1234)]


# Damage behind a right checksum.


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "cut off"),
        (b"\x80", "cut off"),
        (b"\x80" * 11 + b"\x00" * 9, "absurd"),
        (b"\xff" * 9 + b"\x7f" + bytes(20), "does not fit 64 bits"),
        (b"\x01" + bytes(6), "longer than its batch"),  # a length of -1
        (b"\x0e" + bytes(6), "longer than its batch"),
        (b"\x0c\x00\x00\x02\x01\x01\x00", "outside of its batch"),  # offset delta 1 of 1 record
        (b"\x0c\x00\x00\x01\x01\x01\x00", "outside of its batch"),  # offset delta -1
        (b"\x1c\x00" + b"\xff" * 9 + b"\x01\x00\x01\x01", "cut off|outside|longer"),
        (b"\x0c\x00\x00\x00\x08\x01\x00", "longer than its record"),  # a key of 4 bytes
        (b"\x0c\x00\x00\x00\x01\x01\x01", "-1 headers"),
        (b"\x0c\x00\x00\x00\x01\x01\x10", "8 headers"),
        (b"\x0a\x00\x00\x00\x01\x01\x00", "cannot hold 0 headers"),  # a length of 5, fields of 6
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "does not fit"),  # a length of 7, fields of 6
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "1 bytes follow"),
    ],
)
def test_lengths_and_deltas_that_lie_are_corrupt(payload, why):
    with pytest.raises(CorruptMessage, match=why):
        decode_batch(batch_around(payload))


def test_a_record_just_inside_its_lengths_is_taken():
    assert decode_batch(batch_around(b"\x0c\x00\x00\x00\x01\x01\x00")) == [Record(timestamp_ms=-1)]


def test_a_time_beyond_64_bits_is_corrupt():
    batch = encode_batch([Record(timestamp_ms=2**62), Record(timestamp_ms=2**62 + 5)])
    altered(batch, ">q", 27, 2**63 - 1)

    with pytest.raises(CorruptMessage, match="time"):
        decode_batch(batch)
    with pytest.raises(CorruptMessage, match="time"):
        list(iterate_times(batch, size_max=1000))


def test_more_records_than_the_batch_holds_are_corrupt():
    batch = encode_batch([Record()])
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    altered(batch, ">i", 57, 2**31 - 1)

    with pytest.raises(CorruptMessage):
        decode_batch(batch)
    with pytest.raises(CorruptMessage):
        list(iterate_times(batch, size_max=1000))


@settings(max_examples=200)
@given(payload=st.binary(max_size=60), count=st.integers(1, 5), codec=st.sampled_from(Codec))
def test_any_payload_is_decoded_or_corrupt_and_nothing_else(payload, count, codec):
    batch = batch_around(payload, count=count, codec=codec)
    try:
        records = decode_batch(batch, size_max=10_000)
    except CorruptMessage:
        with contextlib.suppress(CorruptMessage):
            assert len(list(iterate_times(batch, size_max=10_000))) == count
        return
    places = [(record.offset, record.timestamp_ms) for record in records]
    assert list(iterate_times(batch, size_max=10_000)) == places
    assert len(records) == count


@settings(max_examples=100)
@given(data=st.data(), codec=st.sampled_from(PACKING))
def test_damaged_compressed_data_is_corrupt_and_nothing_else(data, codec):
    packed = bytearray(compress(codec, b"some text, some more text, " * 5))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    try:
        decompress(codec, packed[: data.draw(st.integers(0, len(packed)))], size_max=10_000)
    except CorruptMessage:
        pass


# Codecs.


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 70_000])
def test_decompression_stops_exactly_at_its_limit(codec, size):
    plain = bytes(size)
    packed = compress(codec, plain)

    assert decompress(codec, packed, size_max=size) == plain
    if size:
        with pytest.raises(CorruptMessage):
            decompress(codec, packed, size_max=size - 1)


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_refused_without_being_unpacked(codec):
    bomb = batch_around(compress(codec, bytes(20_000_000)), codec=codec)
    assert len(bomb) < 1_000_000

    with pytest.raises(CorruptMessage):
        decode_batch(bomb, size_max=100_000)
    with pytest.raises(CorruptMessage):
        next(iterate_times(bomb, size_max=100_000))


def snappy_java(*blocks):
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in blocks:
        packed = bytes(cramjam.snappy.compress_raw(block))
        framed += struct.pack(">i", len(packed)) + packed
    return framed


def test_the_framing_of_snappy_java_is_read_block_by_block():
    framed = snappy_java(b"one ", b"two ", b"three")

    assert decompress(Codec.SNAPPY, framed, size_max=13) == b"one two three"


def test_the_blocks_of_snappy_java_share_one_limit():
    with pytest.raises(CorruptMessage, match="at most 4 are taken"):
        decompress(Codec.SNAPPY, snappy_java(b"12345678", b"12345"), size_max=12)


@pytest.mark.parametrize("size", [-1, 2**31 - 1, 100])
def test_a_block_of_snappy_java_longer_than_its_data_is_corrupt(size):
    framed = bytearray(snappy_java(b"one"))
    struct.pack_into(">i", framed, 16, size)

    with pytest.raises(CorruptMessage, match="longer than its data"):
        decompress(Codec.SNAPPY, framed, size_max=1000)


def test_snappy_java_cut_inside_a_size_is_corrupt():
    with pytest.raises(CorruptMessage, match="cut off"):
        decompress(Codec.SNAPPY, snappy_java(b"one") + b"\0\0", size_max=1000)


def test_the_checksum_is_castagnoli_over_all_after_itself():
    batch = encode_batch([Record(value=b"a")])

    assert read_header(batch).crc == crc32c(bytes(batch[21:]))
    assert crc_matches(batch, read_header(batch))


# Markers.


@pytest.mark.parametrize("commits", [True, False])
def test_a_marker_says_how_a_producers_transaction_ended(commits):
    marker = Marker(commits=commits, coordinator_epoch=7)

    batch = encode_marker(marker, producer_id=4000, producer_epoch=3, now_ms=1000)

    header = read_header(batch)
    assert read_marker(batch) == marker
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 3, -1)


def test_a_control_batch_of_another_kind_is_no_marker():
    record = Record(key=b"\0\0\0\2", value=bytes(10))

    assert read_marker(encode_batch([record], attributes=CONTROL)) is None


def test_a_batch_that_never_had_records_is_told_from_one_that_lost_them():
    batch = encode_empty(producer_id=2**62, producer_epoch=0, base_sequence=7, now_ms=1000)
    header = read_header(batch)
    full = read_header(encode_batch([Record(key=b"k", timestamp_ms=1000)] * 2))

    assert crc_matches(batch, header)
    assert decode_batch(batch) == []
    assert (header.size, header.record_count, header.last_offset_delta) == (HEADER_BYTES, 0, 0)
    assert (header.last_sequence, header.max_timestamp) == (7, 1000)
    assert not header.lacks_records
    assert header._replace(base_timestamp=-1).lacks_records
    assert not full.lacks_records
    assert full._replace(record_count=1).lacks_records
