"""The records of `__queues`.

Rule 1: the newest record of a key is the truth; a record without a value deletes its key. So
        compaction keeps what is alive.
Rule 2: a message's value is the sender's bytes; what is known about it stands in its headers.
Rule 3: every record of a request carries that request's hash, a deletion too: whoever reads the
        log again knows which requests were done.
"""

# key     := "Q" queue_id                     a queue with pointers             value: made_ms
#          | "M" queue_id sequence            a message of it                   value: the sender's
#          | "P" queue_id client              how far a client has read         value: Moved
#          | "W" name                         a work queue                      value: Settings
#          | "J" size name sequence           a message of it                   value: the sender's
#          | "D" size name sequence           how often it was given out        value: Delivery
# queue_id, sequence := int64, size := uint16 (big-endian); client, name := UTF-8
# values but the sender's are msgpack arrays
# headers := "r" the hash of a request, "m" what the sender says beside the value (msgpack About)

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tidelog.errors import CorruptMessage
from tidelog.model import Offset
from tidelog.records import Record

REQUEST_HEADER: Final = "r"
ABOUT_HEADER: Final = "m"
DONE_HEADER: Final = "d"

_ID: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">H")
_encode: Final = msgspec.msgpack.Encoder().encode

MAIN: Final = 0
DEAD: Final = 1
"""The lanes of a work queue: what is to be done, and what nobody managed to do."""


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
    done: str | None = None
    """The receipt of who has done it, if its request has a key."""


@dataclass(frozen=True, slots=True)
class DeliveryWritten:
    place: PlaceOf
    value: Delivery | None


Written: TypeAlias = (
    QueueWritten | MessageWritten | PointerWritten | WorkQueueWritten | JobWritten | DeliveryWritten
)


def request_hash(key: str | None) -> bytes:
    """What an Idempotency-Key is known by; empty without one."""
    return b"" if key is None else blake2b(key.encode("utf-8", "replace"), digest_size=16).digest()


# Writing.


def _headers(request: bytes, about: About | None = None) -> tuple[tuple[str, bytes], ...]:
    found = ((REQUEST_HEADER, request),) if request else ()
    return (*found, (ABOUT_HEADER, _encode(about))) if about is not None else found


def _work_key(kind: bytes, place: PlaceOf) -> bytes:
    name = place.queue.encode()
    return kind + _SIZE.pack(len(name)) + name + _ID.pack(place.sequence)


def queue_record(
    queue_id: int, *, made_ms: int, request: bytes = b"", alive: bool = True
) -> Record:
    value = _encode(made_ms) if alive else None
    return Record(
        key=b"Q" + _ID.pack(queue_id), value=value, headers=_headers(request), timestamp_ms=made_ms
    )


def message_record(
    queue_id: int, sequence: int, value: bytes | None, *, now_ms: int, request: bytes = b""
) -> Record:
    return Record(
        key=b"M" + _ID.pack(queue_id) + _ID.pack(sequence), value=value,
        headers=_headers(request), timestamp_ms=now_ms,
    )  # fmt: skip


def pointer_record(
    queue_id: int, client: str, value: Moved | None, *, now_ms: int, request: bytes = b""
) -> Record:
    return Record(
        key=b"P" + _ID.pack(queue_id) + client.encode(),
        value=None if value is None else _encode(value),
        headers=_headers(request), timestamp_ms=now_ms,
    )  # fmt: skip


def work_queue_record(
    name: str, value: Settings | None, *, now_ms: int, request: bytes = b""
) -> Record:
    return Record(
        key=b"W" + name.encode(), value=None if value is None else _encode(value),
        headers=_headers(request), timestamp_ms=now_ms,
    )  # fmt: skip


def job_record(
    place: PlaceOf, value: bytes | None, about: About | None, *, now_ms: int, request: bytes = b""
) -> Record:
    return Record(
        key=_work_key(b"J", place), value=value, headers=_headers(request, about),
        timestamp_ms=now_ms,
    )  # fmt: skip


def done_record(place: PlaceOf, receipt: str, *, now_ms: int, request: bytes = b"") -> Record:
    """A message is done, by who has this receipt: a request with a key may ask for it again."""
    headers = _headers(request)
    if request:
        headers = (*headers, (DONE_HEADER, receipt.encode()))
    return Record(key=_work_key(b"J", place), value=None, headers=headers, timestamp_ms=now_ms)


def delivery_record(
    place: PlaceOf, value: Delivery | None, *, now_ms: int, request: bytes = b""
) -> Record:
    return Record(
        key=_work_key(b"D", place), value=None if value is None else _encode(value),
        headers=_headers(request), timestamp_ms=now_ms,
    )  # fmt: skip


# Reading.


def request_of(record: Record) -> bytes:
    """The request that a record was written for; empty if it was for none."""
    return next((value or b"" for name, value in record.headers if name == REQUEST_HEADER), b"")


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
                    return JobWritten(_place(key), None, _done(record))
                return JobWritten(_place(key), about_of(record))
            case b"D":
                given = None if value is None else msgspec.msgpack.decode(value, type=Delivery)
                return DeliveryWritten(_place(key), given)
            case _:
                return None
    except (msgspec.MsgspecError, struct.error, UnicodeDecodeError) as error:
        raise CorruptMessage(f"the record at {record.offset} is no queue's: {error}") from None


def _done(record: Record) -> str | None:
    for name, value in record.headers:
        if name == DONE_HEADER and value is not None:
            return value.decode()
    return None


def _id(key: bytes, at: int) -> int:
    found: int = _ID.unpack_from(key, at)[0]
    return found


def _place(key: bytes) -> PlaceOf:
    size: int = _SIZE.unpack_from(key, 1)[0]
    return PlaceOf(key[3 : 3 + size].decode(), _id(key, 3 + size))
