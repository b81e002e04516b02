"""Small files of a table, put together.

Rule 1: a merge changes no row: it is committed only if the new files have as many as the old, and
        only onto a snapshot that has all of the old ones. So what it replaces is what it has read.
Rule 2: it says nothing of batches. A batch is in the table or not, whatever its file is called.
Rule 3: files with rows deleted in place are left to the engine that did so.
Rule 4: a merged file is of the partitions that the table had when it was read. A table that was
        partitioned anew meanwhile does not get it.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat

from tidelog.errors import TidelogError
from tidelog.spark.archive.storage import Storage, sync_file
from tidelog.spark.tables.commits import Locked, data_file, tried_once
from tidelog.spark.tables.layout import sort_columns
from tidelog.spark.tables.projecting import read_file
from tidelog.spark.tables.tiers import Sized, to_merge

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

logger = logging.getLogger(__name__)

FILE_BYTES: Final = 128 * 1024 * 1024
GROUP_ROWS: Final = 128 * 1024
COMMITS_MAX: Final = 5
MERGED: Final = "tidelog.merged"


class MergeFailed(TidelogError):
    """A merged file has other rows than those it was made of; nothing was replaced."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Files that stand for others."""

    new: list[DataFile]
    old: list[DataFile]


def merge_small(table: "Table", *, file_bytes: int = FILE_BYTES) -> int:
    """Put small files together, as many as one round may; how many are gone from the table."""
    tasks = {task.file.file_path: task for task in table.scan().plan_files()}
    spec = table.metadata.default_spec_id
    sized = [
        Sized(task, task.file.partition, task.file.file_size_in_bytes)
        for task in tasks.values()
        if not task.delete_files and _may_be_merged(task.file, spec)
    ]
    merged = [_merge(table, some) for some in to_merge(_by_age(sized), file_bytes=file_bytes)]
    if not merged or replace_files(table, merged):
        return sum(len(one.old) for one in merged)
    return 0


def _may_be_merged(file: DataFile, spec: int) -> bool:
    return file.spec_id == spec and file.file_format == FileFormat.PARQUET


def _by_age(files: "Iterable[Sized[FileScanTask]]") -> "list[Sized[FileScanTask]]":
    """In an order that stays from round to round."""
    return sorted(files, key=lambda one: one.file.file.file_path)


def replace_files(
    table: "Table",
    merged: list[Merged],
    properties: dict[str, str] | None = None,
    *,
    attempts: int = COMMITS_MAX,
) -> bool:
    """Commit merges; False, if some of the old files are gone: then the new ones are, too."""
    told = {**(properties or {}), MERGED: str(sum(len(one.old) for one in merged))}
    for attempt in range(1, attempts + 1):
        try:
            with (
                tried_once(table).transaction() as transaction,
                transaction.update_snapshot(snapshot_properties=told).overwrite() as update,
            ):
                for one in merged:
                    for new in one.new:
                        update.append_data_file(new)
                    for old in one.old:
                        update.delete_data_file(old)
            return True
        except (CommitFailedException, ValidationException, Locked) as error:
            table = table.catalog.load_table(table.name())
            # The values of a partition mean something else once the table is partitioned anew.
            spec = table.metadata.default_spec_id
            is_over = attempt == attempts or not isinstance(error, CommitFailedException)
            if is_over or any(new.spec_id != spec for one in merged for new in one.new):
                logger.info("files of %s were not merged: %s", ".".join(table.name()), error)
                Storage.of(table.io.properties).remove(new.file_path for one in merged for new in one.new)
                return False
    return False


def _merge(table: "Table", tasks: "list[FileScanTask]") -> Merged:
    """One file with the rows of several."""
    location = f"{table.location().rstrip('/')}/data/merged-{uuid.uuid4().hex}.parquet"
    storage = Storage.of(table.io.properties)
    try:
        _write(table, location, _read(table, tasks))
        old = [task.file for task in tasks]
        new = data_file(table, location, old[0].partition)
        expected = sum(one.record_count for one in old)
        if new.record_count != expected:
            raise MergeFailed(f"{location} has {new.record_count} rows, not {expected}")
    except BaseException:
        storage.remove([location])
        raise
    return Merged([new], old)


def _read(table: "Table", tasks: "Iterable[FileScanTask]") -> Iterator[pa.RecordBatch]:
    for task in tasks:
        yield from read_file(table, task)


def _write(table: "Table", location: str, batches: Iterable[pa.RecordBatch]) -> None:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    filesystem, path = Storage.of(table.io.properties).find(location)
    order = sort_columns(table)
    with (
        filesystem.open_output_stream(path) as sink,
        pq.ParquetWriter(sink, schema, compression="zstd") as writer,
    ):
        rows: Any = (_shaped(batch, schema) for batch in batches)
        if order:
            rows = [pa.Table.from_batches(rows, schema).sort_by(order)]
        for group in _groups(rows, schema):
            writer.write_table(group, row_group_size=GROUP_ROWS)
    if isinstance(filesystem, fs.LocalFileSystem):
        sync_file(path)


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same columns, of the very types that the file has."""
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _groups(rows: Iterable[Any], schema: pa.Schema) -> Iterator[pa.Table]:
    """Row groups that are not small because the files were."""
    some: list[pa.RecordBatch] = []
    count = 0
    for one in rows:
        some += one.to_batches() if isinstance(one, pa.Table) else [one]
        count += one.num_rows
        if count >= GROUP_ROWS:
            yield pa.Table.from_batches(some, schema)
            some, count = [], 0
    if some:
        yield pa.Table.from_batches(some, schema)
