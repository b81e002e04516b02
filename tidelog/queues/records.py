"""The records of `__queues`.

Rule 1: the newest record of a key is the truth; a record without a value deletes its key. What they
        say together does not depend on the order of records with different keys, but for a
        message and what follows on it: so the log says the same after compaction.
Rule 2: a message's value is the sender's bytes; what is known about it stands in its headers.
Rule 3: a request with an Idempotency-Key is a record of its own, in the batch of what it did, as
        the last one. It lives for as long as the request is to be known again.
Rule 4: sequences rise over all work queues of the log. A queue says from which one on messages are
        its own; what is below was published to another of its name, which is deleted. No sequence
        is given out twice, also when all that named it is compacted away: one record says up to
        where they may have been, a block at a time.
"""

# key     := "Q" queue_id                     a queue with pointers             value: made_ms
#          | "M" queue_id sequence            a message of it                   value: the sender's
#          | "P" queue_id client              how far a client has read         value: Moved
#          | "W" name                         a work queue                      value: Settings
#          | "J" size name sequence           a message of it                   value: the sender's
#          | "D" size name sequence           how often it was given out        value: Delivery
#          | "R" hash                         a request that was done           value: Remembered
#          | "N"                              the next number of a queue        value: int
#                                             with pointers, once one is deleted
#          | "S"                              up to which sequence messages     value: int
#                                             may have been
# queue_id, sequence := int64, size := uint16 (big-endian); client, name := UTF-8; hash := 16 bytes
# values but the sender's are msgpack arrays
# headers := "m" what the sender says beside the value (msgpack About)
#
# In the first format requests had no records: "r" in the headers of what a request did was its
# hash, and "d" the receipt by which a message was done. `old_requests.py` reads these.

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tidelog.errors import CorruptMessage
from tidelog.model import Offset
from tidelog.queues.events import Remembered
from tidelog.queues.message import MAIN
from tidelog.records import Record

ABOUT_HEADER: Final = "m"

_ID: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">H")
_encode: Final = msgspec.msgpack.Encoder().encode


class Settings(msgspec.Struct, frozen=True, array_like=True):
    """How a work queue gives out its messages."""

    visibility_ms: int = 30_000
    """How long a receiver has, unless it asks for another time."""
    max_deliveries: int = 10
    """So often a message is given out; then it is dead. 0 for ever."""
    is_ordered: bool = False
    """Whether messages of one key are given out one after the other."""
    messages_max: int = 1_000_000
    made_ms: int = 0
    first_sequence: int = 0
    """Messages from this sequence on are the queue's own."""


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """What the log knows of a message that was given out, or put back."""

    offset: Offset
    count: int
    """How often it was given out, in all lanes: so no two receipts of a message are the same."""
    lane: int = MAIN
    visibility_ms: int = -1
    """It is with a receiver, which has that long; -1 if it is with nobody."""
    not_before_ms: int = 0
    """Nobody gets it before that time."""
    count_before: int = 0
    """How often it had been given out when it came into this lane."""
    delay_ms: int = 0
    """It is to wait for that long, which is when `not_before_ms` comes if clocks are right."""
    since: int = 0
    """The next sequence when it came into this lane: so it is known what a sweep began with."""


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """A pointer's way; it counts only if the pointer was where it came from."""

    start: Offset
    to: Offset


class About(msgspec.Struct, frozen=True, array_like=True):
    """What a sender says beside the value."""

    attributes: dict[str, str] = {}
    key: str | None = None
    not_before_ms: int = 0
    delay_ms: int = 0
    """Instead of a time: how long it is to wait, beginning when it is stored."""

    def from_now(self, now_ms: int) -> "About":
        """With the time at which its wait is over."""
        if self.delay_ms <= 0:
            return self
        return msgspec.structs.replace(self, not_before_ms=now_ms + self.delay_ms)


PLAIN_HEADERS: Final = ((ABOUT_HEADER, _encode(About())),)
"""Of a message of which nothing is said beside its value."""


class PlaceOf(NamedTuple):
    """One message of a work queue, among all of its partition."""

    queue: str
    sequence: int


@dataclass(frozen=True, slots=True)
class QueueWritten:
    queue_id: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class MessageWritten:
    queue_id: int
    sequence: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class PointerWritten:
    queue_id: int
    client: str
    value: Moved | None


@dataclass(frozen=True, slots=True)
class WorkQueueWritten:
    name: str
    value: Settings | None


@dataclass(frozen=True, slots=True)
class JobWritten:
    place: PlaceOf
    about: About | None
    """None: it is done, or was deleted."""
    size: int = 0
    """Bytes of what the sender said, in its value and beside it."""


@dataclass(frozen=True, slots=True)
class DeliveryWritten:
    place: PlaceOf
    value: Delivery | None


@dataclass(frozen=True, slots=True)
class RequestWritten:
    key: bytes
    value: Remembered | None


@dataclass(frozen=True, slots=True)
class NumberWritten:
    number: int


@dataclass(frozen=True, slots=True)
class SequenceWritten:
    """Messages may have had any sequence below this one."""

    sequence: int


Written: TypeAlias = (
    QueueWritten
    | MessageWritten
    | PointerWritten
    | WorkQueueWritten
    | JobWritten
    | DeliveryWritten
    | RequestWritten
    | NumberWritten
    | SequenceWritten
)


# Writing.


def deletion(key: bytes, now_ms: int) -> Record:
    """The record that deletes a key."""
    return Record(key=key, value=None, timestamp_ms=now_ms)


def message_key(queue_id: int, sequence: int) -> bytes:
    return b"M" + _ID.pack(queue_id) + _ID.pack(sequence)


def pointer_key(queue_id: int, client: str) -> bytes:
    return b"P" + _ID.pack(queue_id) + client.encode()


def request_key(key: bytes) -> bytes:
    return b"R" + key


def job_key(place: PlaceOf) -> bytes:
    return _work_key(b"J", place)


def delivery_key(place: PlaceOf) -> bytes:
    return _work_key(b"D", place)


def _work_key(kind: bytes, place: PlaceOf) -> bytes:
    name = place.queue.encode()
    return kind + _SIZE.pack(len(name)) + name + _ID.pack(place.sequence)


def queue_record(queue_id: int, *, made_ms: int, alive: bool = True) -> Record:
    value = _encode(made_ms) if alive else None
    return Record(key=b"Q" + _ID.pack(queue_id), value=value, timestamp_ms=made_ms)


def number_record(number: int, *, now_ms: int) -> Record:
    return Record(key=b"N", value=_encode(number), timestamp_ms=now_ms)


def sequence_record(sequence: int, *, now_ms: int) -> Record:
    return Record(key=b"S", value=_encode(sequence), timestamp_ms=now_ms)


def message_record(queue_id: int, sequence: int, value: bytes, *, now_ms: int) -> Record:
    return Record(key=message_key(queue_id, sequence), value=value, timestamp_ms=now_ms)


def pointer_record(queue_id: int, client: str, value: Moved, *, now_ms: int) -> Record:
    return Record(key=pointer_key(queue_id, client), value=_encode(value), timestamp_ms=now_ms)


def work_queue_record(name: str, value: Settings | None, *, now_ms: int) -> Record:
    return Record(
        key=b"W" + name.encode(), value=None if value is None else _encode(value), timestamp_ms=now_ms
    )


def job_record(place: PlaceOf, value: bytes, about: About, *, now_ms: int) -> Record:
    return Record(
        key=job_key(place), value=value, headers=((ABOUT_HEADER, _encode(about)),), timestamp_ms=now_ms
    )


def delivery_record(place: PlaceOf, value: Delivery, *, now_ms: int) -> Record:
    return Record(key=delivery_key(place), value=_encode(value), timestamp_ms=now_ms)


def request_record(key: bytes, value: Remembered, *, now_ms: int) -> Record:
    return Record(key=request_key(key), value=_encode(value), timestamp_ms=now_ms)


def size_of(value: bytes, about: About) -> int:
    """About how much of an answer a message takes."""
    size = len(value)
    if about.attributes:
        size += sum(len(name) + len(text) for name, text in about.attributes.items())
    return size if about.key is None else size + len(about.key)


# Reading.


def about_of(record: Record) -> About:
    """What the sender of a message said beside its value."""
    for name, value in record.headers:
        if name == ABOUT_HEADER and value is not None:
            return msgspec.msgpack.decode(value, type=About)
    return About()


def decode(record: Record) -> Written | None:
    """What a record says; None for an unknown kind. CorruptMessage if it makes no sense."""
    key, value = record.key or b"", record.value
    try:
        match key[:1]:
            case b"Q":
                return QueueWritten(_id(key, 1), value is not None)
            case b"M":
                return MessageWritten(_id(key, 1), _id(key, 9), value is not None)
            case b"P":
                moved = None if value is None else msgspec.msgpack.decode(value, type=Moved)
                return PointerWritten(_id(key, 1), key[9:].decode(), moved)
            case b"W":
                settings = None if value is None else msgspec.msgpack.decode(value, type=Settings)
                return WorkQueueWritten(key[1:].decode(), settings)
            case b"J":
                if value is None:
                    return JobWritten(_place(key), None)
                about = about_of(record)
                return JobWritten(_place(key), about, size_of(value, about))
            case b"D":
                given = None if value is None else msgspec.msgpack.decode(value, type=Delivery)
                return DeliveryWritten(_place(key), given)
            case b"R":
                done = None if value is None else msgspec.msgpack.decode(value, type=Remembered)
                return RequestWritten(key[1:], done)
            case b"N":
                return NumberWritten(msgspec.msgpack.decode(value or b"", type=int))
            case b"S":
                return SequenceWritten(msgspec.msgpack.decode(value or b"", type=int))
            case _:
                return None
    except (msgspec.MsgspecError, struct.error, UnicodeDecodeError) as error:
        raise CorruptMessage(f"the record at {record.offset} is no queue's: {error}") from None


def _id(key: bytes, at: int) -> int:
    found: int = _ID.unpack_from(key, at)[0]
    return found


def _place(key: bytes) -> PlaceOf:
    size: int = _SIZE.unpack_from(key, 1)[0]
    return PlaceOf(key[3 : 3 + size].decode(), _id(key, 3 + size))
