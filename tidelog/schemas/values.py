"""Single keys and values of a schema registry, as JSON that people read and type.

Rule: what `text_of` writes, `bytes_of` reads back as the same value. Bytes are {"base64": "..."},
      decimals are strings, times are ISO.
"""

import base64
import datetime
import decimal
import json
from collections.abc import Callable
from typing import Any

from tidelog.schemas import avro, framing
from tidelog.schemas.formats import KINDS, PartFormat
from tidelog.schemas.problems import DoesNotFit
from tidelog.schemas.registry import Schema


class ValueReader:
    """Reads keys or values by the schemas that they were written with."""

    def __init__(self, form: PartFormat) -> None:
        self._form = form
        self._decoders: dict[int, Callable[[bytes], Any]] = {}

    def document(self, data: bytes | None) -> Any:
        """A value as JSON would have it."""
        if data is None:
            return None
        number, payload = framing.unframe(data)
        decode = self._decoders.get(number)
        if decode is None:
            known = self._form.registry()
            schema = known.schema(number)
            if schema.kind != KINDS[self._form.name]:
                raise DoesNotFit(f"schema {number} is {schema.kind}, not {self._form.name}")
            decode = self._decoders[number] = avro.reader(avro.parsed(schema, known), None)
        return decode(payload)

    def text_of(self, data: bytes | None) -> bytes | None:
        found = self.document(data)
        return None if data is None else text(found)


def text(document: Any) -> bytes:
    return json.dumps(
        document, ensure_ascii=False, separators=(",", ":"), default=plain
    ).encode()  # fmt: skip


def plain(value: Any) -> Any:
    """What JSON has no type for."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


class ValueWriter:
    """Writes keys or values by one schema: a given one, which is registered, or the latest."""

    def __init__(self, form: PartFormat, topic: str, given: str | None) -> None:
        known = form.registry()
        subject = form.subject_for(topic)
        if given is None:
            found = known.version(subject, form.version or "latest")
            self._id, schema = found.id, found.schema
        else:
            schema = Schema(KINDS[form.name], given)
            self._id = known.register(subject, schema)
        self._schema = avro.parsed(schema, known)
        self._named: dict[str, Any] = {}
        self._encode = avro.writer(self._schema)

    def bytes_of(self, data: bytes | None) -> bytes | None:
        """The record of a value in JSON; a text that is none is a string."""
        if data is None:
            return None
        try:
            document = json.loads(data)
        except ValueError:
            document = data.decode(errors="replace")
        return framing.frame(self._id, self._encode(typed(self._schema, document, self._named)))


def typed(node: Any, value: Any, named: dict[str, Any]) -> Any:
    """A value of JSON as Avro's types have it; what fits none of them is left as it is."""
    if isinstance(node, list):
        if value is None and "null" in node:
            return None
        others = [one for one in node if one != "null"]
        return typed(others[0], value, named) if len(others) == 1 else value
    if isinstance(node, str):
        if node == "bytes":
            return _bytes(value)
        if node == "string" and not isinstance(value, str):
            return value if value is None else json.dumps(value)
        return typed(named[node], value, named) if node in named else value
    kind, logical = node["type"], node.get("logicalType")
    if "name" in node:
        named[node["name"]] = node
    try:
        if logical == "decimal":
            return decimal.Decimal(str(value))
        if logical == "date" and isinstance(value, str):
            return datetime.date.fromisoformat(value)
        if logical is not None and "timestamp" in logical and isinstance(value, str):
            return datetime.datetime.fromisoformat(value)
        if logical is not None and logical.startswith("time-") and isinstance(value, str):
            return datetime.time.fromisoformat(value)
    except (ValueError, ArithmeticError) as error:
        raise DoesNotFit(f"{value!r} is no {logical}: {error}") from error
    if kind == "record" and isinstance(value, dict):
        fields = {one["name"]: one["type"] for one in node["fields"]}
        if unknown := sorted(value.keys() - fields.keys()):
            raise DoesNotFit(f"the schema has no field {unknown[0]!r}; it has {', '.join(fields)}")
        return {name: typed(fields[name], one, named) for name, one in value.items()}
    if kind == "array" and isinstance(value, list):
        return [typed(node["items"], one, named) for one in value]
    if kind == "map" and isinstance(value, dict):
        return {name: typed(node["values"], one, named) for name, one in value.items()}
    if kind in ("bytes", "fixed"):
        return _bytes(value)
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else value
