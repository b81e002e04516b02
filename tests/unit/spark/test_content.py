import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.content import NOTHING, Content, content_of

TEXTS = st.one_of(st.none(), st.binary(max_size=40))
RECORDS = st.lists(st.tuples(TEXTS, TEXTS), max_size=30)


def content(records) -> Content:
    keys, values = ([record[n] for record in records] for n in (0, 1))
    return content_of(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))


@given(RECORDS, st.randoms(use_true_random=False), st.integers(0, 30))
def test_neither_the_order_nor_the_cut_matters(records, dice: random.Random, at: int):
    shuffled = dice.sample(records, len(records))

    assert content(shuffled[:at]) + content(shuffled[at:]) == content(records)


@given(RECORDS, RECORDS)
def test_other_records_are_something_else(one, other):
    is_same = sorted(one, key=repr) == sorted(other, key=repr)

    assert (content(one) == content(other)) == is_same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([b"1", b"4"], [b"2", b"3"]),
        ([b"ab", b"c"], [b"a", b"bc"]),
        ([b"ab"], [b"ba"]),
        ([b""], [None]),
        ([b"same beginning, same end 1 2 same end"], [b"same beginning, same end 1 3 same end"]),
        ([bytes(30) + b"\x01" + bytes(60)], [bytes(30) + b"\x02" + bytes(60)]),
    ],
)
def test_records_of_the_same_size_are_told_apart(one, other):
    assert content([(None, value) for value in one]) != content([(None, value) for value in other])


def test_a_key_is_no_value():
    assert content([(b"a", b"b")]) != content([(b"b", b"a")])
    assert content([(b"a", b"b"), (b"c", b"d")]) != content([(b"a", b"d"), (b"c", b"b")])


def test_a_slice_is_what_it_shows():
    values = pa.array([b"left", b"right", None], pa.binary())
    keys = pa.nulls(3, pa.binary())

    assert content_of(keys[1:2], values[1:2]) == content([(None, b"right")])
    assert content_of(keys[:0], values[:0]) == NOTHING
    assert content_of(keys, values.cast(pa.string())) == content_of(keys, values)


def test_rows_and_bytes_are_counted():
    found = content([(b"k", b"value"), (None, b"v")])

    assert (found.rows, found.key_bytes, found.value_bytes) == (2, 1, 6)
    assert found.bytes_sum == sum(b"kvaluev")
