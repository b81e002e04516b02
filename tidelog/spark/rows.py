"""What users see of a record, and what becomes one: the columns that a schema names.

Rule 1: a schema that cannot be had is refused before anything is read, column by column.
Rule 2: with JSON values, every column that is not one of a topic's own is a field of the value. A
        value that is no JSON object, or whose fields do not fit, gives nulls: one bad record must
        not stop a query. Name a column `_corrupt_record` to see such values.
Rule 3: a record without a value is a tombstone. It is not corrupt; `_tombstone` tells it apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.errors import ConfigError
from tidelog.spark.columns import ARROW, SPARK, arrow_schema
from tidelog.spark.json_reading import JsonReader
from tidelog.spark.json_times import zone
from tidelog.spark.options import WriteOptions

TOMBSTONE: Final = "_tombstone"
"""A column that says whether a record has no value, which deletes its key."""
KEYS: Final = ("key", "value")
TEXTS: Final = ("string", "binary")


def spark_schema(names: Sequence[str]) -> StructType:
    """Columns of a topic, as Spark's types."""
    return from_arrow_schema(arrow_schema(tuple(names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Which columns are read from the log, and the rows that they become."""

    columns: tuple[str, ...]
    """Of the log; what Spark gets may be more, made of the values."""
    schema: pa.Schema
    """As Spark wants its batches, to the last detail."""
    fields: StructType | None = None
    """What is taken out of JSON values; None for nothing."""
    time_zone: str = "UTC"

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.fields is None:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        values = batch.column("value")
        parsed = self._reader(self.fields).read(values)
        made = {name: parsed.column(name) for name in parsed.schema.names}
        made |= {TOMBSTONE: values.is_null()} if TOMBSTONE in self.schema.names else {}
        arrays = [made[name] if name in made else batch.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _reader(self, fields: StructType) -> JsonReader:
        arrow = pa.schema([self.schema.field(name) for name in fields.names])
        return JsonReader(fields, arrow, zone(self.time_zone))


def projection(schema: StructType, *, value_is_json: bool, time_zone: str = "UTC") -> Projection:
    """How a schema is met; ConfigError names the column that cannot be."""
    fields = StructType()
    for field in schema.fields:
        wanted = field.dataType.simpleString()
        if field.name in SPARK:
            if wanted != SPARK[field.name]:
                raise ConfigError(
                    f"column {field.name} is {SPARK[field.name]}, not {wanted}; cast it afterwards"
                )
        elif value_is_json:
            if field.name != TOMBSTONE:
                fields.add(field)
            elif wanted != "boolean":
                raise ConfigError(f"column {TOMBSTONE} is boolean, not {wanted}")
        else:
            raise ConfigError(
                f"a topic has no column {field.name}; it has {', '.join(SPARK)}. Set "
                "valueFormat=json to take other columns from JSON values"
            )
    columns = [field.name for field in schema.fields if field.name in SPARK]
    is_made = len(columns) < len(schema.fields)
    if is_made and "value" not in columns:
        columns.append("value")
    return Projection(
        columns=tuple(columns),
        schema=to_arrow_schema(schema, timezone="UTC"),
        fields=fields if is_made else None,
        time_zone=time_zone,
    )


def check_writable(schema: StructType, options: WriteOptions) -> None:
    """Refuse a schema that cannot be written, naming the column and the fix."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    form = options.value_format
    is_made = options.value_is_json or form.is_registered
    if options.topic is None and "topic" not in types:
        raise ConfigError('where to? Set option "topic", or give the rows a column `topic`')
    if is_made:
        if not json_columns(schema).fields:
            raise ConfigError(f"valueFormat={form.name} needs columns besides key, topic, partition, headers")
    elif "value" not in types:
        raise ConfigError(
            "rows need a column `value`, string or binary; or set valueFormat=json to write all "
            "columns as one JSON object"
        )
    allowed = {
        "key": TEXTS,
        "value": TEXTS,
        "topic": ("string",),
        "partition": ("int",),
        "headers": (SPARK["headers"],),
        TOMBSTONE: ("boolean",),
    }
    for name, kinds in allowed.items():
        if (name == "value" and is_made) or (name == "key" and options.key_format.is_registered):
            continue
        if types.get(name, kinds[0]) not in kinds:
            raise ConfigError(f"column {name} must be {' or '.join(kinds)}, not {types[name]}")


OWN: Final = frozenset({"key", "topic", "partition", "headers", TOMBSTONE})


def json_columns(schema: StructType) -> StructType:
    """The columns that become fields of a JSON value."""
    return StructType([field for field in schema.fields if field.name not in OWN])


assert ARROW.keys() == SPARK.keys()
