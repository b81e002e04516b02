"""Columns as the values that an Avro schema has: times as counts, numbers as wide as it says.

Rule: no value is changed to fit. What the schema cannot say as it is raises DoesNotFit with the
      field's name. Only a fraction of a millisecond is cut off where the schema counts these, and
      a decimal or a double is rounded where it says double or float.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.schemas.problems import DoesNotFit
from tidelog.spark.avro_types import arrow_type

Named = Mapping[str, Any]
US_PER_MS: Final = 1000


def fitted(column: pa.Array, node: Any, named: Named) -> pa.Array:
    """A column by a parsed schema, ready for fastavro; a row that is null is left to the caller."""
    arrow_type(node, named)  # what Spark has no type for is refused
    return _fitted(column, node, named, "the value", column.null_count)


def _fitted(column: pa.Array, node: Any, named: Named, at: str, nulls: int) -> pa.Array:
    """`nulls` is how many rows are null because what they are in is null."""
    nullable = isinstance(node, list) and "null" in node
    if isinstance(node, list):
        node = next(one for one in node if one != "null")
    while isinstance(node, str) and node in named:
        node = named[node]
    kind = node if isinstance(node, str) else node["type"]
    if kind == "null":
        nullable = True
    if column.null_count > nulls and not nullable:
        raise DoesNotFit(f"the Avro schema cannot say it: {at} is null, which it may not be")
    if pa.types.is_null(column.type):
        return column
    match kind:
        case "record" | "error" if pa.types.is_struct(column.type):
            return _record(column, node, named, at)
        case "array" if _is_list(column.type):
            items = _fitted(column.flatten(), node["items"], named, f"{at}[]", 0)
            return pa.ListArray.from_arrays(_offsets(column), items)
        case "map" if pa.types.is_map(column.type):
            return _map(column, node, named, at)
        case "record" | "error" | "array" | "map":
            raise _refused(column.type, kind, at)
    return _counts(_cast(column, arrow_type(node, named), at))


def _record(column: pa.Array, node: Any, named: Named, at: str) -> pa.Array:
    fields = {one["name"]: one["type"] for one in node["fields"]}
    names = [one.name for one in column.type]
    arrays = []
    for name in names:
        if name not in fields:
            raise DoesNotFit(f"the Avro schema cannot say it: it has no field {_below(at, name)}")
        inside = pc.struct_field(column, name)
        arrays.append(_fitted(inside, fields[name], named, _below(at, name), column.null_count))
    if not names:
        return column
    return pa.StructArray.from_arrays(arrays, names=names, mask=column.is_null())


def _map(column: pa.Array, node: Any, named: Named, at: str) -> pa.Array:
    kind = column.type
    if not _is_text(kind.key_type):
        raise _refused(kind, "map", at)
    entry = pa.struct([
        pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type),
    ])  # fmt: skip
    keys, values = column.cast(pa.list_(entry)).flatten().flatten()
    values = _fitted(values, node["values"], named, f"{at}{{}}", 0)
    return pa.MapArray.from_arrays(_offsets(column), keys, values)


def _offsets(column: pa.Array) -> pa.Array:
    """Where each list begins among the items that are left without those of null lists."""
    kind = pa.list_(pa.struct([
        pa.field("key", column.type.key_type, nullable=False),
        pa.field("value", column.type.item_type),
    ])) if pa.types.is_map(column.type) else column.type  # fmt: skip
    lengths = pc.list_value_length(column.cast(kind)).fill_null(0).to_numpy()
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    absent = np.append(column.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(begins, pa.int32(), mask=absent)


def _cast(column: pa.Array, kind: pa.DataType, at: str) -> pa.Array:
    """Values of a plain type as another that has them all, or DoesNotFit."""
    has, types = column.type, pa.types
    if has == kind or (types.is_decimal(has) and types.is_floating(kind)):
        return column  # Arrow's double of a decimal is not the nearest one; fastavro's is
    if types.is_timestamp(kind) and types.is_timestamp(has):
        counts = column.cast(pa.timestamp("us", has.tz)).cast(pa.int64())
        return _floored(counts) if kind.unit == "ms" else counts
    fits = (
        (types.is_integer(has) and (types.is_integer(kind) or types.is_floating(kind)))
        or (types.is_integer(has) and types.is_temporal(kind))
        or (types.is_floating(has) and types.is_floating(kind))
        or (types.is_decimal(has) and types.is_decimal(kind))
        or (_is_text(has) and _is_text(kind))
        or (_is_bytes(has) and _is_bytes(kind))
    )
    if not fits:
        raise _refused(has, str(kind), at)
    if types.is_temporal(kind):
        kind = pa.int32() if types.is_date32(kind) else pa.int64()
    try:
        made = column.cast(kind)
    except pa.ArrowInvalid as error:
        raise DoesNotFit(f"the Avro schema cannot say it: {at}: {error}") from error
    if types.is_floating(made.type) and types.is_floating(has):
        overflowed = pc.and_(pc.is_inf(made), pc.is_finite(column))
        if pc.any(overflowed).as_py():
            raise DoesNotFit(f"the Avro schema cannot say it: {at} is too large for a float")
    return made


def _floored(counts: pa.Array) -> pa.Array:
    """Milliseconds of microseconds, also before 1970."""
    whole = pc.divide(counts, US_PER_MS)
    rest = pc.subtract(counts, pc.multiply(whole, US_PER_MS))
    return pc.subtract(whole, pc.less(rest, 0).cast(pa.int64()))


def _counts(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _below(at: str, name: str) -> str:
    return name if at == "the value" else f"{at}.{name}"


def _refused(has: pa.DataType, wanted: str, at: str) -> DoesNotFit:
    return DoesNotFit(
        f"the Avro schema cannot say it: {at} is {has}, the schema has {wanted} there; cast it"
    )
