"""Avro values, by fastavro: bytes as Python's values and back.

Rule 1: bytes are read by the schema that they were written with, and given as the reader's says.
Rule 2: what is no such value is DoesNotFit, never another kind of exception.
Rule 3: a payload becomes no more values than a record of its size may cost (`avro_items`).
"""

import decimal
import functools
import io
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidelog.schemas.avro_documents import EXACT_DECIMAL, document_of, json_of, typed
from tidelog.schemas.avro_items import guard
from tidelog.schemas.codec import Codec, array_of, relaxed
from tidelog.schemas.documents import told
from tidelog.schemas.problems import DoesNotFit, SchemaProblem, missing
from tidelog.schemas.registry import Reference, Registry, Schema
from tidelog.schemas.table import Reading

if TYPE_CHECKING:
    import pyarrow as pa

try:
    import fastavro
    from fastavro.schema import SchemaParseException
except ImportError:  # pragma: no cover - tried where fastavro is not installed
    fastavro = None  # type: ignore[assignment]

REFERENCES_MAX: Final = 200
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def parsed(schema: Schema, registry: Registry | None = None, *, plain: bool = False) -> Any:
    """A schema for fastavro; `plain` without logical types but decimals: times stay counts."""
    return resolved(schema, registry, plain=plain)[0]


def resolved(
    schema: Schema, registry: Registry | None = None, *, plain: bool = False
) -> tuple[Any, dict[str, Any]]:
    """A schema for fastavro, and all types that have a name in it or in those it refers to."""
    if fastavro is None:
        raise missing("fastavro", "Avro")
    named: dict[str, Any] = {}
    try:
        _parse_references(schema, registry, plain, named, set())
        return _parse(_document(schema, plain), named), named
    except (SchemaParseException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SchemaProblem(f"it is no Avro schema: {error}") from error


def _parse_references(
    schema: Schema, registry: Registry | None, plain: bool, named: dict[str, Any], seen: set[Reference]
) -> None:
    """Learn the types that a schema refers to, and before each those that it refers to itself."""
    for reference in schema.references:
        if reference in seen:
            continue
        seen.add(reference)
        if len(seen) > REFERENCES_MAX:
            raise SchemaProblem(f"the schema refers to more than {REFERENCES_MAX} others")
        if registry is None:
            raise SchemaProblem(f"the schema refers to {reference.name}, which is not at hand")
        other = registry.version(reference.subject, reference.version).schema
        _parse_references(other, registry, plain, named, seen)
        _parse(_document(other, plain), named)


def _document(schema: Schema, plain: bool) -> Any:
    text = schema.text
    document = text if text in PRIMITIVES else json.loads(text)
    document = _exact(document)
    return _plain(document) if plain else document


def _exact(node: Any) -> Any:
    """A schema whose decimals are read by us. ValueError, if one does not say its digits."""
    if isinstance(node, list):
        return [_exact(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {name: one if name == "default" else _exact(one) for name, one in node.items()}
    if made.get("logicalType") == "decimal":
        precision, scale = made.get("precision"), made.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision > 0:
            raise ValueError(f"a decimal has precision {precision!r} and scale {scale!r}")
        made["logicalType"] = EXACT_DECIMAL
    return made


def _read_decimal(data: bytes, writer: Any = None, _: Any = None) -> decimal.Decimal:
    """fastavro's own rounds to the precision of the schema; this one refuses."""
    number = int.from_bytes(data, "big", signed=True)
    if abs(number) >= 10 ** writer["precision"]:
        raise ValueError(f"a decimal has more than {writer['precision']} digits")
    sign, digits, _ = decimal.Decimal(number).as_tuple()
    return decimal.Decimal((sign, digits, -writer.get("scale", 0)))


def _parse(document: Any, named: dict[str, Any]) -> Any:
    return fastavro.parse_schema(document, named_schemas=named)


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    drops = node.get("logicalType") not in (None, EXACT_DECIMAL)
    return {
        name: _plain(value) if name in ("type", "items", "values", "fields") else value
        for name, value in node.items()
        if not (drops and name == "logicalType")
    }


def reader(writer: Any, wanted: Any | None) -> Callable[[bytes], Any]:
    """What reads payloads of one writer's schema."""
    wanted = None if wanted == writer else wanted
    read = functools.partial(fastavro.schemaless_reader, writer_schema=writer, reader_schema=wanted)
    check = guard(writer)

    def decode(payload: bytes) -> Any:
        if check is not None:
            check(payload)
        stream = io.BytesIO(payload)
        try:
            found = read(stream)
        except Exception as error:  # fastavro lets through whatever cut bytes make of it
            raise DoesNotFit(f"it is no value of its Avro schema: {told(error)}") from error
        if stream.tell() != len(payload):
            raise DoesNotFit(f"{len(payload) - stream.tell()} bytes follow the value of its Avro schema")
        return found

    return decode


# Many payloads at once: they become one block of an Avro file, which fastavro reads in one go.
# Behind each stands its number, so that a payload that is too short or too long is noticed at once.

_MARK_BYTES: Final = 12
_SYNC: Final = bytes(16)


def read_many(payloads: Sequence[bytes], writer: Any, wanted: Any | None) -> list[Any] | None:
    """The values of payloads of one writer's schema; None if not all of them can be read."""
    if guard(writer) is not None:
        return None  # one by one, each is looked at before it is read
    nonce = os.urandom(_MARK_BYTES - 4)  # no payload can hold what nobody knew
    marks = [nonce + number.to_bytes(4, "big") for number in range(len(payloads))]
    wanted = None if wanted == writer else wanted
    body = b"".join(part for pair in zip(payloads, marks, strict=True) for part in pair)
    schema = json.dumps(_marked(writer), default=str).encode()
    meta = b"\x02\x16avro.schema" + _long(len(schema)) + schema + b"\0"
    file = b"Obj\x01" + meta + _SYNC + _long(len(payloads)) + _long(len(body)) + body + _SYNC
    found: list[Any] = []
    try:
        rows: Any = fastavro.reader(io.BytesIO(file), None if wanted is None else _marked(wanted))
        for row, mark in zip(rows, marks, strict=True):
            if row["mark"] != mark:
                return None
            found.append(row["value"])
    except Exception:  # one by one it will be said what is wrong, and with which
        return None
    return found


def _marked(schema: Any) -> Any:
    mark = {"type": "fixed", "name": "tidelog_mark", "size": _MARK_BYTES}
    fields = [{"name": "value", "type": schema}, {"name": "mark", "type": mark}]
    return {"type": "record", "name": "tidelog_marked", "fields": fields}


def _long(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def writer(schema: Any) -> Callable[[Any], bytes]:
    """What writes values of a schema."""

    def encode(value: Any) -> bytes:
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, schema, value, strict_allow_default=True)
        except Exception as error:
            raise DoesNotFit(f"the Avro schema cannot say it: {told(error)}") from error
        return stream.getvalue()

    return encode


class AvroCodec(Codec):
    """A schema of Avro. Columns are read without logical types: times are counts."""

    label: ClassVar[str] = "Avro"

    def __init__(self, schema: Schema, registry: Registry | None) -> None:
        self._parsed, self._named = resolved(schema, registry)
        self._plain = parsed(schema, registry, plain=True)
        self._decode = reader(self._parsed, None)
        self._encode = writer(self._parsed)

    def document(self, payload: bytes) -> Any:
        return self._decode(payload)

    def payload(self, line: bytes, *, is_typed: bool = True) -> bytes:
        try:
            found = document_of(line, self._parsed) if is_typed else json_of(line)
            value = typed(self._parsed, found, self._named)
        except RecursionError:
            raise DoesNotFit("it is nested too deeply") from None
        return self._encode(value)

    def arrow_type(self) -> "pa.DataType":
        from tidelog.schemas.avro_types import arrow_type

        return arrow_type(self._parsed, self._named)

    def read_all(self, payloads: Sequence[bytes], writer: Codec) -> "pa.Array":
        assert isinstance(writer, AvroCodec)
        values = read_many(payloads, writer._plain, self._plain)
        if values is None:
            decode = reader(writer._plain, self._plain)
            values = [decode(payload) for payload in payloads]
        return array_of(values, relaxed(self.arrow_type()))

    def encode(self, values: Sequence[Any]) -> list[bytes | None]:
        encode = writer(self._plain)
        return [None if one is None else encode(one) for one in values]


def open_schema(schema: Schema, registry: Registry | None, _: Reading) -> Codec:
    return AvroCodec(schema, registry)


def schema_text(kind: "pa.DataType", name: str) -> str:
    """A schema that can say every value of a column."""
    from tidelog.schemas.avro_types import avro_schema

    return json.dumps(avro_schema(kind, name))


if fastavro is not None:
    for _kind in ("bytes", "fixed"):
        fastavro.read.LOGICAL_READERS[f"{_kind}-{EXACT_DECIMAL}"] = _read_decimal
        fastavro.write.LOGICAL_WRITERS[f"{_kind}-{EXACT_DECIMAL}"] = fastavro.write.LOGICAL_WRITERS[
            f"{_kind}-decimal"
        ]
