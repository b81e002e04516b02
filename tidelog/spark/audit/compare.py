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
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidelog.model import NO_EPOCH, NodeId, Offset
from tidelog.records import TRANSACTIONAL
from tidelog.spark.audit.contents import CONTENT
from tidelog.spark.audit.found import Bad, Disorder, Dispute, Found, Gap, Lost, Seen
from tidelog.spark.audit.plan import STRETCH_OFFSETS_MIN, TASKS_PER_CORE, AuditPlan
from tidelog.spark.audit.replica import Asking, read_stretch
from tidelog.spark.audit.walk import Kind, Row, Stretch
from tidelog.spark.connect import parallelism

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LISTED_MAX: Final = 50
"""Of each kind, for each replica or partition."""

ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("replica", pa.int32()),
        ("kind", pa.string()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("crc", pa.int64()),
        ("records", pa.int32()),
        ("bytes", pa.int32()),
        ("attributes", pa.int32()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("base_sequence", pa.int32()),
        ("max_timestamp_ms", pa.int64()),
        ("problem", pa.string()),
        ("contents", pa.list_(CONTENT)),
    ]
)
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
END: Final = "end"
"""The kind of a row that is not there: where a replica must end."""
BAD, GAP, DISORDER = "bad", "gap", "disorder"


def read_all(spark: "SparkSession", asking: Asking, stretches: Sequence[Stretch]) -> "DataFrame":
    """The rows of all stretches: a task for each, or for some that are short."""
    work = list(stretches)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for found in read_stretch(asking, work[number]):
                    yield to_arrow(found)

    offsets = sum(one.end - one.start for one in work)
    cores = parallelism(spark)
    tasks = min(len(work), max(cores * TASKS_PER_CORE, -(-offsets // STRETCH_OFFSETS_MIN)))
    return spark.range(0, len(work), 1, max(1, tasks)).mapInArrow(rows, SPARK)


def to_arrow(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in Row._fields]
    arrays = [pa.array(values, field.type) for values, field in zip(columns[:-1], ARROW, strict=False)]
    return pa.RecordBatch.from_arrays([*arrays, _lists(columns[-1])], schema=ARROW)


def _lists(contents: Sequence[pa.StructArray | None]) -> pa.Array:
    """A list of records for each row, or null."""
    lengths = [0 if one is None else len(one) for one in contents]
    edges = pa.array([0, *accumulate(lengths)], pa.int32())
    given = [one for one in contents if one is not None]
    values = pa.concat_arrays(given) if given else pa.array([], CONTENT)
    mask = pa.array([one is None for one in contents], pa.bool_())
    return pa.ListArray.from_arrays(edges, values, mask=mask)


class Comparison:
    """Questions to the rows of one audit. Nothing runs until one is asked."""

    def __init__(self, spark: "SparkSession", rows: "DataFrame", plan: AuditPlan) -> None:
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
        self._plain = self._good.where(~is_compacted)
        self._compacted = self._good.where(is_compacted)
        self._is_compacted = is_compacted
        self._has_compacted = bool(plan.compacted)

    def all(self, seen: list[Seen]) -> Found:
        """Ask all the rest. What seems lost needs a second look, at what came later."""
        bad, gaps, disorders = self.suspects()
        return Found(
            seen=seen,
            bad=bad,
            gaps=gaps,
            disorders=disorders,
            disputes=self.disputes(),
            lost=self.lost() if self._has_compacted else [],
        )

    def seen(self) -> list[Seen]:
        """How much there is. Asked first, this is what has all replicas read."""
        from pyspark.sql import functions as f

        found = self._good.groupBy(*PLACE, "replica").agg(f.count("*"), f.sum("records"), f.sum("bytes"))
        return sorted(Seen(*row) for row in found.collect())

    def suspects(self) -> tuple[list[Bad], list[Gap], list[Disorder]]:
        """What can be seen in one replica alone, one row after the other."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        kind, base, last, epoch = (
            f.col(name) for name in ("kind", "base_offset", "last_offset", "leader_epoch")
        )
        # A row where each replica must end makes a gap at the end one like the others.
        ends = self._bounds.select(
            *PLACE,
            "replica",
            f.lit(END).alias("kind"),
            f.col("end").alias("base_offset"),
            f.col("end").alias("last_offset"),
            f.lit(NO_EPOCH).alias("leader_epoch"),
            f.lit(None).cast("string").alias("problem"),
        )
        of_replica = Window.partitionBy(*PLACE, "replica").orderBy("base_offset", "last_offset")
        before = of_replica.rowsBetween(Window.unboundedPreceding, -1)
        is_good = kind == Kind.BATCH
        rows = (
            self._rows.select(*ends.columns)
            .union(ends)
            .join(f.broadcast(self._bounds), [*PLACE, "replica"])
            .withColumn("covered", f.coalesce(f.max(last).over(before) + 1, "start"))
            .withColumn("last_before", f.last(f.when(is_good, last), ignorenulls=True).over(before))
            .withColumn("epoch_before", f.last(f.when(is_good, epoch), ignorenulls=True).over(before))
        )
        faults = {
            BAD: ~kind.isin(Kind.BATCH.value, Kind.DELETED.value, END),
            GAP: ~self._is_compacted & (f.least(base, "end") > f.col("covered")),
            DISORDER: is_good & ((base <= f.col("last_before")) | (epoch < f.col("epoch_before"))),
        }
        named = f.array_compact(f.array(*(f.when(is_so, name) for name, is_so in faults.items())))
        found = rows.withColumn("fault", f.explode(named)).withColumn(
            "of", f.when(f.col("fault") == BAD, kind)
        )
        by = [*PLACE, "replica", "fault", "of"]
        listed = _first(found, by, "base_offset").orderBy(*by, "base_offset")
        by_fault: dict[str, list[Any]] = {name: [] for name in faults}
        for row in listed.collect():
            by_fault[row["fault"]].append(row)
        return (
            self._bad(by_fault[BAD]),
            self._gaps(by_fault[GAP]),
            [
                Disorder(
                    *_copy(row),
                    row["base_offset"],
                    row["last_offset"],
                    row["leader_epoch"],
                    row["last_before"],
                    row["epoch_before"],
                    row["total"],
                )
                for row in by_fault[DISORDER]
            ],
        )

    def _bad(self, rows: Sequence[Any]) -> list[Bad]:
        mended = self._covering((_copy(row), row["base_offset"], row["base_offset"]) for row in rows)
        return [
            Bad(
                *_copy(row),
                row["kind"],
                row["base_offset"],
                row["last_offset"],
                row["problem"],
                row["replica"] in mended.get((*_copy(row)[:2], row["base_offset"]), {}),
                row["total"],
            )
            for row in rows
        ]

    def _gaps(self, rows: Sequence[Any]) -> list[Gap]:
        spans = [(row["covered"], min(row["base_offset"], row["end"]) - 1) for row in rows]
        copies = [_copy(row) for row in rows]
        held = self._covering((copy, *span) for copy, span in zip(copies, spans, strict=True))
        gaps = []
        for copy, (first, last), row in zip(copies, spans, rows, strict=True):
            others = held.get((*copy[:2], first), {})
            gaps.append(
                Gap(
                    *copy,
                    first,
                    last,
                    min((span[0] for span in others.values()), default=None),
                    max((span[1] for span in others.values()), default=None),
                    sorted(others),
                    row["total"],
                )
            )
        return gaps

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

    def disputes(self) -> list[Dispute]:
        """Batches at one offset that are not the same; of compacted topics, records."""
        from pyspark.sql import functions as f

        batch = f.format_string(
            "%d..%d, epoch %d, checksum %08x", "base_offset", "last_offset", "leader_epoch", "crc"
        )
        first, last = f.col("base_offset").alias("first"), f.col("last_offset").alias("last")
        said = self._plain.select(*PLACE, "replica", first, last, batch.alias("said"))
        if self._has_compacted:
            record = f.format_string("hash %016x", "content").alias("said")
            at = f.col("offset")
            said = said.union(
                self._contents().select(*PLACE, "replica", at.alias("first"), at.alias("last"), record)
            )
        return _disputes(said)

    def lost(self, later: "DataFrame | None" = None) -> list[Lost]:
        """The newest record of a key, where another replica has none of that key from there on.

        `later` are rows behind what was audited: whoever has a newer one there may have dropped it.

        Not judged: keys whose newest record is a tombstone, which goes after its time, or of a
        transaction, which may have been aborted; and replicas of which not all was read.
        """
        from pyspark.sql import functions as f

        by_key = self._contents().where(f.col("key").isNotNull()).groupBy(*PLACE, "replica", "key")
        newest = by_key.agg(f.max("offset").alias("offset"), f.max_by("may_go", "offset").alias("may_go"))
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


def _copy(row: Any) -> tuple[str, int, NodeId]:
    return row["topic"], row["partition"], row["replica"]


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
        f.max("last").alias("last"),
        f.count_distinct("said").alias("kinds"),
        f.sort_array(f.collect_set(f.struct("replica", "said"))).alias("held"),
    )
    listed = _first(groups.where(f.col("kinds") > 1), PLACE, "first")
    columns = [*PLACE, "first", "last", "held", "total"]
    return [
        Dispute(topic, partition, first, last, dict(held), total)
        for topic, partition, first, last, held, total in listed.select(*columns)
        .orderBy(*columns[:3])
        .collect()
    ]
