"""The rows of a table's files, in the columns that the table has now.

Rule: no value changes. pyiceberg's own projection makes an empty list of a list of structs that is
      null, and an empty map of a map to structs that is; here both stay null.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    _get_column_projection_values,
    pyarrow_to_schema,
)
from pyiceberg.schema import visit_with_partner

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table


class Renamed(TidelogError):
    """A column of a table was renamed, and some files have its former name."""


class _Projection(ArrowProjectionVisitor):
    def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
        return _with_nulls(super().list(list_type, list_array, value_array), list_array)

    def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
        return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)


def _with_nulls(made: Any, of: Any) -> Any:
    if made is None or not of.null_count:
        return made
    return pc.if_else(of.is_valid(), made, pa.nulls(len(made), made.type))


def read_file(table: "Table", task: "FileScanTask") -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, of which none is deleted."""
    metadata, schema = table.metadata, table.schema()
    with table.io.new_input(task.file.file_path).open() as stream:
        file = pq.ParquetFile(stream)
        there = _columns(table, file.schema_arrow)
        spec = metadata.specs()[task.file.spec_id]
        projection = _Projection(
            there,
            metadata.format_version <= 2,
            projected_missing_fields=_get_column_projection_values(
                task.file, schema, schema, spec, there.field_ids
            ),
            allow_timestamp_tz_mismatch=True,
        )
        for batch in file.iter_batches():
            made = visit_with_partner(schema, batch, projection, ArrowAccessor(there))
            yield pa.RecordBatch.from_struct_array(made)


def check_names(table: "Table", tasks: "Iterable[FileScanTask]") -> None:
    """Renamed, if a file has a column under another name than the table has now.

    Spark reads files by the names of their columns, and would find nothing there. Files are looked
    into only if the table remembers that a column had another name.
    """
    if not any(_renamed(table, schema) for schema in table.schemas().values()):
        return
    for task in tasks:
        with table.io.new_input(task.file.file_path).open() as stream:
            there = _columns(table, pq.read_schema(stream))
        if found := _renamed(table, there):
            before, now = found[0]
            raise Renamed(
                f"table {'.'.join(table.name())} calls {now} what {task.file.file_path} calls "
                f"{before}, and Spark reads files by the names of columns. Rename the column back, "
                "or have the engine that renamed it write the table's files anew"
            )


def _renamed(table: "Table", there: "Schema") -> list[tuple[str | None, str | None]]:
    """The columns that have another name in the table, each with both."""
    now = table.schema()
    both = ((there.find_column_name(one), now.find_column_name(one)) for one in there.field_ids)
    return [(before, after) for before, after in both if after is not None and before != after]


def _columns(table: "Table", schema: pa.Schema) -> "Schema":
    """The columns of a file, with the ids that they have in the table."""
    metadata = table.metadata
    return pyarrow_to_schema(
        schema,
        metadata.name_mapping(),
        downcast_ns_timestamp_to_us=metadata.format_version <= 2,
        format_version=metadata.format_version,
    )
