"""What Spark is asked of all measures: sums that fit a page, whatever was read.

Rule 1: every answer is bounded: so many times, so many keys for each topic.
Rule 2: what it means is worked out in `summary.py`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tidelog.model import Offset
from tidelog.spark.analysis.measure import SPARK, Kind
from tidelog.spark.analysis.plan import Task
from tidelog.spark.analysis.reading import run_task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TIMES_MAX: Final = 120
"""About how many points a plot gets."""
KEYS_MAX: Final = 20
TASKS_PER_CORE: Final = 8
SECONDS: Final = (
    1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 86400, 7 * 86400, 30 * 86400,
    365 * 86400, 100 * 365 * 86400, 10000 * 365 * 86400,
)  # fmt: skip
"""How long one point may stand for."""


class Moment(NamedTuple):
    """What came to one partition in one stretch of time; `at` is its first second."""

    kind: str
    topic: str
    partition: int
    what: str | None
    """The codec, of batches."""
    at: int
    records: int
    batches: int
    stored: int
    payload: int
    end: Offset | None


class Sizes(NamedTuple):
    """How many things are smaller than 2**power, and not smaller than half of that."""

    topic: str
    what: str
    power: int
    things: int
    total: int


class Heavy(NamedTuple):
    """A key that many records have."""

    topic: str
    key: bytes
    records: int


class Keys(NamedTuple):
    """All keys of a topic."""

    topic: str
    counted: int
    """How many keys were counted: all of them, if nothing was lowered."""
    nulls: int
    lowered: int
    """By how much a count may be too low."""


class Committed(NamedTuple):
    """The last commit under a key in one stretch of time."""

    key: bytes
    at: int
    offset: Offset


class Totals(NamedTuple):
    """All answers."""

    seconds: int
    """How long a moment is."""
    moments: list[Moment]
    sizes: list[Sizes]
    heavy: list[Heavy]
    keys: list[Keys]
    committed: list[Committed]


def read_all(spark: "SparkSession", bootstrap: str, tasks: Sequence[Task]) -> "DataFrame":
    """The measures of all tasks."""
    work = list(tasks)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from run_task(bootstrap, work[number])

    cores = spark.sparkContext.defaultParallelism
    slices = max(1, min(len(work), cores * TASKS_PER_CORE))
    return spark.range(0, len(work), 1, slices).mapInArrow(rows, SPARK)


def add_all_up(measures: "DataFrame") -> Totals:
    """Ask for everything."""
    from pyspark.sql import functions as f

    times = measures.where(f.col("kind").isin(Kind.RECORD.value, Kind.BATCH.value))
    span = times.where("place >= 0").agg(f.min("place"), f.max("place")).first()
    first, last = (span[0], span[1]) if span is not None and span[0] is not None else (0, 0)
    seconds = moment_seconds(last - first)
    at = (f.floor(f.col("place") / seconds) * seconds).alias("at")
    moments = times.groupBy("kind", "topic", "partition", "what", at).agg(
        *(_sum(name) for name in ("records", "batches", "stored", "payload")), f.max("end")
    )
    sizes = measures.where(f.col("kind") == Kind.SIZE).groupBy("topic", "what", "place")
    return Totals(
        seconds=seconds,
        moments=sorted((Moment(*row) for row in moments.collect()), key=lambda one: one.at),
        sizes=sorted(Sizes(*row) for row in sizes.agg(_sum("records"), _sum("payload")).collect()),
        heavy=_heavy(measures),
        keys=_keys(measures),
        committed=_committed(measures, seconds),
    )


def moment_seconds(span: int) -> int:
    """How long a point stands for, if so many seconds are shown."""
    return next(one for one in SECONDS if span / one <= TIMES_MAX or one == SECONDS[-1])


def _heavy(measures: "DataFrame") -> list[Heavy]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    counted = measures.where(f.col("kind") == Kind.KEY).groupBy("topic", "key")
    by_weight = Window.partitionBy("topic").orderBy(f.desc("records"), "key")
    found = (
        counted.agg(_sum("records"))
        .withColumn("number", f.row_number().over(by_weight))
        .where(f.col("number") <= KEYS_MAX)
        .orderBy("topic", "number")
        .select("topic", "key", "records")
    )
    return [Heavy(topic, bytes(key), records) for topic, key, records in found.collect()]


def _keys(measures: "DataFrame") -> list[Keys]:
    from pyspark.sql import functions as f

    is_key = f.col("kind") == Kind.KEY
    is_keys = f.col("kind") == Kind.KEYS
    found = (
        measures.where(is_key | is_keys)
        .groupBy("topic")
        .agg(
            f.count_distinct(f.when(is_key, f.col("key"))),
            f.sum(f.when(is_keys, f.col("records")).otherwise(0)),
            f.sum(f.when(is_keys, f.col("payload")).otherwise(0)),
        )
    )
    return sorted(Keys(*row) for row in found.collect())


def _committed(measures: "DataFrame", seconds: int) -> list[Committed]:
    from pyspark.sql import functions as f

    at = (f.floor(f.col("place") / seconds) * seconds).alias("at")
    found = measures.where(f.col("kind") == Kind.COMMIT).groupBy("key", at)
    last = found.agg(f.max_by("end", "place")).collect()
    return sorted(Committed(bytes(key), at, offset) for key, at, offset in last)


def _sum(name: str) -> "Column":
    from pyspark.sql import functions as f

    return f.coalesce(f.sum(name), f.lit(0)).alias(name)
