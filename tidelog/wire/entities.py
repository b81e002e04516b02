"""Messages written once, sent in whichever version the other side speaks.

Rule 1: a message is named fields. Those that a version lacks are left out, those that the caller
        does not name get the protocol's defaults; so a handler writes one answer for all versions.
Rule 2: message types are kio's; nothing here knows a layout.

Milliseconds and error codes are plain numbers on our side; kio's durations and enumerations are
made and unmade here.
"""

import dataclasses
import datetime
import functools
import io
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tidelog.wire import own
from tidelog.wire.lengths import MessageDamaged as MessageDamaged
from tidelog.wire.lengths import check_lengths

NO_ID: Final = UUID(int=0)

ERROR_MESSAGE_MAX: Final = 1000
"""Characters of an explanation: it may quote a name as long as the format allows, and more."""

_ZEROS: Final[dict[str, Any]] = {
    "string": "", "bytes": b"", "records": None, "bool": False, "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(0), "timedelta_i64": datetime.timedelta(0),
    "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
}  # fmt: skip


def build(entity: Any, fields: Mapping[str, Any]) -> Any:
    """A kio entity that says `fields`: mappings become entities, sequences tuples."""
    values = {}
    for field in _shape(entity):
        if field.name in fields:
            values[field.name] = field.convert(fields[field.name])
        elif field.zero is not _HAS_DEFAULT:
            values[field.name] = field.zero
    return entity(**values)


# kio looks a type up by its path, as an import does: longer than it takes to build a small answer.


@functools.cache
def request_type(api_key: int, version: int) -> Any:
    return own.REQUESTS.get(api_key) or load_request_schema(api_key, version)


@functools.cache
def response_type(api_key: int, version: int) -> Any:
    return own.RESPONSES.get(api_key) or load_response_schema(api_key, version)


def request_entity(api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
    return build(request_type(api_key, version), fields)


def response_entity(api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
    return build(response_type(api_key, version), fields)


def encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    kind: Any = type(entity)
    _writer(kind)(buffer, entity)
    return buffer.getvalue()


def decode_request(api_key: int, version: int, frame: bytes | bytearray, at: int) -> Any:
    """The request in `frame` from `at` on; MessageDamaged if it does not have its shape.

    What follows it is passed over, as Kafka does: librdkafka leaves three bytes behind when it
    asks for the metadata of all topics.
    """
    read = _request_reader(api_key, version)
    data = memoryview(frame).toreadonly()
    try:
        check_lengths(api_key, version, data, at)
        entity, _ = read(data, at)
    except MessageDamaged:
        raise
    except Exception as error:  # a native reader: whatever it raises, the bytes are to blame
        raise MessageDamaged(f"not a request {api_key} of version {version}: {error}") from error
    return entity


@functools.cache
def _request_reader(api_key: int, version: int) -> Any:
    return entity_reader(request_type(api_key, version))


@functools.cache
def _writer(entity: Any) -> Any:
    return entity_writer(entity)


_HAS_DEFAULT: Final = object()


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    nested: type[Any] | None
    kafka_type: str
    zero: Any

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            return tuple([self.convert(item) for item in value])
        if self.nested is not None:
            return build(self.nested, value)
        if self.kafka_type == "error_code":
            return ErrorCode(value)
        if self.kafka_type.startswith("timedelta"):
            return datetime.timedelta(milliseconds=value)
        if self.kafka_type.startswith("datetime") and isinstance(value, int):
            return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        if self.kafka_type == "uuid":
            return None if value == NO_ID else value  # kio says None for the id of all zeros
        if self.name == "error_message":
            return value[:ERROR_MESSAGE_MAX]
        return value


@functools.cache
def _shape(entity: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(entity)
    return tuple(_field(field, hints[field.name]) for field in dataclasses.fields(entity))


def _field(field: "dataclasses.Field[Any]", hint: Any) -> _Field:
    kafka_type = str(field.metadata.get("kafka_type", ""))
    zero: Any = _HAS_DEFAULT
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        if type(None) in typing.get_args(hint):
            zero = None
        elif typing.get_origin(hint) is tuple:
            zero = ()
        else:
            zero = _ZEROS.get(kafka_type, 0)
    return _Field(field.name, _nested(hint), kafka_type, zero)


def _nested(hint: Any) -> type[Any] | None:
    """The entity inside of `X`, `tuple[X, ...]` or `X | None`, if any."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for a in typing.get_args(hint) if (found := _nested(a))), None)
