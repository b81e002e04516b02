"""Payloads and schemas of a registry, damaged, into the codecs of every format.

What must hold: only errors that a reader can be told of; no more memory than a record of its size
may take; what can be shown as JSON can be written again and is shown the same; and a payload that
is read as columns can be shown as JSON, too.
"""

# case := format: byte, writer: byte, reader: byte, kind: byte ("p" payload or "s" schema), bytes

import base64
import json
import tracemalloc
from random import Random
from typing import Any, Final

from fuzz.mutate import mutate
from fuzz.runner import Broken
from tidelog.errors import ConfigError
from tidelog.schemas.codec import Codec
from tidelog.schemas.problems import SchemaProblem
from tidelog.schemas.registry import Schema
from tidelog.schemas.table import FORMATS, SchemaFormat

MEMORY_BYTES_MAX: Final = 24 * 1024 * 1024
MEMORY_PER_BYTE: Final = 4000
TEXT_RARELY: Final = 0.002
"""How often a .proto text is changed: each takes protoc some tenths of a second."""

AVRO: Final = [
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "n", "type": ["null", "long"]},
            {"name": "f", "type": "float"},
            {"name": "nulls", "type": {"type": "array", "items": "null"}},
            {"name": "m", "type": {"type": "map", "values": "bytes"}},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ],
    },
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "n", "type": ["null", "double"], "default": None},
            {"name": "more", "type": {"type": "array", "items": "int"}, "default": []},
        ],
    },
]
PROTOBUF: Final = [
    """
    syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/wrappers.proto";
    message R {
      string id = 1; optional int64 n = 2; float f = 3; repeated R1 rs = 4;
      map<string, bytes> m = 5; E e = 6; google.protobuf.Timestamp at = 7; uint64 u = 8;
      google.protobuf.Struct s = 9; google.protobuf.UInt32Value w = 10;
      oneof o { string a = 11; R1 b = 12; }
    }
    enum E { A = 0; B = 1; }
    message R1 { sint32 x = 1; repeated fixed32 y = 2; }
    """,
    """
    syntax = "proto3";
    message R { string id = 1; int32 n = 2; double f = 3; repeated R1 rs = 4; string z = 99; }
    message R1 { int64 x = 1; bool q = 3; }
    """,
]
JSON: Final = [
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^(a|b|ab)*$"},
            "n": {"type": ["integer", "null"]},
            "f": {"type": "number"},
            "at": {"type": "string", "format": "date-time"},
            "list": {"type": "array", "items": {"$ref": "#/definitions/r"}},
            "m": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
        "definitions": {"r": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    },
    {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "number"}}},
]
SCHEMAS: Final[dict[str, list[str]]] = {
    "avro": [json.dumps(one) for one in AVRO],
    "protobuf": PROTOBUF,
    "json-schema": [json.dumps(one) for one in JSON],
}
NAMES: Final = tuple(SCHEMAS)


class SchemasFuzzer:
    name = "schemas"

    def __init__(self) -> None:
        self._codecs = {name: [_codec(name, one) for one in some] for name, some in SCHEMAS.items()}
        self._descriptors = [_descriptor(one) for one in self._codecs["protobuf"]]
        for name, payload in _examples(self._codecs).items():
            self._codecs[name][0].read([payload], self._codecs[name][0])  # imports are not counted
        self._payloads = _examples(self._codecs)
        tracemalloc.start(1)

    def make(self, random: Random) -> bytes:
        form = random.randrange(len(NAMES))
        name = NAMES[form]
        writer, reader = random.randrange(2), random.randrange(2)
        if random.random() < 0.1:
            text = SCHEMAS[name][writer].encode()
            if name == "protobuf" and random.random() > TEXT_RARELY:
                text = base64.b64encode(mutate(random, self._descriptors[writer]))
            else:
                text = mutate(random, text)
            return bytes((form, writer, reader)) + b"s" + text
        payload = self._payloads[name] if writer == 0 else random.randbytes(random.randrange(40))
        payload = mutate(random, payload, times_max=4)
        return bytes((form, writer, reader)) + b"p" + payload

    def check(self, case: bytes) -> int:
        name = NAMES[case[0] % len(NAMES)]
        writer, reader = (self._codecs[name][number % 2] for number in case[1:3])
        rest = case[4:]
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        if case[3:4] == b"s":
            _check_schema(FORMATS[name], rest.decode(errors="replace"))
        else:
            _check_payload(writer, reader, rest)
        _, peak = tracemalloc.get_traced_memory()
        if peak - before > MEMORY_BYTES_MAX + MEMORY_PER_BYTE * len(rest):
            raise Broken(f"{len(rest)} bytes took {peak - before} bytes of memory")
        return 1


def _check_schema(form: SchemaFormat, text: str) -> None:
    try:
        codec = form.codec(Schema(form.kind, text), None)
        codec.arrow_type()
        codec.read([b"", b"\0" * 8, b"{}"], codec)
    except (SchemaProblem, ConfigError):
        pass


def _check_payload(writer: Codec, reader: Codec, payload: bytes) -> None:
    shown, why = None, ""
    try:
        shown = writer.text(payload)
        writer.message_of(payload)
    except SchemaProblem as problem:
        why = str(problem)
    _, reasons = writer.read([payload], writer)
    if shown is None and not reasons and "OverflowError" not in why:  # a year that Python has not
        raise Broken(f"it is a row, and no JSON: {why}")
    reader.read([payload], writer)
    if shown is None:
        return
    try:
        again = writer.text(writer.payload(shown, is_typed=False))
    except SchemaProblem as problem:
        if "twice" in str(problem):  # JSON that names a member twice can be read, not written
            return
        raise Broken(f"{shown!r} was shown, and cannot be written: {problem}") from None
    if again != shown:
        raise Broken(f"{shown!r} was shown, and once written {again!r}")


def _codec(name: str, text: str) -> Codec:
    return FORMATS[name].codec(Schema(FORMATS[name].kind, text), None)


def _descriptor(codec: Any) -> bytes:
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorProto()
    codec.message.file.CopyToProto(found)
    return bytes(found.SerializeToString())


def _examples(codecs: dict[str, list[Codec]]) -> dict[str, bytes]:
    shown = {
        "avro": {
            "id": "abc",
            "n": 7,
            "f": 0.5,
            "nulls": [None, None],
            "m": {"k": {"base64": "AP8="}},
            "e": "B",
            "at": "2026-01-02T03:04:05+00:00",
            "d": "12.50",
        },
        "protobuf": {
            "id": "abc",
            "n": 7,
            "f": 0.5,
            "rs": [{"x": -1, "y": [1, 2]}, {}],
            "m": {"k": "AP8="},
            "e": "B",
            "at": "2026-01-02T03:04:05Z",
            "u": 2**64 - 1,
            "s": {"a": [1, None]},
            "w": 3,
            "b": {"x": 1},
        },
        "json-schema": {
            "id": "abab",
            "n": 7,
            "f": 0.5,
            "at": "2026-01-02T03:04:05Z",
            "list": [{"x": 1}, {}],
            "m": {"k": True},
        },
    }
    return {name: codecs[name][0].payload(json.dumps(one).encode()) for name, one in shown.items()}
