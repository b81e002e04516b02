"""A topic's records as they come: server-sent events, or a WebSocket.

Rule 1: within a partition nothing is left out, repeated or out of order, whoever comes to lead it.
Rule 2: a cursor names the topic by its id, and the next offset of every partition. It is the
        client's: a node that it never spoke with goes on from it.
Rule 3: what cannot be gone on with is said, and is the end: a topic that was deleted, or offsets
        that were. So it is said only if that is certain: a node may not know yet what another has
        told its client.
"""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from tidelog.errors import BrokerError, UnknownTopicOrPartition
from tidelog.faces.http.api import EVENTS, Call, Operation, Param, tagged
from tidelog.faces.http.pacing import in_turn
from tidelog.faces.http.permissions import on_topic
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.push import Event, EventStream, Feed, push_to_socket
from tidelog.faces.http.records import DECODED, KEYS_DECODED, RecordShown, outside, show_record
from tidelog.faces.http.schemas import PartShower, SchemaDesk
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_of
from tidelog.model import Offset
from tidelog.schemas.table import FORMATS
from tidelog.security.permissions import Operation as Right
from tidelog.services.records import LATEST, MIB, Batches, Purges, ReadOutside, RecordService

PARTITIONS_MAX: Final = 256
RECORDS_MAX: Final = 5000
"""What is unpacked at a time: a batch that is read in pieces is opened anew for each."""
SLICE: Final = 250
"""Events between two breaths: to number them takes a millisecond."""
WAIT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.5
UNAVAILABLE: Final = 503
_CURSOR_MAX: Final = 16 * 1024

_encode: Final = msgspec.json.Encoder().encode


class Cursor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where a stream goes on."""

    topic: str | None
    """Its id; None for whichever has the name now."""
    positions: dict[int, Offset]
    """The next offset of every partition."""


_read_cursor: Final = msgspec.json.Decoder(Cursor).decode


class RecordStreamed(RecordShown, kw_only=True, omit_defaults=True):
    """A record of a stream."""

    partition: int


Shown = tuple[list[tuple[bytes, Offset]], Offset]
Show = Callable[[Batches, int, int], Shown]
"""What is told of some batches of a partition, up to a size: each event as JSON with the offset
after it; and after all."""
Aside = Callable[[int, Callable[[], Shown]], Awaitable[Shown]]
"""Does such work of so many bytes in a thread."""


class RecordStream:
    """The records of some partitions of a topic from given offsets on, for one client."""

    def __init__(
        self,
        service: RecordService,
        topic: str,
        topic_id: str,
        positions: dict[int, Offset],
        show: "Show",
        since: dict[int, Purges] | None = None,
        aside: Aside | None = None,
        judge: Callable[[], None] = lambda: None,
    ) -> None:
        """`since`, for a client that must hear of every deletion of what it was told: how often
        deletions had been purged from each partition of which it was told of nothing before.
        `aside` is where records become events; by default where the service unpacks them.
        `judge` is asked before anything is told: what was allowed may be denied by then."""
        self._judge = judge
        self._aside: Aside = aside or service.aside
        self._since = since
        self._service = service
        self._topic = topic
        self._topic_id = topic_id
        self._show = show
        self._positions = positions
        """After what was put into the feed."""

    @property
    def cursor(self) -> str:
        return write_cursor(Cursor(self._topic_id, self._positions))

    async def fill(self, feed: Feed) -> None:
        """A `push.Source`."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(in_turn(self._follow(number, feed))) for number in self._positions]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, number: int, feed: Feed) -> None:
        # Together the partitions hold no more than one feed does.
        bytes_max = max(MIB // len(self._positions), 16 * 1024)
        offset = self._positions[number]
        while True:
            found = await self._read(number, offset, bytes_max)
            shown, offset = await self._aside(len(found.data), partial(self._show, found, number, bytes_max))
            for first in range(0, len(shown), SLICE):
                if not await feed.room():
                    return
                feed.put([self._event(number, *one) for one in shown[first : first + SLICE]])
                await asyncio.sleep(0)
            if feed.is_over:
                return
            self._positions[number] = offset  # some that nobody may see may have followed

    def _event(self, number: int, data: bytes, after: Offset) -> Event:
        self._positions[number] = after
        return Event(data, self.cursor)

    async def _read(self, number: int, offset: Offset, bytes_max: int) -> Batches:
        while True:
            try:
                found = await self._service.read(
                    self._topic,
                    number,
                    offset=offset,
                    wait_seconds=WAIT_SECONDS,
                    bytes_max=bytes_max,
                    records_max=RECORDS_MAX,
                    since=None if self._since is None else self._since.get(number),
                )
            except ReadOutside as error:
                if error.topic != self._topic_id:
                    raise _another(self._topic) from None
                raise outside(error) from error
            except UnknownTopicOrPartition:
                raise
            except BrokerError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)  # nobody leads now; somebody will
                continue
            if found.topic != self._topic_id:
                raise _another(self._topic)
            self._judge()
            if self._since is not None:
                check_purged(self._topic, number, offset, found)
            return found


def check_purged(topic: str, number: int, offset: Offset, found: Batches) -> None:
    """Problem if deletions may be gone that were never told of to who is at `offset`."""
    if found.purged > offset:
        raise Problem(
            416,
            f"deletions before offset {found.purged} of {topic}-{number} were compacted, and some "
            f"may have come after {offset}; start over, from the beginning",
            log_start=found.log_start,
            high_watermark=found.high_watermark,
        )


def _another(topic: str) -> Problem:
    return Problem(404, f"{topic} was deleted, and another has its name now")


def show_records(
    encoding: str, formats: dict[str, str], desk: SchemaDesk, found: Batches, number: int, bytes_max: int
) -> Shown:
    """Each record as JSON with the offset after it; and after all.

    `formats` are those of the schema registry by which keys and values are decoded.
    """
    records, next_offset = found.unpack(RECORDS_MAX, bytes_max)
    parts = {part: PartShower(desk, part, one) for part, one in formats.items()}
    shown = [
        (_encode(RecordStreamed(partition=number, **show_record(one, encoding, parts))), one.offset + 1)
        for one in records
    ]
    return shown, next_offset


def decoding_aside(desk: SchemaDesk) -> Aside:
    """Decodes where the records' pages are decoded; a registry that is away or busy is waited for."""

    async def aside(_: int, work: Callable[[], Shown]) -> Shown:
        while True:
            try:
                return await desk.run(work)
            except Problem as problem:
                if problem.status != UNAVAILABLE:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    return aside


# Cursors.


def write_cursor(cursor: Cursor) -> str:
    return urlsafe_b64encode(_encode(cursor)).decode().rstrip("=")


def read_cursor(text: str) -> Cursor:
    cursor = None
    if len(text) <= _CURSOR_MAX:
        with suppress(ValueError, msgspec.MsgspecError, RecursionError):
            cursor = _read_cursor(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    if cursor is None or min(cursor.positions.values(), default=0) < 0:
        raise Problem(400, f"from is {text[:100]!r}; it must be earliest, latest, or the id of an event")
    return cursor


# Beginning.


async def open_stream(call: Call) -> RecordStream:
    """The stream that a request asks for; a Problem if it cannot be."""
    desk = call.keep(SchemaDesk)
    asked = {"key": call["key_encoding"], "value": call["encoding"]}
    formats = {part: one for part, one in asked.items() if one in FORMATS}
    if formats:
        desk.check()
    return await begin_stream(
        call.node.services.records,
        call.path["topic"],
        call["last-event-id"] or call["from"],
        partial(show_records, call["encoding"], formats, desk),
        call["partitions"],
        aside=decoding_aside(desk) if formats else None,
        judge=call.judge,
    )


async def _look_beyond(service: RecordService, name: str, number: int, position: Offset) -> None:
    """Problem if a partition certainly ends before `position`."""
    try:
        await service.read(name, number, offset=position, records_max=1)
    except ReadOutside as error:
        raise outside(error) from error


async def begin_stream(
    service: RecordService,
    name: str,
    start: str,
    show: Show,
    partitions: str | None = None,
    *,
    hears_deletions: bool = False,
    aside: Aside | None = None,
    judge: Callable[[], None] = lambda: None,
) -> RecordStream:
    """The stream of a topic from `start` on: earliest, latest, or a cursor.

    `hears_deletions`: end it where a deletion may be gone of what its client was told before.
    """
    topic = await service.topic(name)
    cursor = Cursor(None, {}) if start in ("earliest", "latest") else read_cursor(start)
    known = cursor.positions
    named = None if partitions is None else _read_numbers(partitions)
    highest = max((*known, *(named or ())), default=0)
    if cursor.topic not in (None, topic.id.hex) or highest >= len(topic.partitions):
        topic = await service.topic(name, newest=True)
    count = len(topic.partitions)
    if cursor.topic not in (None, topic.id.hex):
        raise _another(name)
    numbers = _all_numbers(count, name) if named is None else named
    if numbers[-1] >= count:
        raise UnknownTopicOrPartition(f"{name}-{numbers[-1]}")
    if unknown := [number for number in known if not 0 <= number < count]:
        raise Problem(400, f"the cursor names partition {unknown[0]}; {name} has {count}")
    found = await asyncio.gather(
        *(service.read(name, number, offset=LATEST, records_max=1) for number in numbers)
    )
    if any(now.topic != topic.id.hex for now in found):  # it was made anew meanwhile
        if cursor.topic is not None:
            raise _another(name)
        return await begin_stream(
            service, name, start, show, partitions, hears_deletions=hears_deletions, aside=aside, judge=judge
        )
    positions: dict[int, Offset] = {}
    since: dict[int, Purges] = {}
    for number, now in zip(numbers, found, strict=True):
        # A partition that the cursor does not know has come since it was written.
        position = now.offset if start == "latest" else known.get(number, now.log_start)
        if position < now.log_start:
            raise outside(ReadOutside(msgspec.structs.replace(now, offset=position)))
        if position > now.high_watermark:  # another leader may have shown more
            await _look_beyond(service, name, number, position)
        positions[number] = position
        is_told_of_nothing = start != "latest" and (number not in known or position == 0)
        if is_told_of_nothing and now.purges is not None:
            since[number] = now.purges  # who has been told of nothing lacks nothing
        elif hears_deletions:
            check_purged(name, number, position, now)
    heard = since if hears_deletions else None
    return RecordStream(service, name, topic.id.hex, positions, show, heard, aside, judge)


def _all_numbers(count: int, topic: str) -> list[int]:
    if count > PARTITIONS_MAX:
        raise Problem(
            400,
            f"{topic} has {count} partitions; a stream has up to {PARTITIONS_MAX}. "
            "Name some as partitions=0,1",
        )
    return list(range(count))


def _read_numbers(text: str) -> list[int]:
    """Partitions as they were asked for, in order."""
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise Problem(400, f"partitions is {text[:100]!r}; it must be numbers between commas")
    numbers = sorted(set(map(int, words)))
    if len(numbers) > PARTITIONS_MAX:
        raise Problem(400, f"a stream has up to {PARTITIONS_MAX} partitions")
    return numbers


async def stream_events(call: Call) -> EventStream:
    stream = await open_stream(call)
    return EventStream(call.node, Feed(stream.cursor), stream.fill)


async def stream_socket(call: Call) -> None:
    stream = await open_stream(call)
    await push_to_socket(call.node, socket_of(call), Feed(stream.cursor), stream.fill)


PARAMS: Final = (
    Param(
        name="from",
        default="latest",
        doc="earliest, latest, or a cursor: the id of the last event that was seen.",
    ),
    Param(name="partitions", doc="Numbers between commas; all by default."),
    DECODED,
    KEYS_DECODED,
    Param(
        name="last-event-id",
        is_header=True,
        doc="As browsers send it when they connect again; stronger than `from`.",
    ),
)
ERRORS: Final = {
    404: "There is no such topic or partition.",
    416: "A log does not hold what the cursor names any more.",
}

OPERATIONS: Final = tagged(
    "streams",
    Operation(
        "GET",
        "/v1/topics/{topic}/stream",
        stream_events,
        "Stream a topic's records as server-sent events.",
        params=PARAMS,
        answer=RecordStreamed,
        errors=ERRORS,
        media_type=EVENTS,
        needs=on_topic(Right.READ),
    ),
    Operation(
        WEB_SOCKET,
        "/v1/topics/{topic}/ws",
        stream_socket,
        "Stream a topic's records over a WebSocket.",
        params=PARAMS,
        answer=RecordStreamed,
        errors=ERRORS,
        needs=on_topic(Right.READ),
    ),
)
