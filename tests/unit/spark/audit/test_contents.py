"""Records by their hashes: equal where the records are, and nowhere else."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.records import Codec, Marker, Record, encode_batch, encode_marker, read_header
from tidelog.spark.audit import hashing
from tidelog.spark.audit.contents import contents_of
from tidelog.spark.audit.hashing import hash_each


def told(*records: Record, **more: Any) -> list[dict[str, Any]]:
    batch = memoryview(bytes(encode_batch(list(records), **more)))
    found: list[dict[str, Any]] = contents_of(read_header(batch), batch).to_pylist()
    return found


BASE = Record(key=b"k", value=b"v", headers=(("a", b"1"), ("b", None)), timestamp_ms=5)
OTHERS = [
    Record(key=b"K", value=b"v", headers=BASE.headers, timestamp_ms=5),
    Record(key=None, value=b"v", headers=BASE.headers, timestamp_ms=5),
    Record(key=b"k", value=b"w", headers=BASE.headers, timestamp_ms=5),
    Record(key=b"k", value=None, headers=BASE.headers, timestamp_ms=5),
    Record(key=b"k", value=b"", headers=BASE.headers, timestamp_ms=5),
    Record(key=b"kv", value=b"", headers=BASE.headers, timestamp_ms=5),
    Record(key=b"k", value=b"v", headers=BASE.headers, timestamp_ms=6),
    Record(key=b"k", value=b"v", headers=(), timestamp_ms=5),
    Record(key=b"k", value=b"v", headers=(("b", None), ("a", b"1")), timestamp_ms=5),
    Record(key=b"k", value=b"v", headers=(("a", b"1"), ("b", b"")), timestamp_ms=5),
    Record(key=b"k", value=b"v", headers=(("a", b"1"),), timestamp_ms=5),
]


def test_equal_records_have_equal_hashes_in_whatever_batch():
    (alone,) = told(BASE, base_offset=7)
    _, among, _ = told(OTHERS[0], BASE, OTHERS[1], base_offset=6, codec=Codec.ZSTD, leader_epoch=9)

    assert alone == among


@pytest.mark.parametrize("other", OTHERS)
def test_whatever_is_another_in_a_record_is_another_hash(other):
    (one,), (two,) = told(BASE), told(other)

    assert one["content"] != two["content"]
    assert (one["key"] == two["key"]) == (BASE.key == other.key)


def test_what_has_no_key_or_value_says_so():
    found = told(Record(key=None, value=b"v"), Record(key=b"k", value=None))

    assert [(one["key"] is None, one["is_tombstone"]) for one in found] == [(True, False), (False, True)]


def test_markers_have_no_key_and_tell_commits_from_aborts():
    both = []
    for commits in (True, False):
        marker = Marker(commits=commits, coordinator_epoch=1)
        batch = memoryview(bytes(encode_marker(marker, producer_id=1, producer_epoch=0, now_ms=3)))
        both += contents_of(read_header(batch), batch).to_pylist()

    assert [one["key"] for one in both] == [None, None]
    assert both[0]["content"] != both[1]["content"]


def test_hashes_do_not_depend_on_neighbours_nor_on_how_much_is_hashed_at_a_time(monkeypatch):
    seed = random.Random(20261116)
    strings = [seed.randbytes(seed.choice([0, 1, 3, 50, 400])) for _ in range(300)]
    whole = hash_each(pa.array(strings, pa.binary()))
    sliced = hash_each(pa.array([b"x", *strings], pa.binary()).slice(1))
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 100)
    pieces = hash_each(pa.array(strings, pa.binary()))

    assert np.array_equal(whole, sliced)
    assert np.array_equal(whole, pieces)
    assert len(set(whole.tolist())) == len(set(strings))
