"""Ranges of records, measured: sums that add up however ranges are cut."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tidelog.groups.records import CommittedOffset, GroupWritten, OffsetWritten, encode
from tidelog.model import TopicPartition
from tidelog.records import Codec, Record, encode_batch, iterate_batches
from tidelog.spark.analysis.commits import measure_commits, read_key
from tidelog.spark.analysis.measure import WANTED, Kind, Measure, Size, add_up, powers_of_two
from tidelog.spark.decode import decode
from tidelog.spark.ranges import OffsetRange


def batches(*, codec: Codec = Codec.NONE) -> bytes:
    """Three batches of ten records, a second apart."""
    parts = []
    for number in range(3):
        records = [
            Record(key=b"k%d" % (n % 3), value=b"v" * n, timestamp_ms=1000 * number + n) for n in range(10)
        ]
        parts.append(bytes(encode_batch(records, codec=codec, base_offset=10 * number)))
    return b"".join(parts)


def measured(data: bytes, *cuts: int) -> pa.Table:
    """The sums of ranges that are cut there."""
    tables = []
    for start, end in pairwise(cuts):
        measure = Measure("t", 0)
        found = decode(data, topic="t", partition=0, start=start, end=end, aborted=(), wanted=WANTED)
        headers = [header for header, _ in iterate_batches(data) if header.next_offset > start]
        measure.add(found.batch, headers, OffsetRange("t", 0, start, end))
        tables.append(measure.table())
    return add_up(pa.concat_tables(tables))


def rows(table: pa.Table, kind: Kind) -> list[dict[str, object]]:
    found = [row for row in table.to_pylist() if row["kind"] == kind]
    return sorted(found, key=lambda row: (row["place"] or 0, row["what"] or "", row["key"] or b""))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_sums_are_the_same_however_ranges_are_cut(codec):
    data = batches(codec=codec)

    whole, parts = measured(data, 0, 30), measured(data, 0, 7, 10, 25, 30)

    for kind in Kind:
        assert rows(whole, kind) == rows(parts, kind)


def test_batches_are_told_by_second_and_codec():
    data = batches(codec=Codec.LZ4)

    found = rows(measured(data, 0, 30), Kind.BATCH)

    assert [(row["place"], row["what"], row["batches"]) for row in found] == [
        (0, "lz4", 1),
        (1, "lz4", 1),
        (2, "lz4", 1),
    ]
    assert sum(int(str(row["stored"])) for row in found) == len(data)
    assert [row["payload"] for row in found] == [sum(range(10)) + 20] * 3
    assert [row["end"] for row in found] == [10, 20, 30]


def test_keys_and_sizes_are_counted():
    table = measured(batches(), 0, 30)

    keys = {row["key"]: row["records"] for row in rows(table, Kind.KEY)}
    assert keys == {b"k0": 12, b"k1": 9, b"k2": 9}
    sizes = [row for row in rows(table, Kind.SIZE) if row["what"] == Size.VALUE]
    assert [(row["place"], row["records"]) for row in sizes] == [(0, 3), (1, 3), (2, 6), (3, 12), (4, 6)]
    (in_batches,) = [row for row in rows(table, Kind.SIZE) if row["what"] == Size.BATCH_RECORDS]
    assert (in_batches["records"], in_batches["payload"]) == (3, 30)


def test_a_power_of_two_is_the_least_that_is_larger():
    sizes = np.array([0, 1, 2, 3, 4, 1023, 1024])

    assert powers_of_two(sizes).tolist() == [0, 1, 2, 2, 3, 10, 11]


def commit_rows() -> pa.RecordBatch:
    place = TopicPartition("orders", 3)
    written = [
        OffsetWritten(group_id="g", place=place, value=CommittedOffset(offset=offset, committed_ms=time_ms))
        for offset, time_ms in ((5, 1000), (7, 1900), (9, 2000))
    ]
    records = [encode(one, one.value.committed_ms) for one in written if one.value]
    records.append(encode(GroupWritten(group_id="g", value=None), 2100))
    records.append(encode(OffsetWritten(group_id="g", place=place, value=None), 2200))
    data = bytes(encode_batch(records))
    return decode(data, topic="c", partition=0, start=0, end=99, aborted=(), wanted=WANTED).batch


def test_the_last_commit_of_each_second_is_kept_and_nothing_else():
    found = measure_commits(commit_rows(), "c", 0).to_pylist()

    assert [(row["place"], row["end"]) for row in found] == [(1, 7), (2, 9)]
    assert read_key(found[0]["key"]) == ("g", TopicPartition("orders", 3))


def test_rows_without_commits_measure_nothing():
    assert measure_commits(commit_rows().slice(3), "c", 0).num_rows == 0


def test_a_key_that_makes_no_sense_names_nobody():
    assert read_key(b"\0\1\0") is None
    assert read_key(b"\0\2\0\1g") is None
