"""Files of a batch in an object store, written by the tasks themselves.

Rule 1: Spark's wheel reaches no object store without a jar, so tasks write by pyarrow, with the
        catalog's own settings, which they are given by value.
Rule 2: a file's name is used by one attempt of one task. What counts is what the tasks have
        reported; a file of an attempt that failed is named by nobody.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tidelog.spark.archive.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARKS_OWN: Final = ("file:", "hdfs:", "viewfs:", "/")
"""Where Spark writes by itself."""
GROUP_BYTES: Final = 32 * 1024 * 1024
REPORT: Final = pa.schema([("path", pa.string()), ("rows", pa.int64())])
REPORT_SQL: Final = "path string, rows long"


def is_sparks_own(location: str) -> bool:
    return location.startswith(SPARKS_OWN)


def write_files(
    frame: "DataFrame", location: str, storage: Storage, schema: pa.Schema
) -> dict[str, int]:
    """Write a frame as Parquet files below a location; each with its rows."""
    reported = frame.mapInArrow(task(location, storage, schema), REPORT_SQL).collect()
    return {row["path"]: row["rows"] for row in reported}


def task(
    location: str, storage: Storage, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its rows."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        file = f"{location}/{uuid.uuid4().hex}.parquet"
        rows = _write(batches, file, storage, schema)
        if rows:
            yield pa.RecordBatch.from_pydict({"path": [file], "rows": [rows]}, schema=REPORT)

    return write


def _write(
    batches: Iterable[pa.RecordBatch], file: str, storage: Storage, schema: pa.Schema
) -> int:
    rows, waiting, size = 0, list[pa.RecordBatch](), 0
    filesystem, path = storage.find(file)
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            arrays = [batch.column(field.name).cast(field.type) for field in schema]
            waiting.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if size >= GROUP_BYTES:
                writer = writer or _open(filesystem, path, schema)
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting, size = [], 0
        if waiting:
            writer = writer or _open(filesystem, path, schema)
            writer.write_table(pa.Table.from_batches(waiting, schema))
    finally:
        if writer is not None:
            writer.close()
    return rows


def _open(filesystem: fs.FileSystem, path: str, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, filesystem=filesystem, compression="zstd")
