"""Topics as streams: micro-batches in, micro-batches out, with a real Spark and a real node."""

import json
import shutil

import pytest

from tests.spark.topics import values
from tidelog.model import TopicPartition
from tidelog.spark.asking import ask
from tidelog.spark.options import read_options
from tidelog.spark.pipelines.iceberg import Catalog, TableWriter
from tidelog.spark.pipelines.sinks import query_id


def run(writer, tmp_path, **trigger):
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        **(trigger or {"availableNow": True})
    ).start()  # fmt: skip
    query.awaitTermination()
    return query


def test_a_stream_takes_what_is_there_in_parts_and_goes_on_where_it_was(
    spark, topics, topic, tmp_path
):
    topics.make(topic, 2)
    topics.make(f"{topic}-out", 3)
    for partition in (0, 1):
        topics.put(topic, values(*(f"{partition}.{n}" for n in range(50))), partition=partition)

    def copy():
        rows = topics.stream(spark, topic, maxOffsetsPerTrigger="40").select("key", "value")
        writer = rows.writeStream.format("tidelog").options(**topics.options)
        return run(writer.option("topic", f"{topic}-out"), tmp_path)

    query = copy()
    assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [40, 40, 20]
    last = query.lastProgress.sources[0]
    assert (
        json.loads(last.endOffset) == json.loads(last.latestOffset) == {topic: {"0": 50, "1": 50}}
    )

    topics.put(topic, values("late"))
    copy()
    copy()
    expected = [f"{partition}.{n}".encode() for partition in (0, 1) for n in range(50)]
    assert sorted(topics.values(f"{topic}-out")) == sorted([*expected, b"late"])


def test_a_query_is_a_group_whose_lag_is_what_spark_says(spark, topics, topic, tmp_path):
    topics.make(topic)
    topics.put(topic, values(*"abcdef"))
    query = (
        topics.stream(spark, topic, maxOffsetsPerTrigger="4", groupIdPrefix="watched")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        options = {**topics.options, "subscribe": topic, "groupIdPrefix": "watched"}
        group = read_options(options, streaming=True).group
        assert topics.group(group) == {TopicPartition(topic, 0): 6}
        # What has come since is behind: as the group tells it, and as Spark does.
        topics.put(topic, values("g"))
        query.processAllAvailable()
        assert topics.group(group) == {TopicPartition(topic, 0): 7}
        source = query.lastProgress.sources[0]
        assert json.loads(source.endOffset)[topic]["0"] == 7
    finally:
        query.stop()


def test_aggregates_are_written_in_update_mode_by_the_batch(spark, topics, topic, tmp_path):
    topics.make(topic)
    topics.make(f"{topic}-out")
    topics.put(topic, values(*"aab"))

    def write(batch, number):
        topics.append(batch, f"{topic}-out", txnAppId=topic, txnVersion=str(number))

    counts = topics.stream(spark, topic).groupBy("value").count()
    rows = counts.selectExpr("value as key", "cast(count as string) value")
    run(rows.writeStream.outputMode("update").foreachBatch(write), tmp_path)

    (records,) = topics.records(f"{topic}-out").values()
    assert {(record.key, record.value) for record in records} == {(b"a", b"2"), (b"b", b"1")}


def test_a_restored_checkpoint_fails_a_copied_one_writes_elsewhere_and_a_replay_is_passed_over(
    spark, topics, topic, tmp_path
):
    def copy(checkpoint, target):
        rows = topics.stream(spark, topic).select("key", "value")
        writer = rows.writeStream.format("tidelog").options(**topics.options, topic=target)
        return run(writer, tmp_path / checkpoint)

    out, other = f"{topic}-out", f"{topic}-other"
    for name in (topic, out, other):
        topics.make(name)
    topics.put(topic, values("1", "2"))
    copy("first", out)
    for clone in ("restored", "copied"):
        shutil.copytree(tmp_path / "first", tmp_path / clone)
    topics.put(topic, values("3", "4"))
    copy("first", out)
    topics.put(topic, values("5"))

    ends = r'ends \{.*"0":4\}\}, and this run\'s ends at \{.*"0":5'
    with pytest.raises(Exception, match=rf"batch 1 of query .* was not written: .*{ends}") as told:
        copy("restored", out)
    assert f"@{out}`" in str(told.value), "it says what to reset"
    copy("copied", other)
    assert topics.values(other) == [b"3", b"4", b"5"]
    for name in ("1", ".1.crc"):  # as if it was killed before it noted the batch
        (tmp_path / "first" / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    copy("first", out)
    assert topics.values(out) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_table_refuses_a_batch_of_a_restored_checkpoint_and_passes_over_a_replay(
    spark, topics, topic, tmp_path
):
    catalog = Catalog(
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    )
    frame = topics.stream(spark, topic).selectExpr("cast(value as string) value", "offset")
    catalog.prepare("t.t", frame.schema)

    def copy(checkpoint, *, reads_checkpoint):
        where = str(tmp_path / checkpoint / "checkpoint") if reads_checkpoint else None
        table = TableWriter(catalog, "t.t", checkpoint=where)
        write = frame.writeStream.foreachBatch(lambda b, n: table.write(b, query_id(b), n) and None)
        run(write, tmp_path / checkpoint)

    topics.make(topic)
    topics.put(topic, values("1", "2"))
    copy("first", reads_checkpoint=True)
    shutil.rmtree(tmp_path / "first" / "checkpoint" / "commits")
    shutil.copytree(tmp_path / "first", tmp_path / "restored")
    shutil.rmtree(tmp_path / "restored" / "checkpoint" / "offsets")
    topics.put(topic, values("3"))
    copy("first", reads_checkpoint=False)
    assert len(catalog.table("t.t").scan().to_arrow()) == 3

    with pytest.raises(Exception, match=r"into table t\.t was not written: the newest"):
        copy("restored", reads_checkpoint=True)


def test_batches_written_by_hand_with_the_query_s_id_are_not_lost_with_a_new_checkpoint(
    spark, topics, topic, tmp_path
):
    def write(batch, number):
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        for part in ("odd", "even"):
            rows = batch.where(f"cast(cast(value as string) as int) % 2 = {int(part == 'odd')}")
            topics.append(rows, f"{topic}-out", txnAppId=f"{query}.{part}", txnVersion=str(number))

    def copy(checkpoint, most):
        rows = topics.stream(spark, topic, maxOffsetsPerTrigger=most).select("value")
        run(rows.writeStream.foreachBatch(write), tmp_path / checkpoint)

    topics.make(topic)
    topics.make(f"{topic}-out")
    topics.put(topic, values("1", "2", "3"))
    copy("first", "1")
    topics.put(topic, values("4", "5"))
    copy("second", "1000")

    assert sorted(topics.values(f"{topic}-out")) == [b"%c" % n for n in b"11223345"]


def test_a_topic_that_vanishes_in_mid_query_is_data_lost(spark, topics, topic, tmp_path):
    topics.make(topic)
    topics.put(topic, values("a"))
    query = (
        topics.stream(spark, topic)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    ask(topics.bootstrap, lambda client: client.delete_topic(topic))

    with pytest.raises(Exception, match=r"failOnDataLoss=false|does not exist"):
        query.awaitTermination()


def test_what_a_stream_cannot_do_is_told_with_its_fix(spark, topics, topic, tmp_path):
    topics.make(topic)
    for options, words in (
        ({"endingOffsets": "latest"}, "for batch reads"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
    ):
        with pytest.raises(Exception, match=words):
            run(topics.stream(spark, topic, **options).writeStream.format("noop"), tmp_path)
