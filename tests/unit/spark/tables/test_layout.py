"""How tables are laid out, as people write it and as Iceberg has it."""

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType, TimestamptzType

from tidelog.spark.tables.layout import Layout, LayoutError, Partition, Sort, partition_spec, sort_order

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "total", DoubleType()),
    NestedField(5, "at_month", StringType()),
    NestedField(6, "more", StructType(NestedField(7, "x", LongType()))),
)


@pytest.mark.parametrize(
    ("text", "partition", "name"),
    [
        ("region", Partition("region"), "region"),
        ("identity(region)", Partition("region"), "region"),
        ("day(at)", Partition("at", "day"), "at_day"),
        (" Hour( at ) ", Partition("at", "hour"), "at_hour"),
        ("bucket(16, id)", Partition("id", "bucket", 16), "id_bucket"),
        ("bucket[16](id)", Partition("id", "bucket", 16), "id_bucket"),
        ("truncate(2,region)", Partition("region", "truncate", 2), "region_trunc"),
    ],
)
def test_a_partition_is_a_column_or_a_transform_of_one(text: str, partition: Partition, name: str) -> None:
    (found,) = Layout.parse([text], []).partition_by

    assert (found, found.name) == (partition, name)
    assert Layout.parse([str(found)], []).partition_by == (found,)
    (field,) = partition_spec([found], SCHEMA).fields
    assert field.name == name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("days(at)", "there is no transform days; there are identity, year, month, day, hour"),
        ("day(at", r"'day\(at' is not one of COLUMN"),
        ("day(4, at)", "day takes no number"),
        ("bucket(id)", r"say bucket\(NUMBER, COLUMN\)"),
        ("bucket[4](4, id)", r"say bucket\(NUMBER, COLUMN\)"),
        ("bucket(0, id)", "bucket takes a number from 1"),
        ("", "is not one of COLUMN"),
    ],
)
def test_a_partition_that_is_none_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(LayoutError, match=complaint):
        Layout.parse([text], [])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("none", "there is no column none; the table has id, region, at, total"),
        ("more.x", "there is no column more.x"),
        ("day(region)", "region is of type string, which day does not take"),
        ("total", "total is of type double, which identity does not take"),
        ("month(at)", "the table has a column of that name"),
    ],
)
def test_a_partition_that_the_columns_do_not_have_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(LayoutError, match=complaint):
        partition_spec(Layout.parse([text], []).partition_by, SCHEMA)


def test_nothing_is_named_twice() -> None:
    with pytest.raises(LayoutError, match="partition_by: id_bucket comes twice"):
        Layout.parse(["bucket(4, id)", "bucket(8, id)"], [])
    with pytest.raises(LayoutError, match="sort_by: id comes twice"):
        Layout.parse([], ["id", "id desc"])


def test_rows_are_sorted_by_columns() -> None:
    wanted = Layout.parse([], ["at DESC", "id asc"]).sort_by

    assert wanted == (Sort("at", True), Sort("id"))
    told = [(one.source_id, one.direction.value) for one in sort_order(wanted, SCHEMA).fields]
    assert told == [(3, "desc"), (1, "asc")]
    with pytest.raises(LayoutError, match="'id down' is neither COLUMN nor COLUMN desc"):
        Layout.parse([], ["id down"])
    with pytest.raises(LayoutError, match=r"more is of type struct.* which has no order"):
        sort_order([Sort("more")], SCHEMA)
    with pytest.raises(LayoutError, match="sort_by: there is no column none"):
        sort_order([Sort("none")], SCHEMA)
