import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.partitioner import partition_for
from tidelog.spark.partitioning import group_rows, partitions_of

KEYS = st.lists(st.none() | st.binary(max_size=9) | st.binary(max_size=70), max_size=60)


def expected(keys: list[bytes | None], count: int, first: int) -> list[int]:
    return [first % count if key is None else partition_for(key, count) for key in keys]


@settings(deadline=None)
@given(keys=KEYS, count=st.integers(1, 40) | st.just(100_000), first=st.integers(0, 100))
def test_a_key_goes_where_every_client_sends_it(keys: list[bytes | None], count: int, first: int) -> None:
    places = partitions_of(pa.array(keys, pa.binary()), count, first=first)

    assert places.dtype == np.int32
    assert places.tolist() == expected(keys, count, first)


@pytest.mark.parametrize("size", range(10))
def test_keys_of_one_length_are_hashed_together(size: int) -> None:
    keys = [bytes((7 * n + i) % 256 for i in range(size)) for n in range(100)]

    places = partitions_of(pa.array(keys, pa.binary()), 12, first=0)

    assert places.tolist() == expected(list(keys), 12, 0)


def test_few_keys_that_are_much_longer_than_the_rest_come_out_right() -> None:
    keys = [b"x" * 5_000 + b"%d" % n if n % 20 == 0 else b"%d" % n for n in range(100)]

    places = partitions_of(pa.array(keys, pa.binary()), 12, first=0)

    assert places.tolist() == expected(list(keys), 12, 0)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_string(), pa.large_binary()])
def test_strings_and_large_columns_and_slices_of_them_are_taken_as_they_are(kind: pa.DataType) -> None:
    texts = [None if n % 3 == 0 else f"key-{n}" for n in range(90)]
    keys = pa.array(texts, pa.string()).cast(pa.binary()).cast(kind)

    places = partitions_of(keys[7:80], 6, first=4)

    assert places.tolist() == expected([t.encode() if t else None for t in texts[7:80]], 6, 4)


def test_a_slice_is_hashed_from_where_it_begins() -> None:
    keys = [b"%d" % (n * n) for n in range(60)]

    places = partitions_of(pa.array(keys)[20:50], 6, first=0)

    assert places.tolist() == expected(list(keys[20:50]), 6, 0)


def test_rows_without_a_key_stay_together() -> None:
    assert partitions_of(pa.nulls(4, pa.binary()), 3, first=5).tolist() == [2, 2, 2, 2]
    assert partitions_of(pa.array([], pa.binary()), 3, first=5).tolist() == []


@pytest.mark.parametrize("last", [3, 2**16 + 1])
def test_groups_keep_the_order_of_rows(last: int) -> None:
    places = np.array([2, 0, 2, last, 0, 2], np.int32)

    groups = [(place, rows.tolist()) for place, rows in group_rows(places, last + 1)]

    assert groups == [(0, [1, 4]), (2, [0, 2, 5]), (last, [3])]


def test_one_partition_is_one_group_and_no_rows_are_none() -> None:
    ((place, rows),) = group_rows(np.full(3, 7, np.int32), 8)

    assert (place, rows.tolist()) == (7, [0, 1, 2])
    assert group_rows(np.empty(0, np.int32), 8) == []
