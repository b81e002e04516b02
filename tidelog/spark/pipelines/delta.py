"""Delta tables, without a jar: Spark writes the files, `deltalake` names them in the table's log.

Rule 1: a batch's files and the note that it is written are one commit. The note is Delta's own: a
        transaction identifier (`txn`) of the query, whose version is the batch's number.
Rule 2: two more identifiers say what the batch was: how many rows, and a digest of its sources'
        ends. They are kept with the table as the first is, so another batch of the same number is
        refused however old the log is.
Rule 3: a commit that was outpaced, or of which nobody knows whether it was done, is looked for by
        its note before anything is written again.
Rule 4: columns are added in place; a table whose columns become wider is written anew
        (`delta_widening.py`), for Delta tables of other engines could not be read any more.
Rule 5: on a local disk a batch's files are synced before the log names them, and the log before the
        batch counts as written (`delta_disk.py`): it is not written again once its note is found.
Rule 6: checkpoints of the log are made by upkeep, after it has removed files: a checkpoint forgets
        what was deleted long ago, and so which files are still to be removed.
"""

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import TidelogError
from tidelog.spark.archive.storage import Storage
from tidelog.spark.pipelines.delta_disk import sync_commits, sync_written
from tidelog.spark.pipelines.delta_parts import DeltaSplitter, check_columns, check_partitions, check_values
from tidelog.spark.pipelines.delta_widening import widen
from tidelog.spark.pipelines.documents import SpecError
from tidelog.spark.proofs import OtherContent, Proof, difference, source_ends
from tidelog.spark.tables.counting import check_rows, write_parquet
from tidelog.spark.tables.waiting import Away, Patience, is_away, told_as_away
from tidelog.spark.tables.writing import WrittenFile, is_sparks_own, write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

COMMITS_MAX: Final = 20
REFUSALS_MAX: Final = 2
"""Failures of a commit that nobody outpaced: the table does not take such a one."""
COMPACT_EVERY: Final = 20
NOTE: Final = "tidelog.batch."
ROWS: Final = "tidelog.rows."
ENDS: Final = "tidelog.ends."
UNKNOWN: Final = -1
STORE_OPTIONS: Final = {
    "s3.endpoint": "aws_endpoint_url",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
}
"""Settings of a store as pyiceberg and Iceberg sinks name them, and as `deltalake` does."""
SHORT_RETRIES: Final = {"max_retries": "2", "retry_timeout": "10s"}
"""Who is away for longer is waited for by us, who say so."""
NETWORK: Final = (
    "error sending request",
    "connection refused",
    "connection reset",
    "connection closed",
    "timed out",
    "503 service unavailable",
    "500 internal server error",
)
CONSTRAINTS: Final = "delta.constraints."
COMPUTED: Final = ("delta.generationExpression", "delta.identity.", "delta.invariants")
"""Of columns whose values the writer has to make, or to check."""
NOTES_EXPIRE: Final = "delta.setTransactionRetentionDuration"
RENAMES: Final = "delta.columnMapping.mode"
"""Where it is on, files call columns by other names than the table; `deltalake` would not."""
CLEANS_LOG: Final = "delta.enableExpiredLogCleanup"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table lies, and how it is reached."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def store_options(self) -> dict[str, str]:
        told = {STORE_OPTIONS.get(key, key): value for key, value in self.options.items()}
        if told.get("aws_endpoint_url", "").startswith("http://"):
            told.setdefault("aws_allow_http", "true")
        return {**SHORT_RETRIES, **told} if "://" in self.uri else told

    @property
    def storage(self) -> Storage:
        return Storage.of(dict(self.options))

    def table(self) -> "DeltaTable":
        from deltalake import DeltaTable

        with _told(self.uri):
            return DeltaTable(self.uri, storage_options=self.store_options)

    def prepare(self, schema: "StructType", *, evolve: bool = True, partition_by: Sequence[str] = ()) -> None:
        """Have a table here that takes rows of this schema."""
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import CommitFailedError
        except ImportError:
            raise SpecError("delta: it needs `pip install 'tidelog[delta]'`") from None

        from tidelog.spark.pipelines.iceberg import arrow_schema

        wanted, named = arrow_schema(schema), list(partition_by)
        check_columns(wanted, named)
        with _told(self.uri):
            DeltaTable.create(
                self.uri, wanted, mode="ignore", partition_by=named, storage_options=self.store_options
            )
        comes = arrow_schema(schema, is_new=False)
        for attempt in range(1, COMMITS_MAX + 1):
            table = self.table()
            _check_writable(self.uri, table)
            check_partitions(self.uri, table, named)
            before = table.version() - 1
            try:
                _follow(self, table, comes, is_allowed=evolve)
                sync_commits(self.uri, before, self.table().version())
                return
            except CommitFailedError as error:  # somebody else changes the table, too
                if attempt == COMMITS_MAX:
                    raise SpecError(
                        f"delta: others change {self.uri} all the time, so its columns cannot follow; "
                        "end them while this query starts"
                    ) from error

    def clean_up(self, directory: str, error: Exception) -> None:
        """Remove what a commit that failed has written, unless the table may have it all the same."""
        if not is_delta_away(error) and not self._has(directory):
            self.remove(directory)

    def _has(self, directory: str) -> bool:
        """Whether the table names files of a directory; so too, if nobody can tell. A commit that
        was sent twice on its way fails because it was done."""
        try:
            return any(f"/{directory}/" in uri for uri in self.table().file_uris())
        except Exception:
            return True

    def location(self, directory: str) -> str:
        return f"{_located(self.uri)}/{directory}"

    def remove(self, directory: str) -> None:
        filesystem, path = self.storage.find(self.location(directory))
        with suppress(FileNotFoundError):
            filesystem.delete_dir(path)


def _told(uri: str) -> Any:
    return told_as_away(f"the store of {uri}")


def is_delta_away(error: BaseException) -> bool:
    """Whether `deltalake` says that a store cannot be reached, for which it has no own error."""
    words = str(error).lower()
    return is_away(error) or any(one in words for one in NETWORK)


def _check_writable(uri: str, table: "DeltaTable") -> None:
    about = table.metadata()
    if any(key.startswith(CONSTRAINTS) for key in about.configuration):
        raise SpecError(f"delta: {uri} has constraints, which nobody would check; name another")
    if about.configuration.get(RENAMES, "none") != "none":
        raise SpecError(
            f"delta: {uri} has other names for its columns inside of files ({RENAMES}), which is not "
            "supported: its rows would be read as nulls; name another table"
        )
    for column in table.schema().fields:
        if any(key.startswith(COMPUTED) for key in column.metadata):
            raise SpecError(
                f"delta: column {column.name} of {uri} is computed or checked by whoever writes, "
                "which is not supported; name another table"
            )
    if NOTES_EXPIRE in about.configuration:
        raise SpecError(
            f"delta: {uri} forgets which batches it has after a while; unset its property "
            f"{NOTES_EXPIRE}, or name another table"
        )


def _follow(place: Place, table: "DeltaTable", wanted: "pa.Schema", *, is_allowed: bool) -> None:
    from deltalake import Schema as DeltaSchema
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    from tidelog.spark.tables.evolving import ADD, REFUSE, changes

    there, uri = arrow_of(table), place.uri
    found = changes(_pyarrow_to_schema_without_ids(there), _pyarrow_to_schema_without_ids(wanted))
    told = "; ".join(str(one) for one in found if one.kind == REFUSE)
    if told:
        raise SpecError(
            f"delta: {uri} has other columns, and nothing was changed: {told}. Cast or rename the "
            "column in a step, or write to another table"
        )
    told = "; ".join(map(str, found))
    if found and not is_allowed:
        raise SpecError(f"delta: {uri} would have to change, and `evolve: false` forbids it: {told}")
    if any(one.kind != ADD or len(one.path) > 1 for one in found):
        directory = f"widened-{uuid.uuid4().hex}"
        try:
            widen(place, table, wanted, told, directory)
        except Exception as error:
            place.clean_up(directory, error)
            raise
    elif found:
        import pyarrow as pa

        new = pa.schema([wanted.field(one.path[0]).with_nullable(True) for one in found])
        fields = DeltaSchema.from_arrow(new).fields
        table.alter.add_columns(list(fields))
        logger.warning("table %s follows its source: %s", uri, told)


def arrow_of(table: "DeltaTable") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


# Notes.


def written(table: "DeltaTable", query: str) -> int:
    """The last batch of a query that a table has; -1 if none."""
    found = table.transaction_version(f"{NOTE}{query}")
    return UNKNOWN if found is None else int(found)


def note(query: str, batch: int, proof: Proof) -> "CommitProperties":
    """What a commit says of its batch. It is tried once: pyiceberg's rule, for the same reason."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata={"tidelog.query-id": query, "tidelog.batch-id": str(batch)},
        app_transactions=[
            Transaction(f"{NOTE}{query}", batch),
            Transaction(f"{ROWS}{query}", proof.rows),
            Transaction(f"{ENDS}{query}", _number(proof.digest)),
        ],
        max_commit_retries=0,
    )


def _number(digest: str | None) -> int:
    """As much of a digest as an identifier's version holds: 60 bits."""
    return UNKNOWN if digest is None else int(digest[:15], 16)


def check_replay(table: "DeltaTable", uri: str, query: str, batch: int, proof: Proof) -> None:
    """Refuse to pass over a batch that is not the one that was written under its number."""
    newest = written(table, query)
    rows = table.transaction_version(f"{ROWS}{query}")
    ends = table.transaction_version(f"{ENDS}{query}")
    decided = None
    if rows is not None:
        digest = None if ends is None or ends == UNKNOWN else f"{ends:015x}"
        decided = Proof(int(rows), digest=digest)
    short = None if proof.digest is None else proof.digest[:15]
    why = difference(decided, replace(proof, digest=short))
    if newest > batch:
        why = f"the newest that was written is {newest}, and only that comes again"
    if why is not None:
        raise OtherContent(
            f"batch {batch} of query {query} into {uri} was not written: {why}. The checkpoint is "
            "older than the table, or was repaired. Begin with a new checkpoint where the written "
            "batch ended"
        )


# Batches.


@dataclass(frozen=True, slots=True)
class DeltaWriter:
    """Writes the batches of queries into one table; with a key, as changes of its rows."""

    place: Place
    key: tuple[str, ...] = ()
    has_upkeep: bool = True
    patience: Patience = field(default_factory=Patience)
    checkpoint: str | None = None
    """Of the query, which says what its batches read."""
    verifies: bool = True
    """Whether a batch that is written must be the one that comes again."""

    def write(self, frame: "DataFrame", query: str, batch: int) -> int:
        """Write a batch unless it is there; how many rows that were."""

        def attempt() -> int:
            try:
                return self._write(frame, query, batch)
            except TidelogError:
                raise
            except Exception as error:
                if is_delta_away(error):
                    raise Away(f"{self.place.uri} cannot be reached: {error}") from error
                self.place.table()  # a job of Spark does not say that a store is away; this does
                raise

        return self.patience.until_there(f"the store of {self.place.uri}", attempt)

    def _write(self, frame: "DataFrame", query: str, batch: int) -> int:
        from deltalake.exceptions import CommitFailedError

        from tidelog.spark.pipelines.iceberg import _pass_by
        from tidelog.spark.pipelines.upserts import latest_changes

        ends, refused = source_ends(self.checkpoint, batch, query=query), 0
        for attempt in range(1, COMMITS_MAX + 1):
            table = self.place.table()
            if written(table, query) >= batch:
                same = latest_changes(frame, self.key) if self.key else frame
                proof = Proof.of_rows(_pass_by(same), ends)
                if self.verifies:
                    check_replay(table, self.place.uri, query, batch, proof)
                return 0
            _check_writable(self.place.uri, table)  # somebody may have changed it meanwhile
            before = table.version()
            try:
                write = self._merge if self.key else self._append
                rows = write(table, frame, query, batch, ends)
            except CommitFailedError:
                refused = refused + 1 if self.place.table().version() == before else 0
                if attempt == COMMITS_MAX or refused == REFUSALS_MAX:
                    raise
                continue
            if rows:
                sync_commits(self.place.uri, before, self.place.table().version())
                self._keep_in_order()
            return rows
        return 0

    def _append(self, table: "DeltaTable", frame: "DataFrame", query: str, batch: int, ends: Any) -> int:
        directory = f"{query}-{batch}-{uuid.uuid4().hex[:8]}"
        location = self.place.location(directory)
        try:
            files = self._files(table, frame, location)
            rows = sum(one.rows for one in files)
            if rows:
                named = table.metadata().partition_columns
                actions: list[AddAction | RemoveAction] = [
                    self._action(directory, one, dict(zip(named, one.partition, strict=True)))
                    for one in files
                ]
                told = note(query, batch, Proof.of_rows(rows, ends))
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    partition_by=named,
                    commit_properties=told,
                    post_commithook_properties=self._afterwards(),
                )
                return rows
        except Exception as error:
            self.place.clean_up(directory, error)
            raise
        self.place.remove(directory)
        return 0

    def _files(self, table: "DeltaTable", frame: "DataFrame", location: str) -> list[WrittenFile]:
        """The files of a batch; of each its rows are counted."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from tidelog.spark.tables.batches import fitted_to

        schema, storage = arrow_of(table), self.place.storage
        fitting = fitted_to(frame, from_arrow_schema(schema), self.place.uri)
        split = DeltaSplitter(tuple(table.metadata().partition_columns))
        if is_sparks_own(location) and not split:
            rows = write_parquet(fitting, location)
            found = [WrittenFile(path, 0) for path in storage.list_files(location, ".parquet")]
        else:
            given = {*frame.schema.fieldNames(), *split.columns}
            there = _schema([field.with_nullable(True) for field in schema if field.name in given])
            found = write_files(fitting, location, storage, there, split)
            rows = sum(one.rows for one in found)
        files = [one._replace(rows=_rows(storage, one.path)) for one in found]
        check_rows(location, written=rows, found=sum(one.rows for one in files))
        sync_written(storage, [one.path for one in files])
        return [one for one in files if one.rows]

    def _action(self, directory: str, file: WrittenFile, values: dict[str, str | None]) -> "AddAction":
        from deltalake.transaction import AddAction

        filesystem, inside = self.place.storage.find(file.path)
        size = filesystem.get_file_info(inside).size
        name = f"{directory}/{file.path.rpartition('/')[2]}"
        stats = json.dumps({"numRecords": file.rows})
        return AddAction(name, size, values, int(time.time() * 1000), True, stats)

    def _merge(self, table: "DeltaTable", changes: "DataFrame", query: str, batch: int, ends: Any) -> int:
        """Apply changes. `deltalake` does it in this process, so a batch must fit into it."""
        from tidelog.spark.pipelines.upserts import DELETE, latest_changes

        source = latest_changes(changes, self.key).toArrow()
        check_values(source, table.metadata().partition_columns)
        columns = [name for name in source.column_names if name != DELETE]
        values = {f"`{name}`": f"source.`{name}`" for name in columns}
        # A changed row is the new one: what its source no longer has is null, as for Iceberg.
        gone = [field.name for field in table.schema().fields if field.name not in columns]
        changed = {**values, **{f"`{name}`": "NULL" for name in gone}}
        same = (f"target.`{one}` IS NOT DISTINCT FROM source.`{one}`" for one in self.key)
        rows = source.num_rows
        (
            table.merge(
                source,
                " AND ".join(same),
                source_alias="source",
                target_alias="target",
                commit_properties=note(query, batch, Proof.of_rows(rows, ends)),
                post_commithook_properties=self._afterwards(),
            )
            .when_matched_delete(f"source.{DELETE}")
            .when_matched_update(changed, f"NOT source.{DELETE}")
            .when_not_matched_insert(values, f"NOT source.{DELETE}")
            .execute()
        )
        return int(rows)

    def _afterwards(self) -> "PostCommitHookProperties":
        """What `deltalake` does behind a commit: nothing, if upkeep does it (Rule 6)."""
        from deltalake import PostCommitHookProperties

        cleans = False if self.has_upkeep else None
        return PostCommitHookProperties(create_checkpoint=not self.has_upkeep, cleanup_expired_logs=cleans)

    def _keep_in_order(self) -> None:
        """Merge small files every so many commits, remove what was merged before the time for which
        the table keeps its versions, and shorten the log; it never fails a batch."""
        if not self.has_upkeep:
            return
        try:
            table = self.place.table()
            if table.version() % COMPACT_EVERY == 0:
                self._tidy(table, table.version())
        except Exception as error:
            logger.warning(
                "small files of %s were not merged, or old ones not removed: %s", self.place.uri, error
            )

    def _tidy(self, table: "DeltaTable", before: int) -> None:
        then = self._afterwards()
        try:
            table.optimize.compact(post_commithook_properties=then)
            if table.vacuum(dry_run=True):  # a round that removes nothing shall be no commit
                table.vacuum(dry_run=False, post_commithook_properties=then)
        finally:  # a log that is never shortened makes every batch slower
            table = self.place.table()
            table.create_checkpoint()
            if table.metadata().configuration.get(CLEANS_LOG, "true").lower() == "true":
                table.cleanup_metadata()
            sync_commits(self.place.uri, before, table.version())


def _located(uri: str) -> str:
    return (uri if "://" in uri else f"file://{uri}").rstrip("/")


def _schema(fields: "list[pa.Field]") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(fields)


def _rows(storage: Storage, location: str) -> int:
    """Of a file; none, if it is not there."""
    import pyarrow.parquet as pq

    filesystem, path = storage.find(location)
    try:
        with filesystem.open_input_file(path) as file:
            return int(pq.read_metadata(file).num_rows)
    except FileNotFoundError:
        return 0
