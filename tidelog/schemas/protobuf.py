"""Values of Protobuf: messages as JSON (Protobuf's own mapping) and as columns.

Rule 1: bytes are parsed by the message that they were written with. A field of the reader's schema
        is the writer's field of the same number; types that differ in kind are refused.
Rule 2: a payload with fields that its own schema does not have is refused: it is another message.
Rule 3: messages inside of lists become no more values than a record of its size may cost: two
        bytes can be a message of a thousand fields. What a parser would need for them is told before.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidelog.schemas import framing
from tidelog.schemas.codec import Codec
from tidelog.schemas.documents import check_name, decoded, parsed, shown, told
from tidelog.schemas.problems import DoesNotFit, SchemaProblem
from tidelog.schemas.protobuf_documents import ANY, Look, check
from tidelog.schemas.protobuf_sizes import FREE_MAX, FREE_PER_BYTE, Sizes
from tidelog.schemas.protoc import KNOWN, file_of
from tidelog.schemas.registry import Registry, Schema
from tidelog.schemas.table import Reading

if TYPE_CHECKING:
    import pyarrow as pa

DEPTH_MAX: Final = 100
PARSERS_MAX: Final = 256


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
        found = [pair for full, pair in self._ways.items() if name == full or full.endswith(f".{name}")]
        if len(found) != 1:
            known = ", ".join(self._ways)
            raise SchemaProblem(f"which message is {name!r}? The schema has {known}")
        return found[0]

    def parser(self, way: tuple[int, ...]) -> "_Parser":
        found = self._parsers.get(way)
        if found is None:
            if way not in self._messages:
                place = ".".join(map(str, way[:DEPTH_MAX]))
                raise DoesNotFit(f"it is message {place} of its schema, which has no such one")
            try:
                found = self._parsers[way] = _parser(self._messages[way])
            except RecursionError:
                raise DoesNotFit("its message is nested too deeply") from None
        return found

    # Single values.

    def document(self, payload: bytes) -> Any:
        from google.protobuf import json_format

        way, data = framing.unframe_indexes(payload)
        parser = self.parser(way)
        message = parser.parse(data)
        try:
            if parser.needs_look:
                Look(FREE_MAX + FREE_PER_BYTE * len(data), _opened).message(message)
            return json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=parser.pool,
            )
        except DoesNotFit:
            raise
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
        message = parser.make()
        try:
            check(self.message, found)
            json_format.ParseDict(found, message, descriptor_pool=parser.pool, max_recursion_depth=DEPTH_MAX)
            data: bytes = parser.make.SerializeToString(message, deterministic=True)
            return self.prefix + data
        except DoesNotFit:
            raise
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
        import pyarrow as pa

        parser = writer.parser(way)
        read = reader(parser.descriptor, self.message)
        made = []
        for piece in parser.sizes.pieces(data):
            messages = [parser.parse(one) for one in piece]
            # FREE_MAX is for one record: if many need it, halving finds out whether each may have it.
            budget = Budget(FREE_MAX + FREE_PER_BYTE * sum(map(len, piece)))
            made.append(read(messages, budget))
        return made[0] if len(made) == 1 else pa.concat_arrays(made)

    def _same_way(
        self, payloads: Sequence[bytes], writer: "ProtobufCodec"
    ) -> tuple[tuple[int, ...], list[bytes]]:
        data, way = [], None
        for payload in payloads:
            found, rest = framing.unframe_indexes(payload)
            name = writer.parser(found).descriptor.full_name
            if name != self.message.full_name:
                raise DoesNotFit(
                    f"it is a {name}, not a {self.message.full_name}; set value.message or key.message"
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
                made.append(self.prefix + make.SerializeToString(message, deterministic=True))
            except DoesNotFit:
                raise
            except Exception as error:  # upb says what is wrong with several kinds of exceptions
                raise DoesNotFit(f"the Protobuf schema cannot say it: {told(error)}") from error
        return made


class _Parser:
    """Parses payloads of one message.

    Methods are called on the class: a field may have the name of a method.
    """

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
        self.sizes = Sizes(descriptor, inside)
        self._has_required = any(one.is_required for it in inside for one in it.fields)
        self.needs_look = any(
            len(it.fields) > FREE_PER_BYTE or it.full_name == ANY or _is_loose(it) for it in inside
        )

    def parse(self, data: bytes) -> Any:
        self.sizes.check(data)
        try:
            message = self.make.FromString(data)
        except (self._error, RecursionError) as error:
            raise self._broken(told(error)) from None
        if self._has_required and not self.make.IsInitialized(message):
            raise self._broken("it lacks fields that are required")
        # Sizes of the message, not of the payload, which may say the same in fewer bytes.
        size = self.make.ByteSize(message)
        self.make.DiscardUnknownFields(message)
        if self.make.ByteSize(message) != size:
            raise self._broken("it has fields which that message does not have")
        return message

    def _broken(self, why: str) -> DoesNotFit:
        return DoesNotFit(f"it is no {self.descriptor.full_name} of its Protobuf schema: {why}")


@lru_cache(PARSERS_MAX)
def _parser(descriptor: Any) -> _Parser:
    return _Parser(descriptor)


def _opened(message: Any) -> Any:
    """The message in an Any; None if its type is not known."""
    pool = type(message).DESCRIPTOR.file.pool
    try:
        descriptor = pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])
    except KeyError:
        return None
    return _parser(descriptor).parse(message.value)


def _is_loose(descriptor: Any) -> bool:
    """Whether strings of a message may be other than UTF-8, which proto3 alone refuses."""
    from google.protobuf import descriptor_pb2

    outline = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(outline)
    return bool(outline.syntax != "proto3")


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
    """DoesNotFit, if a descriptor that somebody made by hand pretends to be what it is not."""
    name = descriptor.full_name
    for field in descriptor.fields:
        check_name(field.name)
        for one in field.enum_type.values if field.enum_type else ():
            check_name(one.name)
    is_map = descriptor.GetOptions().map_entry
    if is_map and [one.name for one in descriptor.fields] != ["key", "value"]:
        raise DoesNotFit(f"{name} is no entry of a map")
    if name.startswith("google.protobuf.") and not is_map and descriptor.file.name not in KNOWN:
        raise DoesNotFit(f"{name} is a well-known type, which a schema cannot define")


def open_schema(schema: Schema, registry: Registry | None, reading: Reading) -> Codec:
    return ProtobufCodec(schema, registry, reading)


def schema_text(kind: "pa.DataType", name: str) -> str:
    """A schema that can say every value of a column but null lists."""
    from tidelog.schemas.protobuf_types import proto_text

    return proto_text(kind, name)
