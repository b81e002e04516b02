"""JSON values as columns, value by value what Spark's `from_json` makes of them.

Plain documents go the fast way: msgspec reads them by the types that are wanted, and refuses
whatever Spark would not take as it is. What it refuses goes the slow way, document by document,
through rules that are Spark's.

Rule 1: both ways give the same where both give something; the fast one only refuses more. (Of a
        name that comes twice it sees the last value alone, and misses that another did not fit.)
Rule 2: a document with a mistake in its grammar gives nulls. One whose fields do not all fit gives
        those that do. Both are corrupt records.
Rule 3: a value that is null, or blank, is no corrupt record: nothing was said.
"""

import base64
import binascii
import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from decimal import Decimal
from typing import Annotated, Any, Final, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from tidelog.spark.json_times import (
    Misread,
    date_days,
    interval_us,
    local_timestamp_us,
    time_us,
    timestamp_us,
)
from tidelog.spark.json_tokens import DIGITS_MAX, NOT_FINITE, Members, Number, parse, rendered

CORRUPT: Final = "_corrupt_record"
INTEGERS: Final[Mapping[type[spark.DataType], int]] = {
    spark.ByteType: 2**7,
    spark.ShortType: 2**15,
    spark.IntegerType: 2**31,
    spark.LongType: 2**63,
}
_MINUS_ZERO: Final = re.compile(rb"-0[,}\]\s]")
_ISO: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"
_BLANK: Final = b" \t\r\n"


class Misfit(Exception):
    """A token that is no value of the type; `partial` is what could be made of it."""

    def __init__(self, partial: Any = None) -> None:
        super().__init__()
        self.partial = partial


Convert = Callable[[Any], Any]


class JsonReader:
    """Reads values that are JSON objects as columns of a schema."""

    def __init__(self, schema: spark.StructType, arrow: pa.Schema, zone: tzinfo) -> None:
        self._arrow = arrow
        self._fields = [field for field in schema.fields if field.name != CORRUPT]
        self._slow = _struct(self._fields, zone)
        self._columns = [_Column(field, arrow.field(field.name).type, zone) for field in self._fields]
        kinds = {column.field.name: column.fast for column in self._columns}
        self._fast: msgspec.json.Decoder[Any] | None = None
        if all(kind is not None for kind in kinds.values()):
            self._fast = msgspec.json.Decoder(_typed(kinds))
        self._minds_zero = any(_has_floats(field.dataType) for field in self._fields)

    def read(self, values: pa.Array) -> pa.RecordBatch:
        documents = values.to_pylist()
        corrupt: set[int] = set()
        rows = self._read_fast(values, documents, corrupt)
        arrays = {
            column.field.name: column.array(rows, documents, corrupt, self._slow_row)
            for column in self._columns
        }
        if CORRUPT in self._arrow.names:
            texts = [
                document.decode(errors="replace") if number in corrupt else None
                for number, document in enumerate(documents)
            ]
            arrays[CORRUPT] = pa.array(texts, self._arrow.field(CORRUPT).type)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._arrow.names], schema=self._arrow)

    def _read_fast(
        self, values: pa.Array, documents: Sequence[bytes | None], corrupt: set[int]
    ) -> list[dict[str, Any]]:
        if self._fast is None:
            return [self._slow_row(number, documents, corrupt) for number in range(len(documents))]
        decode = self._fast.decode
        rows: list[dict[str, Any]]
        try:
            rows = [decode(document) for document in documents]  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
            rows = [self._row(number, documents, corrupt) for number in range(len(documents))]
        if self._minds_zero:  # -0 is 0, and msgspec's -0.0
            for number in np.flatnonzero(pc.match_substring(values, "-0").fill_null(False)).tolist():
                if _MINUS_ZERO.search(documents[number] or b""):
                    rows[number] = self._slow_row(number, documents, corrupt)
        return rows

    def _row(self, number: int, documents: Sequence[bytes | None], corrupt: set[int]) -> dict[str, Any]:
        assert self._fast is not None
        try:
            row: dict[str, Any] = self._fast.decode(documents[number])  # type: ignore[arg-type]
            return row
        except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
            return self._slow_row(number, documents, corrupt)

    def _slow_row(self, number: int, documents: Sequence[bytes | None], corrupt: set[int]) -> dict[str, Any]:
        """The fields of one document, ready for Arrow."""
        document = documents[number]
        if document is None or not document.strip(_BLANK):
            return _Ready()
        try:
            return _Ready(self._slow(parse(document)))
        except Misfit as misfit:
            corrupt.add(number)
            return _Ready(misfit.partial or {})
        except (ValueError, RecursionError):
            corrupt.add(number)
            return _Ready()


class _Ready(dict[str, Any]):
    """A row whose fields went the slow way: they are as Arrow takes them."""

    __slots__ = ()


SlowRow = Callable[[int, Sequence[bytes | None], set[int]], dict[str, Any]]


class _Column:
    """One column: what msgspec reads for it, and how Arrow gets it."""

    def __init__(self, field: spark.StructField, arrow: pa.DataType, zone: tzinfo) -> None:
        self.field = field
        self.fast: Any = _fast_type(field.dataType)
        self._arrow = arrow
        self._convert: Convert | None = None
        if self.fast is None and isinstance(field.dataType, _CONVERTED):
            match field.dataType:
                case spark.DecimalType():
                    self.fast = msgspec.Raw
                case spark.TimestampType():
                    self.fast = str | int
                case _:
                    self.fast = str
            self._convert = _converter(field.dataType, zone)

    def array(
        self,
        rows: list[dict[str, Any]],
        documents: Sequence[bytes | None],
        corrupt: set[int],
        slow_row: SlowRow,
    ) -> pa.Array:
        name = self.field.name
        values = [row.get(name) for row in rows]
        if self._convert is None:
            return pa.array(values, self._arrow)
        if isinstance(self.field.dataType, spark.TimestampType):
            found = _iso_times(values, self._arrow)
            if found is not None:
                return found
        convert = self._convert
        raw = isinstance(self.field.dataType, spark.DecimalType)
        for number, value in enumerate(values):
            if value is None or type(rows[number]) is _Ready:
                continue
            try:
                values[number] = convert(_decimal_token(value) if raw else value)
            except (Misfit, ValueError, ArithmeticError):
                again = slow_row(number, documents, corrupt)
                rows[number] = again
                values[number] = again.get(name)
        return pa.array(values, self._arrow)


_CONVERTED: Final = (
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.DateType,
    spark.DecimalType,
    spark.BinaryType,
    spark.DayTimeIntervalType,
)


def _fast_type(kind: spark.DataType) -> Any:
    """What msgspec reads to the same value as Spark; None if nothing does.

    Maps are not among it: Spark's keep both where a name comes twice.
    """
    if isinstance(kind, spark.BooleanType):
        return bool
    if type(kind) is spark.StringType:
        return str
    if isinstance(kind, spark.DoubleType):
        return float
    if (limit := INTEGERS.get(type(kind))) is not None:
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if isinstance(kind, spark.ArrayType):
        inner = _fast_type(kind.elementType)
        return None if inner is None else list[inner | None]  # type: ignore[valid-type]
    if isinstance(kind, spark.StructType):
        inners = {field.name: _fast_type(field.dataType) for field in kind.fields}
        if None in inners.values():
            return None
        return _typed(inners)
    return None


def _typed(kinds: Mapping[str, Any]) -> Any:
    """A type for objects with these fields, each of which may be null or missing."""
    fields = {name: kind if kind is msgspec.Raw else kind | None for name, kind in kinds.items()}
    return TypedDict("Fields", fields, total=False)  # type: ignore[operator]


def _has_floats(kind: spark.DataType) -> bool:
    match kind:
        case spark.DoubleType() | spark.FloatType():
            return True
        case spark.ArrayType():
            return _has_floats(kind.elementType)
        case spark.MapType():
            return _has_floats(kind.valueType)
        case spark.StructType():
            return any(_has_floats(field.dataType) for field in kind.fields)
    return False


def _iso_times(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Times as most programs write them, all at once; None if one is not like that."""
    try:
        texts = pa.array(values, pa.string())
    except (pa.ArrowException, TypeError):
        return None
    if not pc.all(pc.match_substring_regex(texts, _ISO), min_count=0).as_py():
        return None
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return None


def _decimal_token(raw: msgspec.Raw) -> Any:
    text = bytes(raw)
    if text == b"null":
        return None
    if text[:1] in b"-0123456789":
        return Number(text.decode())
    raise Misfit


# The slow way: tokens as values. A converter takes a token that is not null.


def _converter(kind: spark.DataType, zone: tzinfo) -> Convert:
    limit = INTEGERS.get(type(kind))
    if limit is not None:
        return lambda token: _integer(token, limit)
    match kind:
        case spark.BooleanType():
            return _boolean
        case spark.FloatType():
            return lambda token: float(np.float32(_float(token, np.float32)))
        case spark.DoubleType():
            return lambda token: _float(token, float)
        case spark.StringType():
            return _string
        case spark.BinaryType():
            return lambda token: _base64(_text(token))
        case spark.DecimalType():
            return lambda token: _decimal(token, kind.precision, kind.scale)
        case spark.TimestampType():
            return lambda token: _timestamp(token, zone)
        case spark.TimestampNTZType():
            return lambda token: _read(local_timestamp_us, token)
        case spark.DateType():
            return lambda token: _read(date_days, token)
        case spark.DayTimeIntervalType():
            first, last = kind.startField, kind.endField
            return lambda token: _read(lambda text: interval_us(text, first, last), token)
        case spark.ArrayType():
            return _array(_converter(kind.elementType, zone))
        case spark.MapType() if isinstance(kind.keyType, spark.StringType):
            return _map(_converter(kind.valueType, zone))
        case spark.StructType():
            return _struct(kind.fields, zone)
    if type(kind).__name__ == "TimeType":
        return lambda token: 1000 * _read(time_us, token)
    return _never


def _never(token: Any) -> Any:
    raise Misfit


def _text(token: Any) -> str:
    if type(token) is not str:
        raise Misfit
    return token


def _read(read: Callable[[str], int], token: Any) -> int:
    try:
        return read(_text(token))
    except Misread:
        raise Misfit from None


def _boolean(token: Any) -> bool:
    if type(token) is not bool:
        raise Misfit
    return token


def _integer(token: Any, limit: int) -> int:
    if type(token) is not int or not -limit <= token < limit:
        raise Misfit
    return token


def _float(token: Any, kind: Callable[[Any], Any]) -> float:
    if type(token) is str or (type(token) is Number and token in NOT_FINITE):
        if token not in NOT_FINITE:
            raise Misfit
        return NOT_FINITE[token]
    if type(token) not in (int, Number):
        raise Misfit
    with np.errstate(over="ignore"):
        return float(kind(str(token)))


def _string(token: Any) -> str:
    if type(token) is str:
        return (
            token.encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
            .replace("\ufffd", "?" if "\ufffd" not in token else "\ufffd")
        )
    return rendered(token)


_BASE64: Final = re.compile(r"(?:[\x00-\x20]*[A-Za-z0-9+/]{2}[A-Za-z0-9+/=]{2})*[\x00-\x20]*")


def _base64(text: str) -> bytes:
    """As Jackson reads it: blanks may be between groups of four, and padding may not be missing."""
    packed = "".join(re.split(r"[\x00-\x20]+", text))
    if re.fullmatch(r"(?:[\x00-\x20]*[A-Za-z0-9+/]{2}[A-Za-z0-9+/=]{2})*[\x00-\x20]*", text) is None:
        raise Misfit
    try:
        return base64.b64decode(packed, validate=True)
    except binascii.Error:
        raise Misfit from None


_DECIMALS: Final = decimal.Context(prec=2 * DIGITS_MAX, Emax=10**9, Emin=-(10**9))
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)


def _decimal(token: Any, precision: int, scale: int) -> Decimal:
    if type(token) is bool or not isinstance(token, int | str):
        raise Misfit
    text = str(token).replace(",", "") if type(token) is str else str(token)
    if _DECIMAL.fullmatch(text) is None:
        raise Misfit
    number = Decimal(text)
    if number and number.adjusted() >= precision - scale:
        raise Misfit
    if number.adjusted() < -scale - 1:
        return Decimal((0, (0,), -scale))
    found = number.quantize(Decimal((0, (1,), -scale)), decimal.ROUND_HALF_UP, _DECIMALS)
    if found and found.adjusted() >= precision - scale:
        raise Misfit
    return found or abs(found)


def _timestamp(token: Any, zone: tzinfo) -> int:
    if type(token) is int:
        _integer(token, 2**63)
        return (token * 1_000_000 + 2**63) % 2**64 - 2**63  # Spark's overflow is silent
    return _read(lambda text: timestamp_us(text, zone), token)


def _array(convert: Convert) -> Convert:
    def converted(token: Any) -> list[Any]:
        if type(token) is not list:
            raise Misfit
        fits = True
        found: list[Any] = []
        for item in token:
            try:
                found.append(None if item is None else convert(item))
            except Misfit as misfit:
                if misfit.partial is None:
                    raise Misfit from None
                fits = False
                found.append(misfit.partial)
        if not fits:
            raise Misfit(found)
        return found

    return converted


def _map(convert: Convert) -> Convert:
    def converted(token: Any) -> list[tuple[str, Any]]:
        if type(token) is not Members:
            raise Misfit
        fits = True
        found: list[tuple[str, Any]] = []
        for name, item in token:
            try:
                found.append((_string(name), None if item is None else convert(item)))
            except Misfit as misfit:
                if misfit.partial is None:
                    raise Misfit from None
                fits = False
                found.append((_string(name), misfit.partial))
        if not fits:
            raise Misfit(found)
        return found

    return converted


def _struct(fields: Sequence[spark.StructField], zone: tzinfo) -> Convert:
    converters = {field.name: _converter(field.dataType, zone) for field in fields}

    def converted(token: Any) -> dict[str, Any]:
        if type(token) is not Members:
            raise Misfit
        fits = True
        found: dict[str, Any] = {}
        for name, item in token:
            convert = converters.get(name)
            if convert is None:
                continue
            try:
                found[name] = None if item is None else convert(item)
            except Misfit as misfit:
                fits = False
                if misfit.partial is not None:
                    found[name] = misfit.partial
        if not fits:
            raise Misfit(found)
        return found

    return converted
