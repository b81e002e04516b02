"""What the columns say is what `decode_batch` says of each record."""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import CorruptMessage, UnsupportedForMessageFormat
from tidelog.records import (
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Codec,
    Marker,
    Record,
    decode_batch,
    encode_batch,
    encode_marker,
    iterate_batches,
    stamp,
    stamp_append_time,
)
from tidelog.spark import unpacking
from tidelog.spark.columns import ARROW, PLAIN, arrow_schema
from tidelog.spark.decode import HEADERS_MAX, Decoded, decode

ALL = tuple(ARROW)
MAYBE_BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
RECORD = st.builds(
    Record,
    key=MAYBE_BYTES,
    value=MAYBE_BYTES,
    timestamp_ms=st.integers(-1, 100) | st.integers(-1, 2**53),
    headers=st.lists(st.tuples(st.text(max_size=5), MAYBE_BYTES), max_size=3).map(tuple),
)


def read(data: bytes, **changed: Any) -> Decoded:
    asked: dict[str, Any] = {
        "topic": "t",
        "partition": 3,
        "start": 0,
        "end": 2**62,
        "aborted": (),
        "wanted": ALL,
    }
    return decode(data, **(asked | changed))


def rows_of(records: Sequence[Record], *, append: bool = False) -> list[dict[str, Any]]:
    """What the columns should say, record by record."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": record.offset,
            "timestamp": 1000 * record.timestamp_ms,
            "timestampType": int(append),
            "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
        }
        for record in records
    ]


def rows_in(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows; times as microseconds, since some are beyond Python's."""
    assert batch.schema == arrow_schema(tuple(batch.schema.names))
    batch.validate(full=True)
    if "timestamp" in batch.schema.names:
        at = batch.schema.get_field_index("timestamp")
        batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def offsets_in(decoded: Decoded) -> list[int]:
    offsets: list[int] = decoded.batch.column("offset").to_pylist()
    return offsets


def batch_of(*values: bytes | None, base: int = 0, **settings: Any) -> bytes:
    return bytes(encode_batch([Record(value=v) for v in values], base_offset=base, **settings))


def reseal(batch: bytearray) -> bytes:
    """Make length and checksum fit the bytes again: damage that a checksum does not show."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[CRC_FROM:])))
    return bytes(batch)


def altered(batch: bytes, form: str, at: int, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    return reseal(changed)


def around(payload: bytes, *, count: int = 1, last_delta: int | None = None) -> bytes:
    """A batch with a sound header and checksum around any payload."""
    batch = encode_batch([Record()])[:HEADER_BYTES] + payload
    struct.pack_into(">i", batch, 23, count - 1 if last_delta is None else last_delta)
    struct.pack_into(">i", batch, 57, count)
    return reseal(batch)


# What comes out.


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.tuples(st.lists(RECORD, min_size=1, max_size=8), st.sampled_from(Codec), st.integers(0, 9)),
        max_size=6,
    ),
    start=st.integers(0, 60),
    count=st.integers(0, 60),
)
def test_rows_are_what_a_consumer_reads(
    batches: list[tuple[list[Record], Codec, int]], start: int, count: int
) -> None:
    data, base = bytearray(), 0
    for records, codec, gap in batches:
        base += gap
        data += encode_batch(records, codec=codec, base_offset=base)
        base += len(records)
    expected = [r for _, batch in iterate_batches(data) for r in decode_batch(batch)]

    decoded = read(bytes(data), start=start, end=start + count)

    shown = [r for r in expected if start <= r.offset < start + count]
    assert rows_in(decoded.batch) == rows_of(shown)
    assert start <= decoded.next_offset <= start + count
    assert not [r for r in expected if decoded.next_offset <= r.offset < start + count]


@pytest.mark.parametrize("codec", Codec)
def test_many_records_of_many_sizes_come_out_whole(codec: Codec) -> None:
    data = bytearray()
    for base in range(0, 6000, 2000):
        records = [
            Record(
                key=None if n % 7 == 0 else b"%d" % n,
                value=b"\0\x10" * (n * n % 301),
                timestamp_ms=n * 31 % 1000,
                headers=[("h", b"v")] * (n % 5 == 0),
            )
            for n in range(2000)
        ]
        data += encode_batch(records, codec=codec, base_offset=base)

    decoded = read(bytes(data))

    expected = [r for _, batch in iterate_batches(data) for r in decode_batch(batch)]
    assert rows_in(decoded.batch) == rows_of(expected)
    assert decoded.next_offset == 6000


@pytest.mark.parametrize("wanted", [("offset",), ("value", "key"), ("headers",), PLAIN, ("topic",)])
def test_the_columns_are_those_that_are_wanted_in_their_order(wanted: tuple[str, ...]) -> None:
    records = [Record(key=b"k", value=b"v", headers=[("h", b"x")], timestamp_ms=5)] * 3

    decoded = read(bytes(encode_batch(records)), wanted=wanted)

    whole = rows_in(read(bytes(encode_batch(records))).batch)
    assert decoded.batch.schema == arrow_schema(wanted)
    assert rows_in(decoded.batch) == [{name: row[name] for name in wanted} for row in whole]


def test_nothing_wanted_of_a_value_means_that_it_is_not_looked_at() -> None:
    longer_than_its_record = b"\x0e\0\0\0\x01\x20\0\0"

    decoded = read(around(longer_than_its_record), wanted=("key", "offset"))

    assert rows_in(decoded.batch) == [{"key": None, "offset": 0}]
    with pytest.raises(CorruptMessage, match="longer than its record"):
        read(around(longer_than_its_record), wanted=("value",))


def test_what_comes_before_the_offset_stays_inside_of_its_record_too() -> None:
    for record in (b"\x0e\0\0" + b"\x80" * 5, b"\x0e\0" + b"\x80" * 6):
        with pytest.raises(CorruptMessage, match="longer than its record"):
            read(around(record) + batch_of(b"v" * 30, base=1), wanted=("offset",))


def test_an_answer_without_a_whole_batch_is_an_empty_one() -> None:
    for data in (b"", batch_of(b"one")[:-1], batch_of(b"one")[:5]):
        decoded = read(data, start=7)

        assert decoded.batch.num_rows == 0
        assert decoded.batch.schema == arrow_schema(ALL)
        assert decoded.next_offset == 7


def test_a_cut_off_batch_is_left_to_the_next_fetch() -> None:
    data = batch_of(b"a", b"b") + batch_of(b"c", b"d", base=2)[:-1]

    decoded = read(data)

    assert offsets_in(decoded) == [0, 1]
    assert decoded.next_offset == 2


def test_a_batch_beyond_the_end_ends_the_range() -> None:
    decoded = read(batch_of(b"a", b"b") + batch_of(b"c", base=90), end=50)

    assert offsets_in(decoded) == [0, 1]
    assert decoded.next_offset == 50, "between the two there is nothing"


def test_the_range_may_begin_and_end_inside_of_a_batch() -> None:
    decoded = read(batch_of(*[b"v"] * 10, base=100), start=103, end=106)

    assert offsets_in(decoded) == [103, 104, 105]
    assert decoded.next_offset == 106


def test_gaps_of_compaction_stay_gaps() -> None:
    first_and_fourth = b"\x0e\0\0\0\x01\x02a\0" + b"\x0e\0\0\x06\x01\x02b\0"
    batch = bytearray(around(first_and_fourth, count=2, last_delta=9))
    empty = bytearray(around(b"", count=0, last_delta=4))
    stamp(batch, 20, 0)
    stamp(empty, 30, 0)

    decoded = read(bytes(batch + empty), wanted=("offset", "value"))

    assert rows_in(decoded.batch) == [{"offset": 20, "value": b"a"}, {"offset": 23, "value": b"b"}]
    assert decoded.next_offset == 35


def test_the_time_of_appending_counts_for_all_records_of_its_batch() -> None:
    stamped = encode_batch([Record(timestamp_ms=5), Record(timestamp_ms=6)])
    stamp_append_time(stamped, 999)
    assert stamped[22] & LOG_APPEND_TIME
    created = encode_batch([Record(timestamp_ms=7)], base_offset=2)

    rows = rows_in(read(bytes(stamped + created)).batch)

    assert [(r["timestamp"], r["timestampType"]) for r in rows] == [(999_000, 1), (999_000, 1), (7_000, 0)]


def test_a_time_that_spark_cannot_say_becomes_the_nearest() -> None:
    far = [Record(timestamp_ms=t) for t in (0, 2**63 - 1, 2**62, -(2**62))]

    rows = rows_in(read(bytes(encode_batch(far))).batch)

    most = (2**63 - 1) // 1000 * 1000
    assert [r["timestamp"] for r in rows] == [0, most, most, -most]


# Transactions.


def in_transaction(producer: int, base: int, *values: bytes) -> bytes:
    return batch_of(*values, base=base, producer_id=producer, attributes=TRANSACTIONAL)


def marker(producer: int, base: int, *, commits: bool) -> bytes:
    batch = encode_marker(
        Marker(commits=commits, coordinator_epoch=1), producer_id=producer, producer_epoch=0, now_ms=1
    )
    stamp(batch, base, 0)
    return bytes(batch)


MIXED = (
    in_transaction(7, 0, b"lost", b"lost")
    + in_transaction(8, 2, b"kept")
    + batch_of(b"plain", base=3)
    + marker(7, 4, commits=False)
    + in_transaction(7, 5, b"kept")
    + marker(7, 6, commits=True)
    + marker(8, 7, commits=True)
    + in_transaction(7, 8, b"lost")
    + marker(7, 9, commits=False)
)


def test_aborted_transactions_and_markers_are_not_shown() -> None:
    decoded = read(MIXED, aborted=[(7, 8), (7, 0)], wanted=("offset", "value"))

    assert [(r["offset"], r["value"]) for r in rows_in(decoded.batch)] == [
        (2, b"kept"),
        (3, b"plain"),
        (5, b"kept"),
    ]
    assert decoded.next_offset == 10


def test_markers_before_the_start_have_ended_what_they_end() -> None:
    decoded = read(MIXED, aborted=[(7, 0), (7, 8)], start=5)

    assert offsets_in(decoded) == [5]


def test_uncommitted_reads_show_all_but_markers() -> None:
    assert offsets_in(read(MIXED)) == [0, 1, 2, 3, 5, 8]


def test_what_a_producer_writes_outside_of_its_transaction_is_shown() -> None:
    plain = batch_of(b"plain", base=1, producer_id=7)

    decoded = read(in_transaction(7, 0, b"lost") + plain, aborted=[(7, 0)])

    assert offsets_in(decoded) == [1]


def test_an_emptied_marker_ends_nothing_and_breaks_nothing() -> None:
    emptied = bytearray(marker(7, 2, commits=False)[:HEADER_BYTES])
    struct.pack_into(">i", emptied, 57, 0)

    decoded = read(in_transaction(7, 0, b"a", b"b") + reseal(emptied), aborted=[(7, 0)])

    assert offsets_in(decoded) == []
    assert decoded.next_offset == 3


# Headers.


def test_a_record_without_headers_has_none_at_all() -> None:
    records = [Record(), Record(headers=[("a", None), ("", b"")]), Record()]

    rows = rows_in(read(bytes(encode_batch(records)), wanted=("headers",)).batch)

    assert [r["headers"] for r in rows] == [
        None,
        [{"key": "a", "value": None}, {"key": "", "value": b""}],
        None,
    ]


def test_many_records_with_different_numbers_of_headers_keep_them_apart() -> None:
    records = [
        Record(headers=[(f"k{n}.{i}", b"%d" % i if i % 3 else None) for i in range(n % 40)])
        for n in range(200)
    ]

    decoded = read(bytes(encode_batch(records)))

    expected = decode_batch(encode_batch(records))
    assert rows_in(decoded.batch) == rows_of(expected)


def test_a_header_key_that_is_not_utf8_is_replaced() -> None:
    record = b"\x14\0\0\0\x01\x01\x02" + b"\x04\xff\x41" + b"\x01"

    (row,) = rows_in(read(around(record)).batch)

    assert row["headers"] == [{"key": "\N{REPLACEMENT CHARACTER}A", "value": None}]


# How much at once.


def test_what_is_too_much_for_one_call_is_read_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "BYTES_MAX", 100)
    data = b"".join(batch_of(b"v" * 60, base=n, codec=Codec(n % 5)) for n in range(10))

    found, calls, at = [], 0, 0
    while at < 10:
        decoded = read(data, start=at, end=10)
        assert decoded.next_offset > at
        at, calls = decoded.next_offset, calls + 1
        found += offsets_in(decoded)

    assert found == list(range(10))
    assert calls == 5


def test_the_number_of_records_in_one_call_is_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "RECORDS_MAX", 3)
    data = b"".join(batch_of(b"a", b"b", base=2 * n) for n in range(5))

    decoded = read(data)

    assert offsets_in(decoded) == [0, 1, 2, 3]
    assert decoded.next_offset == 4


# Damage.


def says(batch: bytes, what: str, **changed: Any) -> None:
    with pytest.raises(CorruptMessage, match=rf"^t-3 at offset -?\d+: .*{what}"):
        read(batch, **changed)


def test_a_wrong_checksum_names_the_batch() -> None:
    damaged = bytearray(batch_of(b"value", base=40))
    damaged[-2] ^= 1

    with pytest.raises(CorruptMessage, match="t-3 at offset 40: the checksum does not match"):
        read(batch_of(b"fine", base=39) + damaged)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_another_format_is_refused_by_name(magic: int) -> None:
    old = struct.pack(">qi", 5, 15) + struct.pack(">Ibbiis", 0, magic, 0, -1, 1, b"v")

    with pytest.raises(UnsupportedForMessageFormat, match=f"t-3 at offset 5: .* format {magic} "):
        read(old)


def test_headers_of_batches_that_cannot_be_are_refused() -> None:
    good = batch_of(b"a", b"b")
    says(altered(good, ">i", 57, -1), "less than nothing")
    says(altered(good, ">i", 23, -1), "less than nothing")
    says(altered(good, ">i", 57, 2**31 - 1), "says over")
    says(altered(good, ">h", 21, 7), "codec is unknown")
    says(altered(good, ">q", 0, -5), "outside of any log")
    says(good + good, "before the batch")
    short = bytearray(good)
    struct.pack_into(">i", short, 8, 20)
    says(bytes(short), "cannot have 32 bytes")


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_holds_too_much_is_refused_before_it_is_unpacked(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "BATCH_BYTES_MAX", 1000)

    assert read(batch_of(b"v" * 900, codec=codec)).batch.num_rows == 1
    says(batch_of(b"v" * 1000, codec=codec), "1000")


def test_a_time_beyond_64_bits_is_refused() -> None:
    batch = bytes(encode_batch([Record(timestamp_ms=0), Record(timestamp_ms=2**63 - 1)]))

    says(altered(batch, ">q", 27, 5), "outside of 64 bits")
    says(altered(batch, ">q", 27, 5), "outside of 64 bits", wanted=("timestamp",))
    assert offsets_in(read(altered(batch, ">q", 27, 5), wanted=("offset",))) == [0, 1]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_damaged_compression_is_refused(codec: Codec) -> None:
    batch = bytearray(batch_of(b"value" * 20, codec=codec))
    batch[HEADER_BYTES:] = b"\xff" * 30

    says(reseal(batch), codec.name.lower())


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"\x10\0\0\0\x01\x02a\0", "do not fill"),  # the record is longer than the batch
        (b"\x0c\0\0\0\x01\x02a\0", "holds 2"),  # or shorter
        (b"\x0e\0\0\x02\x01\x02a\0", "offset lies outside"),
        (b"\x0e\0\0\x01\x01\x02a\0", "offset lies outside"),
        (b"\x0e\0\0\0\x10\x02a\0", "longer than its record"),  # key
        (b"\x0e\0\0\0\x01\x10a\0", "longer than its record"),  # value
        (b"\x0e\0\0\0\x01\x02a\x02", "so many headers"),
        (b"\x0e\0\0\0\x01\x02a\x01", "so many headers"),
        (b"\x12\0\0\0\x01\x01\x02\x08k\x01", "longer than its record"),  # a header's key
        (b"\x14\0\0\0\x01\x01\x02\x02k\x04v", "longer than its record"),  # a header's value
        (b"\x10\0\0\0\x01\x02a\0\0", "length does not fit"),
        (b"\x0e\0" + b"\xff" * 6, "outside|longer"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(payload: bytes, what: str) -> None:
    says(around(payload), what)
    many = around(payload * 40, count=40, last_delta=2**30)
    if what not in ("do not fill", "holds 2") and "offset" not in what:
        says(many, what)


def test_a_record_of_very_many_headers_does_not_take_a_turn_for_each() -> None:
    record = Record(headers=[("", None)] * 100_000)

    decoded = read(bytes(encode_batch([record])), wanted=("headers",))

    assert len(decoded.batch.column("headers")[0]) == 100_000


def test_more_headers_than_memory_has_room_for_are_refused() -> None:
    count = HEADERS_MAX + 1
    headers = b"\0\x01" * count
    record = bytearray(b"\0\0\0\x01\x01") + uvarint(2 * count) + headers
    size = len(record)

    says(around(uvarint(2 * size) + bytes(record)), "headers")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
