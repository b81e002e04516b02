"""Values of Protobuf: messages as JSON (Protobuf's own mapping) and as columns.

Rule 1: bytes are parsed by the message that they were written with. A field of the reader's schema
        is the writer's field of the same number; types that differ in kind are refused.
Rule 2: a payload with fields that its own schema does not have is refused: it is another message.
Rule 3: messages inside of lists become no more values than a record of its size may cost: two
        bytes can be a message of a thousand fields.
"""

import base64
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidelog.schemas import framing
from tidelog.schemas.codec import Codec
from tidelog.schemas.documents import decoded, parsed, shown, told
from tidelog.schemas.problems import DoesNotFit, SchemaProblem
from tidelog.schemas.protoc import KNOWN, file_of
from tidelog.schemas.registry import Registry, Schema
from tidelog.schemas.table import Reading

if TYPE_CHECKING:
    import pyarrow as pa

FREE_MAX: Final = 10_000
"""How many values of messages in lists a record may have, beside ten for each of its bytes."""
FREE_PER_BYTE: Final = 10
DEPTH_MAX: Final = 100
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


class ProtobufCodec(Codec):
    """A message of a schema; payloads name their message by its place in the file."""

    label: ClassVar[str] = "Protobuf"

    def __init__(self, schema: Schema, registry: Registry | None, reading: Reading) -> None:
        file = file_of(schema, registry)
        self._ways = _ways(file)
        self._messages = {way: one for one, way in self._ways.values()}
        self.message, self.way = self._chosen(reading.message)
        self.prefix = framing.frame_indexes(self.way)
        self._parsers: dict[tuple[int, ...], _Parser] = {}
        self.parser(self.way)

    def _chosen(self, name: str | None) -> tuple[Any, tuple[int, ...]]:
        if not self._ways:
            raise SchemaProblem("the Protobuf schema has no message")
        if name is None:
            return next(iter(self._ways.values()))
        found = [
            pair for full, pair in self._ways.items() if name == full or full.endswith(f".{name}")
        ]
        if len(found) != 1:
            known = ", ".join(self._ways)
            raise SchemaProblem(f"which message is {name!r}? The schema has {known}")
        return found[0]

    def parser(self, way: tuple[int, ...]) -> "_Parser":
        found = self._parsers.get(way)
        if found is None:
            if way not in self._messages:
                raise DoesNotFit(
                    f"it is message {'.'.join(map(str, way))} of its schema, which has no such one"
                )
            found = self._parsers[way] = _Parser(self._messages[way])
        return found

    # Single values.

    def document(self, payload: bytes) -> Any:
        from google.protobuf import json_format

        way, data = framing.unframe_indexes(payload)
        parser = self.parser(way)
        message = parser.parse(data)
        if parser.is_wide:
            _count(message, FREE_MAX + FREE_PER_BYTE * len(data))
        try:
            return json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=parser.pool,
            )
        except Exception as error:  # json_format lets through what values of others make of it
            raise DoesNotFit(f"JSON cannot say it: {told(error)}") from error

    def message_of(self, payload: bytes) -> str | None:
        way, _ = framing.unframe_indexes(payload)
        return str(self.parser(way).descriptor.full_name)

    def payload(self, line: bytes, *, is_typed: bool = True) -> bytes:
        del is_typed  # a message is an object
        from google.protobuf import json_format

        words = decoded(line)
        parser = self.parser(self.way)
        try:
            found = parsed(words)
        except RecursionError:
            raise DoesNotFit("it is nested too deeply") from None
        except ValueError as error:
            raise DoesNotFit(f"it is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise DoesNotFit(f"{shown(found)} is no message, which is an object in JSON")
        if parser.has_bytes:
            _check_bytes(self.message, found)
        message = parser.make()
        try:
            json_format.ParseDict(
                found, message, descriptor_pool=parser.pool, max_recursion_depth=DEPTH_MAX
            )
            data: bytes = message.SerializeToString(deterministic=True)
            return self.prefix + data
        except Exception as error:  # ParseError, or what a wrong type makes of it
            raise DoesNotFit(f"the Protobuf schema cannot say it: {told(error)}") from error

    # Columns.

    def arrow_type(self) -> "pa.DataType":
        from tidelog.schemas.protobuf_types import message_type

        return message_type(self.message)

    def read_all(self, payloads: Sequence[bytes], writer: Codec) -> "pa.Array":
        from tidelog.schemas.protobuf_columns import Budget, reader

        assert isinstance(writer, ProtobufCodec)
        prefix = writer.prefix
        if all(one.startswith(prefix) for one in payloads) and (
            writer.message.full_name == self.message.full_name
        ):
            way, data = writer.way, [one[len(prefix) :] for one in payloads]
        else:
            way, data = self._same_way(payloads, writer)
        parser = writer.parser(way)
        messages = [parser.parse(one) for one in data]
        size = sum(map(len, data))
        budget = Budget(FREE_MAX * len(data) + FREE_PER_BYTE * size)
        return reader(parser.descriptor, self.message)(messages, budget)

    def _same_way(
        self, payloads: Sequence[bytes], writer: "ProtobufCodec"
    ) -> tuple[tuple[int, ...], list[bytes]]:
        data, way = [], None
        for payload in payloads:
            found, rest = framing.unframe_indexes(payload)
            name = writer.parser(found).descriptor.full_name
            if name != self.message.full_name:
                raise DoesNotFit(
                    f"it is a {name}, not a {self.message.full_name}; set value.message or "
                    "key.message"
                )
            way = found
            data.append(rest)
        return way or writer.way, data

    def encode(self, values: Sequence[Any]) -> list[bytes | None]:
        from tidelog.schemas.protobuf_columns import writer

        convert, make = writer(self.message), self.parser(self.way).make
        made: list[bytes | None] = []
        for value in values:
            if value is None:
                made.append(None)
                continue
            try:
                message = make(**convert(value))
                made.append(self.prefix + message.SerializeToString(deterministic=True))
            except DoesNotFit:
                raise
            except Exception as error:  # upb says what is wrong with several kinds of exceptions
                raise DoesNotFit(f"the Protobuf schema cannot say it: {told(error)}") from error
        return made


class _Parser:
    """Parses payloads of one message."""

    def __init__(self, descriptor: Any) -> None:
        from google.protobuf import message_factory
        from google.protobuf.message import DecodeError

        self.descriptor = descriptor
        self.make = message_factory.GetMessageClass(descriptor)
        self.pool = descriptor.file.pool
        self._error = DecodeError
        inside = _inside(descriptor)
        for one in inside:
            _check(one)
        self._has_required = any(one.is_required for it in inside for one in it.fields)
        self.has_bytes = any(one.type == one.TYPE_BYTES for it in inside for one in it.fields)
        self.is_wide = any(len(it.fields) > FREE_PER_BYTE for it in inside)

    def parse(self, data: bytes) -> Any:
        try:
            message = self.make.FromString(data)
        except (self._error, RecursionError) as error:
            raise self._broken(told(error)) from None
        if self._has_required and not message.IsInitialized():
            raise self._broken("it lacks fields that are required")
        message.DiscardUnknownFields()
        # Less than there was: fields were dropped, or numbers were written longer than need be.
        if message.ByteSize() != len(data) and (
            self.make.FromString(data).ByteSize() != message.ByteSize()
        ):
            raise self._broken("it has fields which that message does not have")
        return message

    def _broken(self, why: str) -> DoesNotFit:
        return DoesNotFit(f"it is no {self.descriptor.full_name} of its Protobuf schema: {why}")


def _ways(file: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Every message of a file by its full name, with its place: indexes from the outside in."""
    from google.protobuf import descriptor_pb2

    outline = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(outline)
    found: dict[str, tuple[Any, tuple[int, ...]]] = {}

    def add(descriptor: Any, way: tuple[int, ...]) -> None:
        if not descriptor.GetOptions().map_entry:
            found[descriptor.full_name] = descriptor, way
        for index, one in enumerate(descriptor.nested_types):
            add(one, (*way, index))

    for index, one in enumerate(outline.message_type):
        add(file.message_types_by_name[one.name], (index,))
    return found


def _inside(descriptor: Any) -> list[Any]:
    """A message and all that can be inside of it, each once."""
    found = {descriptor.full_name: descriptor}
    left = [descriptor]
    while left:
        for field in left.pop().fields:
            below = field.message_type
            if below is not None and below.full_name not in found:
                found[below.full_name] = below
                left.append(below)
    return list(found.values())


def _check(descriptor: Any) -> None:
    """SchemaProblem, if a descriptor that somebody made by hand pretends to be what it is not."""
    name = descriptor.full_name
    is_map = descriptor.GetOptions().map_entry
    if is_map and [one.name for one in descriptor.fields] != ["key", "value"]:
        raise SchemaProblem(f"{name} is no entry of a map")
    if name.startswith("google.protobuf.") and not is_map and descriptor.file.name not in KNOWN:
        raise SchemaProblem(f"{name} is a well-known type, which a schema cannot define")


def _count(message: Any, limit: int) -> int:
    """How many values the messages in lists have, also those that are not in the payload."""
    total = 0
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if not field.is_repeated:
            total += _count(value, limit - total)
            continue
        is_map = field.message_type.GetOptions().map_entry
        below = field.message_type.fields_by_name["value"] if is_map else field
        if below.message_type is None:
            continue
        total += len(value) * len(below.message_type.fields)
        if total > limit:
            raise DoesNotFit(
                f"the lists in it have more than {limit} values, too many for its size"
            )
        for one in value.values() if is_map else value:
            total += _count(one, limit - total)
    return total


def _check_bytes(descriptor: Any, document: Any) -> None:
    """DoesNotFit, if what stands for bytes is no base64: json_format would skip what is none."""
    if not isinstance(document, dict) or descriptor.full_name.startswith("google.protobuf."):
        return
    names = {one.name: one for one in descriptor.fields}
    names |= {one.json_name: one for one in descriptor.fields}
    for name, value in document.items():
        field = names.get(name)
        if field is None or value is None:
            continue
        values = value if isinstance(value, list) else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = list(value.values()) if isinstance(value, dict) else []
            field = field.message_type.fields_by_name["value"]
        for one in values:
            if field.type == field.TYPE_BYTES:
                _check_base64(one, name)
            elif field.message_type is not None:
                _check_bytes(field.message_type, one)


def _check_base64(value: Any, name: str) -> None:
    try:
        if isinstance(value, str) and _BASE64.fullmatch(value):
            padded = value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4)
            base64.urlsafe_b64decode(padded.replace("+", "-").replace("/", "_"))
            return
    except ValueError:
        pass
    raise DoesNotFit(f"{name} is {shown(value)}; bytes are a string in base64")


def open_schema(schema: Schema, registry: Registry | None, reading: Reading) -> Codec:
    return ProtobufCodec(schema, registry, reading)


def schema_text(kind: "pa.DataType", name: str) -> str:
    """A schema that can say every value of a column but null lists."""
    from tidelog.schemas.protobuf_types import proto_text

    return proto_text(kind, name)
