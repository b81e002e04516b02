"""Partitions of Delta tables: by the values of whole columns.

Rule 1: a table keeps the partitions it was made with. A sink that names others is refused; a sink
        that names none takes the table's.
Rule 2: Delta keeps a partition's values in the log, as text, and not in its files. An empty string
        is null there, and so is the name that Hive has for null, once files are merged: a batch
        that has one in such a column is refused, not changed.
"""

import datetime
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import TidelogError
from tidelog.spark.pipelines.documents import SpecError
from tidelog.spark.tables.splitting import ROW, Part, numbers

if TYPE_CHECKING:
    from deltalake import DeltaTable

SPLIT_BY: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_date32,
    pa.types.is_boolean,
)
NULLS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""What is null where it is a partition's value."""


class NullPartition(TidelogError):
    """A batch has a string where Delta would take it for null; nothing of it was committed."""

    def __init__(self, column: str, value: str) -> None:
        super().__init__(
            f"delta: column {column}, by which the table is partitioned, has "
            f"{'an empty string' if not value else f'the string {value}'}, which "
            f"Delta takes for null; say in a step what it shall be, as nullif({column}, '{value}')"
        )


class DeltaSplitter(NamedTuple):
    """How rows are cut into files. It can be pickled."""

    columns: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.columns)

    def split(self, rows: pa.Table) -> Iterator[Part]:
        """The rows of each partition without its columns; its values are text or null."""
        check_values(rows, self.columns)
        keys = pa.table([*(rows[name] for name in self.columns), numbers(rows)], [*self.columns, ROW])
        groups = keys.group_by(list(self.columns), use_threads=False).aggregate([(ROW, "list")])
        kept = rows.drop_columns(list(self.columns))
        for at in range(groups.num_rows):
            values = tuple(value_text(groups[name][at].as_py()) for name in self.columns)
            yield Part(values, kept.take(groups[f"{ROW}_list"][at].values))


def value_text(value: Any) -> str | None:
    """A partition's value as Delta writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def check_values(rows: pa.Table, columns: Sequence[str]) -> None:
    """NullPartition, if a value would become null."""
    for name in columns:
        column = rows[name] if name in rows.column_names else pa.nulls(0, pa.string())
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        for value in NULLS if is_text else ():
            if pc.any(pc.equal(column, value)).as_py():
                raise NullPartition(name, value)


def check_partitions(uri: str, table: "DeltaTable", named: Sequence[str]) -> None:
    """SpecError, if a table has other partitions, or such as nobody here can write."""
    there = table.metadata().partition_columns
    if named and list(named) != there:
        told = f"partitioned by {', '.join(there)}" if there else "not partitioned"
        raise SpecError(
            f"delta: {uri} is {told}, and partition_by says {', '.join(named)}; a table keeps its "
            "partitions, so leave partition_by out, or name another table"
        )
    check_columns(pa.schema(table.schema().to_arrow()), there)


def check_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    """SpecError, if rows cannot be split by these columns."""
    for name in columns:
        if name not in schema.names:
            raise SpecError(
                f"delta: partition_by: there is no column {name}; there are {', '.join(schema.names)}. "
                "Delta has no transforms: compute the value in a step, as to_date(at) AS day"
            )
        kind = schema.field(name).type
        if not any(is_it(kind) for is_it in SPLIT_BY):
            raise SpecError(
                f"delta: partition_by: {name} is {kind}; a table is partitioned by strings, whole numbers, "
                "dates and booleans: cast it in a step"
            )
    if columns and len(columns) == len(schema.names):
        raise SpecError("delta: partition_by names every column, so that files would have none")
