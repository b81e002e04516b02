import datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tidelog.spark.filters import take
from tidelog.spark.ranges import OffsetRange

RANGES = [OffsetRange("a", 0, 10, 20), OffsetRange("a", 1, 0, 5), OffsetRange("b", 0, 0, 100)]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([GreaterThan(("offset",), 12), LessThan(("offset",), 15)], [(13, 15), (13, 13), (13, 15)]),
        (
            [GreaterThanOrEqual(("offset",), 12), LessThanOrEqual(("offset",), 15)],
            [(12, 16), (12, 12), (12, 16)],
        ),
        ([EqualTo(("offset",), 4)], [(10, 10), (4, 5), (4, 5)]),
        ([In(("offset",), (4, 12, 17))], [(12, 18), (4, 5), (4, 18)]),
        ([In(("offset",), (4, 12)), EqualTo(("offset",), 17)], [(10, 10), (0, 0), (0, 0)]),
    ],
)
def test_offsets_bound_the_ranges(filters, left):
    wanted, unmet = take(filters)

    assert unmet == []
    for narrowed, (start, end), whole in zip(wanted.narrow(RANGES), left, RANGES, strict=True):
        if start == end:
            assert narrowed.count == 0
        else:
            assert narrowed == OffsetRange(whole.topic, whole.partition, start, end)


def test_topics_and_partitions_drop_whole_ranges():
    assert take([EqualTo(("topic",), "a")])[0].narrow(RANGES) == RANGES[:2]
    assert take([In(("topic",), ("a", "b")), EqualTo(("topic",), "b")])[0].narrow(RANGES) == [RANGES[2]]
    assert take([LessThan(("partition",), 1)])[0].narrow(RANGES) == [RANGES[0], RANGES[2]]
    assert take([In(("partition",), (1,))])[0].narrow(RANGES) == [RANGES[1]]


def test_keys_and_named_offsets_are_looked_up_in_the_rows():
    batch = pa.RecordBatch.from_pydict(
        {"key": pa.array([b"a", None, b"b", b"a"]), "offset": pa.array([1, 2, 3, 4])}
    )
    wanted, unmet = take([EqualTo(("key",), b"a")])
    assert unmet == []
    assert wanted.rows(batch).column("offset").to_pylist() == [1, 4]

    wanted, _ = take([In(("key",), (b"a", b"b")), In(("offset",), (2, 3, 9))])
    assert wanted.rows(batch).column("offset").to_pylist() == [3]


def test_a_time_says_where_to_begin_and_spark_looks_again():
    time = datetime.datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=datetime.UTC)
    filters = [GreaterThan(("timestamp",), time), GreaterThan(("timestamp",), time.replace(year=2025))]

    wanted, unmet = take(filters)

    assert wanted.from_time_ms == 1767225600001
    assert unmet == filters


def test_what_never_is_null_needs_no_looking_at():
    assert take([IsNotNull(("offset",)), IsNotNull(("topic",))])[1] == []


@pytest.mark.parametrize(
    "one",
    [
        IsNotNull(("key",)),
        Not(EqualTo(("offset",), 3)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("offset",), 3.5),
        EqualTo(("key",), "text"),
        EqualTo(("headers", "key"), "x"),
        LessThan(("timestamp",), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        EqualTo(("value",), b"x"),
        EqualTo(("partition",), None),
        In(("offset",), (1, None)),
    ],
)
def test_what_is_not_understood_is_left_to_spark(one):
    wanted, unmet = take([one])

    assert unmet == [one]
    assert wanted.narrow(RANGES) == RANGES
