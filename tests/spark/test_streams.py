"""Topics as streams: micro-batches in, micro-batches out, with a real Spark and a real node."""

import json
import shutil

import pytest

from tests.spark.topics import NOW_MS, values
from tidelog.model import TopicPartition
from tidelog.records import Record
from tidelog.spark.client_loop import ask
from tidelog.spark.columns import PLAIN
from tidelog.spark.options import read_options
from tidelog.spark.pipelines.iceberg import Catalog, TableWriter
from tidelog.spark.pipelines.sinks import query_id
from tidelog.spark.reading import DataLost
from tidelog.spark.rows import projection, spark_schema
from tidelog.spark.streaming import StreamReader


def run(writer, tmp_path, **trigger):
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_takes_what_is_there_in_parts_and_goes_on_where_it_was(spark, topics, topic, tmp_path):
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
    end = json.loads(last.endOffset)
    assert end.pop("@")["topics"].keys() == {topic}
    assert end == json.loads(last.latestOffset) == {topic: {"0": 50, "1": 50}}

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
        end = json.loads(query.lastProgress.sources[0].endOffset)
        group = f"watched-{end['@']['query']}"
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


def test_a_first_batch_that_is_repeated_begins_where_it_began(spark, topics, topic, tmp_path):
    """Spark asks for the beginning again; by now `latest` is behind what was planned."""
    topics.make(topic)
    topics.put(topic, values("before"))

    def copy():
        # A sink that remembers nothing: another one would not take another batch 0.
        writer = topics.stream(spark, topic, startingOffsets="latest").writeStream.format("noop")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    query = copy().start()
    query.processAllAvailable()
    topics.put(topic, values("a", "b"))
    query.processAllAvailable()
    query.stop()
    # What a driver leaves that dies in its first batch, if that one had these records.
    checkpoint = tmp_path / "checkpoint"
    for number in ("0", "1"):
        (checkpoint / "commits" / number).unlink()
        (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)
    for file in ("offsets/.1.crc", "offsets/.0.crc"):
        (checkpoint / file).unlink(missing_ok=True)
    head, metadata, first = (checkpoint / "offsets" / "0").read_text().splitlines()
    second = json.loads((checkpoint / "offsets" / "1").read_text().splitlines()[2])
    (checkpoint / "offsets" / "1").unlink()
    planned = json.dumps(json.loads(first) | {topic: second[topic]})
    (checkpoint / "offsets" / "0").write_text("\n".join([head, metadata, planned]))
    topics.put(topic, values("c"))

    ran = run(copy(), tmp_path)

    rows = [one.numInputRows for one in ran.recentProgress if one.numInputRows]
    assert rows == [2, 1], "the planned range, and then what has come since"


def test_what_a_stream_cannot_do_is_told_with_its_fix(spark, topics, topic, tmp_path):
    topics.make(topic)
    for options, words in (
        ({"endingOffsets": "latest"}, "for batch reads"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
    ):
        with pytest.raises(Exception, match=words):
            run(topics.stream(spark, topic, **options).writeStream.format("noop"), tmp_path)


# Without a JVM: what Spark would ask of a reader.


def stream_reader(topics, topic, **options):
    given = {**topics.options, "subscribe": topic, "startingOffsets": "earliest", **options}
    return StreamReader(
        read_options(given, streaming=True), projection(spark_schema(PLAIN), value_is_json=False)
    )


def planned(reader, start):
    """The end of the next batch, and the values that its tasks read."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end, values_between(reader, start, end)


def values_between(reader, start, end):
    tasks = reader.partitions(start, end)
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return [row["value"] for row in rows]


def make_anew(topics, topic, *texts):
    ask(topics.bootstrap, lambda client: client.delete_topic(topic))
    topics.make(topic)
    topics.put(topic, values(*texts))


def test_a_topic_made_anew_is_data_lost_however_long_it_is(topics, topic):
    topics.make(topic)
    topics.put(topic, values("old0", "old1", "old2"))
    reader = stream_reader(topics, topic)
    end, _ = planned(reader, reader.initialOffset())
    make_anew(topics, topic, *(f"new{n}" for n in range(5)))

    with pytest.raises(DataLost, match=rf"{topic} \(id .*made anew.*new checkpoint"):
        planned(reader, end)
    # A query that starts again does not believe its checkpoint either.
    with pytest.raises(DataLost, match="made anew"):
        planned(stream_reader(topics, topic), end)


def test_a_topic_made_anew_is_read_from_its_beginning_if_records_may_be_lost(topics, topic):
    topics.make(topic)
    topics.put(topic, values("old0", "old1", "old2"))
    reader = stream_reader(topics, topic, failOnDataLoss="false")
    end, read = planned(reader, reader.initialOffset())
    assert read == [b"old0", b"old1", b"old2"]
    make_anew(topics, topic, "new0", "new1", "new2", "new3")

    after, read = planned(reader, end)
    assert read == [b"new0", b"new1", b"new2", b"new3"]
    # A repeated batch is the same one.
    again = stream_reader(topics, topic, failOnDataLoss="false")
    assert values_between(again, end, after) == read
    assert planned(reader, after) == (after, [])


def test_a_topic_made_anew_after_it_was_planned_is_not_read_in_its_place(topics, topic):
    topics.make(topic)
    topics.put(topic, values("old0", "old1"))
    strict, lax = stream_reader(topics, topic), stream_reader(topics, topic, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, strict.getDefaultReadLimit())
    (task,) = strict.partitions(start, end)
    make_anew(topics, topic, "new0", "new1", "new2")

    with pytest.raises(DataLost, match="created again, after"):
        list(strict.read(task))
    assert list(lax.read(task)) == []


def test_offsets_of_an_older_checkpoint_go_on_and_get_their_ids(topics, topic):
    topics.make(topic)
    topics.put(topic, values("a", "b"))
    reader = stream_reader(topics, topic)
    end, read = planned(reader, {topic: {"0": 1}})
    assert read == [b"b"]
    assert end[topic] == {"0": 2}
    make_anew(topics, topic, "c", "d", "e")
    with pytest.raises(DataLost):
        planned(reader, end)


def test_a_group_that_the_user_names_is_not_written_to(topics, topic):
    topics.make(topic)
    topics.put(topic, values(*"abcdefghij"))
    place = TopicPartition(topic, 0)
    ask(topics.bootstrap, lambda client: client.commit_offsets("billing", {place: 8}))

    reader = stream_reader(topics, topic, **{"kafka.group.id": "billing"})
    end, _ = planned(reader, reader.initialOffset())
    planned(reader, end)
    assert topics.group("billing") == {place: 8}

    told = stream_reader(topics, topic, **{"kafka.group.id": "billing", "commitOffsets": "true"})
    told.commit(end)
    told.stop()
    assert topics.group("billing") == {place: 10}


def test_each_query_has_a_group_of_its_own(topics, topic):
    topics.make(topic)
    topics.put(topic, values(*"abc"))
    first, second = stream_reader(topics, topic), stream_reader(topics, topic)
    end, _ = planned(first, first.initialOffset())
    planned(first, end)  # what was asked for before is done
    second.latestOffset(second.initialOffset(), second.getDefaultReadLimit())
    second.stop()

    names = [f"spark-kafka-source-{reader._query}" for reader in (first, second)]
    assert [topics.group(name) for name in names] == [
        {TopicPartition(topic, 0): 3},
        {TopicPartition(topic, 0): 0},
    ]
    # After a restart it is the same one.
    restarted = stream_reader(topics, topic)
    planned(restarted, end)
    assert restarted._query == first._query


def test_what_an_open_transaction_hides_is_behind_all_the_same(topics, topic):
    topics.make(topic)
    topics.put(topic, values("a"))

    async def leave_open(client):
        writer = await client.begin(f"{topic}-stuck", timeout_ms=600_000)
        await writer.write(topic, 0, values("hidden"))

    ask(topics.bootstrap, leave_open)
    topics.put(topic, values(*"bcde"))
    reader = stream_reader(topics, topic)
    try:
        end, read = planned(reader, reader.initialOffset())
        assert read == [b"a"]
        assert end[topic] == {"0": 1}
        assert reader.reportLatestOffset() == {topic: {"0": 6}}
    finally:
        name = f"{topic}-stuck"
        ask(topics.bootstrap, lambda client: client.abort_transaction(name, timeout_ms=60_000))


def test_a_batch_has_about_as_many_bytes_as_it_may(topics, topic):
    topics.make(topic, 2)
    for partition, size in ((0, 1000), (1, 100)):
        for _ in range(20):
            batch = [Record(value=b"x" * size, timestamp_ms=NOW_MS) for _ in range(50)]
            topics.put(topic, batch, partition=partition)
    reader = stream_reader(topics, topic, maxBytesPerTrigger=str(220_000))
    at, sizes = reader.initialOffset(), []
    while True:
        end, read = planned(reader, at)
        if not read:
            break
        at = end
        sizes.append(sum(map(len, read)))
    assert sum(sizes) == 1000 * 1100
    assert all(150_000 < size < 250_000 for size in sizes[:-1]), sizes
