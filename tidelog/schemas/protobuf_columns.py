"""Messages of Protobuf as columns, and rows as the arguments that messages are made of.

Rule 1: columns are gathered field by field, over all messages: no row is built on the way.
Rule 2: a field of the reader is the writer's of the same number. Whole numbers may be of another
        width if every value fits; floats may be read as doubles; all else must be of one kind.
Rule 3: nanoseconds are cut to microseconds, which is what Spark's times have.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.schemas.codec import array_of, relaxed
from tidelog.schemas.documents import parsed, text
from tidelog.schemas.problems import DoesNotFit
from tidelog.schemas.protobuf_documents import JSONS, check_numbers, is_map
from tidelog.schemas.protobuf_types import DURATION, SCALARS, TIMESTAMP, WRAPPERS, message_type, single_type

US_PER_SECOND: Final = 1_000_000
NS_PER_US: Final = 1000
NS_PER_SECOND: Final = 1_000_000_000
SECONDS: Final = {
    TIMESTAMP: (-62_135_596_800, 253_402_300_799),
    DURATION: (-315_576_000_000, 315_576_000_000),
}
"""Years 1 to 9999, and 10,000 years: what Protobuf's own documentation allows."""
INTEGERS: Final = frozenset((3, 4, 5, 6, 7, 13, 15, 16, 17, 18))
UNSIGNED_LONGS: Final = (4, 6)
FLOAT, DOUBLE, ENUM = 2, 1, 14
PLANS_MAX: Final = 256


class Budget:
    """How many values messages in lists may become."""

    def __init__(self, values_max: int) -> None:
        self._left = self._max = values_max

    def take(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise DoesNotFit(f"the messages in it have more than {self._max} values, too many for its size")


Column = Callable[[list[Any], Budget], pa.Array]


@lru_cache(PLANS_MAX)
def reader(written: Any, wanted: Any) -> Column:
    """What makes a column of messages; both are descriptors of messages."""
    return _messages(written, wanted, written.name)


def _messages(written: Any, wanted: Any, at: str) -> Column:
    name = wanted.full_name
    kind = relaxed(message_type(wanted))
    if name in SECONDS or name in WRAPPERS or name in JSONS:
        if written.full_name != name:
            raise _differs(at, written.full_name, name)
        return _known(written, name, kind)
    by_number = {one.number: one for one in written.fields}
    columns = [_field(by_number.get(one.number), one, f"{at}.{one.name}") for one in wanted.fields]
    names = [one.name for one in wanted.fields]
    if not names:
        return lambda messages, _: pa.array([{}] * len(messages), kind)
    return lambda messages, budget: pa.StructArray.from_arrays(
        [column(messages, budget) for column in columns], fields=list(kind)
    )


def _field(written: Any | None, wanted: Any, at: str) -> Column:
    """A field over all messages, as their struct's child."""
    kind = relaxed(_whole_type(wanted))
    if written is None:
        return lambda messages, _: _absent(wanted, kind, len(messages))
    if written.is_repeated != wanted.is_repeated or is_map(written) != is_map(wanted):
        raise _differs(at, "a list" if written.is_repeated else "one value", "the other")
    get = attrgetter(written.name)
    if is_map(wanted):
        return _map(written, wanted, at, kind, get)
    single = _single(written, wanted, at)
    if wanted.is_repeated:
        return _list(single, wanted, get)
    if not written.has_presence:
        return lambda messages, budget: single(list(map(get, messages)), budget)
    name = written.name
    has = _class_of(written.containing_type).HasField  # a field may have the name of a method

    def column(messages: list[Any], budget: Budget) -> pa.Array:
        there = [has(one, name) for one in messages]
        if all(there):
            return single(list(map(get, messages)), budget)
        some = [get(one) for one, is_there in zip(messages, there, strict=True) if is_there]
        found = single(some, budget)
        return _spread(found, np.array(there, bool))

    return column


def _class_of(descriptor: Any) -> Any:
    """The class of a message."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor)


def _spread(found: pa.Array, there: Any) -> pa.Array:
    """Values where there are some, and null elsewhere."""
    places = np.cumsum(there) - 1
    return found.take(pa.array(places, pa.int64(), mask=~there))


def _absent(field: Any, kind: pa.DataType, count: int) -> pa.Array:
    """What a field is that the writer did not know: null, nothing, or Protobuf's default."""
    if field.is_repeated:
        return pa.array([[]] * count, kind)
    if field.has_presence:
        return pa.nulls(count, kind)
    default = field.default_value
    if field.type == ENUM:
        default = field.enum_type.values_by_number[default].name
    return pa.array([default] * count, kind)


def _list(single: Column, field: Any, get: Callable[[Any], Any]) -> Column:
    weight = _weight(field)

    def column(messages: list[Any], budget: Budget) -> pa.Array:
        lists = list(map(get, messages))
        offsets = _offsets(lists)
        if weight:
            budget.take(int(offsets[-1]) * weight)
        items = single(list(chain.from_iterable(lists)), budget)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)

    return column


def _map(written: Any, wanted: Any, at: str, kind: pa.DataType, get: Callable[[Any], Any]) -> Column:
    own, theirs = written.message_type.fields_by_name, wanted.message_type.fields_by_name
    keys = _single(own["key"], theirs["key"], f"{at}{{}}")
    values = _single(own["value"], theirs["value"], f"{at}{{}}")
    weight = _weight(theirs["value"])

    def column(messages: list[Any], budget: Budget) -> pa.Array:
        maps = list(map(get, messages))
        offsets = _offsets(maps)
        if weight:
            budget.take(int(offsets[-1]) * weight)
        try:
            pairs = [(key, one[key]) for one in maps for key in one]
        except UnicodeDecodeError as error:
            raise DoesNotFit(f"{at} is a map with text that is not UTF-8: {error}") from None
        made = pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()),
            keys([key for key, _ in pairs], budget),
            values([value for _, value in pairs], budget),
        )
        return made.cast(kind)

    return column


def _offsets(lists: list[Any]) -> Any:
    return np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int32)


def _weight(field: Any) -> int:
    """How many values a message in a list is; 0 if it is none."""
    return 0 if field.message_type is None else _leaves(message_type(field.message_type))


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return 1 + sum(_leaves(one.type) for one in kind)
    return 1


def _whole_type(field: Any) -> pa.DataType:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(single_type(entry["key"], "", ()), single_type(entry["value"], "", ()))
    kind = single_type(field, "", ())
    return pa.list_(kind) if field.is_repeated else kind


def _single(written: Any, wanted: Any, at: str) -> Column:
    """Single values of a field."""
    if written.message_type is not None and wanted.message_type is not None:
        return _messages(written.message_type, wanted.message_type, at)
    kind, has, wants = relaxed(single_type(wanted, at, ())), written.type, wanted.type
    fits = (
        (has == wants and has in SCALARS)
        or (has in INTEGERS and wants in INTEGERS)
        or (has == FLOAT and wants == DOUBLE)
    )
    if not fits:
        raise _differs(at, _type_name(written), _type_name(wanted))
    if has == ENUM:
        names = {one.number: one.name for one in written.enum_type.values}
        return lambda values, _: pa.array([names.get(one) or str(one) for one in values], kind)
    if has in UNSIGNED_LONGS or wants in UNSIGNED_LONGS:
        return lambda values, _: _unsigned(values, kind)
    return lambda values, _: array_of(values, kind)


def _unsigned(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind) and any(one < 0 for one in values):
        raise DoesNotFit("a number in it is negative, which the reader's uint64 is not")
    return array_of(values, kind)


def _known(written: Any, name: str, kind: pa.DataType) -> Column:
    if name in SECONDS:
        return lambda messages, _: _times(messages, name, kind)
    if name in JSONS:
        return lambda messages, _: pa.array([_json(one) for one in messages], kind)
    value = attrgetter("value")
    return lambda messages, _: array_of(list(map(value, messages)), kind)


def _times(messages: list[Any], name: str, kind: pa.DataType) -> pa.Array:
    seconds = np.array([one.seconds for one in messages], np.int64)
    nanos = np.array([one.nanos for one in messages], np.int64)
    least, most = SECONDS[name]
    nanos_least = 0 if name == TIMESTAMP else 1 - NS_PER_SECOND
    bad = (seconds < least) | (seconds > most) | (nanos < nanos_least) | (nanos >= NS_PER_SECOND)
    if bad.any():
        raise DoesNotFit(f"a {name} in it is none: its seconds or nanos are out of range")
    counts = seconds * US_PER_SECOND + nanos // NS_PER_US
    return pa.array(counts, pa.int64()).cast(kind)


def _json(message: Any) -> str:
    from google.protobuf import json_format

    try:
        return text(json_format.MessageToDict(message)).decode()
    except Exception as error:
        raise DoesNotFit(f"a {message.DESCRIPTOR.full_name} in it is no JSON: {error}") from None


def _type_name(field: Any) -> str:
    if field.message_type is not None:
        return str(field.message_type.full_name)
    return str(field.enum_type.full_name) if field.enum_type is not None else f"type {field.type}"


def _differs(at: str, has: str, wanted: str) -> DoesNotFit:
    return DoesNotFit(f"{at} was written as {has}, and is {wanted} in the reader's schema")


# Writing.

Arguments = Callable[[Any], Any]


@lru_cache(PLANS_MAX)
def writer(descriptor: Any) -> Arguments:
    """What makes a message's arguments of a row's fields."""
    fields = {one.name: _argument(one) for one in descriptor.fields}
    groups = [[one.name for one in group.fields] for group in descriptor.oneofs if len(group.fields) > 1]

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        for names in groups:
            given = [name for name in names if row.get(name) is not None]
            if len(given) > 1:
                raise DoesNotFit(
                    "the Protobuf schema cannot say it: "
                    f"{' and '.join(given)} are of one oneof; set one of them"
                )
        return {name: fields[name](value) for name, value in row.items() if value is not None}

    return convert


def _argument(field: Any) -> Arguments:
    if is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _one(entry["key"]), _one(entry["value"])
        return lambda values: {key(name): value(one) for name, one in values.items()}
    single = _one(field)
    return (lambda values: [single(one) for one in values]) if field.is_repeated else single


def _one(field: Any) -> Arguments:
    if field.message_type is not None:
        return _message(field.message_type)
    if field.type == ENUM:
        return lambda value: _enum(field, value)
    if field.type in UNSIGNED_LONGS:
        return int
    return float if field.type in (FLOAT, DOUBLE) else _same


def _same(value: Any) -> Any:
    return value


def _enum(field: Any, value: str) -> Any:
    """A name; or a number that the schema has no name for, as it was read."""
    if value in field.enum_type.values_by_name:
        return value
    if value.removeprefix("-").isdecimal() and not field.enum_type.is_closed:
        return int(value)
    names = ", ".join(field.enum_type.values_by_name)
    raise DoesNotFit(f"{field.name} is {value!r}; the schema's enum has {names}")


def _message(descriptor: Any) -> Arguments:
    from google.protobuf import json_format

    name = descriptor.full_name
    make = _class_of(descriptor)
    if name in SECONDS:
        return lambda count: make(**_seconds(name, count))
    if name in WRAPPERS:
        inner = _one(descriptor.fields_by_name["value"])
        return lambda value: make(value=inner(value))
    if name in JSONS:
        return lambda words: json_format.ParseDict(_checked(words), make())
    inside = writer(descriptor)
    return lambda row: make(**inside(row))


def _checked(words: str) -> Any:
    found = parsed(words)
    check_numbers(found)
    return found


def _seconds(name: str, count: int) -> dict[str, int]:
    seconds, rest = divmod(count, US_PER_SECOND)
    if name == DURATION and seconds < 0 and rest:
        seconds, rest = seconds + 1, rest - US_PER_SECOND  # both have one sign
    least, most = SECONDS[name]
    if not least <= seconds <= most:
        raise DoesNotFit(f"the Protobuf schema cannot say it: {count} us is no {name}")
    return {"seconds": seconds, "nanos": rest * NS_PER_US}
