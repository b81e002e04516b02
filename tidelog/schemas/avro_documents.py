"""JSON that people type, as the values of an Avro schema.

Rule 1: what `documents.text` writes is read back as the same value. Of a union with several types
        that look the same in JSON, as strings and times, it is read back as the first.
Rule 2: no value is changed to fit a schema: it is taken as it is, or refused.
"""

import base64
import datetime
import decimal
import math
import struct
import uuid
from collections.abc import Mapping
from typing import Any, Final

from tidelog.schemas.documents import decoded, parsed, shown
from tidelog.schemas.problems import DoesNotFit

EXACT_DECIMAL: Final = "tidelog-decimal"
"""What `avro` makes of a decimal, so that fastavro does not round one that has too many digits."""
DECIMALS: Final = ("decimal", EXACT_DECIMAL)


def json_of(text: bytes) -> Any:
    """What a JSON text says."""
    try:
        return parsed(decoded(text), exact=True)
    except ValueError as error:
        raise DoesNotFit(f"it is no JSON: {error}") from None


def document_of(line: bytes, schema: Any) -> Any:
    """What a line says; a text that is no JSON is a string."""
    words = decoded(line)
    try:
        found = parsed(words, exact=True)
    except ValueError:
        return words
    kinds = schema if isinstance(schema, list) else [schema]
    is_string = [_kind(one) for one in kinds if one != "null"] == ["string"]
    if is_string and not isinstance(found, str) and not (found is None and "null" in kinds):
        return words  # 1.10 is the string 1.10, not 1.1
    return found


def _kind(node: Any) -> Any:
    return node["type"] if isinstance(node, dict) else node


# Values of JSON, in which numbers with a fraction are decimals.


def typed(node: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """A value of JSON as Avro's types have it; DoesNotFit if they have it not as it is."""
    if isinstance(node, list):
        return _of_union(node, value, named)
    while isinstance(node, str) and node in named:
        node = named[node]
    kind = _kind(node)
    logical = node.get("logicalType") if isinstance(node, dict) else None
    if logical is not None:
        made = _logical(logical, kind, node, value)
        if made is not None:
            return made
    match kind, value:
        case "record" | "error", dict():
            return _record(node, value, named)
        case "array", list():
            return [typed(node["items"], one, named) for one in value]
        case "map", dict():
            return {name: typed(node["values"], one, named) for name, one in value.items()}
        case ("null", None) | ("boolean", bool()) | ("string", str()):
            return value
        case "enum", str() if value in node["symbols"]:
            return value
        case (("int" | "long"), int()) if type(value) is int and _is_long(value, kind):
            return value
        case (("float" | "double"), int() | float() | decimal.Decimal()) if type(value) is not bool:
            return _float(value, kind)
        case (("bytes" | "fixed"), (str() | dict())):
            return _bytes(value)
    raise _misfit(value, kind)


def _of_union(node: list[Any], value: Any, named: Mapping[str, Any]) -> Any:
    """By the first of several types that has the value."""
    if value is None and "null" in node:
        return None
    others = [one for one in node if one != "null"]
    for one in others[:-1]:
        try:
            return typed(one, value, named)
        except DoesNotFit:
            continue
    if not others:
        raise _misfit(value, "null")
    return typed(others[-1], value, named)


def _record(node: Any, value: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    fields = {one["name"]: one["type"] for one in node["fields"]}
    if unknown := sorted(value.keys() - fields.keys()):
        raise DoesNotFit(f"the schema has no field {unknown[0]!r}; it has {', '.join(fields)}")
    return {name: typed(fields[name], one, named) for name, one in value.items()}


def _is_long(value: int, kind: str) -> bool:
    limit = 2**31 if kind == "int" else 2**63
    return -limit <= value < limit


def _float(value: float | decimal.Decimal, kind: str) -> float:
    """The nearest number; infinity only for itself, as `text_of` writes it."""
    try:
        found = float(value)
        if kind == "float":
            struct.pack("<f", found)
    except OverflowError:
        raise _misfit(value, kind) from None
    if math.isinf(found) and not isinstance(value, float):
        raise _misfit(value, kind)
    return found


def _logical(logical: str, kind: str, node: Any, value: Any) -> Any:
    """A value of a logical type; None if it is to be one of the plain type."""
    try:
        if logical in DECIMALS and kind in ("bytes", "fixed"):
            return _decimal(node, value)
        if not isinstance(value, str):
            return None
        if logical == "uuid":
            uuid.UUID(value)  # or nobody could read it
            return None
        if logical == "date":
            return datetime.date.fromisoformat(value)
        made: datetime.datetime | datetime.time
        if logical in TIMESTAMPS:
            made = datetime.datetime.fromisoformat(value)
        elif logical in TIMES:
            made = datetime.time.fromisoformat(value)
        else:
            return None
    except (ValueError, ArithmeticError) as error:
        raise DoesNotFit(f"{value!r} is no {logical}: {error}") from error
    if made.tzinfo is not None and not logical.startswith("timestamp-"):
        raise DoesNotFit(f"{value!r} is no {logical}: it names a zone, and the schema has none")
    if logical.endswith("-millis") and made.microsecond % 1000:
        raise DoesNotFit(f"{value!r} is no {logical}: it has parts of a millisecond")
    return made


TIMESTAMPS: Final = (
    "timestamp-millis",
    "timestamp-micros",
    "local-timestamp-millis",
    "local-timestamp-micros",
)
TIMES: Final = ("time-millis", "time-micros")


def _decimal(node: Any, value: Any) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | decimal.Decimal):
        raise _misfit(value, "decimal")
    found, scale = decimal.Decimal(value), node.get("scale", 0)
    if not found.is_finite() or (found and found.adjusted() >= node["precision"] - scale):
        raise _misfit(value, f"decimal of {node['precision']} digits, {scale} after the point")
    return found or decimal.Decimal(0)  # 0e999999999 would become as many digits


def _bytes(value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        if value.keys() == {"base64"}:
            return base64.b64decode(value["base64"], validate=True)
    except (ValueError, TypeError) as error:
        raise DoesNotFit(f"{value!r} is no text or base64: {error}") from None
    raise _misfit(value, "bytes")


def _misfit(value: Any, kind: Any) -> DoesNotFit:
    return DoesNotFit(f"{shown(value)} is no {kind}, which the Avro schema has there")
