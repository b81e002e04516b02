"""What every commit to a table shares."""

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

if TYPE_CHECKING:
    from pyiceberg.table import Table


def tried_once(table: "Table") -> "Table":
    """A table whose commits fail when somebody was faster: pyiceberg would put them on top of what
    came in between, though that may be the same batch."""
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def data_file(table: "Table", location: str, partition: Any) -> DataFile:
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
    return DataFile.from_args(
        content=DataFileContent.DATA, file_path=location, file_format=FileFormat.PARQUET,
        partition=partition, file_size_in_bytes=len(file), sort_order_id=None,
        spec_id=metadata.default_spec_id, equality_ids=None, key_metadata=None,
        **statistics.to_serialized_dict(),
    )  # fmt: skip
