"""Spark's own Kafka connector, and that its rows are those of `format("tidelog")`."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.topics import Topics
from tests.suites import tools
from tests.suites.checks import Context, run_checks
from tests.suites.report import Check
from tidelog.records import Codec, Record
from tidelog.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA, TIDELOG = "kafka", "tidelog"
ROWS = 5_000


def version() -> str:
    jars = tools.spark_connector_jars()
    jar = next(jar for jar in jars if jar.name.startswith("spark-sql-kafka"))
    return jar.stem.rpartition("-")[2]


def run(context: Context) -> Iterator[Check]:
    conf = {
        "spark.jars": ",".join(map(str, tools.spark_connector_jars())),
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    log = context.directory / "spark.log"
    with spark_session("suite", master="local[2]", conf=conf, log=log) as spark:
        both = Both(spark, Topics(context.bootstrap), context.directory)
        checks = [getattr(both, name) for name in vars(Both) if not name.startswith("_")]
        yield from run_checks(checks)


class Both:
    """Checks in which both sources, or both sinks, do the same. Each is named by what it shows."""

    def __init__(self, spark: "SparkSession", topics: Topics, directory: Path) -> None:
        self._spark = spark
        self._topics = topics
        self._directory = directory
        self._filled: set[str] = set()

    def batch_rows_are_the_same(self) -> None:
        self._same(self._plain())

    def rows_with_headers_are_the_same(self) -> None:
        self._same(self._plain(), includeHeaders="true")

    def rows_of_every_codec_are_the_same(self) -> None:
        for codec in Codec:
            topic = f"codec-{codec.name.lower()}"
            self._topics.make(topic)
            records = [Record(value=b"%d" % n * 20, timestamp_ms=n + 1) for n in range(500)]
            self._topics.put(topic, records, codec=codec)
            self._same(topic)

    def rows_from_offsets_and_times_are_the_same(self) -> None:
        topic = self._plain()
        for options in (
            {"startingOffsets": f'{{"{topic}": {{"0": 17, "1": -2, "2": 100}}}}'},
            {"endingOffsets": f'{{"{topic}": {{"0": 17, "1": -1, "2": 100}}}}'},
            {"startingTimestamp": "1000000000700", "endingTimestamp": "1000000001500"},
            {"minPartitions": "7"},
        ):
            self._same(topic, **options)

    def committed_rows_are_the_same(self) -> None:
        self._topics.make("transactions", 2)
        numbers = self._spark.range(ROWS).selectExpr("cast(id as string) value")
        self._write(TIDELOG, numbers, "transactions")
        self._same("transactions", **{"kafka.isolation.level": "read_committed"})

    def streams_give_the_same_rows(self) -> None:
        topic = self._plain()
        counts = {one: self._streamed(one, topic) for one in (KAFKA, TIDELOG)}
        assert counts[KAFKA] == counts[TIDELOG] == ROWS, counts

    def schemas_are_the_same(self) -> None:
        topic = self._plain()
        for options in ({}, {"includeHeaders": "true"}):
            ours, theirs = (self._read(one, topic, **options) for one in (TIDELOG, KAFKA))
            assert ours.schema.simpleString() == theirs.schema.simpleString()

    def rows_written_by_either_go_to_the_same_partitions(self) -> None:
        rows = self._spark.range(ROWS).selectExpr(
            "concat('key-', id) key",
            "repeat('x', cast(id % 50 as int)) value",
            "array(named_struct('key', 'h', 'value', cast('1' as binary))) headers",
        )
        found = {}
        for one in (KAFKA, TIDELOG):
            topic = f"written-{one}"
            self._topics.make(topic, 5)
            self._write(one, rows, topic)
            read = self._read(TIDELOG, topic, includeHeaders="true")
            found[one] = sorted(read.select("key", "value", "partition", "headers").collect(), key=str)
        assert len(found[KAFKA]) == ROWS
        assert found[KAFKA] == found[TIDELOG]

    def a_checkpoint_s_offsets_have_one_form(self) -> None:
        topic = self._plain()
        forms = {}
        for one in (KAFKA, TIDELOG):
            self._streamed(one, topic)
            (file,) = (self._directory / f"{one}-{topic}" / "offsets").glob("0")
            forms[one] = json.loads(file.read_text().splitlines()[2])
        assert forms[KAFKA] == forms[TIDELOG], forms

    def _plain(self) -> str:
        """A topic with keys, nulls, headers and times."""
        topic = "plain"
        if topic not in self._filled:
            self._filled.add(topic)
            self._topics.make(topic, 3)
            for partition in range(3):
                records = [
                    Record(
                        key=None if n % 3 else b"k%d" % n,
                        value=None if n % 7 == 6 else b"v%d" % n,
                        timestamp_ms=1_000_000_000_000 + n,
                        headers=[("h", b"x")] * (n % 3),
                    )
                    for n in range(partition, ROWS, 3)
                ]
                self._topics.put(topic, records, partition=partition)
        return topic

    def _read(self, source: str, topic: str, **options: str) -> "DataFrame":
        reader = self._spark.read.format(source).options(**self._topics.options, subscribe=topic)
        return reader.options(**options).load()

    def _write(self, sink: str, rows: "DataFrame", topic: str) -> None:
        rows.write.format(sink).mode("append").options(**self._topics.options, topic=topic).save()

    def _same(self, topic: str, **options: str) -> None:
        ours, theirs = (
            sorted(self._read(one, topic, **options).collect(), key=str) for one in (TIDELOG, KAFKA)
        )
        assert theirs, "there is something to compare"
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        different = [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
        assert not different, different[:3]

    def _streamed(self, source: str, topic: str) -> int:
        """How many rows a stream gives, taking what is there in parts."""
        checkpoint = self._directory / f"{source}-{topic}"
        reader = self._spark.readStream.format(source).options(**self._topics.options)
        rows = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2000").load()
        counted: list[int] = []
        query = (
            rows.writeStream.foreachBatch(partial(_count, counted))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(counted)


def _count(counted: list[int], rows: "DataFrame", number: int) -> None:
    counted.append(rows.count())
