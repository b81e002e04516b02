"""What Spark is asked of all measures: sums that fit a page, whatever was read.

Rule 1: every answer is bounded: so many times, so many keys for each topic.
Rule 2: what it means is worked out in `summary.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from tidelog.model import Offset
from tidelog.spark.analysis.measure import SPARK, Kind
from tidelog.spark.analysis.plan import Task
from tidelog.spark.analysis.reading import run_task
from tidelog.spark.connect import parallelism

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TIMES_MAX: Final = 120
"""About how many points a plot gets."""
KEYS_MAX: Final = 20
TASKS_PER_CORE: Final = 8
SECONDS: Final = (
    1,
    5,
    10,
    30,
    60,
    300,
    600,
    1800,
    3600,
    10800,
    21600,
    86400,
    7 * 86400,
    30 * 86400,
    365 * 86400,
    100 * 365 * 86400,
    10000 * 365 * 86400,
)
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

    cores = parallelism(spark)
    slices = max(1, min(len(work), cores * TASKS_PER_CORE))
    return spark.range(0, len(work), 1, slices).mapInArrow(rows, SPARK)


def span_of(measures: "DataFrame") -> int:
    """Over how many seconds records are spread. Asked first, this is what has all topics read."""
    from pyspark.sql import functions as f

    is_time = f.col("kind").isin(Kind.RECORD.value, Kind.BATCH.value) & (f.col("place") >= 0)
    at = f.when(is_time, f.col("place"))
    first, last = measures.agg(f.min(at), f.max(at)).collect()[0]
    return 0 if first is None else int(last - first)


def add_all_up(measures: "DataFrame", span: int) -> Totals:
    """Ask for everything."""
    from pyspark.sql import functions as f

    seconds = moment_seconds(span)
    kind, place = f.col("kind"), f.col("place")
    at = f.when(kind == Kind.SIZE, place).otherwise(f.floor(place / seconds) * seconds)
    rows = (
        measures.where(kind != Kind.KEY)
        .withColumn("at", at)
        .groupBy("kind", "topic", "partition", "what", "key", "at")
        .agg(
            *(_sum(name) for name in ("records", "batches", "stored", "payload")),
            f.max("end").alias("most"),
            f.max_by("end", "place").alias("last"),
        )
        .collect()
    )
    by_kind: dict[str, list[Any]] = {one.value: [] for one in Kind}
    for row in rows:
        by_kind[row["kind"]].append(row)
    heavy, counted = _heavy(measures)
    return Totals(
        seconds=seconds,
        moments=_moments([*by_kind[Kind.RECORD], *by_kind[Kind.BATCH]]),
        sizes=_sizes(by_kind[Kind.SIZE]),
        heavy=heavy,
        keys=_keys(by_kind[Kind.KEYS], counted),
        committed=sorted(
            Committed(bytes(row["key"]), row["at"], row["last"]) for row in by_kind[Kind.COMMIT]
        ),
    )


def moment_seconds(span: int) -> int:
    """How long a point stands for, if so many seconds are shown."""
    return next(one for one in SECONDS if span / one <= TIMES_MAX or one == SECONDS[-1])


def _moments(rows: Sequence[Any]) -> list[Moment]:
    found = (
        Moment(
            row["kind"],
            row["topic"],
            row["partition"],
            row["what"],
            row["at"],
            row["records"],
            row["batches"],
            row["stored"],
            row["payload"],
            row["most"],
        )
        for row in rows
    )
    return sorted(found, key=lambda one: one.at)


def _sizes(rows: Sequence[Any]) -> list[Sizes]:
    """Of all partitions of a topic together."""
    found: dict[tuple[str, str, int], tuple[int, int]] = {}
    for row in rows:
        what = row["topic"], row["what"], row["at"]
        things, total = found.get(what, (0, 0))
        found[what] = things + row["records"], total + row["payload"]
    return sorted(Sizes(*what, *sums) for what, sums in found.items())


def _keys(rows: Sequence[Any], counted: Mapping[str, int]) -> list[Keys]:
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        nulls, lowered = found.get(row["topic"], (0, 0))
        found[row["topic"]] = nulls + row["records"], lowered + row["payload"]
    return sorted(Keys(topic, counted.get(topic, 0), *sums) for topic, sums in found.items())


def _heavy(measures: "DataFrame") -> tuple[list[Heavy], dict[str, int]]:
    """The heaviest keys of each topic, and how many keys it has."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_topic = Window.partitionBy("topic")
    found = (
        measures.where(f.col("kind") == Kind.KEY)
        .groupBy("topic", "key")
        .agg(_sum("records"))
        .withColumn("number", f.row_number().over(of_topic.orderBy(f.desc("records"), "key")))
        .withColumn("keys", f.count("*").over(of_topic))
        .where(f.col("number") <= KEYS_MAX)
        .orderBy("topic", "number")
        .collect()
    )
    heavy = [Heavy(row["topic"], bytes(row["key"]), row["records"]) for row in found]
    return heavy, {row["topic"]: row["keys"] for row in found}


def _sum(name: str) -> "Column":
    from pyspark.sql import functions as f

    return f.coalesce(f.sum(name), f.lit(0)).alias(name)
