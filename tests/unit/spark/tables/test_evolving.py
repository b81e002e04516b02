"""What a source's columns do to a table: it follows, or refuses, and loses nothing."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from tests.unit.spark.tables.lake import NAME, append, make, numbers
from tidelog.spark.tables.evolving import Unfit, changes, evolve


def schema(**columns: IcebergType) -> Schema:
    return Schema(*(NestedField(at, name, kind) for at, (name, kind) in enumerate(columns.items())))


def struct(**columns: IcebergType) -> StructType:
    return StructType(*schema(**columns).fields)


def listed(kind: IcebergType) -> ListType:
    return ListType(100, kind, False)


def mapped(key: IcebergType, value: IcebergType) -> MapType:
    return MapType(101, key, 102, value, False)


INT, LONG, FLOAT, DOUBLE, TEXT = (IntegerType(), LongType(), FloatType(), DoubleType(), StringType())


@pytest.mark.parametrize(
    ("there", "comes", "told"),
    [
        (LONG, LONG, []),
        (INT, LONG, ["a becomes long"]),
        (LONG, INT, []),
        (FLOAT, DOUBLE, ["a becomes double"]),
        (DOUBLE, FLOAT, []),
        (DecimalType(9, 2), DecimalType(12, 2), ["a becomes decimal(12, 2)"]),
        (DecimalType(12, 2), DecimalType(9, 2), []),
        (DecimalType(9, 2), DecimalType(9, 3), ["a is decimal(9, 2) in the table, and"]),
        (TEXT, LONG, ["a is string in the table, and long in the source"]),
        (LONG, DOUBLE, ["a is long in the table, and double in the source"]),
        (struct(x=INT), struct(x=LONG, y=TEXT), ["a.x becomes long", "a.y is new, of type string"]),
        (struct(x=INT, y=INT), struct(y=INT), []),
        (listed(INT), listed(LONG), ["a.element becomes long"]),
        (listed(struct(x=INT)), listed(struct(y=INT)), ["a.element.y is new, of type int"]),
        (mapped(TEXT, INT), mapped(TEXT, LONG), ["a.value becomes long"]),
        (mapped(INT, INT), mapped(LONG, INT), ["a.key is int in the table, and long"]),
        (listed(INT), INT, ["a is list<int> in the table, and int in the source"]),
    ],
)
def test_a_type_follows_only_where_no_value_is_lost(
    there: IcebergType, comes: IcebergType, told: list[str]
) -> None:
    found = [str(one) for one in changes(schema(a=there), schema(a=comes))]

    assert len(found) == len(told)
    assert all(one.startswith(text) for one, text in zip(found, told, strict=True)), found


def test_columns_come_and_stay_and_differ_by_more_than_case() -> None:
    there = schema(a=LONG, b=LONG)

    assert [str(one) for one in changes(there, schema(b=LONG, c=TEXT))] == ["c is new, of type string"]
    (refused,) = changes(there, schema(a=LONG, B=LONG))
    assert str(refused) == "B differs from b of the table in upper and lower case only"


def test_a_column_that_must_not_be_null_may_be_or_must_come() -> None:
    there = Schema(NestedField(1, "a", LONG, required=True))

    assert [str(one) for one in changes(there, schema(a=LONG))] == ["a may be null"]
    (refused,) = changes(there, schema(b=LONG))[1:]
    assert str(refused).startswith("a must not be null in the table, and the source has no such")


COLUMNS: dict[str, IcebergType] = {"number": LONG, "text": TEXT}


def test_a_table_gets_new_columns_and_wider_types_and_older_rows_stay(tmp_path: Path) -> None:
    narrow = pa.schema([("number", pa.int32()), ("text", pa.string())])
    catalog = make(tmp_path, schema=narrow)
    table = catalog.load_table(NAME)
    table.append(pa.table({"number": [1], "text": ["a"]}, schema=narrow))
    nested = struct(x=INT, y=listed(struct(z=TEXT)))

    evolve(table, schema(**COLUMNS, more=nested))
    evolve(catalog.load_table(NAME), schema(**COLUMNS, more=struct(y=listed(struct(w=LONG)))))

    table = catalog.load_table(NAME)
    assert str(table.schema().find_type("number")) == "long"
    assert str(table.schema().find_type("more.y.element.w")) == "long"
    assert table.scan().to_arrow().to_pylist() == [{"number": 1, "text": "a", "more": None}]


def test_a_file_that_tells_columns_by_name_is_read_after_an_evolution(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    append(catalog, 1)  # without ids of columns

    evolve(catalog.load_table(NAME), schema(**COLUMNS, more=TEXT))
    append(catalog, 2)

    assert numbers(catalog.load_table(NAME)) == [1, 2]


def test_a_refusal_names_all_columns_and_changes_nothing(tmp_path: Path) -> None:
    table = make(tmp_path).load_table(NAME)

    with pytest.raises(Unfit, match=r"number is long .* string in the source; text is string"):
        evolve(table, schema(number=TEXT, text=LONG, more=TEXT))

    assert table.refresh().schema().column_names == ["number", "text"]


def test_two_who_evolve_a_table_at_once_both_get_their_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    commit = SqlCatalog.commit_table

    def outpaced(*told: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        evolve(catalog.load_table(NAME), schema(**COLUMNS, theirs=LONG))
        raise CommitFailedException("the table has another schema by now")

    monkeypatch.setattr(SqlCatalog, "commit_table", outpaced)

    evolve(catalog.load_table(NAME), schema(**COLUMNS, ours=LONG))

    names = catalog.load_table(NAME).schema().column_names
    assert sorted(names) == ["number", "ours", "text", "theirs"]


def test_elements_and_values_that_must_not_be_null_may_be() -> None:
    there = schema(a=ListType(100, INT, True), b=MapType(101, TEXT, 102, INT, True))

    found = [str(one) for one in changes(there, schema(a=listed(INT), b=mapped(TEXT, INT)))]

    assert found == ["a.element may be null", "b.value may be null"]
    assert not changes(there, there)


def test_new_columns_differ_from_each_other_and_from_partitions_by_more_than_case(tmp_path: Path) -> None:
    table = make(tmp_path).load_table(NAME)
    with table.update_spec() as update:
        update.add_field("number", BucketTransform(4), "part")

    with pytest.raises(Unfit, match=r"X differs from x of the table in upper and lower case only"):
        evolve(table, schema(**COLUMNS, x=LONG, X=LONG))
    with pytest.raises(Unfit, match=r"part is what a partition of the table is called"):
        evolve(table, schema(**COLUMNS, part=LONG))

    assert table.refresh().schema().column_names == ["number", "text"]


def test_a_column_that_identifies_rows_stays_without_nulls(tmp_path: Path) -> None:
    number = NestedField(1, "number", LONG, required=True)
    catalog = make(tmp_path, schema=Schema(number, identifier_field_ids=[1]))

    evolve(catalog.load_table(NAME), Schema(number, NestedField(2, "more", TEXT)))
    with pytest.raises(Unfit, match=r"number identifies the rows .*coalesce"):
        evolve(catalog.load_table(NAME), schema(number=LONG))

    assert catalog.load_table(NAME).schema().column_names == ["number", "more"]
