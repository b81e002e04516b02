"""Keys and values of a schema registry as columns, and back."""

import datetime
import decimal
import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from tests.unit.schemas.double import registry_double
from tidelog.errors import ConfigError
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.framing import frame
from tidelog.schemas.problems import SchemaProblem
from tidelog.schemas.registry import Reference, Registry, Schema
from tidelog.spark.registered import part_reader, part_writer, registered_projection, registered_schema
from tidelog.spark.rows import spark_schema

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total", "type": MONEY},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]},
            },
        },
    ],
}
VALUE = {
    "id": "a",
    "total": decimal.Decimal("1.50"),
    "day": datetime.date(2026, 1, 2),
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "tags": {"x": 1},
    "lines": [{"sku": "s"}],
}


@pytest.fixture
def double():
    with registry_double() as made:
        yield made


def form(double, part="value", **more):
    return PartFormat(part=part, name="avro", url=double.url, **more)


def register(double, document, subject="orders-value"):
    return Registry(double.url).register(subject, Schema("AVRO", json.dumps(document)))


def encoded(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def rows(reader, values, schema=None):
    plain = spark_schema(("value", "topic", "partition", "offset"))
    schema = schema or registered_schema(plain, {"value": reader})
    plan = registered_projection(schema, {"value": reader})
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "topic": ["orders"] * len(values),
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": pa.array(range(len(values)), pa.int64()),
        }
    )
    made = plan.rows(batch)
    made.validate(full=True)
    assert made.schema == to_arrow_schema(schema, timezone="UTC")
    return made.to_pylist()


def test_every_type_of_avro_becomes_one_of_spark(double):
    number = register(double, ORDER)
    reader = part_reader(form(double), "orders")

    (row, tombstone) = rows(reader, [frame(number, encoded(ORDER, VALUE)), None])

    assert reader.spark_type.simpleString() == (
        "struct<id:string,total:decimal(9,2),at:timestamp,day:date,tags:map<string,int>,"
        "lines:array<struct<sku:string>>>"
    )
    assert row["value"] == {**VALUE, "tags": [("x", 1)]}
    assert tombstone["value"] is None


def test_records_of_older_and_newer_writers_are_read_with_the_latest_schema(double):
    old = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    more = {"name": "m", "type": "string", "default": "?"}
    new = {**old, "fields": [{"name": "n", "type": "long"}, more]}
    first = register(double, old)
    value = frame(first, encoded(old, {"n": 7}))
    pinned = part_reader(form(double, version=1), "orders")
    second = register(double, new)

    assert rows(part_reader(form(double), "orders"), [value])[0]["value"] == {"n": 7, "m": "?"}
    later = frame(second, encoded(new, {"n": 8, "m": "x"}))
    assert rows(pinned, [value])[0]["value"] == {"n": 7}
    asked = double.asked.count(f"GET /schemas/ids/{second}")
    rows(part_reader(form(double), "orders"), [later, later])
    assert double.asked.count(f"GET /schemas/ids/{second}") <= asked + 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b'{"id": 1}', "offset 0 a record.*without a schema registry"),
        (frame(99, b""), "Schema not found"),
        (frame(1, b"\x02"), "no value of its Avro schema"),
        (frame(1, b"\x02a" + b"\x00" * 40), "bytes follow|no value of its Avro schema"),
    ],
)
def test_a_record_that_cannot_be_read_fails_the_task_or_says_why(double, value, words):
    assert register(double, ORDER) == 1
    reader = part_reader(form(double), "orders")
    with pytest.raises(SchemaProblem, match=words):
        rows(reader, [value])

    schema = types.StructType(
        [
            types.StructField("id", types.StringType()),
            types.StructField("_corrupt_record", types.StringType()),
        ]
    )
    good = frame(1, encoded(ORDER, VALUE))
    bad, fine = rows(reader, [value, good], schema)
    assert bad["id"] is None and bad["_corrupt_record"].startswith("value: ")
    assert fine == {"id": "a", "_corrupt_record": None}


def test_a_column_that_the_schema_has_not_is_refused(double):
    register(double, ORDER)
    reader = part_reader(form(double), "orders")
    schema = types.StructType([types.StructField("price", types.DoubleType())])
    with pytest.raises(ConfigError, match="no column price: the value's schema has id, total"):
        registered_projection(schema, {"value": reader})


def test_rows_are_written_with_the_latest_schema_or_with_one_of_their_own(double):
    kind = types.StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": "id", "type": "string", "nullable": True, "metadata": {}},
                {"name": "n", "type": "integer", "nullable": True, "metadata": {}},
            ],
        }
    )
    with pytest.raises(ConfigError, match=r"orders-value has no schema.*schema\.auto\.register"):
        part_writer(form(double), "orders", kind)

    writer = part_writer(form(double, auto_register=True), "orders", kind)
    column = pa.array(
        [{"id": "a", "n": 1}, None, {"id": None, "n": 2}], pa.struct([("id", pa.string()), ("n", pa.int32())])
    )
    written = writer.write(column).to_pylist()

    assert written[1] is None
    found = rows(part_reader(form(double), "orders"), written)
    assert [row["value"] for row in found] == [{"id": "a", "n": 1}, None, {"id": None, "n": 2}]
    assert part_writer(form(double), "orders", kind).schema_id == writer.schema_id


def test_a_row_that_the_schema_cannot_say_is_told(double):
    register(double, ORDER)
    kind = types.StructType([types.StructField("id", types.StringType())])
    writer = part_writer(form(double), "orders", kind)
    with pytest.raises(SchemaProblem, match="the Avro schema cannot say it"):
        writer.write(pa.array([{"id": None}], pa.struct([("id", pa.string())])))


def test_a_value_that_spark_has_not_is_told_with_its_offset_or_its_reason(double):
    kinds = {"n": ("int", 2**40), "at": ({"type": "long", "logicalType": "timestamp-millis"}, 2**62)}
    for name, (kind, value) in kinds.items():
        document = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]}
        long = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"}]}
        number = register(double, document, f"{name}-value")
        reader = part_reader(form(double), name)
        bad, good = (frame(number, encoded(long, {name: one})) for one in (value, 1))
        with pytest.raises(SchemaProblem, match=r"offset 1 a record.*Spark has no such"):
            rows(reader, [good, bad])
        schema = types.StructType(
            [
                types.StructField("value", reader.spark_type),
                types.StructField("_corrupt_record", types.StringType()),
            ]
        )
        fine, broken = rows(reader, [good, bad], schema)
        assert fine["value"] is not None and fine["_corrupt_record"] is None
        assert broken["value"] is None and "Spark has no such value" in broken["_corrupt_record"]


def test_names_with_namespaces_and_schemas_that_are_referred_to_are_found(double):
    place = {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "x", "type": "int"}]}
    route = {
        "type": "record",
        "name": "Route",
        "namespace": "shop",
        "fields": [{"name": "a", "type": place}, {"name": "b", "type": "geo.Place"}],
    }
    number = register(double, route, "routes-value")
    reader = part_reader(form(double), "routes")
    (row,) = rows(reader, [frame(number, b"\x02\x04")])
    assert row["value"] == {"a": {"x": 1}, "b": {"x": 2}}

    register(double, place, "places-value")
    visit = {"type": "record", "name": "Visit", "fields": [{"name": "at", "type": "geo.Place"}]}
    schema = Schema("AVRO", json.dumps(visit), (Reference("geo.Place", "places-value", 1),))
    number = Registry(double.url).register("visits-value", schema)
    reader = part_reader(form(double), "visits")
    (row,) = rows(reader, [frame(number, b"\x02")])
    assert row["value"] == {"at": {"x": 1}}
    writer = part_writer(form(double), "visits", reader.spark_type)
    assert writer.write(pa.array([row["value"]])).to_pylist() == [frame(number, b"\x02")]


def test_a_decimal_that_is_too_wide_for_spark_is_refused(double):
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
    register(double, wide)
    with pytest.raises(ConfigError, match="50 digits"):
        _ = part_reader(form(double), "orders").spark_type


def test_a_map_with_a_key_twice_is_not_written_with_one_of_its_values(double):
    register(double, {"type": "map", "values": "int"})
    kind = types.MapType(types.StringType(), types.IntegerType())
    writer = part_writer(form(double), "orders", kind)
    column = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))
    with pytest.raises(SchemaProblem, match="key twice"):
        writer.write(column)


def test_an_array_of_nulls_fails_with_its_place_and_schema(double):
    number = register(double, {"type": "array", "items": "null"})
    readers = {"value": part_reader(form(double), "orders")}
    schema = registered_schema(spark_schema(("value", "topic", "partition", "offset")), readers)
    row = {
        "value": frame(number, b"\x80\xa8\xd6\xb9\x07\x00"),
        "topic": "orders",
        "partition": 3,
        "offset": 7,
    }
    with pytest.raises(SchemaProblem, match=rf"orders-3 has at offset 7 .*schema {number}\)"):
        registered_projection(schema, readers).rows(pa.RecordBatch.from_pylist([row]))


def test_a_record_that_names_a_broken_schema_hurts_no_other(double):
    number = register(double, "string")
    broken = Registry(double.url).register("other", Schema("AVRO", '{"type": "nonsense"}'))
    reader = part_reader(form(double), "orders")
    values = pa.array([frame(number, b"\x02a"), frame(broken, b"\x02b")], pa.binary())
    column, reasons = reader.read(values)
    assert column.to_pylist() == ["a", None]
    assert "no Avro schema" in reasons[1] and f"(schema {broken})" in reasons[1]
