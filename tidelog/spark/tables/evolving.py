"""A table whose columns follow those of its source.

    the source has                    the table
    a column that is new              gets it; older rows have null there
    a wider type                      widens: int to long, float to double, a longer decimal
    a narrower type                   stays, and the values are widened when they are written
    no column that the table has      stays; new rows have null there
    a type that is neither            stays, and the query is refused: a value could be lost

Rule 1: a column is never removed, narrowed or renamed, so no row that is there changes.
Rule 2: an evolution is a commit of its own, without a note: it is no batch, and a batch that Spark
        repeats after it is found by the note that it has.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType, NestedField

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 5
ADD: Final = "add"
WIDEN: Final = "widen"
LOOSEN: Final = "loosen"
"""Let a column be null."""
REFUSE: Final = "refuse"


class Unfit(TidelogError):
    """A table cannot take the rows of a source; the message names the columns and the fix."""


class Change(NamedTuple):
    """What has to change in a table for a source's rows, or why it cannot."""

    kind: str
    path: tuple[str, ...]
    type: "IcebergType"
    why: str = ""

    def __str__(self) -> str:
        name = ".".join(self.path)
        match self.kind:
            case "add":
                return f"{name} is new, of type {self.type}"
            case "widen":
                return f"{name} becomes {self.type}"
            case "loosen":
                return f"{name} may be null"
            case _:
                return f"{name} {self.why}"


def changes(there: "Schema", comes: "Schema") -> list[Change]:
    """What has to change in a table of the schema `there` for rows of `comes`."""
    return list(_of_fields((), there.fields, comes.fields))


def evolve(table: "Table", comes: "Schema", *, is_allowed: bool = True) -> "Table":
    """Let a table take the rows of a schema; the table as it is then. Unfit, if it cannot."""
    from pyiceberg.exceptions import CommitFailedException

    name = ".".join(table.name())
    for attempt in range(1, TRIES_MAX + 1):
        found = [_possible(one, table) for one in changes(table.schema(), comes)]
        if refused := [str(one) for one in found if one.kind == REFUSE]:
            raise Unfit(
                f"table {name} has other columns, and nothing was changed: {'; '.join(refused)}. "
                "Cast or rename the column in a step (coalesce makes it never null), or write to "
                "another table"
            )
        if not found:
            return table
        told = "; ".join(str(one) for one in found)
        if not is_allowed:
            raise Unfit(
                f"table {name} would have to change, and `evolve: false` forbids it: {told}. "
                "Change the table by hand, or the columns in a step, or remove `evolve: false`"
            )
        try:
            _apply(table, found)
        except CommitFailedException:
            if attempt == TRIES_MAX:
                raise
            table = table.catalog.load_table(table.name())
            continue
        logger.warning("table %s follows its source: %s", name, told)
        return table
    return table


def _apply(table: "Table", found: list[Change]) -> None:
    from tidelog.spark.tables.commits import locks_told

    with locks_told(table), table.update_schema() as update:
        for one in found:
            if one.kind == ADD:
                update.add_column(one.path, one.type)
            elif one.kind == WIDEN:
                update.update_column(one.path, field_type=one.type)
            else:
                update.make_column_optional(one.path)


def _possible(change: Change, table: "Table") -> Change:
    """The change, or a refusal, where more than columns is at stake."""
    schema = table.schema()
    taken = [(field.name,) for spec in table.specs().values() for field in spec.fields]
    why = ""
    if change.kind == ADD and change.path in taken:  # engines find both by name
        why = "is what a partition of the table is called"
    identifies = {schema.find_column_name(one) for one in schema.identifier_field_ids}
    if change.kind == LOOSEN and ".".join(change.path) in identifies:
        why = "identifies the rows of the table, and may be null in the source"
    return Change(REFUSE, change.path, change.type, why) if why else change


def _of_fields(
    path: tuple[str, ...], there: "tuple[NestedField, ...]", comes: "tuple[NestedField, ...]"
) -> Iterator[Change]:
    named = {field.name: field for field in there}
    folded = {field.name.lower(): field.name for field in there}
    for field in comes:
        below = (*path, field.name)
        known = named.get(field.name)
        if known is not None:
            if known.required and not field.required:
                yield Change(LOOSEN, below, known.field_type)
            yield from _of_types(below, known.field_type, field.field_type)
        elif (other := folded.get(field.name.lower())) is not None:
            why = f"differs from {other} of the table in upper and lower case only"
            yield Change(REFUSE, below, field.field_type, why)
        else:
            folded[field.name.lower()] = field.name
            yield Change(ADD, below, field.field_type)
    for name in named.keys() - {field.name for field in comes}:
        if named[name].required:
            why = "must not be null in the table, and the source has no such column"
            yield Change(REFUSE, (*path, name), named[name].field_type, why)


def _of_types(path: tuple[str, ...], there: "IcebergType", comes: "IcebergType") -> Iterator[Change]:
    from pyiceberg.types import ListType, MapType, StructType

    match there, comes:
        case StructType(), StructType():
            yield from _of_fields(path, there.fields, comes.fields)
        case ListType(), ListType():
            if there.element_required and not comes.element_required:
                yield Change(LOOSEN, (*path, "element"), there.element_type)
            yield from _of_types((*path, "element"), there.element_type, comes.element_type)
        case MapType(), MapType():
            if any(_of_types((*path, "key"), there.key_type, comes.key_type)):
                yield _refused((*path, "key"), there.key_type, comes.key_type)
            if there.value_required and not comes.value_required:
                yield Change(LOOSEN, (*path, "value"), there.value_type)
            yield from _of_types((*path, "value"), there.value_type, comes.value_type)
        case _ if widens(comes, there):
            return
        case _ if widens(there, comes):
            yield Change(WIDEN, path, comes)
        case _:
            yield _refused(path, there, comes)


def _refused(path: tuple[str, ...], there: "IcebergType", comes: "IcebergType") -> Change:
    return Change(REFUSE, path, there, f"is {there} in the table, and {comes} in the source")


def widens(narrow: "IcebergType", wide: "IcebergType") -> bool:
    """Whether every value of one type is one of the other, as Iceberg lets types change."""
    from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType

    match narrow, wide:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return narrow.scale == wide.scale and narrow.precision <= wide.precision
    return narrow == wide
