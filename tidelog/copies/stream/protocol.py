"""The replication stream: what a replica outside of the cluster and a node say to each other.

Rule 1: a replica says who it is and what it wants, hears how far that goes, and asks from an offset
        on; from then on it is sent what comes, and says how far it has got.
Rule 2: an entry carries a checksum over its offset, its time and the very bytes of its operation.
        Who gets one that does not fit asks again from there.
Rule 3: what is too far behind, or asks for what was deleted, gets everything as one database, and
        goes on from where that ends.
Rule 4: a replica says of which topic and of which epoch its last record is. If the log has another
        there, what it has is worth nothing.
"""

# stream   := hello hello_ack sync sync_start (snapshot bytes)? (batch | heartbeat | ack)*
#             where hello, sync and ack are the replica's
# A message is JSON with a "type". Over a WebSocket it is a text message, or from a size on a binary
# one, "G" and the gzip of the text; "S" and bytes are a piece of a snapshot; "B", the next offset,
# the current one (int64), the epoch of the last batch (int32) and bytes are record batches as the
# log has them, for who asked for format "binary".
# Over HTTP each message is a line; gzip and snapshots stand in lines of their own, in base64.
# checksum := crc32c(offset: int64, timestamp: int64, operation as it is written)   (big-endian)

import struct
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any, Final, TypeAlias

import msgspec
from crc32c import crc32c

from tidelog.copies.views.kv import EXPIRES_HEADER
from tidelog.copies.views.kv import entry_of as stored_entry
from tidelog.errors import CorruptMessage
from tidelog.model import NO_EPOCH, Epoch, Offset
from tidelog.queues.message import MAIN
from tidelog.queues.records import (
    About,
    Delivery,
    DeliveryWritten,
    JobWritten,
    PlaceOf,
    Settings,
    WorkQueueWritten,
    about_of,
    decode,
    deletion,
    delivery_record,
    job_key,
    job_record,
    work_queue_record,
)
from tidelog.records import Record

VERSION: Final = "0.1.0"
JSON_FORMAT: Final = "json"
BINARY_FORMAT: Final = "binary"
GZIP: Final = b"G"
SNAPSHOT: Final = b"S"
BATCHES: Final = b"B"
BATCHES_HEAD: Final = struct.Struct(">qqi")
_CHECKED: Final = struct.Struct(">qq")
_DEPTH_SPARE: Final = 100
_DEEPER: Final = b"[" * _DEPTH_SPARE + b"%s" + b"]" * _DEPTH_SPARE
"""What can be read here must be readable within an entry of a batch elsewhere."""

CONNECTION_FAILED: Final = "ConnectionFailed"
SYNC_FAILED: Final = "SyncFailed"
OFFSET_NOT_FOUND: Final = "OffsetNotFound"
CHECKSUM_MISMATCH: Final = "ChecksumMismatch"
LOG_TRUNCATED: Final = "LogTruncated"
PROTOCOL_ERROR: Final = "ProtocolError"


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be copied: one of these, and one partition of it."""

    bucket: str | None = None
    queue: str | None = None
    room: str | None = None
    topic: str | None = None
    pubsub: str | None = None
    partition: int = 0


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Anything that the two say."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    replica_id: str
    source: Source
    version: str = VERSION
    format: str = JSON_FORMAT
    snapshots: bool = True
    """Whether it takes everything at once when it is too far behind."""


class HelloAck(_Message, frozen=True, kw_only=True, tag="hello_ack"):
    master_id: str
    current_offset: Offset
    log_oldest_offset: Offset
    topic: str
    topic_id: str
    partitions: int
    heartbeat_interval_ms: int
    replica_timeout_ms: int


class Sync(_Message, frozen=True, kw_only=True, tag="sync"):
    from_offset: Offset | None = None
    """None: all of it."""
    topic_id: str = ""
    """Of what the replica has; if the topic was made anew, that is worth nothing."""
    epoch: Epoch = NO_EPOCH
    """Of the last record before that offset, as the replica has it."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A database that follows: how large it is, and of what."""

    size: int
    sha256: str
    topic_id: str
    epoch: int
    applied: Offset


class SyncStart(_Message, frozen=True, kw_only=True, tag="sync_start"):
    mode: str
    from_offset: Offset
    snapshot: Snapshot | None = None


class LogEntry(_Message, frozen=True, kw_only=True, tag="log_entry"):
    offset: Offset
    timestamp: int
    operation: msgspec.Raw
    checksum: int


class Batch(_Message, frozen=True, kw_only=True, tag="batch"):
    entries: list[LogEntry]
    next_offset: Offset
    current_offset: Offset = 0
    epoch: Epoch = NO_EPOCH


class Heartbeat(_Message, frozen=True, kw_only=True, tag="heartbeat"):
    current_offset: Offset
    log_oldest_offset: Offset = 0


class Ack(_Message, frozen=True, kw_only=True, tag="ack"):
    offset: Offset


class Failed(_Message, frozen=True, kw_only=True, tag="error"):
    code: str
    detail: str
    location: str | None = None
    """Where to go instead."""


FromNode: TypeAlias = HelloAck | SyncStart | Batch | LogEntry | Heartbeat | Failed
FromReplica: TypeAlias = Hello | Sync | Ack | Failed

encode: Final = msgspec.json.Encoder().encode
decode_from_node: Final = msgspec.json.Decoder(FromNode).decode
decode_from_replica: Final = msgspec.json.Decoder(FromReplica).decode


# Operations.


class KvSet(_Message, frozen=True, kw_only=True, tag="kv_set"):
    key: str
    value: msgspec.Raw
    """As it was written, or in a string: see `encoding`."""
    encoding: str = "json"
    key_encoding: str = "text"
    expires_at_ms: int | None = None


class KvDel(_Message, frozen=True, kw_only=True, tag="kv_del"):
    keys: list[str]
    key_encoding: str = "text"


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a work queue."""

    id: Offset
    sequence: int
    value: msgspec.Raw
    """As it was written, or in a string: see `encoding`."""
    attributes: dict[str, str]
    key: str | None
    encoding: str = "json"
    not_before_ms: int = 0
    delay_ms: int = 0


class QueuePublish(_Message, frozen=True, kw_only=True, tag="queue_publish"):
    queue: str
    message: Published


class QueueAck(_Message, frozen=True, kw_only=True, tag="queue_ack"):
    queue: str
    sequence: int


class QueueDelivery(_Message, frozen=True, kw_only=True, tag="queue_delivery"):
    """A message was given out, put back, or brought to another lane: see `Delivery`."""

    queue: str
    sequence: int
    id: Offset
    count: int
    lane: int = MAIN
    visibility_ms: int = -1
    not_before_ms: int = 0
    count_before: int = 0
    delay_ms: int = 0


class QueueDeclare(_Message, frozen=True, kw_only=True, tag="queue_declare"):
    """The queue was made or changed: what lies before `first_sequence` is another's: see
    `Settings`."""

    queue: str
    visibility_ms: int
    max_deliveries: int
    ordered: bool
    messages_max: int
    made_ms: int
    first_sequence: int


class QueueDelete(_Message, frozen=True, kw_only=True, tag="queue_delete"):
    queue: str


class StreamPublish(_Message, frozen=True, kw_only=True, tag="stream_publish"):
    room: str
    event: dict[str, Any]


class PubSubPublish(_Message, frozen=True, kw_only=True, tag="pubsub_publish"):
    topic: str
    message: Any


Operation: TypeAlias = (
    KvSet
    | KvDel
    | QueuePublish
    | QueueAck
    | QueueDelivery
    | QueueDeclare
    | QueueDelete
    | StreamPublish
    | PubSubPublish
)
decode_operation: Final = msgspec.json.Decoder(Operation).decode

EVENT_HEADER: Final = "event"


def checksum_of(offset: Offset, timestamp: int, operation: bytes) -> int:
    return crc32c(operation, crc32c(_CHECKED.pack(offset, timestamp)))


def entry_of(record: Record, source: Source) -> LogEntry | None:
    """A record as a replica of `source` hears of it; None if it does not concern it."""
    operation = _operation_of(record, source)
    return None if operation is None else sealed(record.offset, record.timestamp_ms, operation)


def sealed(offset: Offset, timestamp: int, operation: Operation) -> LogEntry:
    # Values are as they were written; ends of lines are only where JSON could have spaces, and a
    # message is one line.
    data = encode(operation).replace(b"\n", b" ").replace(b"\r", b" ")
    return LogEntry(
        offset=offset,
        timestamp=timestamp,
        operation=msgspec.Raw(data),
        checksum=checksum_of(offset, timestamp, data),
    )


def _operation_of(record: Record, source: Source) -> Operation | None:
    if source.queue is not None:
        return _of_queue(record, source.queue)
    if source.room is not None:
        kind = next((value for name, value in record.headers if name == EVENT_HEADER), None)
        value, encoding = _shown(record.value or b"null")
        event: dict[str, Any] = {
            "id": record.offset,
            "event": (kind or b"message").decode("utf-8", "replace"),
            "data": value,
        }
        if encoding != "json":
            event["encoding"] = encoding
        return StreamPublish(room=source.room, event=event)
    if record.key is None and source.bucket is not None:
        return None
    key, key_encoding = _text(record.key or b"")
    if record.value is None:
        return KvDel(keys=[key], key_encoding=key_encoding)
    value, encoding = _shown(record.value)
    return KvSet(
        key=key,
        value=value,
        encoding=encoding,
        key_encoding=key_encoding,
        expires_at_ms=None if record.key is None else stored_entry(record).expires_at_ms,
    )


def _of_queue(record: Record, queue: str) -> Operation | None:
    match decode(record):
        case JobWritten(place=place, about=None) if place.queue == queue:
            return QueueAck(queue=queue, sequence=place.sequence)
        case JobWritten(place=place) if place.queue == queue:
            about = about_of(record)
            value, encoding = _shown(record.value or b"null")
            message = Published(
                id=record.offset,
                sequence=place.sequence,
                value=value,
                encoding=encoding,
                attributes=dict(about.attributes),
                key=about.key,
                not_before_ms=about.not_before_ms,
                delay_ms=about.delay_ms,
            )
            return QueuePublish(queue=queue, message=message)
        case DeliveryWritten(place=place, value=Delivery() as given) if place.queue == queue:
            return QueueDelivery(
                queue=queue,
                sequence=place.sequence,
                id=given.offset,
                count=given.count,
                lane=given.lane,
                visibility_ms=given.visibility_ms,
                not_before_ms=given.not_before_ms,
                count_before=given.count_before,
                delay_ms=given.delay_ms,
            )
        case WorkQueueWritten(name=name, value=None) if name == queue:
            return QueueDelete(queue=queue)
        case WorkQueueWritten(name=name, value=Settings() as settings) if name == queue:
            return QueueDeclare(
                queue=queue,
                visibility_ms=settings.visibility_ms,
                max_deliveries=settings.max_deliveries,
                ordered=settings.is_ordered,
                messages_max=settings.messages_max,
                made_ms=settings.made_ms,
                first_sequence=settings.first_sequence,
            )
        case _:
            return None


def check(entry: LogEntry) -> Operation:
    """The operation of an entry; CorruptMessage if it is not what was sent."""
    data = bytes(entry.operation)
    if checksum_of(entry.offset, entry.timestamp, data) != entry.checksum:
        raise CorruptMessage(f"the entry at offset {entry.offset} is damaged: {CHECKSUM_MISMATCH}")
    found: Operation = decode_operation(data)
    return found


def record_of(entry: LogEntry) -> Record | None:
    """The record of a bucket or a queue that an entry tells of; None for other operations.

    CorruptMessage if it was damaged, ValueError if it makes no sense.
    """
    match operation := check(entry):
        case KvSet():
            headers: tuple[tuple[str, bytes], ...] = ()
            if operation.expires_at_ms is not None:
                headers = ((EXPIRES_HEADER, b"%d" % operation.expires_at_ms),)
            return Record(
                key=_bytes(operation.key, operation.key_encoding),
                value=_value(operation.value, operation.encoding),
                headers=headers,
                timestamp_ms=entry.timestamp,
                offset=entry.offset,
            )
        case KvDel(keys=[key]):
            return Record(
                key=_bytes(key, operation.key_encoding),
                value=None,
                timestamp_ms=entry.timestamp,
                offset=entry.offset,
            )
        case KvDel():
            raise ValueError("a deletion names one key")
        case QueuePublish(queue=queue, message=message):
            about = About(message.attributes, message.key, message.not_before_ms, message.delay_ms)
            place = PlaceOf(queue, message.sequence)
            value = _value(message.value, message.encoding)
            made = job_record(place, value, about, now_ms=entry.timestamp)
            return replace(made, offset=entry.offset)
        case QueueAck(queue=queue, sequence=sequence):
            made = deletion(job_key(PlaceOf(queue, sequence)), entry.timestamp)
            return replace(made, offset=entry.offset)
        case QueueDelivery() as one:
            given = Delivery(
                one.id,
                one.count,
                one.lane,
                one.visibility_ms,
                one.not_before_ms,
                one.count_before,
                one.delay_ms,
            )
            place = PlaceOf(one.queue, one.sequence)
            made = delivery_record(place, given, now_ms=entry.timestamp)
            return replace(made, offset=entry.offset)
        case QueueDeclare() as one:
            settings = Settings(
                one.visibility_ms,
                one.max_deliveries,
                one.ordered,
                one.messages_max,
                one.made_ms,
                one.first_sequence,
            )
            made = work_queue_record(one.queue, settings, now_ms=entry.timestamp)
            return replace(made, offset=entry.offset)
        case QueueDelete(queue=queue):
            made = work_queue_record(queue, None, now_ms=entry.timestamp)
            return replace(made, offset=entry.offset)
        case _:
            return None


def _text(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def _shown(data: bytes) -> tuple[msgspec.Raw, str]:
    text, encoding = _text(data)
    if encoding == "text":
        deep = data.count(b"[") + data.count(b"{") > _DEPTH_SPARE
        try:
            msgspec.json.decode(_DEEPER % data if deep else data)
        except (msgspec.MsgspecError, RecursionError):
            pass
        else:
            return msgspec.Raw(data), "json"
    return msgspec.Raw(encode(text)), encoding


def _value(shown: msgspec.Raw, encoding: str) -> bytes:
    """Without making anything of what is JSON: it may be nested as deeply as JSON can be."""
    if encoding == "json":
        return bytes(shown)
    return _bytes(msgspec.json.decode(shown, type=str), encoding)


def _bytes(text: str, encoding: str) -> bytes:
    return b64decode(text, validate=True) if encoding == "base64" else text.encode()
