"""What every commit to a table shares.

Rule: a commit that is said to have failed is looked for before it is believed to have. Whoever
      carries a request may send it twice; then the second fails because the first was done, and
      what is removed after a failure is what the table is made of.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, AssertCurrentSchemaId, SetPropertiesUpdate

from tidelog.spark.tables.waiting import Away

NAMES: Final = "schema.name-mapping.default"
NAMES_TRIES_MAX: Final = 5
LOCKED: Final = "Failed to acquire lock"
"""How pyiceberg's Hive catalog begins to say that somebody else has the lock of a table."""

if TYPE_CHECKING:
    from pyiceberg.table.update import TableRequirement, TableUpdate


class Locked(Away):
    """A catalog does not give the lock of a table, so a commit was not done; try again.

    Who was killed with the lock has it until Hive takes it away, after five minutes.
    """


@contextmanager
def locks_told(table: Table) -> Iterator[None]:
    """Say that a table is locked as an error that can be waited for."""
    try:
        yield
    except CommitFailedException as error:
        if str(error).startswith(LOCKED):
            raise Locked(f"table {'.'.join(table.name())} is locked in its catalog: {error}") from error
        raise


def tried_once(table: Table) -> Table:
    """A table whose commits fail when somebody was faster: pyiceberg would put them on top of what
    came in between, though that may be the same batch."""
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    table._do_commit = partial(_commit, table)  # type: ignore[method-assign]
    return table


def _commit(
    table: Table, updates: "tuple[TableUpdate, ...]", requirements: "tuple[TableRequirement, ...]"
) -> None:
    """Commit, and fail only if the table has none of it."""
    try:
        with locks_told(table):
            Table._do_commit(table, updates, requirements)
    except CommitFailedException:
        added = [one.snapshot.snapshot_id for one in updates if isinstance(one, AddSnapshotUpdate)]
        found = table.catalog.load_table(table.name()).metadata
        if not added or any(found.snapshot_by_id(one) is None for one in added):
            raise
        table.refresh()


def data_file(table: Table, location: str, partition: Any) -> DataFile:
    """A Parquet file as the table names it, in a partition that is known."""
    metadata, schema = table.metadata, table.schema()
    file = table.io.new_input(location)
    with file.open() as stream:
        footer = pq.read_metadata(stream)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    found = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(file),
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    found.spec_id = metadata.default_spec_id
    return found


def named(table: Table) -> Table:
    """The table with the property that tells columns by name: files of Spark and ours have no ids
    of columns. Whoever changes the schema keeps it up to date.

    A table has it before anybody writes there, and it is set only if the schema is still the one
    that it tells of: with a column missing from it, nobody could read the table any more.
    """
    for _ in range(NAMES_TRIES_MAX):
        if table.metadata.properties.get(NAMES):
            return table
        schema = table.schema()
        unchanged = AssertCurrentSchemaId.model_validate({"current-schema-id": schema.schema_id})
        told = SetPropertiesUpdate(updates={NAMES: schema.name_mapping.model_dump_json()})
        with suppress(CommitFailedException), locks_told(table), table.transaction() as transaction:
            transaction._apply((told,), (unchanged,))
        table = table.catalog.load_table(table.name())
    if not table.metadata.properties.get(NAMES):
        raise CommitFailedException(f"others change the columns of {'.'.join(table.name())} all the time")
    return table
