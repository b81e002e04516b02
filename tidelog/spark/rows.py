"""What users see of a record, and what becomes one: the columns that a schema names.

Rule 1: a schema that cannot be had is refused before anything is read, column by column.
Rule 2: with JSON values, every column that is not one of a topic's own is a field of the value. A
        value that is no JSON object, or whose fields do not fit, gives nulls: one bad record must
        not stop a query. Name a column `_corrupt_record` to see such values.
"""

import base64
import datetime
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.errors import ConfigError
from tidelog.spark.columns import ARROW, SPARK, arrow_schema

CORRUPT: Final = "_corrupt_record"
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
    json_fields: tuple[str, ...] = ()

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.json_fields:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        parsed = parse_json(batch.column("value"), self._json_schema())
        arrays = [
            parsed.column(field.name)
            if field.name in self.json_fields
            else batch.column(field.name)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _json_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.json_fields])


def projection(schema: StructType, *, value_is_json: bool) -> Projection:
    """How a schema is met; ConfigError names the column that cannot be."""
    fields: list[str] = []
    for field in schema.fields:
        wanted = field.dataType.simpleString()
        if field.name in SPARK:
            if wanted != SPARK[field.name]:
                raise ConfigError(
                    f"column {field.name} is {SPARK[field.name]}, not {wanted}; cast it afterwards"
                )
        elif value_is_json:
            fields.append(field.name)
        else:
            raise ConfigError(
                f"a topic has no column {field.name}; it has {', '.join(SPARK)}. Set "
                "valueFormat=json to take other columns from JSON values"
            )
    columns = [field.name for field in schema.fields if field.name in SPARK]
    if fields and "value" not in columns:
        columns.append("value")
    return Projection(
        columns=tuple(columns), schema=to_arrow_schema(schema, timezone="UTC"),
        json_fields=tuple(fields),
    )  # fmt: skip


def parse_json(values: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """The fields of JSON objects, as columns; a value that does not fit gives nulls."""
    rows = [_parse(value) for value in values.to_pylist()]
    arrays = []
    for field in schema:
        if field.name == CORRUPT:
            continue
        taken = [None if row is None else row.get(field.name) for row in rows]
        arrays.append(_column(taken, field.type))
    names = [field.name for field in schema if field.name != CORRUPT]
    columns = dict(zip(names, arrays, strict=True))
    if CORRUPT in schema.names:
        texts = [
            value.decode(errors="replace") if row is None and value is not None else None
            for row, value in zip(rows, values.to_pylist(), strict=True)
        ]
        columns[CORRUPT] = pa.array(texts, schema.field(CORRUPT).type)
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in schema.names], names=list(schema.names)
    )


def _parse(value: bytes | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        document = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values as a column of a type; those that do not fit one by one, if not all do at once."""
    if pa.types.is_integer(kind):  # Arrow would cut them
        values = [None if isinstance(value, float) and value % 1 else value for value in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([_fitted(value, kind) for value in values], kind)


def _fitted(value: Any, kind: pa.DataType) -> Any:
    for candidate in (value, *_readings(value, kind)):
        try:
            return pa.scalar(candidate, kind).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return None


def _readings(value: Any, kind: pa.DataType) -> Sequence[Any]:
    """How else a JSON value may be read: times and decimals come as strings, numbers as numbers."""
    try:
        if pa.types.is_timestamp(kind) and isinstance(value, str):
            time = datetime.datetime.fromisoformat(value)
            return [time if time.tzinfo else time.replace(tzinfo=datetime.UTC)]
        if pa.types.is_date(kind) and isinstance(value, str):
            return [datetime.date.fromisoformat(value)]
        if pa.types.is_decimal(kind) and isinstance(value, str | int | float):
            return [decimal.Decimal(str(value))]
        if pa.types.is_floating(kind) and isinstance(value, int):
            return [float(value)]
        if pa.types.is_binary(kind) and isinstance(value, str):
            return [base64.b64decode(value, validate=True)]
        if pa.types.is_string(kind) and value is not None:
            return [msgspec.json.encode(value).decode()]
    except (ValueError, ArithmeticError):
        pass
    return []


def to_json(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """One JSON object for each row, of the columns named; nulls are left out."""
    columns = [batch.column(name).to_pylist() for name in names]
    encode = msgspec.json.Encoder(enc_hook=str).encode
    return pa.array(
        [
            encode(
                {name: value for name, value in zip(names, row, strict=True) if value is not None}
            )
            for row in zip(*columns, strict=True)
        ],
        pa.binary(),
    )


def check_writable(schema: StructType, *, topic: str | None, value_is_json: bool) -> None:
    """Refuse a schema that cannot be written, naming the column and the fix."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if topic is None and "topic" not in types:
        raise ConfigError('where to? Set option "topic", or give the rows a column `topic`')
    if value_is_json:
        if not json_columns(schema):
            raise ConfigError(
                "valueFormat=json needs columns besides key, topic, partition, headers"
            )
    elif "value" not in types:
        raise ConfigError(
            "rows need a column `value`, string or binary; or set valueFormat=json to write all "
            "columns as one JSON object"
        )
    allowed = {
        "key": TEXTS, "value": TEXTS, "topic": ("string",), "partition": ("int",),
        "headers": (SPARK["headers"],),
    }  # fmt: skip
    for name, kinds in allowed.items():
        if value_is_json and name == "value":
            continue
        if types.get(name, kinds[0]) not in kinds:
            raise ConfigError(f"column {name} must be {' or '.join(kinds)}, not {types[name]}")


OWN: Final = frozenset({"key", "topic", "partition", "headers"})


def json_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that become fields of a JSON value."""
    return tuple(name for name in schema.fieldNames() if name not in OWN)


assert ARROW.keys() == SPARK.keys()
