"""What is encoded by the column is read back, by our readers and by those of others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from tidelog.records import Codec, Record, check_batch, decode_batch, encode_batch
from tidelog.spark.columns import ARROW
from tidelog.spark.decode import decode
from tidelog.spark.encode import CannotEncode, cut, encode

NOW_MS = 1_800_000_000_123
SPARK_MS_MAX = (2**63 - 1) // 1000
MAYBE_BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
RECORDS = st.lists(
    st.builds(
        Record,
        key=MAYBE_BYTES,
        value=MAYBE_BYTES,
        timestamp_ms=st.integers(-1, 100) | st.integers(-SPARK_MS_MAX, SPARK_MS_MAX),
        headers=st.lists(st.tuples(st.text(max_size=5), MAYBE_BYTES), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=80,
)


def columns_of(records: Sequence[Record]) -> dict[str, pa.Array]:
    return {
        "key": pa.array([r.key for r in records], pa.binary()),
        "value": pa.array([r.value for r in records], pa.binary()),
        "headers": pa.array(
            [[{"key": k, "value": v} for k, v in r.headers] or None for r in records], ARROW["headers"]
        ),
        "timestamps": pa.array([1000 * r.timestamp_ms for r in records], pa.int64()).cast(ARROW["timestamp"]),
    }


def encoded(key: pa.Array, value: pa.Array, **changed: Any) -> bytearray:
    how: dict[str, Any] = {
        "now_ms": NOW_MS,
        "codec": Codec.NONE,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "is_transactional": False,
    }
    return encode(key, value, **(how | changed))


@settings(deadline=None)
@given(records=RECORDS)
def test_the_bytes_are_those_of_the_encoder_that_goes_record_by_record(records: list[Record]) -> None:
    columns = columns_of(records)

    batch = encoded(**columns, producer_id=7, producer_epoch=1, base_sequence=40)

    assert batch == encode_batch(records, producer_id=7, producer_epoch=1, base_sequence=40)


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_read_by_other_clients(codec: Codec) -> None:
    records = [
        Record(
            key=None if n % 7 == 0 else b"%d" % n,
            value=None if n % 11 == 0 else b"v" * (n % 300),
            timestamp_ms=NOW_MS + n * 37 % 101,
            headers=[("h", b"1"), ("", None)] * (n % 3),
        )
        for n in range(9000)
    ]

    batch = encoded(**columns_of(records), codec=codec)

    expected = decode_batch(encode_batch(records))
    assert check_batch(batch).codec is codec
    assert decode_batch(batch) == expected
    theirs = list(AiokafkaBatch(bytearray(batch)))
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == [
        (r.offset, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for r in expected
    ]
    other = MemoryRecords(bytes(batch)).next_batch()
    assert other is not None
    assert other.validate_crc()
    assert [(r.key, r.value) for r in other] == [(r.key, r.value) for r in expected]


def test_what_is_encoded_is_decoded_to_the_same_columns() -> None:
    records = [
        Record(key=b"%d" % n, value=b"v" * n, timestamp_ms=n, headers=[("a", b"b")] * (n % 2))
        for n in range(200)
    ]
    columns = columns_of(records)

    batch = encoded(**columns)

    decoded = decode(
        bytes(batch),
        topic="t",
        partition=0,
        start=0,
        end=200,
        aborted=(),
        wanted=("key", "value", "headers", "timestamp"),
    ).batch
    assert decoded.columns == list(columns.values())


def test_who_writes_and_in_what_is_in_the_header() -> None:
    column = pa.array([b"a", b"b"])

    header = check_batch(
        encoded(
            column,
            column,
            producer_id=9,
            producer_epoch=2,
            base_sequence=5,
            is_transactional=True,
            codec=Codec.ZSTD,
        )
    )

    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
    assert header.is_transactional
    assert header.codec is Codec.ZSTD
    assert not check_batch(encoded(column, column)).is_transactional


def test_rows_without_a_time_are_of_now() -> None:
    column = pa.array([b"a", b"b", b"c"])
    times = pa.array([5_999, None, -1], pa.timestamp("us", "UTC"))

    some = encoded(column, column, timestamps=times)
    none = encoded(column, column)
    unnamed = encoded(column, column, timestamps=pa.nulls(3, pa.timestamp("us")), now_ms=None)

    assert [r.timestamp_ms for r in decode_batch(some)] == [5, NOW_MS, -1]
    assert check_batch(some).max_timestamp == NOW_MS
    assert {r.timestamp_ms for r in decode_batch(none)} == {NOW_MS}
    assert check_batch(unnamed).max_timestamp > NOW_MS - 10**12


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(), pa.binary_view()]
)
def test_any_column_of_strings_or_bytes_is_taken_and_slices_too(kind: pa.DataType) -> None:
    texts = [None if n % 5 == 0 else f"text {n}" for n in range(50)]
    column = pa.array(texts, pa.string()).cast(pa.binary()).cast(kind)

    batch = encoded(column[3:40], column[10:47])

    assert [(r.key, r.value) for r in decode_batch(batch)] == [
        (k and k.encode(), v and v.encode()) for k, v in zip(texts[3:40], texts[10:47], strict=True)
    ]


def test_a_slice_of_headers_keeps_what_is_its_own() -> None:
    records = [Record(headers=[(f"k{n}", b"v")] * (n % 4)) for n in range(50)]
    columns = {name: column[5:45] for name, column in columns_of(records).items()}

    batch = encoded(**columns)

    assert [r.headers for r in decode_batch(batch)] == [tuple(r.headers) for r in records[5:45]]


def test_a_header_without_a_key_is_refused() -> None:
    column = pa.array([b"a"])
    for bad in ([{"key": None, "value": b"v"}], [None]):
        with pytest.raises(CannotEncode, match="`headers`"):
            encoded(column, column, headers=pa.array([bad], ARROW["headers"]))


# Cutting.


@settings(deadline=None)
@given(records=RECORDS, bytes_max=st.integers(1400, 4000))
def test_no_part_makes_a_batch_that_is_too_large(records: list[Record], bytes_max: int) -> None:
    columns = columns_of(records)

    parts = cut(columns["key"], columns["value"], columns["headers"], bytes_max=bytes_max)

    rows = [row for part in parts for row in range(part.start, part.stop)]
    assert rows == list(range(len(records)))
    for part in parts:
        batch = encoded(**{name: column[part] for name, column in columns.items()})
        assert len(batch) <= bytes_max


def test_what_is_small_counts_too_when_there_is_much_of_it() -> None:
    """Times far apart, many empty headers, and the header of the batch itself."""
    times = pa.array([n % 2 * 2**50 for n in range(900)], pa.timestamp("ms", "UTC"))
    empty = pa.nulls(900, pa.binary())
    headers = pa.array([[{"key": "", "value": None}] * 60] * 900, ARROW["headers"])
    for timestamps, some in ((times, None), (None, headers)):
        for part in cut(empty, empty, some, bytes_max=1000):
            batch = encoded(
                empty[part],
                empty[part],
                headers=None if some is None else some[part],
                timestamps=None if timestamps is None else timestamps[part],
            )
            assert len(batch) <= 1000
    sent = 0
    for size in range(850, 1000):
        value = pa.array([b"v" * size])
        try:
            cut(empty[:1], value, bytes_max=1000)
        except CannotEncode:
            continue
        sent += 1
        assert len(encoded(empty[:1], value)) <= 1000
    assert 40 < sent < 100


def test_batches_are_filled_before_another_is_begun() -> None:
    value = pa.array([b"v" * 100] * 1000)

    parts = cut(pa.nulls(1000, pa.binary()), value, bytes_max=10_000)

    sizes = [len(encoded(pa.nulls(1000, pa.binary())[part], value[part])) for part in parts]
    assert min(sizes[:-1]) > 7_000
    assert cut(pa.array([], pa.binary()), pa.array([], pa.binary()), bytes_max=1000) == []


def test_a_row_that_fits_no_batch_is_refused_with_its_setting() -> None:
    value = pa.array([b"fine", b"v" * 2000])

    with pytest.raises(CannotEncode, match=r"row 1 takes 2\d+ .* kafka\.max\.request\.size"):
        cut(pa.nulls(2, pa.binary()), value, bytes_max=2000)


def test_the_varints_of_large_batches_are_right() -> None:
    """Offsets of three bytes, sizes of one to three, and words that are full."""
    rng = np.random.default_rng(1)
    records = [
        Record(key=b"k" * int(k), value=b"v" * int(v), timestamp_ms=int(t))
        for k, v, t in zip(
            rng.integers(0, 200, 9000),
            rng.integers(0, 60, 9000) ** 2 * 3,
            rng.integers(0, 2**50, 9000),
            strict=True,
        )
    ]

    assert encoded(**columns_of(records)) == encode_batch(records)
