"""Columns as the types that a schema has: times as counts, numbers as wide as it says.

Rule: no value is changed to fit. What the schema cannot say as it is raises DoesNotFit with the
      field's name. Only a fraction of a millisecond is cut off where the schema counts these, and
      a decimal or a double is rounded where it says double or float.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.schemas.problems import DoesNotFit

US_PER_MS: Final = 1000
WHOLE: Final = "the value"


def fitted(column: pa.Array, wanted: pa.DataType, label: str) -> pa.Array:
    """A column by the type of a schema; a row that is null is left to the caller."""
    return _Fitting(label).fit(column, pa.field(WHOLE, wanted), WHOLE, column.null_count)


@dataclass(frozen=True, slots=True)
class _Fitting:
    label: str

    def fit(self, column: pa.Array, wanted: pa.Field, at: str, nulls: int) -> pa.Array:
        """`nulls` is how many rows are null because what they are in is null."""
        kind, types = wanted.type, pa.types
        if column.null_count > nulls and not wanted.nullable:
            raise self._misfit(f"{at} is null, which it may not be")
        if types.is_null(column.type):
            return column
        if types.is_struct(kind) and types.is_struct(column.type):
            return self._record(column, kind, at)
        if types.is_list(kind) and _is_list(column.type):
            items = self.fit(column.flatten(), kind.value_field, f"{at}[]", 0)
            return pa.ListArray.from_arrays(_offsets(column), items)
        if types.is_map(kind) and types.is_map(column.type):
            return self._map(column, kind, at)
        if types.is_nested(kind):
            raise self._refused(column.type, _named(kind), at)
        return _counts(self._cast(column, kind, at))

    def _record(self, column: pa.Array, kind: pa.StructType, at: str) -> pa.Array:
        fields = {one.name: one for one in kind}
        names = [one.name for one in column.type]
        arrays = []
        for name in names:
            if name not in fields:
                raise self._misfit(f"it has no field {_below(at, name)}")
            inside = pc.struct_field(column, name)
            arrays.append(self.fit(inside, fields[name], _below(at, name), column.null_count))
        if not names:
            return column
        return pa.StructArray.from_arrays(arrays, names=names, mask=column.is_null())

    def _map(self, column: pa.Array, wanted: pa.MapType, at: str) -> pa.Array:
        kind = column.type
        if _is_text(kind.key_type) != _is_text(wanted.key_type):
            raise self._refused(kind, "map", at)
        entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
        keys, values = column.cast(pa.list_(entry)).flatten().flatten()
        keys = self.fit(keys, pa.field("key", wanted.key_type, nullable=False), f"{at}{{}}", 0)
        values = self.fit(values, wanted.item_field, f"{at}{{}}", 0)
        return pa.MapArray.from_arrays(_offsets(column), keys, values)

    def _cast(self, column: pa.Array, kind: pa.DataType, at: str) -> pa.Array:
        """Values of a plain type as another that has them all, or DoesNotFit."""
        has, types = column.type, pa.types
        if has == kind or (types.is_decimal(has) and types.is_floating(kind)):
            return column  # Arrow's double of a decimal is not the nearest one; Python's is
        if types.is_timestamp(kind) and types.is_timestamp(has):
            counts = column.cast(pa.timestamp("us", has.tz)).cast(pa.int64())
            return _floored(counts) if kind.unit == "ms" else counts
        fits = (
            (types.is_integer(has) and (types.is_integer(kind) or types.is_floating(kind)))
            or (types.is_integer(has) and types.is_temporal(kind))
            or (types.is_integer(has) and types.is_decimal(kind) and kind.scale == 0)
            or (types.is_floating(has) and types.is_floating(kind))
            or (types.is_decimal(has) and types.is_decimal(kind))
            or (types.is_duration(has) and types.is_duration(kind))
            or (_is_text(has) and _is_text(kind))
            or (_is_bytes(has) and _is_bytes(kind))
        )
        if not fits:
            raise self._refused(has, str(kind), at)
        if types.is_temporal(kind) and not types.is_duration(has):
            kind = pa.int32() if types.is_date32(kind) else pa.int64()
        try:
            made = column.cast(kind)
        except pa.ArrowInvalid as error:
            raise self._misfit(f"{at}: {error}") from error
        if types.is_floating(made.type) and types.is_floating(has):
            overflowed = pc.and_(pc.is_inf(made), pc.is_finite(column))
            if pc.any(overflowed).as_py():
                raise self._misfit(f"{at} is too large for a float")
        return made

    def _refused(self, has: pa.DataType, wanted: str, at: str) -> DoesNotFit:
        return self._misfit(f"{at} is {has}, the schema has {wanted} there; cast it")

    def _misfit(self, why: str) -> DoesNotFit:
        return DoesNotFit(f"the {self.label} schema cannot say it: {why}")


def _offsets(column: pa.Array) -> pa.Array:
    """Where each list begins among the items that are left without those of null lists."""
    kind = (
        pa.list_(
            pa.struct(
                [
                    pa.field("key", column.type.key_type, nullable=False),
                    pa.field("value", column.type.item_type),
                ]
            )
        )
        if pa.types.is_map(column.type)
        else column.type
    )
    lengths = pc.list_value_length(column.cast(kind)).fill_null(0).to_numpy()
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    absent = np.append(column.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(begins, pa.int32(), mask=absent)


def _floored(counts: pa.Array) -> pa.Array:
    """Milliseconds of microseconds, also before 1970."""
    whole = pc.divide(counts, US_PER_MS)
    rest = pc.subtract(counts, pc.multiply(whole, US_PER_MS))
    return pc.subtract(whole, pc.less(rest, 0).cast(pa.int64()))


def _counts(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _below(at: str, name: str) -> str:
    return name if at == WHOLE else f"{at}.{name}"


def _named(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "record"
    return "map" if pa.types.is_map(kind) else "array"
