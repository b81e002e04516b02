"""The columns of a topic, as Spark's own Kafka source names and types them."""

from typing import Final

import pyarrow as pa

ARROW: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
}

SPARK: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}

PLAIN: Final = tuple(name for name in SPARK if name != "headers")
"""What a reader gets who asks for nothing else."""


def ddl(names: tuple[str, ...]) -> str:
    """The schema of some columns, as Spark's parser takes it."""
    return ", ".join(f"{name} {SPARK[name]}" for name in names)


def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW[name]) for name in names])
