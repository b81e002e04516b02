"""Topics as streams: micro-batches in, micro-batches out, with a real Spark and a real node."""

import json

import pytest

from tests.spark.topics import values
from tidelog.model import TopicPartition
from tidelog.spark.asking import ask
from tidelog.spark.options import read_options


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
