"""What the HTTP client takes and gives: keys, records, messages, and what became of them."""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tidelog.client.http.errors import TidelogHTTPError

Document: TypeAlias = dict[str, Any]
"""A JSON object as a node sent it; docs/http.md says what is in it."""
Seconds: TypeAlias = float | timedelta
Consistency: TypeAlias = Literal["strong", "local"]
Form: TypeAlias = Literal["avro", "protobuf", "json-schema"]
"""What a node decodes and encodes through its schema registry."""
Encoding: TypeAlias = Literal["json", "text", "base64"] | Form
Shown: TypeAlias = Literal["auto", "json", "text", "base64"]
Isolation: TypeAlias = Literal["committed", "uncommitted"]

T = TypeVar("T")

ABSENT: Final = -1
"""As `if_version`: the key must not be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key of a bucket with its value, as it was at `version`."""

    key: str
    value: Any
    """Any JSON. What a Kafka producer wrote that is none is a str, or bytes if it is no text."""
    version: int
    expires_at_ms: int | None = None
    token: str | None = None
    """A local read that is given it sees this entry or a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A key was written or deleted."""

    key: str
    value: Any
    version: int
    is_deleted: bool
    """Whether there is no value; one that is null looks like that, too."""
    cursor: str | None
    """Where a watch goes on after this change: `watch(from_=cursor)`."""
    expires_at_ms: int | None = None
    begins_anew: bool = False
    """It is no change of a key: changes were missed, and deletions may be among them. Forget all
    keys; those that are there follow."""


@dataclass(frozen=True, slots=True)
class Put:
    """One operation of a batch: write a key."""

    key: str
    value: Any
    ttl: Seconds | None = None
    if_version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """One operation of a batch: delete a key."""

    key: str
    if_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of one operation of a batch: a version, or why there is none."""

    key: str
    version: int | None
    error: "TidelogHTTPError | None" = None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToProduce:
    """A record to write. bytes are written as they are, a str as its UTF-8, else the JSON of it.

    Without a value it is a tombstone: compaction forgets its key.
    """

    value: Any
    key: Any = None
    """A str or bytes; anything that JSON can say, with a `key_encoding`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int | None = None
    timestamp_ms: int | None = None
    encoding: Encoding | None = None
    """How a str is meant: `json` writes it with its quotes, `base64` the bytes it stands for. With
    `avro`, `protobuf`, `json-schema` the node writes the value by a schema of its registry."""
    key_encoding: Form | None = None
    schema: Mapping[str, Any] | None = None
    """Which schema: {"id": 7}, and in Protobuf "message"; else the latest of the topic's."""
    key_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Where a record stands."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    """A str, or bytes if it is no text; or what it was decoded to."""
    value: Any
    """What its bytes are: JSON, or a str, or bytes if they are no text; or what they say."""
    headers: Document
    encoding: str
    """How `value` was found: json, text or base64, or the format that it was decoded from."""
    cursor: str | None = None
    """Where a stream goes on after this record: `stream(from_=cursor)`."""
    schema: Document | None = None
    """Of a value that was decoded: the `id` of its schema, and in Protobuf its `message`."""
    key_schema: Document | None = None
    error: str | None = None
    """Why the value could not be decoded; then it is bytes."""
    key_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Some records of a partition, and where the next ones are."""

    records: tuple[Record, ...]
    next_offset: int
    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToPublish:
    """A message for a work queue: any JSON, with what its receiver is told beside it."""

    value: Any
    attributes: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    """In an ordered queue, messages of one key are given out one after the other."""
    delay: Seconds | None = None
    """Nobody gets it before that has passed."""
    deliver_at_ms: int | None = None
    """Nor before that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as it was received."""

    id: int
    receipt: str
    value: Any
    delivery_count: int
    """1 for the first time."""
    attributes: Mapping[str, str]
    key: str | None
    published_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerMessage:
    """A message of a queue with read pointers."""

    id: int
    queue_id: int
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """How far a client has read a queue: the message that it got last."""

    queue_id: int
    client_id: str
    message_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomEvent:
    """Something that happened in a room."""

    id: int
    event: str
    data: Any
    at_ms: int
    cursor: str | None = None
    """Where a subscription goes on after it: `subscribe(from_=cursor)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomEvents:
    """Some of a room's history, and the id that the next event has."""

    events: tuple[RoomEvent, ...]
    next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message of pub/sub."""

    topic: str
    data: Any


def decode(value: Any, encoding: str | None) -> Any:
    """A value as Python has it; JSON and text are that already."""
    if encoding == "base64" and isinstance(value, str):
        return b64decode(value)
    return value


def decode_key(found: Mapping[str, Any]) -> str:
    """A key of a bucket; bytes that are no UTF-8 become surrogates, as Python has it for files."""
    key: str = found["key"]
    if found.get("key_encoding") == "base64":
        return b64decode(key).decode("utf-8", "surrogateescape")
    return key


def read_record(found: Mapping[str, Any], topic: str, partition: int, cursor: str | None) -> Record:
    """A record of an answer or of a stream."""
    encoding = str(found.get("encoding", "json"))
    return Record(
        topic=topic,
        partition=partition,
        offset=found["offset"],
        timestamp_ms=found["timestamp_ms"],
        key=decode(found.get("key"), found.get("key_encoding")),
        value=decode(found.get("value"), encoding),
        headers=dict(found.get("headers") or {}),
        encoding=encoding,
        cursor=cursor,
        schema=found.get("schema"),
        key_schema=found.get("key_schema"),
        error=found.get("error"),
        key_error=found.get("key_error"),
    )


def made_of(kind: type[T], found: Mapping[str, Any], **more: Any) -> T:
    """A value of what an answer has under its fields' names; other fields are a newer node's."""
    named = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: found[name] for name in named & found.keys()} | more)


def milliseconds(time: Seconds) -> int:
    """A time to wait or to live, in whole milliseconds."""
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    return round(seconds * 1000)
