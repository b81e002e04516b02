"""JSON Schema's types as Arrow's, with what reads and writes their values; and back.

| JSON Schema | Spark | | JSON Schema | Spark |
|---|---|---|---|---|
| boolean, string | the same | | object with properties | struct |
| integer | bigint | | object with additionalProperties alone | map<string, ...> |
| number | double | | array | array |
| string of date-time, date | timestamp, date | | string with contentEncoding base64 | binary |
| enum, const | the type of its values | | null, or oneOf null | the other type, nullable |

Rule 1: what has no counterpart is refused with the field's name: several types, a schema inside of
        itself, an object of anything.
Rule 2: a property that is not required may be null; if the schema has no null for it, it is left
        out when it is written.
"""

import base64
import datetime
import decimal
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from tidelog.errors import ConfigError
from tidelog.schemas.documents import shown
from tidelog.schemas.json_schema import found_among
from tidelog.schemas.problems import DoesNotFit, SchemaProblem

LONG_MAX: Final = 2**63
EXACT_MAX: Final = 2**53
"""Up to this number a double has every integer."""
PLACES_MAX: Final = 10_000
"""How many places a schema may have, with what it refers to, each as often."""
MICROSECOND_DIGITS: Final = 6
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DAY_ZERO: Final = datetime.date(1970, 1, 1)
NAMES_OF: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}
NOTES: Final = frozenset(("title", "description", "default", "examples", "$comment", "deprecated"))
_FRACTIONS: Final = re.compile(r"[.,](\d+)")


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """The type of a schema, and its values of JSON as columns have them, and back."""

    kind: pa.DataType
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    has_null: bool = False
    """Whether null is one of its values."""


@dataclass(frozen=True, slots=True)
class _At:
    """A place in a schema."""

    root: Any
    others: dict[str, Any]
    path: str = ""
    around: tuple[int, ...] = ()
    """The schemas that this one is inside of."""
    places: Iterator[int] = field(default_factory=count)
    """Counts the places of the whole schema."""

    @property
    def name(self) -> str:
        return self.path.lstrip(".") or "the schema"

    def below(self, step: str) -> "_At":
        return replace(self, path=self.path + step)


def plan(root: Any, others: dict[str, Any]) -> JsonColumn:
    """The plan of a schema; ConfigError names what has no type."""
    return _plan(root, _At(root, others))


def _plan(node: Any, at: _At) -> JsonColumn:
    if not isinstance(node, dict):
        raise ConfigError(f"{at.name} may be anything; Spark needs a type")
    if id(node) in at.around:
        raise ConfigError(f"{at.name} is inside of itself; Spark has no such type")
    if next(at.places) > PLACES_MAX:
        raise ConfigError(f"{at.name}: the schema has more than {PLACES_MAX} places")
    at = replace(at, around=(*at.around, id(node)))
    if "$ref" in node and "properties" in node:  # both hold
        rest = {name: one for name, one in node.items() if name != "$ref"}
        node = {**rest, "allOf": [{"$ref": node["$ref"]}, *node.get("allOf", ())]}
    if "$ref" in node:
        target, root = _resolved(node["$ref"], at)
        return _plan(target, replace(at, root=root))
    if "allOf" in node:
        return _plan_all(node, at)
    for word in ("oneOf", "anyOf"):
        if word in node and "type" not in node and "properties" not in node:
            return _plan_one(node[word], at)
    kinds = _kinds(node, at)
    has_null = "null" in kinds
    others = [one for one in kinds if one != "null"]
    if sorted(others) == ["integer", "number"]:
        others = ["number"]
    if not others:
        return JsonColumn(pa.null(), _no_value, _no_value, True)
    if len(others) > 1:
        raise ConfigError(f"{at.name} is of several types: {', '.join(others)}; Spark has one")
    made = _plan_kind(others[0], node, at)
    return JsonColumn(made.kind, made.read, made.write, has_null)


def _kinds(node: dict[str, Any], at: _At) -> list[str]:
    given = node.get("type")
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    values = node.get("enum", [node["const"]] if "const" in node else [])
    found = dict.fromkeys("null" if one is None else NAMES_OF.get(type(one), "") for one in values)
    if found and "" not in found:
        return list(found)
    if "properties" in node:
        return ["object"]
    if "items" in node:
        return ["array"]
    raise ConfigError(f"{at.name} says no type; Spark needs one")


def _plan_kind(kind: str, node: dict[str, Any], at: _At) -> JsonColumn:
    match kind:
        case "object":
            return _plan_object(node, at)
        case "array":
            return _plan_array(node, at)
        case "string" if node.get("format") == "date-time":
            return JsonColumn(pa.timestamp("us", "UTC"), _read_time, _write_time)
        case "string" if node.get("format") == "date":
            return JsonColumn(pa.date32(), _read_date, _write_date)
        case "string" if node.get("contentEncoding") == "base64":
            return JsonColumn(pa.binary(), _read_base64, lambda data: base64.b64encode(data).decode())
        case "string":
            return JsonColumn(pa.string(), _read_string, _same)
        case "integer":
            return JsonColumn(pa.int64(), _read_integer, _same)
        case "number":
            return JsonColumn(pa.float64(), _read_number, _write_number)
        case "boolean":
            return JsonColumn(pa.bool_(), _read_boolean, _same)
    raise ConfigError(f"{at.name} is of type {kind!r}, which is none of JSON Schema's")


def _plan_object(node: dict[str, Any], at: _At) -> JsonColumn:
    properties = node.get("properties") or {}
    if properties:
        return _plan_struct(properties, node.get("required", ()), at)
    values = node.get("additionalProperties")
    patterns = list((node.get("patternProperties") or {}).values())
    if not isinstance(values, dict) and len(patterns) == 1:
        values = patterns[0]
    if not isinstance(values, dict):
        raise ConfigError(f"{at.name} is an object of anything; Spark needs its properties")
    below = _plan(values, at.below("{}"))
    kind = pa.map_(pa.string(), pa.field("value", below.kind, nullable=below.has_null))

    def read(value: Any) -> Any:
        found = _as(dict, value, "object")
        return [(name, _read(below, one)) for name, one in found.items()]

    def write(value: Any) -> Any:
        return {name: _write(below, one) for name, one in value.items()}

    return JsonColumn(kind, read, write)


def _plan_struct(properties: dict[str, Any], required: Any, at: _At) -> JsonColumn:
    plans = {name: _plan(one, at.below(f".{name}")) for name, one in properties.items()}
    kind = pa.struct(
        [
            pa.field(name, one.kind, nullable=one.has_null or name not in required)
            for name, one in plans.items()
        ]
    )

    def read(value: Any) -> Any:
        found = _as(dict, value, "object")
        return {name: _read(one, found.get(name)) for name, one in plans.items()}

    def write(row: dict[str, Any]) -> Any:
        return {
            name: _write(plans[name], value)
            for name, value in row.items()
            if value is not None or plans[name].has_null
        }

    return JsonColumn(kind, read, write)


def _plan_array(node: dict[str, Any], at: _At) -> JsonColumn:
    items = node.get("items")
    if not isinstance(items, dict) or "prefixItems" in node:
        raise ConfigError(f"{at.name} is an array whose items have no one type; Spark needs one")
    below = _plan(items, at.below("[]"))
    kind = pa.list_(pa.field("item", below.kind, nullable=below.has_null))

    def read(value: Any) -> Any:
        return [_read(below, one) for one in _as(list, value, "array")]

    return JsonColumn(kind, read, lambda values: [_write(below, one) for one in values])


def _plan_one(choices: Any, at: _At) -> JsonColumn:
    """One of several; null among them makes the other nullable."""
    others = [one for one in choices if not (isinstance(one, dict) and one.get("type") == "null")]
    if len(others) != 1:
        raise ConfigError(f"{at.name} is one of several schemas; Spark has one type")
    made = _plan(others[0], at)
    return JsonColumn(made.kind, made.read, made.write, made.has_null or len(others) < len(choices))


def _plan_all(node: dict[str, Any], at: _At) -> JsonColumn:
    """All of several: their properties together, if they are objects."""
    merged = {name: one for name, one in node.items() if name != "allOf"}
    for one in node["allOf"]:
        root = at.root
        while isinstance(one, dict) and "$ref" in one:
            if id(one) in at.around:
                raise ConfigError(f"{at.name} is inside of itself; Spark has no such type")
            at = replace(at, around=(*at.around, id(one)))
            one, root = _resolved(one["$ref"], replace(at, root=root))
        if root is not at.root:
            raise ConfigError(f"{at.name}: allOf of another schema's parts has no type in Spark")
        for name, value in one.items() if isinstance(one, dict) else ():
            mine = merged.get(name)
            if name == "properties":
                twice = set(mine or {}) & set(value)
                if any((mine or {})[each] != value[each] for each in twice):
                    raise ConfigError(f"{at.name} says {min(twice)!r} in two ways")
                merged[name] = {**(mine or {}), **value}
            elif name == "required":
                merged[name] = [*(mine or ()), *value]
            elif name not in merged or name in NOTES:
                merged[name] = value
            elif mine != value:
                raise ConfigError(f"{at.name} says {name} in two ways; Spark has one type")
    return _plan(merged, at)


def _resolved(reference: Any, at: _At) -> tuple[Any, Any]:
    """What a `$ref` means, and the document that it is in."""
    address, _, fragment = str(reference).partition("#")
    root = at.root
    if address and not (isinstance(root, dict) and root.get("$id") == address):
        try:
            root = found_among(at.others, address)
        except SchemaProblem as problem:
            raise ConfigError(f"{at.name}: {problem}") from None
    if fragment and not fragment.startswith("/"):
        raise ConfigError(f"{at.name}: $ref {reference} names an anchor; use a path as #/$defs/x")
    found = root
    for step in unquote(fragment).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            raise ConfigError(f"{at.name}: there is no {reference}")
    return found, root


# Values.


def _read(below: JsonColumn, value: Any) -> Any:
    return None if value is None else below.read(value)


def _write(below: JsonColumn, value: Any) -> Any:
    return None if value is None else below.write(value)


def _same(value: Any) -> Any:
    return value


def _as(kind: type, value: Any, name: str) -> Any:
    if type(value) is not kind:
        raise _misfit(value, name)
    return value


def _no_value(value: Any) -> Any:
    raise _misfit(value, "null")


def _read_string(value: Any) -> Any:
    return _as(str, value, "string")


def _read_boolean(value: Any) -> Any:
    return _as(bool, value, "boolean")


def _read_integer(value: Any) -> int:
    if type(value) is float and value.is_integer():
        if abs(value) >= EXACT_MAX:
            raise DoesNotFit(f"{shown(value)} is no exact integer: it has a point or an exponent")
        value = int(value)
    found: int = _as(int, value, "integer")
    if not -LONG_MAX <= found < LONG_MAX:
        raise DoesNotFit(f"Spark has no such value: {shown(found)} is no bigint")
    return found


def _read_number(value: Any) -> float:
    if type(value) is int:
        try:
            found = float(value)
        except OverflowError:
            raise _no_double(value) from None
        if int(found) != value:
            raise _no_double(value)
        return found
    double: float = _as(float, value, "number")
    if math.isinf(double):
        raise _no_double("a number that is too large")
    return double


def _no_double(value: Any) -> DoesNotFit:
    return DoesNotFit(f"Spark has no such value: {shown(value)} is no double")


def _write_number(value: Any) -> Any:
    """A double, or a decimal with all its digits."""
    if isinstance(value, float) and not math.isfinite(value):
        raise DoesNotFit(f"the JSON schema cannot say it: JSON has no {value}")
    return value if isinstance(value, int | float | decimal.Decimal) else float(value)


def _read_time(value: Any) -> datetime.datetime:
    words = _as(str, value, "date-time")
    try:
        found = datetime.datetime.fromisoformat(words)
    except ValueError as error:
        raise DoesNotFit(f"{shown(words)} is no date-time that Spark has: {error}") from None
    if any(digits[MICROSECOND_DIGITS:].strip("0") for digits in _FRACTIONS.findall(words)):
        raise DoesNotFit(f"Spark has no such value: {shown(words)} has parts of a microsecond")
    if found.tzinfo is None:
        raise DoesNotFit(f"{shown(words)} is no date-time: it names no zone")
    return found


def _write_time(count: int) -> str:
    try:
        found = EPOCH + datetime.timedelta(microseconds=count)
    except OverflowError:
        raise DoesNotFit("the JSON schema cannot say it: a year is not 1 to 9999") from None
    return found.replace(tzinfo=None).isoformat() + "Z"


def _read_date(value: Any) -> datetime.date:
    words = _as(str, value, "date")
    try:
        return datetime.date.fromisoformat(words)
    except ValueError as error:
        raise DoesNotFit(f"{shown(words)} is no date: {error}") from None


def _write_date(count: int) -> str:
    try:
        return (DAY_ZERO + datetime.timedelta(days=count)).isoformat()
    except OverflowError:
        raise DoesNotFit("the JSON schema cannot say it: a year is not 1 to 9999") from None


def _read_base64(value: Any) -> bytes:
    try:
        return base64.b64decode(_as(str, value, "string"), validate=True)
    except ValueError as error:
        raise DoesNotFit(f"{shown(value)} is no base64: {error}") from None


def _misfit(value: Any, name: str) -> DoesNotFit:
    return DoesNotFit(f"{shown(value)} is no {name}, which the reader's schema has there")


# A schema for columns.

_OF_ARROW: Final[dict[pa.DataType, dict[str, str]]] = {
    pa.bool_(): {"type": "boolean"},
    pa.int8(): {"type": "integer"},
    pa.int16(): {"type": "integer"},
    pa.int32(): {"type": "integer"},
    pa.int64(): {"type": "integer"},
    pa.float32(): {"type": "number"},
    pa.float64(): {"type": "number"},
    pa.string(): {"type": "string"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
    pa.date32(): {"type": "string", "format": "date"},
    pa.timestamp("us", "UTC"): {"type": "string", "format": "date-time"},
}


def schema_of(kind: pa.DataType, name: str, *, nullable: bool = True) -> dict[str, Any]:
    """A schema that can say every value of a type; all of it may be null but the whole."""
    made: dict[str, Any]
    if pa.types.is_struct(kind):
        made = {
            "type": "object",
            "additionalProperties": False,
            "properties": {one.name: schema_of(one.type, one.name) for one in kind},
        }
    elif pa.types.is_list(kind):
        made = {"type": "array", "items": schema_of(kind.value_type, name)}
    elif pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        made = {"type": "object", "additionalProperties": schema_of(kind.item_type, name)}
    elif kind in _OF_ARROW:
        made = dict(_OF_ARROW[kind])
    else:
        raise ConfigError(f"JSON Schema has no type for {kind} ({name}); cast it")
    return made | {"type": [made["type"], "null"]} if nullable else made
