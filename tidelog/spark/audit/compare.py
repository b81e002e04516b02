"""What Spark is asked of the batches of all replicas.

Rule 1: Spark finds the few rows worth looking at; what they mean is decided in `judging.py`.
Rule 2: of many alike the first ones are listed, by offset, and all are counted (`total`), so that a
        replica that is wrong throughout does not drown the driver.
Rule 3: batches of compacted topics may differ, since each replica cleans at its own pace. There, a
        record is compared with the one that another replica has at the same offset; and what is
        the newest of its key in one replica must not be missing, nor be succeeded, in another,
        unless that one has a newer record behind what was audited (`later`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidelog.model import NodeId, Offset
from tidelog.records import TRANSACTIONAL
from tidelog.spark.audit.found import Bad, Disorder, Dispute, Found, Gap, Lost, Seen
from tidelog.spark.audit.plan import STRETCH_OFFSETS_MIN, TASKS_PER_CORE, Plan
from tidelog.spark.audit.replica import Asking, read_stretch
from tidelog.spark.audit.walk import Kind, Row, Stretch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LISTED_MAX: Final = 50
"""Of each kind, for each replica or partition."""

CONTENT: Final = pa.struct(
    [
        ("offset", pa.int64()),
        ("key", pa.int64()),
        ("content", pa.int64()),
        ("is_tombstone", pa.bool_()),
    ]
)
ARROW: Final = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("replica", pa.int32()),
        ("kind", pa.string()), ("base_offset", pa.int64()), ("last_offset", pa.int64()),
        ("leader_epoch", pa.int32()), ("crc", pa.int64()), ("records", pa.int32()),
        ("bytes", pa.int32()), ("attributes", pa.int32()), ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()), ("base_sequence", pa.int32()),
        ("max_timestamp_ms", pa.int64()), ("problem", pa.string()), ("contents", pa.list_(CONTENT)),
    ]
)  # fmt: skip
SPARK: Final = (
    "topic string, partition int, replica int, kind string, base_offset bigint, "
    "last_offset bigint, leader_epoch int, crc bigint, records int, bytes int, attributes int, "
    "producer_id bigint, producer_epoch int, base_sequence int, max_timestamp_ms bigint, "
    "problem string, contents array<struct<offset:bigint,key:bigint,content:bigint,"
    "is_tombstone:boolean>>"
)
BOUNDS: Final = "topic string, partition int, replica int, start bigint, end bigint"
WANTED: Final = "topic string, partition int, first bigint, last bigint"

PLACE: Final = ("topic", "partition")


def read_all(spark: "SparkSession", asking: Asking, stretches: Sequence[Stretch]) -> "DataFrame":
    """The rows of all stretches: a task for each, or for some that are short."""
    work = list(stretches)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for found in read_stretch(asking, work[number]):
                    yield to_arrow(found)

    offsets = sum(one.end - one.start for one in work)
    cores = spark.sparkContext.defaultParallelism
    tasks = min(len(work), max(cores * TASKS_PER_CORE, -(-offsets // STRETCH_OFFSETS_MIN)))
    return spark.range(0, len(work), 1, max(1, tasks)).mapInArrow(rows, SPARK)


def to_arrow(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in Row._fields]
    contents = [
        None if one is None else [content._asdict() for content in one] for one in columns[-1]
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(values, field.type)
            for values, field in zip([*columns[:-1], contents], ARROW, strict=True)
        ],
        schema=ARROW,
    )


class Comparison:
    """Questions to the rows of one audit. Nothing runs until one is asked."""

    def __init__(self, spark: "SparkSession", rows: "DataFrame", plan: Plan) -> None:
        from pyspark.sql import functions as f

        self._spark = spark
        self._rows = rows
        bounds = [
            (one.topic, one.partition, one.node, one.start, one.end)
            for one in plan.replicas
            if not one.problem
        ]
        self._bounds = spark.createDataFrame(bounds, BOUNDS)
        is_compacted = f.col("topic").isin(sorted(plan.compacted))
        self._good = rows.where(f.col("kind") == Kind.BATCH)
        self._plain = rows.where(~is_compacted)
        self._compacted = self._good.where(is_compacted)
        self._plain_bounds = self._bounds.where(~is_compacted)
        self._has_compacted = bool(plan.compacted)

    def all(self) -> Found:
        """Everything but what is lost, which needs a second look."""
        disputes = self.disputes() + (self.record_disputes() if self._has_compacted else [])
        return Found(
            seen=self.seen(), bad=self.bad(), gaps=self.gaps(), disorders=self.disorders(),
            disputes=sorted(disputes, key=lambda one: one[:3]),
            lost=self.lost() if self._has_compacted else [],
        )  # fmt: skip

    def seen(self) -> list[Seen]:
        from pyspark.sql import functions as f

        found = self._good.groupBy(*PLACE, "replica").agg(
            f.count("*"), f.sum("records"), f.sum("bytes")
        )
        return sorted(Seen(*row) for row in found.collect())

    def bad(self) -> list[Bad]:
        """Whatever is no good batch, retention's work aside."""
        from pyspark.sql import functions as f

        rows = self._rows.where(~f.col("kind").isin(Kind.BATCH.value, Kind.DELETED.value))
        listed = _first(rows, [*PLACE, "replica", "kind"], "base_offset")
        columns = [*PLACE, "replica", "kind", "base_offset", "last_offset", "problem", "total"]
        found = sorted((tuple(row) for row in listed.select(*columns).collect()), key=_order)
        mended = self._covering((row[:3], row[4], row[4]) for row in found)
        return [
            Bad(
                topic, partition, replica, kind, first, last, problem,
                is_mended=replica in mended.get((topic, partition, first), {}), total=total,
            )
            for topic, partition, replica, kind, first, last, problem, total in found
        ]  # fmt: skip

    def gaps(self) -> list[Gap]:
        """What is missing in logs that are never compacted."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        # A row where each replica must end makes a gap at the end one like the others.
        ends = self._plain_bounds.select(
            *PLACE, "replica", f.col("end").alias("base_offset"), f.col("end").alias("last_offset")
        )
        of_replica = Window.partitionBy(*PLACE, "replica").orderBy("base_offset")
        before = of_replica.rowsBetween(Window.unboundedPreceding, -1)
        gaps = (
            self._plain.select(*ends.columns)
            .union(ends)
            .join(self._plain_bounds, [*PLACE, "replica"])
            .withColumn("first", f.coalesce(f.max("last_offset").over(before) + 1, "start"))
            .withColumn("last", f.least("base_offset", "end") - 1)
            .where(f.col("last") >= f.col("first"))
        )
        listed = _first(gaps, [*PLACE, "replica"], "first")
        columns = [*PLACE, "replica", "first", "last", "total"]
        found = sorted(tuple(row) for row in listed.select(*columns).collect())
        held = self._covering((row[:3], row[3], row[4]) for row in found)
        out = []
        for topic, partition, replica, first, last, total in found:
            spans = held.get((topic, partition, first), {})
            out.append(
                Gap(
                    topic, partition, replica, first, last,
                    held_first=min((span[0] for span in spans.values()), default=None),
                    held_last=max((span[1] for span in spans.values()), default=None),
                    held_by=sorted(spans), total=total,
                )
            )  # fmt: skip
        return out

    def _covering(
        self, wanted: Iterable[tuple[tuple[str, int, NodeId], Offset, Offset]]
    ) -> dict[tuple[str, int, Offset], dict[NodeId, tuple[Offset, Offset]]]:
        """Who has good batches between these offsets, and from where to where.

        By topic, partition and first offset. Few are asked for, and mostly none at all.
        """
        from pyspark.sql import functions as f

        asked = {(copy[0], copy[1], first): last for copy, first, last in wanted}
        if not asked:
            return {}
        rows = [(*place, last) for place, last in asked.items()]
        wide = f.broadcast(self._spark.createDataFrame(rows, WANTED)).alias("wanted")
        good = self._good.alias("good")
        is_inside = (
            (f.col("good.topic") == f.col("wanted.topic"))
            & (f.col("good.partition") == f.col("wanted.partition"))
            & (f.col("good.base_offset") <= f.col("wanted.last"))
            & (f.col("good.last_offset") >= f.col("wanted.first"))
        )
        found = (
            good.join(wide, is_inside)
            .groupBy("wanted.topic", "wanted.partition", "wanted.first", "good.replica")
            .agg(f.min("good.base_offset"), f.max("good.last_offset"))
        )
        held: dict[tuple[str, int, Offset], dict[NodeId, tuple[Offset, Offset]]] = {}
        for topic, partition, first, replica, base, last in found.collect():
            held.setdefault((topic, partition, first), {})[replica] = (base, last)
        return held

    def disorders(self) -> list[Disorder]:
        """Batches that overlap the one before them, or are of an older epoch."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        of_replica = Window.partitionBy(*PLACE, "replica").orderBy("base_offset", "last_offset")
        found = (
            self._good.withColumn("last_before", f.lag("last_offset").over(of_replica))
            .withColumn("epoch_before", f.lag("leader_epoch").over(of_replica))
            .where(
                (f.col("base_offset") <= f.col("last_before"))
                | (f.col("leader_epoch") < f.col("epoch_before"))
            )
        )
        listed = _first(found, [*PLACE, "replica"], "base_offset")
        columns = [
            *PLACE, "replica", "base_offset", "last_offset", "leader_epoch", "last_before",
            "epoch_before", "total",
        ]  # fmt: skip
        return sorted(Disorder(*row) for row in listed.select(*columns).collect())

    def disputes(self) -> list[Dispute]:
        """Batches at one offset that are not the same, where nothing is compacted."""
        from pyspark.sql import functions as f

        said = f.format_string(
            "%d..%d, epoch %d, checksum %08x", "base_offset", "last_offset", "leader_epoch", "crc"
        )
        plain = self._plain.where(f.col("kind") == Kind.BATCH)
        return _disputes(
            plain.select(*PLACE, "replica", f.col("base_offset").alias("first"),
                         f.col("last_offset").alias("last"), said.alias("said"))
        )  # fmt: skip

    def record_disputes(self) -> list[Dispute]:
        """Records at one offset that are not the same, where replicas are compacted."""
        from pyspark.sql import functions as f

        said = f.format_string("hash %016x", "content")
        return _disputes(
            self._contents().select(*PLACE, "replica", f.col("offset").alias("first"),
                                    f.col("offset").alias("last"), said.alias("said"))
        )  # fmt: skip

    def lost(self, later: "DataFrame | None" = None) -> list[Lost]:
        """The newest record of a key, where another replica has none of that key from there on.

        `later` are rows behind what was audited: whoever has a newer one there may have dropped it.

        Not judged: keys whose newest record is a tombstone, which goes after its time, or of a
        transaction, which may have been aborted; and replicas of which not all was read.
        """
        from pyspark.sql import functions as f

        by_key = self._contents().where(f.col("key").isNotNull()).groupBy(*PLACE, "replica", "key")
        newest = by_key.agg(
            f.max("offset").alias("offset"), f.max_by("may_go", "offset").alias("may_go")
        )
        unread = self._rows.where(f.col("kind") != Kind.BATCH).select(*PLACE, "replica").distinct()
        judged = self._bounds.join(unread, [*PLACE, "replica"], "left_anti")
        held = newest.where(~f.col("may_go")).withColumnRenamed("replica", "holder").alias("held")
        expected = held.join(judged, [*PLACE]).where(
            (f.col("replica") != f.col("holder")) & (f.col("offset") < f.col("end"))
        )
        theirs = newest.select(*PLACE, "replica", "key", f.col("offset").alias("theirs"))
        missing = expected.join(theirs, [*PLACE, "replica", "key"], "left").where(
            f.col("theirs").isNull() | (f.col("theirs") < f.col("offset"))
        )
        if later is not None:
            newer = later.select(*PLACE, "replica", f.inline("contents"))
            missing = missing.join(newer, [*PLACE, "replica", "key"], "left_anti")
        found = missing.groupBy(*PLACE, "replica", "offset").agg(
            f.sort_array(f.collect_set("holder")).alias("held_by")
        )
        listed = _first(found, [*PLACE, "replica"], "offset")
        columns = [*PLACE, "replica", "offset", "held_by", "total"]
        return sorted(Lost(*row) for row in listed.select(*columns).collect())

    def _contents(self) -> "DataFrame":
        """The records of compacted topics that are audited in all replicas."""
        from pyspark.sql import functions as f

        is_transactional = f.col("attributes").bitwiseAND(TRANSACTIONAL) != 0
        return (
            self._compacted.withColumn("is_transactional", is_transactional)
            .select(*PLACE, "replica", "is_transactional", f.inline("contents"))
            .join(self._bounds.select(*PLACE, "replica", "start"), [*PLACE, "replica"])
            .where(f.col("offset") >= f.col("start"))
            .withColumn("may_go", f.col("is_tombstone") | f.col("is_transactional"))
        )


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """By what is never null: topic, partition, replica, kind, first offset."""
    return row[:5]


def _first(rows: "DataFrame", by: Sequence[str], order: str) -> "DataFrame":
    """The first rows of each group, by `order`; `total` is the size of the group."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    group = Window.partitionBy(*by)
    number: Column = f.row_number().over(group.orderBy(order))
    return (
        rows.withColumn("total", f.count("*").over(group))
        .withColumn("number", number)
        .where(f.col("number") <= LISTED_MAX)
    )


def _disputes(said: "DataFrame") -> list[Dispute]:
    from pyspark.sql import functions as f

    groups = said.groupBy(*PLACE, "first").agg(
        f.max("last").alias("last"), f.count_distinct("said").alias("kinds"),
        f.sort_array(f.collect_set(f.struct("replica", "said"))).alias("held"),
    )  # fmt: skip
    listed = _first(groups.where(f.col("kinds") > 1), PLACE, "first")
    columns = [*PLACE, "first", "last", "held", "total"]
    return [
        Dispute(topic, partition, first, last, dict(held), total)
        for topic, partition, first, last, held, total in listed.select(*columns).collect()
    ]
