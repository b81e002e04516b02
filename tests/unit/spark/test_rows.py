import datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.errors import ConfigError
from tidelog.spark.columns import PLAIN, arrow_schema, ddl
from tidelog.spark.options import write_options
from tidelog.spark.rows import check_writable, json_columns, projection

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "boolean": BooleanType(),
    "array<struct<key:string,value:binary>>": ArrayType(HEADER),
}


def fields(text):
    """A schema; Spark's own parser would need a JVM."""
    named = [field.split() for field in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


def test_the_columns_of_a_topic_are_passed_on_as_they_are():
    plan = projection(fields(ddl((*PLAIN, "headers"))), value_is_json=False)
    names = (*PLAIN, "headers")
    batch = pa.RecordBatch.from_pylist([], arrow_schema(names))

    assert plan.columns == names
    assert plan.rows(batch).schema == plan.schema


def test_a_narrow_schema_reads_only_what_it_names():
    assert projection(fields("offset bigint, value binary"), value_is_json=False).columns == (
        "offset",
        "value",
    )


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("value string", "column value is binary, not string; cast it"),
        ("offset int", "column offset is bigint, not int"),
        ("price double", "a topic has no column price.*valueFormat=json"),
    ],
)
def test_a_schema_that_cannot_be_had_is_refused(schema, words):
    with pytest.raises(ConfigError, match=words):
        projection(fields(schema), value_is_json=False)


def test_json_values_become_columns_and_bad_ones_nulls():
    schema = fields("id string, price double, at timestamp, n int, offset bigint, _corrupt_record string")
    plan = projection(schema, value_is_json=True)
    values = [
        b'{"id": "a", "price": 1, "at": "2026-01-02T03:04:05Z", "n": 7, "more": 1}',
        b'{"id": 5, "price": "x", "n": 1.5}',
        b"no json",
        b"[1]",
        None,
        b'{"n": 99999999999}',
    ]
    batch = pa.RecordBatch.from_pydict(
        {"offset": pa.array(range(6), pa.int64()), "value": pa.array(values, pa.binary())}
    )

    rows = plan.rows(batch).to_pylist()

    assert plan.columns == ("offset", "value")
    assert rows[0] == {
        "id": "a",
        "price": 1.0,
        "n": 7,
        "offset": 0,
        "_corrupt_record": None,
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    }
    assert (rows[1]["id"], rows[1]["price"], rows[1]["n"]) == ("5", None, None)
    assert [row["_corrupt_record"] is None for row in rows] == [True, False, False, False, True, False]
    assert rows[5]["n"] is None
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5]


def test_a_record_without_a_value_is_a_tombstone_and_no_corrupt_record():
    plan = projection(fields("id string, _tombstone boolean, _corrupt_record string"), value_is_json=True)
    values = pa.array([b'{"id": "a"}', None, b"no json", b"null"], pa.binary())

    rows = plan.rows(pa.RecordBatch.from_pydict({"value": values})).to_pylist()

    assert [row["_tombstone"] for row in rows] == [False, True, False, False]
    assert [row["_corrupt_record"] for row in rows] == [None, None, "no json", "null"]


@pytest.mark.parametrize(
    ("schema", "topic", "json", "words"),
    [
        ("value string", None, False, "column `topic`"),
        ("key string", "t", False, "column `value`"),
        ("value int", "t", False, "column value must be string or binary, not int"),
        ("value string, partition bigint", "t", False, "column partition must be int"),
        ("value string, headers string", "t", False, "column headers must be"),
        ("key string", "t", True, "valueFormat=json needs columns"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(schema, topic, json, words):
    with pytest.raises(ConfigError, match=words):
        check_writable(fields(schema), options(topic, "json" if json else "binary"))


def options(topic, form):
    given = {"kafka.bootstrap.servers": "x:1", "valueFormat": form}
    return write_options(given | ({"topic": topic} if topic else {}), streaming=False)


def test_rows_that_can_be_written_are_let_pass():
    check_writable(fields("value string"), options("t", "binary"))
    own = fields("key binary, value binary, topic string, more int")
    check_writable(own, options(None, "binary"))
    schema = fields("key string, id int, total double")
    check_writable(schema, options("t", "json"))
    assert json_columns(schema).names == ["id", "total"]
