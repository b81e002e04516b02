"""JSON values against Spark's own `from_json` and `to_json`: documents times types, and chance.

One query asks Spark for all of it: what it says is what our columns must be, to the last bit.
"""

import datetime
import random
import string

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from tidelog.spark.json_reading import JsonReader
from tidelog.spark.json_writing import json_objects
from tidelog.spark.pipelines import expressions
from tidelog.spark.pipelines.spec import Sink

KINDS = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "timestamp",
    "timestamp_ntz",
    "date",
    "binary",
    "decimal(10,2)",
    "decimal(30,0)",
    "decimal(38,18)",
    "interval day to second",
    "interval day",
    "interval minute",
    "interval hour to second",
    "interval second",
    "array<int>",
    "array<string>",
    "array<timestamp>",
    "array<double>",
    "map<string,int>",
    "map<string,string>",
    "map<string,decimal(10,2)>",
    "struct<b:int>",
    "struct<b:int,c:string>",
    "array<struct<b:int>>",
    "map<string,struct<b:int>>",
    "array<array<int>>",
    "map<string,array<int>>",
    "struct<b:struct<c:date,d:array<struct<e:int>>>>",
)
VALUES = (
    "1",
    "1.0",
    "1.5",
    "-0",
    "-0.0",
    "1e2",
    "300",
    "40000",
    "3000000000",
    "12345678901234567890",
    "1e400",
    "1.10",
    "1.005",
    "16777217",
    "9007199254740993.0",
    '"5"',
    '"1.5"',
    '" 1.5"',
    '"1,234.5"',
    '""',
    '"x"',
    '"NaN"',
    '"Infinity"',
    '"+Infinity"',
    '"-Infinity"',
    '"INF"',
    '"+INF"',
    '"-INF"',
    "NaN",
    "Infinity",
    "-Infinity",
    "+INF",
    "-INF",
    "INF",
    "+1",
    "01",
    ".5",
    "true",
    "false",
    "null",
    '"true"',
    "[]",
    "[1,2]",
    "[1.5,2]",
    '[1,null,"x"]',
    '["x", {"b" : 1 }]',
    "{}",
    '{"b":1}',
    '{"b" : 1.50 , "c":"é\\u00e9"}',
    '{"b":null}',
    '{"b":"x","c":2}',
    '{"b":1,"b":2}',
    '"2024"',
    '"2024-01"',
    '"2024-01-02"',
    '"2024-1-2"',
    '" 2024-01-02 "',
    '"2024-01-02T03:04:05Z"',
    '"2024-01-02 03:04:05"',
    '"2024-01-02 03:04"',
    '"2024-01-02 03"',
    '"2024-01-02T03:04:05.123456789+02:00"',
    '"2024-01-02T03:04:05.1+0230"',
    '"2024-01-02T03:04:05 Europe/Berlin"',
    '"2024-01-02T03:04:05.5 UTC"',
    '"2024-01-02T03:04:05GMT+1"',
    '"2024-01-02T3:4:5"',
    '"T03:04:05"',
    '"03:04:05"',
    '"2024-02-30"',
    '"2024-02-30T00:00:00"',
    '"2024-01-02T24:00:00"',
    '"10000-01-02"',
    '"+10000-01-02T00:00:00Z"',
    '"0000-01-02"',
    '"-0001-01-02"',
    '"1500-01-02T00:00:00"',
    '"2024-01-02T03:04:05-18:00"',
    '"2024-01-02T03:04:05+19:00"',
    '"2024-01-02garbage"',
    '"2024-01-02T"',
    '"2024-01-02 garbage"',
    '"epoch"',
    '"now"',
    '"1700000000"',
    '"Jan 2, 2024"',
    "1700000000",
    "1700000000000",
    "-1",
    '"aGVsbG8="',
    '"aGVsbG8"',
    '"aGVs bG8="',
    '"aGVsbG-_"',
    "\"INTERVAL '1 02:03:04.5' DAY TO SECOND\"",
    '"1 02:03:04.5"',
    "\"INTERVAL '1' DAY\"",
    '"1 day"',
    '"a\\tb"',
    '"\\ud83d\\ude00"',
    '"\\ud83d"',
    "1,",
    "tru",
    "'5'",
    '{"b":1',
    "[1,2",
    '[{"b":1},{"b":"x"},{"b":3}]',
    '{"x":{"b":1},"y":{"b":"x"}}',
    '[[1],[2,"x"],3]',
    '{"k":[1,"x"]}',
    "0.1234567891234567",
    "3.4028236e38",
    "1e-50",
    '"\\u0000"',
    "123456789.55",
    "99999999.995",
    '"0x10"',
    '"1e3"',
    '"1_0"',
    '"12:30"',
    '"12:30:15.5"',
    '"2024-01-02T03:04:05.123"',
    '"2024-01-02T03:04:05."',
    '"2024-01-02T03:04:05z"',
    '"2024-01-02T03:04:05+2"',
    '"2024-01-02T03:04:05+02"',
    '"2024-01-02T03:04:05+2:3"',
    '"2024-01-02T03:04:05UTC+2"',
    '"2024-01-02T03:04:05 CET"',
    '"2024-01-02T03:04:05EST"',
    '"2024-01-02T03:04:05 PST"',
    '"2024-01-02T03:04:05+01:02:03"',
    '"2024-01-02T03:04Z"',
    '"2024-01-02 03:60"',
    '"2024-13-02"',
    '"2024-01-02Z"',
    '"2024-01-02T03Z"',
    '"2024-01-02  03:04:05"',
    '"20240102"',
    '"2024-01-02T030405"',
    '"\\t2024-01-02\\n"',
    '"2024-01-02T03:04:60"',
    '"12:30 2024"',
    '"2024-03-31T02:30:00 Europe/Berlin"',
    '"-2024-01-02"',
    '"+2024-01-02"',
    '"202-01-02"',
    '"0001-01-01"',
    '"9999-12-31T23:59:59.999999Z"',
    '"0001-01-01T00:00:00+10:00"',
    "-1.5",
    "99999999999999",
    "12345",
    '"12345"',
    '"today"',
    '"2024-01-02T03:04:05.1234567"',
    '"2024-01-02T03:04:05 +02:00"',
    '"2024-01-02T03:04:05+0200"',
    '"2024-01-02T03:04:05GMT"',
    '"2024-01-02T03:04:05GMT0"',
    '"2024-01-02T03:04:05UT"',
    '"2024-01-02T03:04:05 America/Los_Angeles"',
    '"2024-01-02T03:04:05 america/los_angeles"',
    '"1500-01-02"',
    '"12"',
    '"5000000"',
    '"99999999"',
    '"2024-01-02Tgarbage"',
    '"2024-01-"',
    '"2024-01-02T "',
    '"GMT2024-01-02"',
    '"Thu 2024"',
    '"-12"',
    '"2024-01-02-03"',
    '"1234567-01-01"',
)
"""Of a field `a`."""
DOCUMENTS = (
    "{'a':'single'}",
    '{"a":1} trailing',
    '{"a":1}{"a":2}',
    '{"a":1',
    '{"a":1,"z":',
    '{"a":1,"z":]',
    '{"a":1,"a":"x"}',
    '{"a":1,"a":null}',
    '{"A":1}',
    '{"z":1}',
    "{}",
    "[]",
    '[{"a":1},{"a":2}]',
    "[1]",
    '[{"a":1},1]',
    '[[{"a":1}]]',
    "null",
    "1",
    '"x"',
    " ",
    "no json",
    '/* c */ {"a":1}',
    "{a:1}",
    '{"a":"5',
)


def made_up(count, seed=20):
    """Documents by chance: values of all kinds, in objects and arrays, some of them broken."""
    chance = random.Random(seed)

    def scalar():
        kind = chance.randrange(9)
        match kind:
            case 0:
                return str(chance.randint(-(10 ** chance.randint(1, 22)), 10 ** chance.randint(1, 22)))
            case 1:
                return f"{chance.uniform(-1, 1) * 10 ** chance.randint(-6, 14):.9g}"
            case 2:
                return chance.choice(["true", "false", "null", "NaN", "-Infinity", "1E5", "1.50"])
            case 3:
                month = f"{chance.randint(0, 13):02}-{chance.randint(1, 31)}"
                return f'"{chance.randint(0, 9999):04}-{month}"'
            case 4:
                zone = chance.choice(["", "Z", "+02:00", "-0330", " Asia/Tokyo", "UTC", " x"])
                at = chance.randint(-(10**10), 4 * 10**9)
                moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=at)  # noqa: DTZ001
                part = chance.choice(["", ".5", ".123456", ".1234567", "."])
                return f'"{moment.isoformat(chance.choice(["T", " "]))}{part}{zone}"'
            case 5:
                return '"' + "".join(chance.choices(string.ascii_letters + "+/= ", k=4)) + '"'
            case 6:
                return f'"{chance.uniform(-1e6, 1e6):.{chance.randint(0, 20)}f}"'
            case 7:
                clock = f"{chance.randint(0, 25)}:{chance.randint(0, 60)}:07.5"
                return f'"{chance.randint(-30, 30)} {clock}"'
        return '"' + "".join(chance.choices("abä\u20ac😀' ", k=chance.randint(0, 5))) + '"'

    def value(depth):
        kind = chance.random()
        if depth == 0 or kind < 0.5:
            return scalar()
        if kind < 0.75:
            return "[" + ", ".join(value(depth - 1) for _ in range(chance.randint(0, 3))) + "]"
        names = chance.choices("bcdek", k=chance.randint(0, 3))
        return "{" + ",".join(f'"{name}" : {value(depth - 1)}' for name in names) + "}"

    for _ in range(count):
        document = f'{{"a": {value(3)}, "z": {value(1)}}}'
        if chance.random() < 0.1:
            at = chance.randrange(len(document))
            document = document[:at] + chance.choice([" ", "", ",", "'", "}", "0"]) + document[at + 1 :]
        yield document


@pytest.fixture(scope="module")
def told(shared_spark):
    """For each kind, Spark's table of all documents; the documents are the last column."""
    documents = [f'{{"a":{value}}}' for value in VALUES] + [*DOCUMENTS, *made_up(400)]
    frame = shared_spark.createDataFrame([(one,) for one in documents], "v string").coalesce(1)
    parsed = [f"from_json(v, 'a {kind}, _corrupt_record string') AS k{n}" for n, kind in enumerate(KINDS)]
    return frame.selectExpr("v", *parsed).toArrow().combine_chunks()


def schema_of(kind):
    return types.StructType.fromDDL(f"a {kind}, _corrupt_record string")


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_a_value_is_read_as_spark_reads_it(told, number):
    schema = schema_of(KINDS[number])
    arrow = to_arrow_schema(schema, timezone="UTC")
    documents = told.column("v").combine_chunks()
    theirs = told.column(f"k{number}").combine_chunks()

    ours = JsonReader(schema, arrow, datetime.UTC).read(documents.cast(pa.binary()))

    ours.validate(full=True)
    for name in ("a", "_corrupt_record"):
        wanted = pc.if_else(theirs.is_valid(), theirs.field(name), None)
        triples = zip(documents.to_pylist(), shown(ours.column(name)), shown(wanted), strict=True)
        assert [triple for triple in triples if triple[1] != triple[2]] == []


def shown(column):
    """Values as text, which tells -0.0 from 0.0; times as counts, for any year."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    elif pa.types.is_list(column.type) and pa.types.is_timestamp(column.type.value_type):
        column = column.cast(pa.list_(pa.int64()))
    return [str(value) for value in column]


ROWS = (
    "map('a', 1, 'b\"c', cast(null as int)) m, struct(1 as x, cast(null as int) as y) s",
    "struct(cast(null as int) z) a, array(1, null) b, array(struct(cast(null as int) q)) c",
    "float('nan') a, double('inf') b, double('-inf') c, float(0.1) d, 0.1D e, 1D f, 1e10D g",
    "1e-5D a, 1e7D b, 0.001D c, 9999999.5D d, float(1e10) e, -0.0D f, float(16777216) g",
    "array(1.5D, null, double('nan')) a, array(float(0.1)) b, map('x', 1e20D) c",
    "timestamp'2024-01-01 00:00:00.123456' a, timestamp_ntz'2024-01-01 00:00:00.5' b",
    "date'2024-01-01' a, timestamp'0001-01-01 00:00:00' b, timestamp'1969-12-31 23:59:59.9999' c",
    "date'+10000-01-01' a, timestamp'+10000-01-01 00:00:00' b, date'-0001-01-01' c",
    "cast(1.5 as decimal(4,2)) a, cast(0 as decimal(38,18)) b, cast(0.0000001 as decimal(10,7)) c",
    "X'4142' a, X'' b, array(X'ff00') c, true d, 1Y e, 2S f, 3L g, -9223372036854775808 h",
    "interval '1' day a, interval '-1 02:03:04.5' day to second b, interval '3' hour c",
    "interval '0' second a, interval '-0.5' second b, interval '10:04.500001' minute to second c",
    "'a\"b\\\\c/d\\n\\t' a, '\\u0001\\u001f\\u007fé\\u2028😀<>' b, '' c, map('', 'é') d",
    "map(1, 2) a, map(date'2024-01-01', 1) b, map(timestamp'2024-01-01', 1) c, map(1.5D, 1) d",
    "map(true, 1) a, map(cast(1.50 as decimal(4,2)), 1) b, array(array(1, null), null) c",
    "map('k', array(struct(1 as b))) a, cast(null as map<string,int>) b",
    "cast(array() as array<int>) a",
    "cast(null as string) a",
)


def test_rows_are_written_as_spark_writes_them(shared_spark):
    for columns in ROWS:
        frame = shared_spark.sql(f"select {columns}")
        wanted = frame.selectExpr("to_json(struct(*)) j").collect()[0].j
        batch = frame.toArrow().combine_chunks().to_batches()[0]
        ours = json_objects(batch, frame.schema, datetime.UTC).to_pylist()
        assert ours == [wanted.encode()]


def test_a_tombstone_passes_a_pipeline_s_source_and_deletes_in_its_sink(shared_spark):
    records = [(b"a", b'{"id": 1}', "t", 0, 0), (b"b", None, "t", 0, 1), (b"c", b"no", "t", 0, 2)]
    columns = "key binary, value binary, topic string, partition int, offset long"
    frame = shared_spark.createDataFrame(records, columns).selectExpr("*", "now() timestamp")
    parsed = frame.selectExpr("*", expressions.parsed_json("id int"))
    broken = parsed.where(expressions.BROKEN_ROW).selectExpr("offset")
    good = parsed.where(f"NOT {expressions.BROKEN_ROW}").selectExpr(*expressions.json_columns(["id"]))
    checked = parsed.where("offset < 2").selectExpr(expressions.checked_json("s"), "offset")

    parts = expressions.record_parts(Sink(table="t", bucket="b", key="_key"), ["id", "_tombstone"])
    rows = good.selectExpr(*(f"{text} AS {part}" for part, text in parts.items())).collect()

    assert [row.offset for row in broken.collect()] == [2]
    assert [row.offset for row in checked.collect()] == [0, 1]
    assert [tuple(row) for row in rows] == [(b"a", '{"id":1}'), (b"b", None)]
