"""The files of a batch, as a table takes them.

Rule 1: rows are written in the columns' types as the table has them now, and in files of one
        partition each, sorted as the table is.
Rule 2: a table that is neither partitioned nor sorted, where Spark reaches it, is written by Spark
        itself, which is fastest. Else tasks write by pyarrow (`writing.py`).
Rule 3: the driver opens every file and counts its rows before any of them is committed. Local files
        are on their disk by then.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.typedef import Record

from tidelog.errors import TidelogError
from tidelog.spark.archive.storage import Storage, sync_files
from tidelog.spark.tables.commits import data_file
from tidelog.spark.tables.counting import check_rows, write_parquet
from tidelog.spark.tables.splitting import Splitter
from tidelog.spark.tables.waiting import told_as_away
from tidelog.spark.tables.writing import is_sparks_own, write_files

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class ColumnsGone(TidelogError):
    """Somebody has removed columns from a table that a query writes to."""


def write_batch(frame: "DataFrame", table: "Table", location: str) -> "list[DataFile]":
    """Write a frame below a location; its files, which the table does not name yet. A failure
    leaves none of them."""
    name = ".".join(table.name())
    fitting = fitted(frame, table)
    try:
        return _write(fitting, table, location)
    except Exception as error:
        with suppress(Exception):  # what matters is why it failed
            remove_batch(table, location)
        if isinstance(error, TidelogError):
            raise
        # Spark says of a store that is away only that a job has failed: so it is asked.
        with told_as_away(f"the store of table {name}"):
            Storage.of(table.io.properties).list_files(location, ".parquet")
        raise


def _write(frame: "DataFrame", table: "Table", location: str) -> "list[DataFile]":
    found: dict[str, tuple[Any, ...]]
    splitter, storage = Splitter.of(table), Storage.of(table.io.properties)
    if not splitter and is_sparks_own(location):
        rows = write_parquet(frame, location)
        found = dict.fromkeys(storage.list_files(location, ".parquet"), ())
    else:
        schema = _types(schema_to_pyarrow(table.schema(), include_field_ids=False))
        written = write_files(frame, location, storage, schema, splitter)
        rows = sum(one.rows for one in written)
        found = {one.path: one.partition for one in written if _is_there(storage, one.path)}
    filesystem, _ = storage.find(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        sync_files(storage.find(path)[1] for path in found)
    files = [data_file(table, path, Record(*values)) for path, values in found.items()]
    check_rows(location, written=rows, found=sum(file.record_count for file in files))
    return [file for file in files if file.record_count]


def _is_there(storage: Storage, location: str) -> bool:
    filesystem, path = storage.find(location)
    return bool(filesystem.get_file_info(path).type == fs.FileType.File)


def _types(schema: pa.Schema) -> pa.Schema:
    """Columns that may be null: what a source no longer has is."""
    return pa.schema([field.with_nullable(True) for field in schema])


def remove_batch(table: "Table", location: str) -> None:
    """Remove the files of a batch that came to nothing."""
    filesystem, path = Storage.of(table.io.properties).find(location)
    with suppress(FileNotFoundError):
        filesystem.delete_dir(path)


def spark_schema(table: "Table") -> "StructType":
    """The columns of a table, as Spark reads them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema_to_pyarrow(table.schema()))


def fitted(frame: "DataFrame", table: "Table") -> "DataFrame":
    """The same rows in the table's types, which may be wider than the source's."""
    return fitted_to(frame, spark_schema(table), ".".join(table.name()))


def fitted_to(frame: "DataFrame", columns: "StructType", name: str) -> "DataFrame":
    """The same rows in the types that a table of this name has."""
    from pyspark.sql.types import StructField, StructType

    there: dict[str, Any] = {field.name: field.dataType for field in columns}
    if gone := [column for column in frame.schema.fieldNames() if column not in there]:
        raise ColumnsGone(
            f"table {name} has no column {gone[0]} any more, which this query writes; start it "
            "anew, which adds the column, or leave it out in a step"
        )
    if all(same_type(field.dataType, there[field.name]) for field in frame.schema):
        return frame
    return frame.to(StructType([StructField(field.name, there[field.name], True) for field in frame.schema]))


def same_type(one: Any, other: Any) -> bool:
    """Whether two types of Spark are the same, whatever may be null in them."""
    return bool(one.simpleString() == other.simpleString())
