"""Columns of a Delta table that become wider, get a field, or may be null.

Delta's own way to widen a type is a feature of a table that few engines read, and `deltalake` has
none of it. So the table is written anew.

Rule 1: all of it is one commit: files with the new columns come and all others go. Whoever commits
        in between wins, and then it is tried again. The files are written as a table of their own
        in a directory of their own, so that those of a try that lost are known, and go.
Rule 2: no value changes, and the notes of batches stay: a batch that comes again is still known.
Rule 3: a table of which somebody else would have to know, or that is large, is refused and stays.
"""

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa

from tidelog.spark.pipelines.delta_disk import LOG
from tidelog.spark.pipelines.documents import SpecError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

    from tidelog.spark.pipelines.delta import Place

logger = logging.getLogger(__name__)

BYTES_MAX: Final = 16 * 1024**3
"""Of the files of a table that is written anew: this process does it alone."""
GIB: Final = 1024**3
READER_VERSION: Final = 1
"""Of tables without deletion vectors and renamed columns, which reading must not pass over."""
WATCHED: Final = {
    "delta.appendOnly": "takes new rows only",
    "delta.enableChangeDataFeed": "tells its readers of each row that is written again",
}


def widen(place: "Place", table: "DeltaTable", comes: pa.Schema, told: str, directory: str) -> None:
    """Write a table anew so that it takes rows of a schema; SpecError, if that may not be."""
    from deltalake import CommitProperties, PostCommitHookProperties, QueryBuilder, Schema, write_deltalake

    uri = place.uri
    if (why := _refusal(table)) is not None:
        raise SpecError(
            f"delta: {uri} {why}, so its columns are not widened: {told}. Cast the column to the table's "
            "type in a step, or write to another table"
        )
    there = pa.schema(table.schema().to_arrow())
    target = pa.schema(list(wider(pa.struct(list(there)), pa.struct(list(comes)))))
    rows = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute("SELECT * FROM t"))
    named = table.metadata().partition_columns
    write_deltalake(
        f"{uri.rstrip('/')}/{directory}",
        pa.RecordBatchReader.from_batches(target, _cast(rows, target)),
        partition_by=named or None,
        storage_options=place.store_options,
    )
    actions: list[AddAction | RemoveAction] = list(_written(place, directory))
    place.remove(f"{directory}/{LOG}")
    table.create_write_transaction(
        actions,
        "overwrite",
        Schema.from_arrow(target),
        partition_by=named,
        commit_properties=CommitProperties(custom_metadata={"tidelog.widened": told}, max_commit_retries=0),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    )
    logger.warning("table %s follows its source, and was written anew: %s", uri, told)


def _written(place: "Place", directory: str) -> "Iterator[AddAction]":
    """The files of a new table in a directory, as the table around it names them."""
    from deltalake.transaction import AddAction

    filesystem, path = place.storage.find(place.location(f"{directory}/{LOG}/{0:020}.json"))
    with filesystem.open_input_file(path) as file:
        for line in file.read().decode().splitlines():
            if (add := json.loads(line).get("add")) is not None:
                name = f"{directory}/{unquote(add['path'])}"
                yield AddAction(
                    name, add["size"], add["partitionValues"], add["modificationTime"], True, add["stats"]
                )


def _refusal(table: "DeltaTable") -> str | None:
    if table.protocol().min_reader_version > READER_VERSION:
        return "has features that its readers must know of"
    settings = table.metadata().configuration
    for name, why in WATCHED.items():
        if settings.get(name) == "true":
            return f"{why} ({name})"
    size = sum(pa.table(table.get_add_actions())["size_bytes"].to_pylist())
    return f"has {size / GIB:.1f} GiB" if size > BYTES_MAX else None


def _cast(rows: pa.RecordBatchReader, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        columns = [
            batch[field.name].cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in target
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def wider(there: pa.DataType, comes: pa.DataType) -> pa.DataType:
    """The type that has all values of both, which differ as `evolving.changes` allows."""
    if pa.types.is_struct(there):
        fields = [
            _wider_field(one, comes.field(one.name)) if one.name in comes.names else one for one in there
        ]
        return pa.struct(
            [*fields, *(one.with_nullable(True) for one in comes if one.name not in there.names)]
        )
    if pa.types.is_map(there):
        return pa.map_(there.key_field, _wider_field(there.item_field, comes.item_field))
    if pa.types.is_list(there) or pa.types.is_large_list(there):
        return pa.list_(_wider_field(there.value_field, comes.value_field))
    if pa.types.is_decimal(there):
        return comes if comes.precision > there.precision else there
    is_number = pa.types.is_integer(there) or pa.types.is_floating(there)
    return comes if is_number and comes.bit_width > there.bit_width else there


def _wider_field(there: pa.Field, comes: pa.Field) -> pa.Field:
    is_nullable = there.nullable or comes.nullable
    return there.with_type(wider(there.type, comes.type)).with_nullable(is_nullable)
