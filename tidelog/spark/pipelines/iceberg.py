"""Iceberg tables, without a jar: Spark writes the files, pyiceberg names them in a snapshot.

Rule 1: a batch's files and the note that the batch is written are one commit. Whoever writes one
        looks for the note first, so a batch that Spark repeats after a crash is there once.
Rule 2: the note (`tables/notes.py`) says what the batch was, too: another one of the same number is
        refused. The snapshot has the number as well, for people.
Rule 3: on a local disk all of a batch is synced before the catalog names it, as for archives: the
        batch is not written again once its note is found.
Rule 4: a directory's name is used by one attempt only. An attempt that came to nothing removes its
        own; what else no snapshot names was left by a crash, and may be removed.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.pipelines import spec
from tidelog.spark.pipelines.spec import Option, Pipeline, Sink, SpecError, options_of
from tidelog.spark.proofs import OtherContent, Proof, source_ends
from tidelog.spark.tables.batches import remove_batch, spark_schema, write_batch
from tidelog.spark.tables.commits import Locked, named, tried_once
from tidelog.spark.tables.evolving import Unfit
from tidelog.spark.tables.evolving import evolve as follow
from tidelog.spark.tables.expiring import Expiry
from tidelog.spark.tables.layout import Layout, LayoutError, check_layout, partition_spec, sort_order
from tidelog.spark.tables.notes import check_replay, note, written
from tidelog.spark.tables.opening import load
from tidelog.spark.tables.projecting import check_names
from tidelog.spark.tables.upkeep import Upkeep
from tidelog.spark.tables.waiting import Patience

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "tidelog"
SYNCED_IO: Final = "tidelog.spark.archive.storage.SyncedIO"
COMMITS_MAX: Final = 20
"""Others may commit to the same table; each time somebody wins, so this many rarely lose."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Where tables are found: what pyiceberg is told of it."""

    properties: Mapping[str, str]

    @classmethod
    def of(cls, pipeline: Pipeline, given: Mapping[str, Option]) -> "Catalog":
        """What the pipeline says; else SQLite in the folder, and the files beside it."""
        told = options_of(given)
        if "uri" in told or "type" in told or "name" in told:
            return cls(told)
        warehouse = told.pop("warehouse", "warehouse")
        location = pipeline.path(warehouse)
        if "://" in location:
            raise SpecError(
                f"catalog.warehouse is {warehouse}; then say where the catalog is, too: "
                "catalog.uri, as sqlite:////some/catalog.db"
            )
        ours = {"type": "sql", "uri": f"sqlite:///{location}/catalog.db", "warehouse": f"file://{location}"}
        return cls({**ours, **told})

    def _load(self) -> Any:
        properties = dict(self.properties)
        uri, warehouse = properties.get("uri", ""), properties.get("warehouse", "")
        if uri.startswith("sqlite:///"):
            Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        if warehouse.startswith("file://"):
            Path(warehouse.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        properties.setdefault("py-io-impl", SYNCED_IO)
        return load(properties.pop("name", NAME), properties)

    def table(self, name: str) -> "Table":
        from pyiceberg.exceptions import NoSuchTableError

        _namespace(name)
        try:
            found: Table = self._load().load_table(name)
        except NoSuchTableError:
            raise SpecError(f"iceberg: there is no table {name} in the catalog") from None
        return found

    def prepare(
        self, name: str, schema: "StructType", layout: Layout | None = None, *, evolve: bool = True
    ) -> None:
        """Have a table of this name that takes rows of this schema, as `evolving.py` says."""
        from pyiceberg.schema import assign_fresh_schema_ids

        from tidelog.spark.archive.tables import SHORT_METADATA

        layout = layout or Layout()
        catalog = self._load()
        catalog.create_namespace_if_not_exists(_namespace(name))
        convert = catalog._convert_schema_if_needed
        wanted = assign_fresh_schema_ids(convert(arrow_schema(schema)))
        comes = assign_fresh_schema_ids(convert(arrow_schema(schema, is_new=False)))
        try:
            if not catalog.table_exists(name):
                catalog.create_table_if_not_exists(
                    name,
                    schema=wanted,
                    partition_spec=partition_spec(layout.partition_by, wanted),
                    sort_order=sort_order(layout.sort_by, wanted),
                    properties=SHORT_METADATA,
                )
            table = named(catalog.load_table(name))
            check_layout(table, layout)
            follow(table, comes, is_allowed=evolve)
        except (LayoutError, Unfit) as error:
            raise SpecError(f"iceberg: {error}") from None

    def read(self, session: "SparkSession", name: str) -> "DataFrame":
        """The rows that the table has now."""
        table = self.table(name)
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise SpecError(f"iceberg: {name} has rows deleted in place, which is not supported")
        check_names(table, tasks)
        schema = spark_schema(table)
        if not tasks:
            return session.createDataFrame([], schema)
        return session.read.schema(schema).parquet(*(task.file.file_path for task in tasks))


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Writes the batches of queries into one table."""

    catalog: Catalog
    name: str
    upkeep: Upkeep | None = field(default_factory=Upkeep)
    patience: Patience = field(default_factory=Patience)
    checkpoint: str | None = None
    """Of the query, which says what its batches read."""
    verifies: bool = True
    """Whether a batch that is written must be the one that comes again."""

    def write(self, frame: "DataFrame", query: str, batch: int) -> int:
        """Add a batch unless it is there; how many rows that were.

        While the catalog or the store is away, all of it is tried again. A commit of which nobody
        knows whether it was done is found by its note then.
        """
        what = f"the catalog or the store of table {self.name}"
        return self.patience.until_there(what, lambda: self._write(frame, query, batch))

    def _write(self, frame: "DataFrame", query: str, batch: int) -> int:
        table = self.catalog.table(self.name)
        ends = source_ends(self.checkpoint, batch, query=query)
        if written(table.properties, query) >= batch:
            # Windows and watermarks are kept by the rows going by, so they must.
            rows = _pass_by(frame)
            if self.verifies:
                check_replay(table, self.name, query, batch, Proof.of_rows(rows, ends))
            return 0
        location = f"{table.location()}/data/{query}-{batch}-{uuid.uuid4().hex[:8]}"
        files = write_batch(frame, table, location)
        proof = Proof.of_rows(sum(file.record_count for file in files), ends)
        try:
            is_added = bool(files) and self._commit(table, files, query, batch, proof)
        except (SpecError, OtherContent, Locked):  # after any other error the table may name the files
            remove_batch(table, location)
            raise
        if not is_added:
            remove_batch(table, location)
        return proof.rows if is_added else 0

    def _commit(self, table: "Table", files: "list[DataFile]", query: str, batch: int, proof: Proof) -> bool:
        """Whether the files are the batch; not, if another driver was faster."""
        from pyiceberg.exceptions import CommitFailedException

        told = {"tidelog.query-id": query, "tidelog.batch-id": str(batch)}
        for _ in range(COMMITS_MAX):
            try:
                with tried_once(table).transaction() as transaction:
                    update = transaction.update_snapshot(snapshot_properties=told)
                    with update.fast_append() as append:
                        for file in files:
                            append.append_data_file(file)
                    transaction.set_properties(note(query, batch, proof))
                if self.upkeep is not None:
                    self.upkeep.after_commit(table)
                return True
            except CommitFailedException:
                table = self.catalog.table(self.name)
                # Another driver of the same query may have been faster. This one was not: a commit
                # that was done is no failure (`tried_once`).
                if written(table.properties, query) >= batch:
                    check_replay(table, self.name, query, batch, proof)
                    return False
                if table.metadata.default_spec_id != files[0].spec_id:
                    raise SpecError(
                        f"iceberg: table {self.name} was partitioned anew while batch {batch} was "
                        "written; start the pipeline again, which writes the batch as the table is"
                    ) from None
        raise SpecError(f"iceberg: others change table {self.name} all the time; end one of them")


def upkeep_of(sink: Sink) -> Upkeep | None:
    """What is done for the table of a sink after its commits; None, if others do it."""
    if sink.upkeep is False:
        return None
    told = sink.upkeep if isinstance(sink.upkeep, spec.Upkeep) else spec.Upkeep()
    return Upkeep(
        expiry=Expiry(snapshots=told.snapshots, keep_seconds=spec.interval_seconds(told.keep_files)),
        file_bytes=told.file_mib * 1024 * 1024,
    )


def _pass_by(frame: "DataFrame") -> int:
    """Let the rows go by, and count them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation()
    frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def arrow_schema(schema: "StructType", *, is_new: bool = True) -> "pa.Schema":
    """Spark's schema for a table: in a new one every column may be null, so that later rows may
    lack it."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    made = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([one.with_nullable(is_new or one.nullable) for one in made])


def _namespace(name: str) -> str:
    namespace, dot, table = name.rpartition(".")
    if not dot or not namespace or not table:
        raise SpecError(f"iceberg: a table's name is NAMESPACE.TABLE, not {name!r}")
    return namespace
