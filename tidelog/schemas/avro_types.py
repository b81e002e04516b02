"""Avro's types as Arrow's, and back.

| Avro | Spark | | Avro | Spark |
|---|---|---|---|---|
| boolean, int, long, float, double | the same | | record | struct |
| string, enum, uuid | string | | array, map | array, map<string, ...> |
| bytes, fixed | binary | | union with null | the other type |
| decimal | decimal | | date | date |
| timestamp-millis, -micros | timestamp | | local-timestamp-millis, -micros | timestamp_ntz |
| time-millis, time-micros | int, bigint | | | |

Rule: what has no counterpart is refused with the field's name: a union of several types, a record
inside of itself.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from tidelog.errors import ConfigError
from tidelog.schemas.avro_documents import DECIMALS

PRECISION_MAX: Final = 38
PLACES_MAX: Final = 10_000
"""How many places a schema may have, with what it names, each as often."""
_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
    "null": pa.null(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def arrow_type(node: Any, named: Mapping[str, Any] | None = None) -> pa.DataType:
    """The type of values as fastavro gives them without logical types: times are counts.

    `named` are types that the schema refers to and that are defined elsewhere, by full name.
    """
    return _arrow(node, _Named(named or {}), "", ())


class _Named(dict[str, Any]):
    """Types by their names, and how many places of a schema were seen."""

    places = 0


def _arrow(node: Any, named: _Named, at: str, around: tuple[str, ...]) -> pa.DataType:
    named.places += 1
    if named.places > PLACES_MAX:
        raise ConfigError(f"{at}: the schema has more than {PLACES_MAX} places")
    if isinstance(node, list):
        others = [one for one in node if one != "null"]
        if len(others) != 1:
            raise ConfigError(f"{at or 'the schema'} is a union of several types; Spark has none")
        return _arrow(others[0], named, at, around)
    if isinstance(node, str):
        if node in _PLAIN:
            return _PLAIN[node]
        if node in around:
            raise ConfigError(f"{at} is a {node} inside of itself; Spark has no such type")
        if node not in named:
            raise ConfigError(f"{at} is a {node}, which the schema does not define")
        return _arrow(named[node], named, at, around)
    kind = node["type"]
    if "name" in node and kind in ("record", "error", "enum", "fixed"):
        named[node["name"]] = node
    logical = node.get("logicalType")
    if logical in DECIMALS:
        precision = int(node["precision"])
        if precision > PRECISION_MAX:
            raise ConfigError(
                f"{at or 'the schema'} is a decimal of {precision} digits; Spark's have "
                f"{PRECISION_MAX} at most"
            )
        return pa.decimal128(precision, int(node.get("scale", 0)))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record" | "error":
            inside = (*around, node["name"])
            return pa.struct(
                [
                    _field(one["name"], one["type"], named, f"{at}.{one['name']}", inside)
                    for one in node["fields"]
                ]
            )
        case "array":
            return pa.list_(_field("item", node["items"], named, f"{at}[]", around))
        case "map":
            return pa.map_(pa.string(), _field("value", node["values"], named, f"{at}{{}}", around))
    return _arrow(kind, named, at, around)


def _field(name: str, node: Any, named: _Named, at: str, around: tuple[str, ...]) -> pa.Field:
    kind = _arrow(node, named, at, around)
    is_nullable = pa.types.is_null(kind) or (isinstance(node, list) and "null" in node)
    return pa.field(name, kind, nullable=is_nullable)


def avro_schema(kind: pa.DataType, name: str) -> Any:
    """A schema that can say every value of a type; all of it may be null but the whole."""
    types = pa.types
    if types.is_struct(kind):
        return {
            "type": "record",
            "name": name,
            "fields": [
                {
                    "name": one.name,
                    "type": ["null", avro_schema(one.type, f"{name}_{one.name}")],
                    "default": None,
                }
                for one in kind
            ],
        }
    if types.is_list(kind):
        return {"type": "array", "items": ["null", avro_schema(kind.value_type, f"{name}_item")]}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", avro_schema(kind.item_type, f"{name}_value")]}
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    found = _OF_ARROW.get(kind)
    if found is None:
        raise ConfigError(f"Avro has no type for {kind} ({name}); cast it")
    return found


_OF_ARROW: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}
