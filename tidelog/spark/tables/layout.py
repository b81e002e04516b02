"""How a table's rows are laid out in files: by which values they are split, and how sorted.

    partition_by: [region, day(at), "bucket(16, id)"]
    sort_by: [at desc, id]

    partition := COLUMN | TRANSFORM(COLUMN) | TRANSFORM(NUMBER, COLUMN) | TRANSFORM[NUMBER](COLUMN)
    transform := identity | year | month | day | hour | bucket NUMBER | truncate NUMBER
    sort      := COLUMN [asc | desc]

Rule 1: a table keeps the layout it was made with. A sink that names another one is refused; a sink
        that names none takes the table's.
Rule 2: nulls are sorted last in both directions, which is how Arrow sorts.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortOrder

PLAIN: Final = ("identity", "year", "month", "day", "hour")
NUMBERED: Final = ("bucket", "truncate")
SUFFIXES: Final = {"identity": "", "truncate": "_trunc"}
"""Of the names of partition fields, as Iceberg's Java library makes them; others have `_NAME`."""
FIRST_FIELD: Final = 1000
NUMBER_MAX: Final = 2**31 - 1

_COLUMN: Final = re.compile(r"[^\s()\[\],]+")
_CALL: Final = re.compile(
    r"(?P<name>\w+)\s*(\[\s*(?P<inside>\d+)\s*\])?\s*"
    r"\(\s*((?P<before>\d+)\s*,\s*)?(?P<column>[^\s()\[\],]+)\s*\)"
)
_HOW: Final = "COLUMN, year(COLUMN), month, day, hour, bucket(NUMBER, COLUMN), truncate(NUMBER, …)"


class LayoutError(TidelogError):
    """A table cannot be laid out as somebody says; the message names the entry and the fix."""


class Partition(NamedTuple):
    """Rows with the same value of this are in files of their own."""

    column: str
    transform: str = "identity"
    number: int = 0

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.number}, ' if self.number else ''}{self.column})"

    @property
    def name(self) -> str:
        """The partition field's."""
        return self.column + SUFFIXES.get(self.transform, f"_{self.transform}")


class Sort(NamedTuple):
    """Rows of a file are in this order."""

    column: str
    descending: bool = False

    def __str__(self) -> str:
        return f"{self.column} desc" if self.descending else self.column


class Layout(NamedTuple):
    """What a sink says of its table's files; nothing, if the table decides."""

    partition_by: tuple[Partition, ...] = ()
    sort_by: tuple[Sort, ...] = ()

    @classmethod
    def parse(cls, partition_by: Sequence[str], sort_by: Sequence[str]) -> "Layout":
        """LayoutError, if an entry is none; which columns there are is not known yet."""
        found = cls(tuple(_partition(text) for text in partition_by), tuple(_sort(text) for text in sort_by))
        _check_once("partition_by", [one.name for one in found.partition_by])
        _check_once("sort_by", [one.column for one in found.sort_by])
        return found


def _partition(text: str) -> Partition:
    if _COLUMN.fullmatch(text):
        return Partition(text)
    told = _CALL.fullmatch(text.strip())
    if told is None:
        raise LayoutError(f"partition_by: {text!r} is not one of {_HOW}")
    name, number = told["name"].lower(), told["inside"] or told["before"]
    if name in PLAIN and number is None:
        return Partition(told["column"], name)
    if name in PLAIN:
        raise LayoutError(f"partition_by: {text!r}: {name} takes no number; say {name}(COLUMN)")
    if name not in NUMBERED:
        raise LayoutError(
            f"partition_by: {text!r}: there is no transform {name}; there are "
            f"{', '.join((*PLAIN, *NUMBERED))}"
        )
    if number is None or (told["inside"] and told["before"]):
        raise LayoutError(f"partition_by: {text!r}: say {name}(NUMBER, COLUMN)")
    if not 1 <= int(number) <= NUMBER_MAX:
        raise LayoutError(f"partition_by: {text!r}: {name} takes a number from 1 to {NUMBER_MAX}")
    return Partition(told["column"], name, int(number))


def _sort(text: str) -> Sort:
    column, *rest = text.split() or [""]
    direction = " ".join(rest).lower()
    if not _COLUMN.fullmatch(column) or direction not in ("", "asc", "desc"):
        raise LayoutError(f"sort_by: {text!r} is neither COLUMN nor COLUMN desc")
    return Sort(column, direction == "desc")


def _check_once(key: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise LayoutError(f"{key}: {name} comes twice; keep one of them")


# In Iceberg's terms.


def partition_spec(wanted: Sequence[Partition], schema: "Schema") -> "PartitionSpec":
    """LayoutError, if there is no such column, or if its type has no such transform."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import DoubleType, FloatType

    fields = []
    for at, one in enumerate(wanted):
        source = _source("partition_by", one.column, schema)
        transform = parse_transform(f"{one.transform}[{one.number}]" if one.number else one.transform)
        if isinstance(source.field_type, (FloatType, DoubleType)) or not transform.can_transform(
            source.field_type
        ):
            raise LayoutError(
                f"partition_by: {one}: {one.column} is of type {source.field_type}, which "
                f"{one.transform} does not take; name another column, or change it in a step"
            )
        if one.transform != "identity" and one.name in schema.column_names:
            raise LayoutError(
                f"partition_by: {one}: the partition would be called {one.name}, and the table has "
                "a column of that name; rename the column in a step"
            )
        fields.append(PartitionField(source.field_id, FIRST_FIELD + at, transform, one.name))
    return PartitionSpec(*fields)


def sort_order(wanted: Sequence[Sort], schema: "Schema") -> "SortOrder":
    """LayoutError, if there is no such column, or if it has no order."""
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    fields = []
    for one in wanted:
        source = _source("sort_by", one.column, schema)
        if not source.field_type.is_primitive:
            raise LayoutError(f"sort_by: {one.column} is of type {source.field_type}, which has no order")
        fields.append(
            SortField(
                source_id=source.field_id,
                transform=IdentityTransform(),
                direction=SortDirection.DESC if one.descending else SortDirection.ASC,
                null_order=NullOrder.NULLS_LAST,
            )
        )
    return SortOrder(*fields) if fields else SortOrder(order_id=0)


def _source(key: str, column: str, schema: "Schema") -> Any:
    for field in schema.fields:
        if field.name == column:
            return field
    raise LayoutError(f"{key}: there is no column {column}; the table has {', '.join(schema.column_names)}")


def check_layout(table: "Table", wanted: Layout) -> None:
    """LayoutError, if a table that exists has another layout than a sink says."""
    name, schema = ".".join(table.name()), table.schema()
    spec = partition_spec(wanted.partition_by, schema)
    if wanted.partition_by and _told(spec) != _told(table.spec()):
        raise LayoutError(
            f"table {name} is {told_partitions(table) or 'not partitioned'}, and the sink says "
            f"partition_by: {_listed(wanted.partition_by)}. Leave partition_by out to write as the "
            "table is, change the table with pyiceberg's update_spec(), or name another table"
        )
    order = sort_order(wanted.sort_by, schema)
    if wanted.sort_by and order.fields != table.sort_order().fields:
        raise LayoutError(
            f"table {name} is sorted by {table.sort_order()}, and the sink says sort_by: "
            f"{_listed(wanted.sort_by)}. Leave sort_by out to write as the table is, change the "
            "table with pyiceberg's update_sort_order(), or name another table"
        )


def _told(spec: "PartitionSpec") -> "list[tuple[int, str]]":
    """What a spec says of rows. Engines call fields as they like, and keep those that were removed
    under the transform `void`."""
    told = [(field.source_id, str(field.transform)) for field in spec.fields]
    return [one for one in told if one[1] != "void"]


def told_partitions(table: "Table") -> str:
    """`partitioned by region, day(at)`, or nothing."""
    schema = table.schema()
    told = [f"{field.transform}({schema.find_column_name(field.source_id)})" for field in table.spec().fields]
    return f"partitioned by {', '.join(told)}" if told else ""


def _listed(entries: Sequence[object]) -> str:
    return f"[{', '.join(str(one) for one in entries)}]"


def sort_columns(table: "Table") -> list[tuple[str, str]]:
    """By which columns Arrow sorts rows; none, if the table's order is not one of columns."""
    found = []
    for field in table.sort_order().fields:
        if not field.transform.preserves_order:
            return []
        name = table.schema().find_column_name(field.source_id)
        if name is None or "." in name:
            return []
        found.append((name, "ascending" if field.direction.value == "asc" else "descending"))
    return found
