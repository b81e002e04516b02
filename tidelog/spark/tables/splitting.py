"""The rows of a task, by the partition of the table that each is of.

Rule 1: every row is in exactly one part: parts are cut by row numbers, never by comparing values.
Rule 2: transforms are pyiceberg's, so other engines find rows where they look for them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

ROW = "_tidelog_row"


class Part(NamedTuple):
    """Rows of one partition, which is known by its values in the order of the table's fields."""

    values: tuple[Any, ...]
    rows: pa.Table


class Splits(Protocol):
    """Cuts rows into parts; false, if it would not."""

    def __bool__(self) -> bool: ...

    def split(self, rows: pa.Table) -> Iterator[Part]: ...


class Splitter(NamedTuple):
    """How rows are cut into files. It can be pickled."""

    schema: "Schema"
    spec: "PartitionSpec"
    order: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, table: "Table") -> "Splitter":
        from tidelog.spark.tables.layout import sort_columns

        return cls(table.schema(), table.spec(), tuple(sort_columns(table)))

    def __bool__(self) -> bool:
        """Whether rows are cut or sorted at all."""
        return bool(self.spec.fields or self.order)

    def split(self, rows: pa.Table) -> Iterator[Part]:
        """The rows of each partition, sorted as the table is."""
        for values, some in self._parts(rows):
            yield Part(values, some.sort_by(list(self.order)) if self.order else some)

    def _parts(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        from pyiceberg.partitioning import partition_record_value
        from pyiceberg.transforms import BucketTransform

        fields = self.spec.fields
        if not fields:
            yield (), rows
            return
        names = [f"_{at}" for at in range(len(fields))]
        columns = [self._transformed(rows, field) for field in fields]
        keys = pa.table([*columns, numbers(rows)], names=[*names, ROW])
        groups = keys.group_by(names, use_threads=False).aggregate([(ROW, "list")])
        for at in range(groups.num_rows):
            found = (groups[name][at].as_py() for name in names)
            values = tuple(
                value  # a number already, whatever the column is of
                if isinstance(field.transform, BucketTransform)
                else partition_record_value(field, value, self.schema)
                for field, value in zip(fields, found, strict=True)
            )
            yield values, rows.take(groups[f"{ROW}_list"][at].values)

    def _transformed(self, rows: pa.Table, field: Any) -> Any:
        from pyiceberg.io.pyarrow import _get_field_from_arrow_table
        from pyiceberg.transforms import VoidTransform

        name = self.schema.find_column_name(field.source_id)
        if isinstance(field.transform, VoidTransform) or name is None:
            return pa.nulls(rows.num_rows, pa.int32())
        kind = self.schema.find_type(field.source_id)
        column = _get_field_from_arrow_table(rows, name)
        if pa.types.is_large_binary(column.type):
            column = column.cast(pa.binary())  # truncate knows no other
        return field.transform.pyarrow_transform(kind)(column)


def numbers(rows: pa.Table) -> pa.Array:
    """The number of each row."""
    import pyarrow.compute as pc

    ones = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
    return pc.subtract(pc.cumulative_sum(ones), 1)
