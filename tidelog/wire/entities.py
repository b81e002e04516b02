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
import operator
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias
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
    "string": "",
    "bytes": b"",
    "records": None,
    "bool": False,
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
}


def build(entity: Any, fields: Mapping[str, Any]) -> Any:
    """A kio entity that says `fields`: mappings become entities, sequences tuples."""
    values = {}
    for name, convert, zero in _shape(entity):
        if name in fields:
            value = fields[name]
            values[name] = value if convert is None or value is None else convert(value)
        elif zero is not _HAS_DEFAULT:
            values[name] = zero
    return entity(**values)


@functools.cache
def nested_type(entity: Any, name: str) -> type[Any] | None:
    """The entity that the field holds, or a list of; None if it holds none, or is not there."""
    return _nested(typing.get_type_hints(entity).get(name))


# kio looks a type up by its path, as an import does: longer than it takes to build a small answer.


@functools.cache
def request_type(api_key: int, version: int) -> Any:
    ours = own.REQUESTS.get(api_key)
    return load_request_schema(api_key, version) if ours is None else ours[version]


@functools.cache
def response_type(api_key: int, version: int) -> Any:
    ours = own.RESPONSES.get(api_key)
    return load_response_schema(api_key, version) if ours is None else ours[version]


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


_Convert: TypeAlias = Callable[[Any], Any]


@functools.cache
def _shape(entity: Any) -> tuple[tuple[str, _Convert | None, Any], ...]:
    """Of each field its name, what makes kio's value of ours, if they differ, and its zero."""
    hints = typing.get_type_hints(entity)
    return tuple(_field(field, hints[field.name]) for field in dataclasses.fields(entity))


def _field(field: "dataclasses.Field[Any]", hint: Any) -> tuple[str, _Convert | None, Any]:
    kafka_type = str(field.metadata.get("kafka_type", ""))
    zero: Any = _HAS_DEFAULT
    is_array = any(typing.get_origin(each) is tuple for each in (hint, *typing.get_args(hint)))
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        if type(None) in typing.get_args(hint):
            zero = None
        elif is_array:
            zero = ()
        else:
            zero = _ZEROS.get(kafka_type, 0)
    convert = _converter(field.name, kafka_type, _nested(hint))
    if is_array:
        convert = tuple if convert is None else functools.partial(_convert_all, convert)
    return field.name, convert, zero


def _converter(name: str, kafka_type: str, nested: type[Any] | None) -> _Convert | None:
    """What makes kio's value of one of ours; None if they are the same."""
    if nested is not None:
        return functools.partial(build, nested)
    if kafka_type == "error_code":
        return ErrorCode
    if kafka_type.startswith("timedelta"):
        return _duration
    if kafka_type.startswith("datetime"):
        return _moment
    if kafka_type == "uuid":
        return _id
    if name == "error_message":
        return operator.itemgetter(slice(ERROR_MESSAGE_MAX))
    return None


def _convert_all(convert: _Convert, values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([None if value is None else convert(value) for value in values])


def _duration(ms: float) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=ms)


def _moment(value: Any) -> Any:
    if isinstance(value, int):
        return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
    return value


def _id(value: UUID) -> UUID | None:
    return None if value == NO_ID else value  # kio says None for the id of all zeros


def _nested(hint: Any) -> type[Any] | None:
    """The entity inside of `X`, `tuple[X, ...]` or `X | None`, if any."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for a in typing.get_args(hint) if (found := _nested(a))), None)
