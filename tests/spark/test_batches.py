"""Topics as tables that are read and written once, with a real Spark and a real node."""

import datetime
import json

import pytest

from tests.spark.topics import NOW_MS, values
from tests.unit.schemas.double import registry_double
from tidelog.client.partitioner import partition_for
from tidelog.records import Codec, Record
from tidelog.spark.client_loop import ask


def test_a_topic_is_a_table_with_the_columns_of_spark_s_kafka_source(spark, topics, topic):
    topics.make(topic, 2)
    topics.put(topic, values("a", "b"), codec=Codec.ZSTD)
    headers = (("h", b"1"), ("h", None))
    record = Record(key=b"k", value=None, timestamp_ms=NOW_MS, headers=headers)
    topics.put(topic, [record], partition=1)

    rows = topics.read(spark, topic, includeHeaders="true")

    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second, third = rows.orderBy("partition", "offset").collect()
    assert (first.value, second.value) == (b"a", b"b")
    assert (first.key, first.headers, first.topic) == (None, None, topic)
    assert (third.key, third.value, third.partition, third.offset) == (b"k", None, 1, 0)
    assert third.timestamp.timestamp() == NOW_MS / 1000
    assert [(one.key, one.value) for one in third.headers] == [("h", b"1"), ("h", None)]
    assert topics.read(spark, topic).columns == rows.columns[:-1]


def test_offsets_and_times_bound_what_is_read(spark, topics, topic):
    topics.make(topic)
    topics.put(topic, values(*"abcdef"))

    def read(**options):
        return "".join(row.value.decode() for row in topics.read(spark, topic, **options).collect())

    assert read(startingOffsets=json.dumps({topic: {"0": 2}})) == "cdef"
    assert read(endingOffsets=json.dumps({topic: {"0": 2}})) == "ab"
    assert read(startingTimestamp=str(NOW_MS + 3), endingTimestamp=str(NOW_MS + 5)) == "de"
    assert read(minPartitions="4") == "abcdef"


def test_filters_reach_the_log_if_spark_passes_them_on(spark, topics, topic):
    topics.make(topic, 2)
    keyed = [Record(key=b"k%d" % (n % 3), value=b"%d" % n, timestamp_ms=NOW_MS + n) for n in range(9)]
    topics.put(topic, keyed)
    topics.put(topic, values("other"), partition=1)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = topics.read(spark, topic).where(
            "partition = 0 and offset >= 2 and offset < 8 and key = cast('k1' as binary)"
        )
        assert sorted(row.value for row in rows.collect()) == [b"4", b"7"]
        assert "offset" not in _spark_filters(rows)
        late = topics.read(spark, topic).where(
            f"timestamp >= timestamp_millis({NOW_MS + 7}) and partition = 0"
        )
        assert sorted(row.value for row in late.collect()) == [b"7", b"8"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def _spark_filters(rows):
    plan = rows._jdf.queryExecution().executedPlan().toString()
    return "".join(line for line in plan.splitlines() if "Filter " in line)


def test_rows_are_written_with_keys_headers_partitions_and_times(spark, topics, topic):
    topics.make(topic, 3)
    time = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    rows = spark.createDataFrame(
        [(f"k{n}", f"v{n}", 2 if n == 5 else None, [("h", b"x")], time) for n in range(10)],
        "key string, value string, partition int, "
        "headers array<struct<key:string,value:binary>>, timestamp timestamp",
    )
    topics.append(rows, topic, includeTimestamp="true", **{"kafka.compression.type": "lz4"})

    found = topics.records(topic)

    assert sum(map(len, found.values())) == 10
    for partition, records in found.items():
        for record in records:
            assert record.headers == (("h", b"x"),)
            assert record.timestamp_ms == time.timestamp() * 1000
            if record.value == b"v5":
                assert partition == 2
            else:
                assert partition == partition_for(record.key, 3)


def test_a_write_is_seen_at_once_and_leaves_no_decision_behind(spark, topics, topic):
    topics.make(topic, 2)
    for round_ in range(3):
        topics.append(spark.range(1000).selectExpr("cast(id as string) value"), topic)
        assert topics.read(spark, topic).count() == 1000 * (round_ + 1)


def test_a_batch_with_an_application_and_a_version_is_written_once(spark, topics, topic):
    topics.make(topic)
    rows = spark.range(10).selectExpr("cast(id as string) value")

    for version in (1, 1, 2):
        topics.append(rows, topic, txnAppId=topic, txnVersion=str(version))
    assert len(topics.values(topic)) == 20

    with pytest.raises(Exception, match=r"txnVersion 1 .* was not written: the newest .* is 2"):
        topics.append(rows, topic, txnAppId=topic, txnVersion="1")
    with pytest.raises(Exception, match=r"txnVersion 2 .* was not written: .* 10 rows, .* has 9"):
        topics.append(rows.where("value > 0"), topic, txnAppId=topic, txnVersion="2")
    assert len(topics.values(topic)) == 20


def test_a_write_that_fails_leaves_nothing_that_readers_see(spark, topics, topic):
    topics.make(topic, 2)
    rows = spark.range(0, 1000, 1, 2).selectExpr(
        "cast(id as string) value", "cast(if(id = 999, 7, 0) as int) partition"
    )
    with pytest.raises(Exception, match=r"column `partition` has 7, but .* has partitions 0 to 1"):
        topics.append(rows, topic)

    assert topics.values(topic) == []
    topics.append(rows.where("partition = 0"), topic)
    assert len(topics.values(topic)) == 999


def test_columns_become_json_and_json_columns(spark, topics, topic):
    topics.make(topic)
    rows = spark.sql("select 'k' as key, 'x' as id, 1.5D as price")
    topics.append(rows, topic, valueFormat="json")
    assert topics.values(topic) == [b'{"id":"x","price":1.5}']

    topics.put(topic, values("no json"))
    reader = spark.read.format("tidelog").options(**topics.options, subscribe=topic)
    found = (
        reader.option("valueFormat", "json")
        .schema("id string, price double, offset bigint, _corrupt_record string")
        .load()
    )
    assert [tuple(row) for row in found.orderBy("offset").collect()] == [
        ("x", 1.5, 0, None),
        (None, None, 2, "no json"),
    ]


def test_sql_tables_over_topics(spark, topics, topic):
    topics.make(topic)
    name = topic.replace("-", "_")
    options = f"OPTIONS (`kafka.bootstrap.servers` '{topics.bootstrap}', subscribe '{topic}')"
    spark.sql(f"CREATE TABLE {name} USING tidelog {options}")
    try:
        spark.sql(f"INSERT INTO {name} (key, value) VALUES (X'41', X'42'), (null, X'43')")
        found = spark.sql(f"SELECT key, value, topic FROM {name} ORDER BY value").collect()
        assert [tuple(row) for row in found] == [(b"A", b"B", topic), (None, b"C", topic)]
        spark.sql(f"CREATE TEMPORARY VIEW {name}_view USING tidelog {options}")
        assert spark.table(f"{name}_view").count() == 2
    finally:
        spark.sql(f"DROP TABLE {name}")


def test_what_was_deleted_is_an_error_unless_it_may_be_lost(spark, topics, topic):
    topics.make(topic)
    topics.put(topic, values(*"abcdef"))
    starts = json.dumps({topic: {"0": 0}})
    ask(topics.bootstrap, lambda client: client.delete_records(topic, {0: 4}))

    with pytest.raises(Exception, match="failOnDataLoss=false"):
        topics.read(spark, topic, startingOffsets=starts).count()
    rows = topics.read(spark, topic, startingOffsets=starts, failOnDataLoss="false")
    assert [row.offset for row in rows.collect()] == [4, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": '{"TOPIC": {"0": 0, "5": 0}}'}, "TOPIC-5, which the query does not"),
        (
            {"startingOffsets": '{"TOPIC": {"0": 9}}', "endingOffsets": '{"TOPIC": {"0": 3}}'},
            "startingOffsets 9 lies behind endingOffsets 3",
        ),
        ({"subscribe": "never-made"}, "tidelog topics create never-made"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_bad_input_is_told_with_its_fix(spark, topics, topic, options, words):
    topics.make(topic)
    given = {name: text.replace("TOPIC", topic) for name, text in options.items()}

    with pytest.raises(Exception, match=words.replace("TOPIC", topic)):
        topics.read(spark, topic, **given).count()


def test_a_topic_is_not_overwritten(spark, topics, topic):
    rows = spark.range(1).selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match=r'write with mode\("append"\)'):
        rows.write.format("tidelog").mode("overwrite").options(**topics.options, topic=topic).save()


def test_avro_of_a_schema_registry_is_written_and_read(spark, topics, topic, tmp_path):
    topics.make(topic)
    with registry_double() as registry:
        avro = {"valueFormat": "avro", "keyFormat": "avro", "schema.registry.url": registry.url}
        rows = spark.sql(
            "select 'k' key, named_struct('id', 1, 'at', timestamp'2026-01-02 03:04:05') value "
            "union all select 'k', null"
        ).coalesce(1)
        with pytest.raises(Exception, match=r"has no schema.*schema\.auto\.register"):
            topics.append(rows, topic, **avro)
        topics.append(rows, topic, **avro, **{"schema.auto.register": "true"})

        found = topics.read(spark, topic, **avro)
        assert found.schema["value"].dataType.simpleString() == "struct<id:int,at:timestamp>"
        taken = found.orderBy("offset").selectExpr("key", "value.id", "cast(value.at as string)")
        assert [tuple(row) for row in taken.collect()] == [("k", 1, "2026-01-02 03:04:05"), ("k", None, None)]

        topics.put(topic, values("no frame"))
        with pytest.raises(Exception, match=r"at offset \d+ a record that cannot be read"):
            topics.read(spark, topic, **avro).collect()
        reader = spark.readStream.format("tidelog").options(**topics.options, subscribe=topic)
        reader = reader.options(startingOffsets="earliest", **avro)
        stream = reader.schema("id int, offset bigint, _corrupt_record string").load()
        writer = stream.writeStream.format("memory").queryName("avro_stream")
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        assert writer.start().awaitTermination(60)
        read = spark.sql("select id, _corrupt_record is null from avro_stream order by offset")
        assert [tuple(row) for row in read.collect()] == [(1, True), (None, True), (None, False)]
