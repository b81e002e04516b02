"""Files of a batch, written by the tasks themselves.

Rule 1: Spark's wheel reaches no object store without a jar, and knows no transforms of Iceberg. So
        tasks write by pyarrow, with the catalog's own settings, which they are given by value.
Rule 2: a file's name is used by one attempt of one task. What counts is what the tasks have
        reported; a file of an attempt that failed is named by nobody.
Rule 3: rows that are split or sorted are held until they are `CHUNK_BYTES`, then written, a file
        for each partition. So a task's memory is bounded, whatever number of partitions it meets.
"""

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tidelog.spark.archive.storage import Storage
from tidelog.spark.tables.splitting import Splits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARKS_OWN: Final = ("file:", "hdfs:", "viewfs:", "/")
"""Where Spark writes by itself."""
GROUP_BYTES: Final = 32 * 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024 * 1024
REPORT: Final = pa.schema([("path", pa.string()), ("rows", pa.int64()), ("values", pa.binary())])
REPORT_SQL: Final = "path string, rows long, values binary"


class WrittenFile(NamedTuple):
    """A file that a task has written, and the partition that all of its rows are of."""

    path: str
    rows: int
    partition: tuple[Any, ...] = ()


def is_sparks_own(location: str) -> bool:
    return location.startswith(SPARKS_OWN)


def write_files(
    frame: "DataFrame", location: str, storage: Storage, schema: pa.Schema, splitter: Splits | None = None
) -> list[WrittenFile]:
    """Write a frame as Parquet files below a location."""
    work = task(location, storage, schema, splitter)
    return [
        WrittenFile(row["path"], row["rows"], pickle.loads(row["values"]))
        for row in frame.mapInArrow(work, REPORT_SQL).collect()
    ]


def task(
    location: str, storage: Storage, schema: pa.Schema, splitter: Splits | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its rows."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ready = (shaped(batch, schema) for batch in batches if batch.num_rows)
        if splitter:
            written = _write_parts(ready, location, storage, schema, splitter)
        else:
            written = _write_whole(ready, location, storage, schema)
        for one in written:
            told = {"path": [one.path], "rows": [one.rows], "values": [pickle.dumps(one.partition)]}
            yield pa.RecordBatch.from_pydict(told, schema=REPORT)

    return write


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of the table; what the batch has not is null."""
    given = set(batch.schema.names)
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in given
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _write_parts(
    batches: Iterable[pa.RecordBatch], location: str, storage: Storage, schema: pa.Schema, splitter: Splits
) -> Iterator[WrittenFile]:
    for chunk in _chunks(batches, CHUNK_BYTES):
        for values, rows in splitter.split(pa.Table.from_batches(chunk, schema)):
            file = f"{location}/{uuid.uuid4().hex}.parquet"
            with _open(storage, file, rows.schema) as writer:
                writer.write_table(rows)
            yield WrittenFile(file, rows.num_rows, values)


def _write_whole(
    batches: Iterable[pa.RecordBatch], location: str, storage: Storage, schema: pa.Schema
) -> Iterator[WrittenFile]:
    rows, file = 0, f"{location}/{uuid.uuid4().hex}.parquet"
    writer: pq.ParquetWriter | None = None
    try:
        for chunk in _chunks(batches, GROUP_BYTES):
            writer = writer or _open(storage, file, schema)
            writer.write_table(pa.Table.from_batches(chunk, schema))
            rows += sum(batch.num_rows for batch in chunk)
    finally:
        if writer is not None:
            writer.close()
    if rows:
        yield WrittenFile(file, rows)


def _chunks(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches together, until they are so large."""
    some, size = list[pa.RecordBatch](), 0
    for batch in batches:
        some.append(batch)
        size += batch.nbytes
        if size >= bytes_max:
            yield some
            some, size = [], 0
    if some:
        yield some


def _open(storage: Storage, file: str, schema: pa.Schema) -> pq.ParquetWriter:
    filesystem, path = storage.find(file)
    if isinstance(filesystem, fs.LocalFileSystem):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(path, schema, filesystem=filesystem, compression="zstd")
