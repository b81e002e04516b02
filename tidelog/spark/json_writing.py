"""Columns as JSON objects, one for each row: what Spark's `to_json` writes, by the column.

Rule 1: fields that are null are left out, of structs inside too; elements of arrays and values of
        maps that are null stay.
Rule 2: numbers, strings, lists, maps and structs are put together by Arrow. Only what it cannot
        write as Spark does goes through Python, value by value.
"""

import base64
from collections.abc import Callable
from datetime import tzinfo
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from tidelog.errors import ConfigError
from tidelog.spark.json_times import date_text, interval_text, time_text, timestamp_text
from tidelog.spark.json_tokens import java_double, quoted

TEXT: Final = pa.large_string()
_EMPTY: Final = pa.scalar("", TEXT)
_NULL: Final = pa.scalar("null", TEXT)
_SPECIAL: Final = '["\\\\\\x00-\\x1f]'


def json_objects(batch: pa.RecordBatch, schema: spark.StructType, zone: tzinfo) -> pa.Array:
    """One object for each row, of the columns that the schema names."""
    columns = [batch.column(field.name) for field in schema.fields]
    found = _object(columns, schema, zone, batch.num_rows)
    return found.cast(pa.large_binary()).cast(pa.binary())


def _texts(column: pa.Array, kind: spark.DataType, zone: tzinfo) -> pa.Array:
    """Each value as JSON; null where it is null."""
    match kind:
        case spark.StructType():
            made = _object(column.flatten(), kind, zone, len(column))
            return pc.if_else(column.is_valid(), made, pa.scalar(None, TEXT))
        case spark.ArrayType():
            items = _texts(column.flatten(), kind.elementType, zone)
            return _joined(column, _filled(items), "[", "]")
        case spark.MapType():
            return _map(column, kind, zone)
        case spark.StringType():
            return _strings(column.cast(TEXT))
        case spark.BooleanType():
            return column.cast(pa.string()).cast(TEXT)
        case spark.ByteType() | spark.ShortType() | spark.IntegerType() | spark.LongType():
            return column.cast(TEXT)
        case spark.FloatType() | spark.DoubleType():
            return _floats(column)
    return _each(column, _writer(kind, zone))


def _object(columns: list[pa.Array], schema: spark.StructType, zone: tzinfo, rows: int) -> pa.Array:
    parts = []
    for column, field in zip(columns, schema.fields, strict=True):
        if isinstance(field.dataType, spark.NullType):
            continue
        texts = _texts(column, field.dataType, zone)
        name = pa.scalar(f",{quoted(field.name)}:", TEXT)
        parts.append(
            pc.binary_join_element_wise(name, texts, _EMPTY, null_handling="emit_null").fill_null("")
        )
    if not parts:
        return pa.repeat(pa.scalar("{}", TEXT), rows)
    inner = pc.binary_join_element_wise(*parts, _EMPTY)
    # The first comma goes; what begins with one is long enough to be cut.
    cut = pc.utf8_slice_codeunits(inner, 1)
    return pc.binary_join_element_wise(pa.scalar("{", TEXT), cut, pa.scalar("}", TEXT), _EMPTY)


def _joined(lists: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    """The items of each list with commas between, in brackets; null where the list is null."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    rebuilt = pa.LargeListArray.from_arrays(offsets, items)
    joined = pc.binary_join(rebuilt, pa.scalar(",", TEXT))
    made = pc.binary_join_element_wise(pa.scalar(opening, TEXT), joined, pa.scalar(closing, TEXT), _EMPTY)
    return pc.if_else(lists.is_valid(), made, pa.scalar(None, TEXT))


def _map(column: pa.Array, kind: spark.MapType, zone: tzinfo) -> pa.Array:
    entries = _entries(column)
    keys, values = entries.flatten()
    texts = _filled(_texts(values, kind.valueType, zone))
    names = _strings(_names(keys, kind.keyType))
    pairs = pc.binary_join_element_wise(names, texts, pa.scalar(":", TEXT))
    return _joined(column.cast(pa.list_(entries.type)), pairs, "{", "}")


def _entries(column: pa.Array) -> pa.Array:
    """The entries of all maps, those of null maps left out."""
    fields = [pa.field("key", column.type.key_type, nullable=False), pa.field("value", column.type.item_type)]
    return column.cast(pa.list_(pa.struct(fields))).flatten()


def _names(keys: pa.Array, kind: spark.DataType) -> pa.Array:
    """Keys as text: of times and dates, as of intervals, Spark writes the number."""
    match kind:
        case spark.StringType():
            return keys.cast(TEXT)
        case spark.FloatType() | spark.DoubleType():
            return pc.replace_substring(_floats(keys), '"', "")
        case spark.DecimalType():
            return _each(keys, str)
        case spark.BinaryType():
            return _each(keys, lambda value: value.decode(errors="replace"))
        case spark.DateType():
            return keys.cast(pa.int32()).cast(TEXT)
        case spark.BooleanType():
            return keys.cast(pa.string()).cast(TEXT)
        case spark.TimestampType() | spark.TimestampNTZType() | spark.DayTimeIntervalType():
            return keys.cast(pa.int64()).cast(TEXT)
        case spark.StructType() | spark.ArrayType() | spark.MapType():
            return _each(keys, str)
    return keys.cast(TEXT)


def _filled(texts: pa.Array) -> pa.Array:
    return texts.fill_null(_NULL) if texts.null_count else texts


def _strings(texts: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(texts, _SPECIAL)
    if pc.any(special).as_py():
        return _each(texts, quoted)
    quote = pa.scalar('"', TEXT)
    return pc.binary_join_element_wise(quote, texts, quote, _EMPTY)


def _floats(column: pa.Array) -> pa.Array:
    """Numbers as Java writes them. Arrow writes most of them so, but for a last `.0`."""
    size = pc.abs(column)
    plain = pc.or_(pc.and_(pc.less(size, 1e7), pc.greater_equal(size, 1e-3)), pc.equal(column, 0.0))
    texts = column.cast(pa.string()).cast(TEXT)
    whole = pc.invert(pc.match_substring(texts, "."))
    texts = pc.binary_join_element_wise(texts, pc.if_else(whole, pa.scalar(".0", TEXT), _EMPTY), _EMPTY)
    if pc.all(plain).as_py() is not False:
        return texts
    is_single = pa.types.is_float32(column.type)
    made = [
        text
        if is_plain or value is None
        else java_double(float(str(np.float32(value))) if is_single else value)
        for text, is_plain, value in zip(
            texts.to_pylist(), plain.to_pylist(), column.to_pylist(), strict=True
        )
    ]
    return pa.array(made, TEXT)


def _each(column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], TEXT)


def _writer(kind: spark.DataType, zone: tzinfo) -> Callable[[Any], str]:
    """How one value is written; times come as their counts."""
    match kind:
        case spark.DecimalType():
            return str
        case spark.BinaryType():
            return lambda value: f'"{base64.b64encode(value).decode()}"'
        case spark.TimestampType():
            return lambda value: f'"{timestamp_text(value, zone)}"'
        case spark.TimestampNTZType():
            return lambda value: f'"{timestamp_text(value, None)}"'
        case spark.DateType():
            return lambda value: f'"{date_text(value)}"'
        case spark.DayTimeIntervalType():
            first, last = kind.startField, kind.endField
            return lambda value: f'"{interval_text(value, first, last)}"'
    if type(kind).__name__ == "TimeType":
        return lambda value: f'"{time_text(value // 1000)}"'
    raise ConfigError(f"a column of type {kind.simpleString()} cannot be written as JSON")
