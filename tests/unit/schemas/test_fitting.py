"""Columns as the values that an Avro schema has."""

import datetime
import decimal

import fastavro
import pyarrow as pa
import pytest

from tidelog.schemas.avro_types import arrow_type
from tidelog.schemas.fitting import fitted
from tidelog.schemas.problems import DoesNotFit

MS = {"type": "long", "logicalType": "timestamp-millis"}
US = {"type": "long", "logicalType": "timestamp-micros"}
DAY = {"type": "int", "logicalType": "date"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
TIME = pa.timestamp("us", "UTC")
BEFORE_1970 = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=datetime.UTC)


def fit(kind, values, wanted):
    named: dict = {}
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": wanted}]}
    node = fastavro.parse_schema(record, named_schemas=named)
    column = pa.array([{"a": value} for value in values], pa.struct([("a", kind)]))
    made = fitted(column, arrow_type(node, named), "Avro")
    made.validate(full=True)
    return [row["a"] for row in made.to_pylist(maps_as_pydicts="strict")]


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (pa.int64(), 2**40, "int"),
        (pa.float64(), 1.9, "int"),
        (pa.float64(), 1e39, "float"),
        (pa.decimal128(10, 2), decimal.Decimal("1.90"), "long"),
        (pa.decimal128(10, 4), decimal.Decimal("1.9012"), MONEY),
        (pa.decimal128(10, 0), decimal.Decimal(12345), MONEY),
        (pa.string(), "false", "boolean"),
        (pa.int32(), 5, "boolean"),
        (pa.bool_(), None, "boolean"),
        (pa.int32(), 5, "null"),
        (pa.string(), "abc", {"type": "array", "items": "string"}),
        (pa.list_(pa.int64()), [2**40], {"type": "array", "items": "int"}),
        (pa.list_(pa.bool_()), [None], {"type": "array", "items": "boolean"}),
        (pa.string(), "2026-01-01", DAY),
        (pa.map_(pa.int32(), pa.int32()), [(1, 1)], {"type": "map", "values": "int"}),
    ],
)
def test_what_the_schema_cannot_say_as_it_is_is_refused_with_its_name(kind, value, wanted):
    with pytest.raises(DoesNotFit, match=r"the Avro schema cannot say it: a(\[\])?\b"):
        fit(kind, [value], wanted)


@pytest.mark.parametrize(
    ("kind", "value", "wanted", "made"),
    [
        (pa.int64(), 2**31 - 1, "int", 2**31 - 1),
        (pa.int32(), 7, ["null", "double"], 7.0),
        (pa.decimal128(10, 4), decimal.Decimal("1.9000"), MONEY, decimal.Decimal("1.90")),
        (pa.decimal128(10, 2), decimal.Decimal("1.90"), "double", decimal.Decimal("1.90")),
        (TIME, BEFORE_1970, MS, -1),
        (TIME, BEFORE_1970, US, -500),
        (pa.list_(TIME), [BEFORE_1970, None], {"type": "array", "items": ["null", MS]}, [-1, None]),
        (
            pa.map_(pa.string(), pa.date32()),
            [("k", datetime.date(1969, 12, 31))],
            {"type": "map", "values": DAY},
            {"k": -1},
        ),
        (
            pa.list_(pa.struct([("b", TIME)])),
            [{"b": BEFORE_1970}, None],
            {
                "type": "array",
                "items": ["null", {"type": "record", "name": "Q", "fields": [{"name": "b", "type": MS}]}],
            },
            [{"b": -1}, None],
        ),
    ],
)
def test_times_are_counts_and_numbers_as_wide_as_the_schema_says(kind, value, wanted, made):
    assert fit(kind, [value], wanted) == [made]
    wanted = wanted if isinstance(wanted, list) else ["null", wanted]
    assert fit(kind, [None, value, None, value], wanted) == [None, made, None, made]


def test_years_that_python_has_not_are_written():
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": US}]}
    times = pa.array([2**62, -(2**62)]).cast(TIME)
    made = fitted(
        pa.StructArray.from_arrays([times], ["a"]), arrow_type(fastavro.parse_schema(record)), "Avro"
    )
    assert made.to_pylist() == [{"a": 2**62}, {"a": -(2**62)}]


def test_a_field_that_the_schema_has_not_is_refused():
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    with pytest.raises(DoesNotFit, match="it has no field b"):
        fitted(pa.array([{"a": 1, "b": 2}]), arrow_type(fastavro.parse_schema(record)), "Avro")


def test_a_slice_of_a_column_has_its_own_rows():
    record = {"type": "array", "items": MS}
    column = pa.array([[1000], None, [2000, 3000]], pa.list_(TIME)).slice(1)
    assert fitted(column, arrow_type(fastavro.parse_schema(record)), "Avro").to_pylist() == [None, [2, 3]]
