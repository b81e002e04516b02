"""Rows cut by partition: each row once, where pyiceberg itself would put it."""

import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _determine_partitions, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
)

from tidelog.spark.tables.layout import Layout, partition_spec
from tidelog.spark.tables.splitting import Splitter

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "on", DateType()),
    NestedField(5, "price", DecimalType(10, 2)),
    NestedField(6, "raw", BinaryType()),
)


def rows(count: int = 60) -> pa.Table:
    """Rows of all kinds of values; every seventh has none but its id."""

    def row(at: int) -> dict[str, Any]:
        if at % 7 == 6:
            return {"id": at}
        return {
            "id": at,
            "region": ["north", "süd", ""][at % 3],
            "at": datetime(2026 - at % 2, 1 + at % 3, 1 + at % 5, at % 24, tzinfo=UTC),
            "on": date(1969 + at % 3, 12, 31),
            "price": Decimal(at - 30) / 4,
            "raw": bytes([at % 4]),
        }

    schema = schema_to_pyarrow(SCHEMA, include_field_ids=False)
    return pa.Table.from_pylist([row(at) for at in range(count)], schema)


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(record[at] for at in range(len(record)))


def splitter(*partition_by: str, order: tuple[tuple[str, str], ...] = ()) -> Splitter:
    return Splitter(SCHEMA, partition_spec(Layout.parse(partition_by, []).partition_by, SCHEMA), order)


@pytest.mark.parametrize(
    "partition_by",
    [
        ["region"],
        ["at"],
        ["on"],
        ["price"],
        ["raw"],
        ["year(at)", "bucket(4, region)"],
        ["month(on)"],
        ["day(at)"],
        ["hour(at)"],
        ["bucket(3, id)"],
        ["bucket(3, price)"],
        ["truncate(1, region)", "truncate(10, id)"],
        ["truncate(50, price)"],
    ],
)
def test_rows_are_in_the_partition_that_iceberg_gives_them(partition_by: list[str]) -> None:
    split = pickle.loads(pickle.dumps(splitter(*partition_by)))

    found = {part.values: part.rows["id"].to_pylist() for part in split.split(rows())}

    theirs = {
        _values(one.partition_key.partition): one.arrow_table_partition["id"].to_pylist()
        for one in _determine_partitions(split.spec, SCHEMA, rows())
    }
    assert found == theirs
    assert sorted(id for ids in found.values() for id in ids) == list(range(60))


def test_rows_are_sorted_within_their_partition() -> None:
    split = splitter("bucket(2, id)", order=(("region", "ascending"), ("id", "descending")))

    for part in split.split(rows()):
        found = [(one["region"], one["id"]) for one in part.rows.to_pylist()]
        assert found == sorted(found, key=lambda one: (one[0] is None, one[0] or "", -one[1]))


def test_a_table_without_partitions_is_one_part() -> None:
    plain = splitter()

    assert not plain
    assert [part.values for part in plain.split(rows(3))] == [()]


def test_partitions_of_other_engines_are_understood() -> None:
    schema = Schema(
        NestedField(1, "a", StructType(NestedField(2, "b", LongType()))), NestedField(3, "c", LongType())
    )
    nested = PartitionSpec(
        PartitionField(3, 1000, VoidTransform(), "gone"),
        *partition_spec(Layout.parse(["c"], []).partition_by, schema).fields,
        PartitionField(2, 1002, BucketTransform(2), "a.b_bucket"),
    )
    given = pa.table({"a": [{"b": 34}, {"b": 35}, None], "c": [1, 1, 1]})

    found = {part.values: part.rows.num_rows for part in Splitter(schema, nested).split(given)}

    assert sum(found.values()) == 3
    assert all(values[0] is None and values[1] == 1 for values in found)
    assert (None, 1, None) in found


def test_bytes_and_times_of_day_are_cut_too() -> None:
    schema = Schema(NestedField(1, "raw", BinaryType()), NestedField(2, "at", TimeType()))
    given = {"raw": [b"abc", b"abd", b"", None], "at": [time(1), time(1), None, time(2)]}
    table = pa.table(given, schema_to_pyarrow(schema, include_field_ids=False))
    wanted = Layout.parse(["truncate(2, raw)", "bucket(4, at)"], []).partition_by

    parts = list(Splitter(schema, partition_spec(wanted, schema)).split(table))

    bucket = BucketTransform(4).transform(TimeType())
    one, two = (bucket(hours * 3_600_000_000) for hours in (1, 2))
    assert {part.values for part in parts} == {(b"ab", one), (b"", None), (None, two)}
    assert sum(part.rows.num_rows for part in parts) == 4
