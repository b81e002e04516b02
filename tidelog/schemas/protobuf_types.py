"""Protobuf's types as Arrow's, and back.

| Protobuf | Spark | | Protobuf | Spark |
|---|---|---|---|---|
| bool, float, double, string, bytes | the same | | message | struct |
| int32, sint32, sfixed32 | int | | repeated | array |
| int64, sint64, sfixed64, uint32, fixed32 | bigint | | map | map |
| uint64, fixed64 | decimal(20,0) | | enum | string |
| Timestamp | timestamp | | Duration | interval day to second |
| Int32Value and other wrappers | the type, nullable | | Struct, Value, ListValue | string of JSON |

Rule 1: a field is nullable if the message can tell that it is absent: `optional`, a member of a
        oneof, a message. Others have Protobuf's default.
Rule 2: what has no counterpart is refused with the field's name: a message inside of itself.
"""

from typing import Any, Final

import pyarrow as pa

from tidelog.errors import ConfigError
from tidelog.schemas.protobuf_documents import JSONS, is_map

SCALARS: Final = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.decimal128(20, 0),
    5: pa.int32(),
    6: pa.decimal128(20, 0),
    7: pa.int64(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""By the number that descriptors have for a type; 14 is an enum."""
TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{one}Value"
    for one in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
FIELDS_MAX: Final = 10_000
"""How many fields a type may have, with those of messages inside of messages."""


def message_type(descriptor: Any, at: str = "", around: tuple[str, ...] = ()) -> pa.DataType:
    """The type of a column of messages."""
    name = descriptor.full_name
    if name == TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if name == DURATION:
        return pa.duration("us")
    if name in WRAPPERS:
        return SCALARS[descriptor.fields_by_name["value"].type]
    if name in JSONS:
        return pa.string()
    if name in around:
        raise ConfigError(f"{at[1:]} is a {name} inside of itself; Spark has no such type")
    if not around and _width(descriptor, {}) > FIELDS_MAX:
        raise ConfigError(f"{name} has more than {FIELDS_MAX} fields with those inside of it")
    if extensions := descriptor.file.pool.FindAllExtensions(descriptor):
        raise ConfigError(
            f"{name} has the extension {extensions[0].full_name}, for which Spark has no column"
        )
    inside = (*around, name)
    return pa.struct([_field(one, f"{at}.{one.name}", inside) for one in descriptor.fields])


def _field(field: Any, at: str, around: tuple[str, ...]) -> pa.Field:
    if is_map(field):
        entry = field.message_type.fields_by_name
        key = single_type(entry["key"], at, around)
        value = pa.field("value", single_type(entry["value"], at, around), nullable=False)
        return pa.field(field.name, pa.map_(key, value), nullable=False)
    kind = single_type(field, at, around)
    if field.is_repeated:
        kind = pa.list_(pa.field("item", kind, nullable=False))
        return pa.field(field.name, kind, nullable=False)
    return pa.field(field.name, kind, nullable=field.has_presence and not field.is_required)


def single_type(field: Any, at: str, around: tuple[str, ...]) -> pa.DataType:
    """The type of one value of a field."""
    if field.message_type is not None:
        return message_type(field.message_type, at, around)
    return SCALARS[field.type]


def _width(descriptor: Any, known: dict[str, int]) -> int:
    """How many fields a message has, with those of messages inside of it, each as often."""
    name = descriptor.full_name
    if name not in known:
        known[name] = 0  # one inside of itself is refused elsewhere
        below = [one.message_type for one in descriptor.fields]
        known[name] = sum(1 + (_width(one, known) if one is not None else 0) for one in below)
    return known[name]


# A schema for columns.

_OF_ARROW: Final = {
    pa.bool_(): "bool",
    pa.int8(): "int32",
    pa.int16(): "int32",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.timestamp("us", "UTC"): TIMESTAMP,
    pa.duration("us"): DURATION,
}
_KEYS: Final = ("bool", "int32", "int64", "string")
_IMPORTS: Final = {TIMESTAMP: "google/protobuf/timestamp.proto", DURATION: "google/protobuf/duration.proto"}


def proto_text(kind: pa.DataType, name: str) -> str:
    """A .proto file with one message for a struct."""
    if not pa.types.is_struct(kind):
        raise ConfigError(f"a Protobuf value is a message: write a struct, not {kind}")
    body = _message(kind, name, "")
    imports = [f'import "{file}";' for one, file in _IMPORTS.items() if f"{one} " in body]
    return "\n".join(['syntax = "proto3";', *imports, "", body])


def _message(kind: pa.StructType, name: str, indent: str) -> str:
    lines = [f"{indent}message {name} {{"]
    for number, field in enumerate(kind, 1):
        if not (field.name.isascii() and field.name.isidentifier()):
            raise ConfigError(f"Protobuf has no field named {field.name!r}; give it another name")
        lines += _lines(field.type, field.name, number, f"{indent}  ")
    return "\n".join([*lines, f"{indent}}}"])


def _lines(kind: pa.DataType, name: str, number: int, indent: str) -> list[str]:
    """A field, and before it the message that it is of."""
    word, of = "optional", kind
    if pa.types.is_list(kind):
        word, of = "repeated", kind.value_type
    elif pa.types.is_map(kind):
        word, of = "map", kind.item_type
    before: list[str] = []
    if pa.types.is_struct(of):
        inner = "".join(part.capitalize() for part in name.split("_")) + "Message"
        before, told = [_message(of, inner, indent)], inner
    else:
        told = _plain(of, name)
    if word == "map":
        key = _plain(kind.key_type, name)
        if key not in _KEYS:
            raise ConfigError(f"Protobuf has no map with keys of {kind.key_type} ({name}); cast it")
        return [*before, f"{indent}map<{key}, {told} > {name} = {number};"]
    return [*before, f"{indent}{word} {told} {name} = {number};"]


def _plain(kind: pa.DataType, name: str) -> str:
    found = _OF_ARROW.get(kind)
    if found is None:
        raise ConfigError(f"Protobuf has no type for {kind} ({name}); cast it")
    return found
