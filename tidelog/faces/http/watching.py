"""Changes of a bucket's keys as they come: server-sent events, or a WebSocket.

Rule 1: who watches from a cursor on hears of the newest state of every key that was changed since,
        in the order of the changes. Older values of a key may be gone: a bucket is compacted.
Rule 2: so may be deletions, in time. Who was told of a key before such a one, and not of that, is
        told to begin anew.
"""

from functools import partial
from typing import Any, Final

import msgspec

from tidelog.copies.views.kv import entry_of
from tidelog.faces.http.api import EVENTS, Call, Operation, Param, tagged
from tidelog.faces.http.permissions import on_bucket
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.push import EventStream, Feed, push_to_socket
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_of
from tidelog.faces.http.streams import RECORDS_MAX, RecordStream, begin_stream
from tidelog.faces.http.values import show_key, show_stored
from tidelog.model import Offset
from tidelog.security.permissions import Operation as Right
from tidelog.services.records import Batches

_encode: Final = msgspec.json.Encoder().encode
_STARTS: Final = {"now": "latest", "start": "earliest"}


class KeyChanged(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A key was set, or deleted."""

    key: str
    value: Any
    version: int
    deleted: bool = False
    """Also tells a key that is gone from one that is null."""
    expires_at_ms: int | None = None
    encoding: str = "json"
    key_encoding: str = "text"


def _show(
    prefix: bytes, found: Batches, number: int, bytes_max: int
) -> tuple[list[tuple[bytes, Offset]], Offset]:
    records, next_offset = found.unpack(RECORDS_MAX, bytes_max)
    shown = []
    for record in records:
        if record.key is None or not record.key.startswith(prefix):
            continue
        entry = entry_of(record)
        key, key_encoding = show_key(entry.key)
        value, encoding = (None, "json") if entry.value is None else show_stored(entry.value)
        change = KeyChanged(
            key=key,
            value=value,
            version=entry.version,
            expires_at_ms=entry.expires_at_ms,
            encoding=encoding,
            key_encoding=key_encoding,
            deleted=entry.value is None,
        )
        shown.append((_encode(change), record.offset + 1))
    return shown, next_offset


async def _open(call: Call) -> RecordStream:
    bucket = call.path["bucket"]
    await call.node.services.kv.places(bucket)  # it must be one
    start = call["last-event-id"] or call["from"]
    if start in ("earliest", "latest"):
        raise Problem(400, f"from is {start!r}; a watch begins at now, start, or a cursor")
    show = partial(_show, (call["prefix"] or "").encode())
    return await begin_stream(
        call.node.services.records,
        bucket,
        _STARTS.get(start, start),
        show,
        hears_deletions=True,
        judge=call.judge,
    )


async def watch_events(call: Call) -> EventStream:
    stream = await _open(call)
    return EventStream(call.node, Feed(stream.cursor), stream.fill)


async def watch_socket(call: Call) -> None:
    stream = await _open(call)
    await push_to_socket(call.node, socket_of(call), Feed(stream.cursor), stream.fill)


PARAMS: Final = (
    Param(name="prefix", doc="Only keys that begin with it."),
    Param(
        name="from",
        default="now",
        doc="now, start (all keys first), or a cursor: the id of the last event that was seen.",
    ),
    Param(
        name="last-event-id",
        is_header=True,
        doc="As browsers send it when they connect again; stronger than `from`.",
    ),
)
_ERRORS: Final = {
    404: "There is no such bucket.",
    416: "The cursor's place is gone, or deletions that came after it; start over.",
}

OPERATIONS: Final = tagged(
    "key-value",
    Operation(
        "GET",
        "/v1/kv/{bucket}:watch",
        watch_events,
        "Watch the changes of a bucket's keys, by server-sent events.",
        params=PARAMS,
        answer=KeyChanged,
        media_type=EVENTS,
        errors=_ERRORS,
        needs=on_bucket(Right.READ),
    ),
    Operation(
        WEB_SOCKET,
        "/v1/kv/{bucket}:watch",
        watch_socket,
        "Watch the changes of a bucket's keys, over a WebSocket.",
        params=PARAMS,
        answer=KeyChanged,
        errors=_ERRORS,
        needs=on_bucket(Right.READ),
    ),
)
