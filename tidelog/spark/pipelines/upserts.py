"""Changes into an Iceberg table that has one row for each key.

    upsert: [id]                  the columns that are the key
    changes: debezium             rows have `before`, `after` and `op`; without it, a row is a row
    delete: "value IS NULL"       which rows delete their key
    order_by: [_offset]           of the changes of a key in one batch the last one counts

Rule 1: what a batch changes, the files that it replaces, and the note that it is written are one
        commit. A batch that Spark repeats after a crash changes nothing, and no reader sees half.
Rule 2: only files that have a changed key are written again; which ones is read from their keys.
Rule 3: who was outpaced begins again with the table as it is now: its files were made of another.
"""

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from posixpath import normpath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tidelog.spark.archive.storage import Storage
from tidelog.spark.connect import parallelism
from tidelog.spark.pipelines.expressions import TOMBSTONE, quoted
from tidelog.spark.pipelines.iceberg import COMMITS_MAX, Catalog
from tidelog.spark.pipelines.spec import Sink, SpecError
from tidelog.spark.proofs import Proof, source_ends
from tidelog.spark.tables.batches import remove_batch, spark_schema, write_batch
from tidelog.spark.tables.commits import Locked, tried_once
from tidelog.spark.tables.notes import check_replay, note, written
from tidelog.spark.tables.projecting import check_names
from tidelog.spark.tables.reading import FILE, read_files, store_told_as_away
from tidelog.spark.tables.upkeep import Upkeep
from tidelog.spark.tables.waiting import Patience
from tidelog.spark.tables.writing import is_sparks_own

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import DataFrame, SparkSession

ROW: Final = "_tidelog_row"
DELETE: Final = "_tidelog_delete"
ORDER: Final = "_tidelog_order"
ENVELOPE: Final = ("before", "after", "op")
OFFSETS: Final = ("_offset", "offset")
_BEFORE_PATH: Final = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:(//[^/]*)?")


def as_changes(sink: Sink, frame: "DataFrame") -> "DataFrame":
    """What a table says of changes: the row, whether it deletes its key, and when it was."""
    order = sink.order_by or tuple(name for name in OFFSETS if name in frame.columns)[:1]
    if not order:
        raise SpecError(
            "order_by is missing: which columns tell the order of a key's changes? The table has "
            f"none of {', '.join(OFFSETS)}"
        )
    if sink.changes == "debezium":
        if missing := [name for name in ENVELOPE if name not in frame.columns]:
            raise SpecError(
                f"the table has no column {missing[0]}, and Debezium's changes have; parse them "
                "with `json: before struct<...>, after struct<...>, op string`"
            )
        # A tombstone, which Debezium sends behind a deletion, has neither.
        frame = frame.where("before IS NOT NULL OR after IS NOT NULL")
        row, delete = "coalesce(after, before)", sink.delete or "op = 'd' OR after IS NULL"
    else:
        columns = ", ".join(quoted(name) for name in frame.columns)
        row = f"struct({columns})"
        delete = sink.delete or _deletes(sink, frame.columns)
    changes = frame.selectExpr(
        f"{row} AS {ROW}", f"coalesce({delete}, false) AS {DELETE}", f"struct({', '.join(order)}) AS {ORDER}"
    )
    fields = changes.schema[ROW].dataType.fieldNames()  # type: ignore[attr-defined]
    if unknown := [name for name in sink.upsert if name not in fields]:
        raise SpecError(f"upsert names {unknown[0]}, and the rows have {', '.join(fields)}")
    return changes


def _deletes(sink: Sink, columns: list[str]) -> str:
    """Which rows delete their key, unless the sink says it: those of records without a value."""
    if TOMBSTONE in columns:
        return TOMBSTONE
    return "value IS NULL" if "value" in columns and "value" not in sink.upsert else "false"


def row_schema(changes: "DataFrame") -> Any:
    return changes.schema[ROW].dataType


def latest_changes(changes: "DataFrame", key: tuple[str, ...]) -> "DataFrame":
    """The last change of each key, with the columns of the row."""
    from pyspark.sql.functions import expr

    keys = [f"{ROW}.{quoted(name)} AS _key_{at}" for at, name in enumerate(key)]
    by_key = changes.selectExpr(*keys, ROW, DELETE, ORDER).groupBy(*(f"_key_{at}" for at in range(len(key))))
    last = by_key.agg(expr(f"max_by(struct({ROW}, {DELETE}), {ORDER})").alias("last"))
    return last.selectExpr(f"last.{ROW}.*", f"last.{DELETE} AS {DELETE}")


@dataclass(frozen=True, slots=True)
class UpsertWriter:
    """Writes batches of changes into one table."""

    catalog: Catalog
    name: str
    key: tuple[str, ...]
    upkeep: Upkeep | None = field(default_factory=Upkeep)
    patience: Patience = field(default_factory=Patience)
    checkpoint: str | None = None
    """Of the query, which says what its batches read."""
    verifies: bool = True
    """Whether a batch that is written must be the one that comes again."""

    def write(self, changes: "DataFrame", query: str, batch: int) -> int:
        """Apply a batch unless that was done; how many rows were written for it."""
        what = f"the catalog or the store of table {self.name}"
        return self.patience.until_there(what, lambda: self._write(changes, query, batch))

    def _write(self, changes: "DataFrame", query: str, batch: int) -> int:
        # It is used several times, and must be the same each time.
        latest = latest_changes(changes, self.key).persist()
        try:
            proof = Proof.of_rows(latest.count(), source_ends(self.checkpoint, batch, query=query))
            for _ in range(COMMITS_MAX):
                table = self.catalog.table(self.name)
                if written(table.properties, query) >= batch:
                    if self.verifies:
                        check_replay(table, self.name, query, batch, proof)
                    return 0
                rows = self._attempt(table, latest, query, batch, proof)
                if rows is not None:
                    return rows
        finally:
            latest.unpersist()
        raise SpecError(f"iceberg: others change table {self.name} all the time; end one of them")

    def _attempt(
        self, table: "Table", latest: "DataFrame", query: str, batch: int, proof: Proof
    ) -> int | None:
        """Write and commit; None, if the table has moved on meanwhile."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        touched = self._touched(table, latest)
        out = latest.where(f"NOT {DELETE}").drop(DELETE)
        if touched:
            there = self._read(latest.sparkSession, table, touched)
            kept = self._joined(there, latest, "left_anti")
            out = kept.unionByName(out, allowMissingColumns=True)
        location = f"{table.location()}/data/{query}-{batch}-{uuid.uuid4().hex[:8]}"
        added = write_batch(out.coalesce(parallelism(out.sparkSession)), table, location)
        told = {"tidelog.query-id": query, "tidelog.batch-id": str(batch)}
        if not added and not touched:
            remove_batch(table, location)
            return 0
        try:
            with tried_once(table).transaction() as transaction:
                with transaction.update_snapshot(snapshot_properties=told).overwrite() as update:
                    for new in added:
                        update.append_data_file(new)
                    for task in touched:
                        update.delete_data_file(task.file)
                transaction.set_properties(note(query, batch, proof))
        except (CommitFailedException, ValidationException):
            remove_batch(table, location)
            return None
        except Locked:
            remove_batch(table, location)
            raise
        if self.upkeep is not None:
            self.upkeep.after_commit(table)
        return sum(file.record_count for file in added)

    def _touched(self, table: "Table", latest: "DataFrame") -> "list[FileScanTask]":
        """The files that have a key which is changed."""
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise SpecError(f"iceberg: {self.name} has rows deleted in place by another engine")
        check_names(table, tasks)
        if not tasks:
            return []
        there = self._read(latest.sparkSession, table, tasks, self.key)
        hit = self._joined(there, latest, "left_semi")
        storage, first = Storage.of(table.io.properties), tasks[0].file.file_path
        with store_told_as_away(f"the store of table {self.name}", storage, first):
            found = [row[0] for row in hit.select(FILE).distinct().collect()]
        files = [task.file.file_path for task in tasks]
        named = touched_among(files, found, is_by_spark=all(map(is_sparks_own, files)))
        return [task for task in tasks if task.file.file_path in named]

    def _joined(self, there: "DataFrame", latest: "DataFrame", how: str) -> "DataFrame":
        """Rows whose keys are changed, or are not; a key that is null is a key."""
        from pyspark.sql.functions import expr

        same = (f"there.{quoted(name)} <=> latest.{quoted(name)}" for name in self.key)
        return there.alias("there").join(latest.alias("latest"), expr(" AND ".join(same)), how)

    def _read(
        self, session: "SparkSession", table: "Table", tasks: "list[FileScanTask]", only: tuple[str, ...] = ()
    ) -> "DataFrame":
        """The rows of files; with `only`, these columns, and the file of each row."""
        from pyspark.sql.types import StructType

        files = [task.file.file_path for task in tasks]
        schema = spark_schema(table)
        if all(map(is_sparks_own, files)):
            rows = session.read.schema(schema).parquet(*files)
            names = [*map(quoted, only), f"_metadata.file_path AS {FILE}"]
            return rows.selectExpr(*names) if only else rows
        wanted = StructType([one for one in schema if not only or one.name in only])
        rows = read_files(session, files, Storage.of(table.io.properties), wanted)
        return rows if only else rows.drop(FILE)


def touched_among(locations: Iterable[str], found: Iterable[str], *, is_by_spark: bool = True) -> set[str]:
    """Which of a table's files were found; SpecError if one was found that is none of them: a file
    that is not replaced would leave a key with two rows.

    Spark tells them with escapes, and with fewer slashes; our own tasks as the table has them.
    """
    known = {_path(one) if is_by_spark else one: one for one in locations}
    told = {unquote(_path(one)) if is_by_spark else one for one in found}
    if unknown := told - known.keys():
        raise SpecError(f"iceberg: {min(unknown)} was read, and is no file of the table")
    return {known[one] for one in told}


def _path(location: str) -> str:
    """Without the scheme and the host; what else a URL may have is part of a file's name here."""
    return normpath("/" + _BEFORE_PATH.sub("", location).lstrip("/"))
