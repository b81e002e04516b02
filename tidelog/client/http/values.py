"""What the HTTP client takes and gives: keys, records, and what became of them."""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from tidelog.client.http.errors import TidelogHTTPError

Document: TypeAlias = dict[str, Any]
"""A JSON object as a node sent it; docs/http.md says what is in it."""
Seconds: TypeAlias = float | timedelta
Consistency: TypeAlias = Literal["strong", "local"]
Encoding: TypeAlias = Literal["json", "text", "base64"]
Shown: TypeAlias = Literal["auto", "json", "text", "base64"]
Isolation: TypeAlias = Literal["committed", "uncommitted"]

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
    key: str | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int | None = None
    timestamp_ms: int | None = None
    encoding: Encoding | None = None
    """How a str is meant: `json` writes it with its quotes, `base64` the bytes it stands for."""


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
    key: str | bytes | None
    value: Any
    """What its bytes are: JSON, or a str, or bytes if they are no text."""
    headers: Document
    encoding: str
    """How `value` was found: json, text or base64."""
    cursor: str | None = None
    """Where a stream goes on after this record: `stream(from_=cursor)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Some records of a partition, and where the next ones are."""

    records: tuple[Record, ...]
    next_offset: int
    high_watermark: int
    log_start: int


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
        topic=topic, partition=partition, offset=found["offset"],
        timestamp_ms=found["timestamp_ms"],
        key=decode(found.get("key"), found.get("key_encoding")),
        value=decode(found.get("value"), encoding), headers=dict(found.get("headers") or {}),
        encoding=encoding, cursor=cursor,
    )  # fmt: skip


def milliseconds(time: Seconds) -> int:
    """A time to wait or to live, in whole milliseconds."""
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    return round(seconds * 1000)
