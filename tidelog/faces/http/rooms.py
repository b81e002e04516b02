"""Streams: rooms with a history, whose events anybody can hear from any point on.

Rule 1: a room is a topic of one partition, `room.NAME`; an event's id is its offset. So a room is
        replicated, kept and forgotten as any topic is, and Kafka's clients can read it.
Rule 2: a room comes to be with its first event, where topics do; who listens to one that is not
        there is told so.
"""

from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from tidelog.broker.topics import create_topic, delete_topic
from tidelog.controller.decisions import NewTopic
from tidelog.errors import TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.faces.http.api import EVENTS, Call, Operation, Param, json_answer, tagged
from tidelog.faces.http.paging import AFTER, LIMIT, shown_page
from tidelog.faces.http.permissions import DESCRIBES_EACH_ROOM, on_room
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.push import EventStream, Feed, Source, push_to_socket
from tidelog.faces.http.records import outside
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_of
from tidelog.faces.http.streams import RECORDS_MAX, Cursor, RecordStream, begin_stream, write_cursor
from tidelog.faces.http.values import show_stored
from tidelog.faces.http.writes import WRITE_PARAMS, wanted_of
from tidelog.model import Offset, topic_name_problem
from tidelog.records import Record
from tidelog.security.authorizer import require_create
from tidelog.security.permissions import Operation as Right
from tidelog.services.packing import NewRecord
from tidelog.services.records import EARLIEST, LATEST, MIB, Batches, ReadOutside

PREFIX: Final = "room."
EVENT_HEADER: Final = "event"
EVENTS_AT_ONCE: Final = 1000

_encode: Final = msgspec.json.Encoder().encode


class RoomWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much history a room shall have."""

    retention_ms: int | None = None
    retention_events: int | None = None


class RoomShown(msgspec.Struct, kw_only=True):
    name: str
    first: int
    next: int
    subscribers: int


class Rooms(msgspec.Struct, kw_only=True):
    rooms: list[str]
    next: str | None


class NewEvent(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Something that happened."""

    data: msgspec.Raw
    event: str = "message"


class EventMade(msgspec.Struct, kw_only=True):
    id: int


class EventShown(msgspec.Struct, kw_only=True):
    id: int
    event: str
    data: Any
    at_ms: int


class Events(msgspec.Struct, kw_only=True):
    events: list[EventShown]
    next: int


def topic_of(call: Call) -> str:
    name: str = call.path["room"]
    if (problem := topic_name_problem(PREFIX + name)) is not None:
        raise Problem(400, f"{name!r} cannot be a room's name: {problem}")
    return PREFIX + name


def _missing(call: Call) -> Problem:
    return Problem(404, f"there is no room {call.path['room']!r}; it comes with its first event")


# Rooms.


async def list_rooms(call: Call) -> Rooms:
    topics = call.broker.image.topics
    names = [name.removeprefix(PREFIX) for name in topics if name.startswith(PREFIX)]
    found, following = await shown_page(call, names, DESCRIBES_EACH_ROOM)
    return Rooms(rooms=found, next=following)


async def make_room(call: Call) -> Any:
    wanted: RoomWanted = call.body
    config: dict[str, str] = {}
    if wanted.retention_ms is not None:
        config["retention.ms"] = str(wanted.retention_ms)
    if wanted.retention_events is not None:
        config["retention.records"] = str(wanted.retention_events)
    made = await _make(call, config)
    return json_answer(await get_room(call), 201 if made else 200)


async def _make(call: Call, config: dict[str, str]) -> bool:
    require_create(call.access, topic_of(call))
    with suppress(TopicAlreadyExists):
        await create_topic(call.broker, NewTopic(name=topic_of(call), partitions=1, config=config))
        return True
    return False


async def get_room(call: Call) -> RoomShown:
    found = await _read(call, offset=LATEST, records_max=1)
    counts = await call.node.services.pubsub.all_counts()
    return RoomShown(
        name=call.path["room"],
        first=found.log_start,
        next=found.high_watermark,
        subscribers=counts.get(topic_of(call), 0),
    )


async def drop_room(call: Call) -> dict[str, Any]:
    try:
        await delete_topic(call.broker, topic_of(call), None)
    except UnknownTopicOrPartition:
        raise _missing(call) from None
    return {"name": call.path["room"], "deleted": True}


# Events.


async def publish(call: Call) -> EventMade:
    wanted: NewEvent = call.body
    topic = topic_of(call)
    if not 0 < len(wanted.event) <= 256:
        raise Problem(400, "event names what happened, in 1 to 256 characters")
    if topic not in call.broker.image.topics:
        if not call.broker.config.auto_create_topics_enable:
            raise Problem(404, f"make the room first: PUT /v1/rooms/{call.path['room']}")
        await _make(call, {})
    how = wanted_of(call, f"room {topic}")
    record = NewRecord(
        value=bytes(wanted.data), headers=((EVENT_HEADER, wanted.event.encode()),), partition=0
    )
    (outcome,) = await call.node.services.records.produce(
        topic, [record], once=how.once, copies=how.copies, seconds_max=how.seconds
    )
    assert outcome.offset is not None, "whatever failed was raised"
    return EventMade(id=outcome.offset)


async def history(call: Call) -> Events:
    start = call["from"]
    offset = {"earliest": EARLIEST, "latest": LATEST}.get(start)
    if offset is None:
        if not (start.isascii() and start.isdecimal() and len(start) < 19):
            raise Problem(400, f"from is {start!r}; it must be earliest, latest or an event's id")
        offset = int(start)
    found = await _read(call, offset=offset, wait_seconds=call["wait_ms"] / 1000, records_max=call["limit"])
    call.judge()  # it may have waited for long
    records, following = await call.node.services.records.aside(
        len(found.data), partial(found.unpack, call["limit"], MIB)
    )
    return Events(events=[_shown(record) for record in records], next=following)


async def _read(call: Call, **wanted: Any) -> Batches:
    try:
        return await call.node.services.records.read(topic_of(call), 0, **wanted)
    except ReadOutside as error:
        raise outside(error) from error
    except UnknownTopicOrPartition:
        raise _missing(call) from None


def _shown(record: Record) -> EventShown:
    kind = next((value or b"" for name, value in record.headers if name == EVENT_HEADER), b"")
    return EventShown(
        id=record.offset,
        event=kind.decode("utf-8", "replace") or "message",
        data=show_stored(record.value or b"null")[0],
        at_ms=record.timestamp_ms,
    )


def _show(found: Batches, number: int, bytes_max: int) -> tuple[list[tuple[bytes, Offset]], Offset]:
    records, following = found.unpack(RECORDS_MAX, bytes_max)
    return [(_encode(_shown(one)), one.offset + 1) for one in records], following


# Listening.


async def _open(call: Call) -> tuple[Feed, Source]:
    start = call["last-event-id"] or call["from"]
    if start.isascii() and start.isdecimal() and len(start) < 19:
        start = write_cursor(Cursor(None, {0: int(start)}))
    topic = topic_of(call)
    try:
        stream = await begin_stream(call.node.services.records, topic, start, _show, judge=call.judge)
    except UnknownTopicOrPartition:
        raise _missing(call) from None
    return Feed(stream.cursor), _counted(call, topic, stream)


def _counted(call: Call, topic: str, stream: RecordStream) -> Source:
    async def fill(feed: Feed) -> None:
        presence = call.node.services.pubsub.presence
        presence[topic] += 1
        try:
            await stream.fill(feed)
        finally:
            presence[topic] -= 1
            if not presence[topic]:
                del presence[topic]

    return fill


async def subscribe_events(call: Call) -> EventStream:
    return EventStream(call.node, *await _open(call))


async def subscribe_socket(call: Call) -> None:
    await push_to_socket(call.node, socket_of(call), *await _open(call))


_ROOM: Final = "/v1/rooms/{room}"
_MISSING: Final = {404: "There is no such room."}
_FROM: Final = Param(
    name="from",
    default="latest",
    doc="earliest, latest, the id of an event, or the cursor of one that was heard.",
)
_SUBSCRIBE: Final = (
    _FROM,
    Param(name="last-event-id", is_header=True, doc="As browsers send it; stronger than `from`."),
)

OPERATIONS: Final = tagged(
    "rooms",
    Operation(
        "POST",
        _ROOM + "/events",
        publish,
        "Publish an event in a room.",
        body=NewEvent,
        status=201,
        params=WRITE_PARAMS,
        errors=_MISSING,
        needs=on_room(Right.WRITE),
    ),
    Operation(
        "GET",
        _ROOM + "/events",
        history,
        "Read the history of a room.",
        params=(
            Param(
                name="from",
                default="earliest",
                doc="earliest, latest, or the id of an event: the first that is wanted.",
            ),
            Param(name="limit", kind=int, default=100, least=1, most=EVENTS_AT_ONCE, doc="At most."),
            Param(name="wait_ms", kind=int, default=0, least=0, most=30_000, doc="How long to wait for one."),
        ),
        errors=_MISSING,
        needs=on_room(Right.READ),
    ),
    Operation(
        "GET",
        _ROOM + "/subscribe",
        subscribe_events,
        "Subscribe to a room, by server-sent events.",
        params=_SUBSCRIBE,
        answer=EventShown,
        errors=_MISSING,
        media_type=EVENTS,
        needs=on_room(Right.READ),
    ),
    Operation(
        WEB_SOCKET,
        _ROOM + "/subscribe",
        subscribe_socket,
        "Subscribe to a room, over a WebSocket.",
        params=_SUBSCRIBE,
        answer=EventShown,
        errors=_MISSING,
        needs=on_room(Right.READ),
    ),
    Operation(
        "GET", "/v1/rooms", list_rooms, "List the rooms.", params=(LIMIT, AFTER), needs=(DESCRIBES_EACH_ROOM,)
    ),
    Operation(
        "PUT",
        _ROOM,
        make_room,
        "Create a room.",
        body=RoomWanted,
        answer=RoomShown,
        status=201,
        errors={200: "It was there."},
        needs=on_room(Right.CREATE),
    ),
    Operation(
        "GET",
        _ROOM,
        get_room,
        "Describe a room: the length of its history, its listeners.",
        errors=_MISSING,
        needs=on_room(Right.DESCRIBE),
    ),
    Operation(
        "DELETE",
        _ROOM,
        drop_room,
        "Delete a room and its history.",
        errors=_MISSING,
        needs=on_room(Right.DELETE),
    ),
)
