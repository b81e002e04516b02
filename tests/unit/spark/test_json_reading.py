"""The edges of JSON values; tests/spark/test_json.py compares them with Spark's own."""

import datetime

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType

from tidelog.spark.json_reading import CORRUPT, JsonReader
from tidelog.spark.json_times import timestamp_us, zone
from tidelog.spark.json_writing import json_objects


def read(*documents, kind=StringType):
    schema = StructType([StructField("a", kind()), StructField(CORRUPT, StringType())])
    reader = JsonReader(schema, to_arrow_schema(schema, timezone="UTC"), datetime.UTC)
    rows = reader.read(pa.array(documents, pa.binary()))
    rows.validate(full=True)
    return [(row["a"], row[CORRUPT]) for row in rows.to_pylist()]


def test_values_that_are_no_text_are_shown_as_corrupt_all_the_same():
    assert read(b"\xff\xfe") == [(None, "\ufffd\ufffd")]


def test_json_that_goes_too_deep_stops_no_query():
    deep, good = read(b"[" * 10_000, b'{"a": "x"}')
    assert deep[0] is None and deep[1] is not None
    assert good == ("x", None)


def test_a_number_of_very_many_digits_stops_no_query():
    assert read(b'{"a": ' + b"9" * 5000 + b"}", kind=IntegerType)[0][0] is None


def test_a_null_or_blank_value_is_no_corrupt_record():
    assert read(None, b"  ") == [(None, None), (None, None)]


def test_columns_of_no_rows_are_no_rows():
    schema = StructType([StructField("a", IntegerType())])
    batch = pa.RecordBatch.from_pydict({"a": pa.array([], pa.int32())})
    assert json_objects(batch, schema, datetime.UTC).to_pylist() == []


def test_a_name_in_a_map_that_is_half_a_character_stops_no_query():
    kind = MapType(StringType(), IntegerType())
    assert read(b'{"a": {"\\ud800": 1}}', kind=lambda: kind) == [([("?", 1)], None)]


def test_a_leap_day_before_the_first_year_is_a_time_in_every_zone():
    berlin = zone("Europe/Berlin")
    day = timestamp_us("0000-02-29T00:00:00", berlin) - timestamp_us("0000-02-28T00:00:00", berlin)
    assert day == 24 * 3600 * 1_000_000
