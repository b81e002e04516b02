"""Events that are pushed to one client: as server-sent events, or as messages of a WebSocket.

Rule 1: what waits for a client is bounded. Whoever makes events waits while its feed is full.
Rule 2: a client that takes nothing from a full feed for too long is let go. It is told why, and
        where to go on, as soon as it reads again.
Rule 3: when the client goes, all that feeds it ends at once; when the node stops, it is told so.
Rule 4: a client that has nothing to hear gets a heartbeat, so that either side notices a
        connection that is dead.
"""

# event  := ("event: " kind)?, "id: " cursor, "data: " json, ""     lines; a kind but for messages
# socket := {"cursor": ..., fields of the data}                     for a message
#         | {"event": kind, "cursor": ..., fields of the data}      for anything else

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tidelog.errors import BrokerError
from tidelog.faces.http.edge.messages import Head, Request, Response, Send
from tidelog.faces.http.edge.sockets import WebSocket, WebSocketDisconnect
from tidelog.faces.http.pacing import in_turn
from tidelog.faces.http.problems import Problem, problem_of
from tidelog.faces.http.sockets import FAILED, NORMAL, REFUSED, TRY_AGAIN

if TYPE_CHECKING:
    from tidelog.faces.node import Node

_log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "text/event-stream"
FEED_BYTES_MAX: Final = 1024 * 1024
PORTION_BYTES: Final = 64 * 1024
"""What is given to the connection at a time."""
HEARTBEAT_SECONDS: Final = 15.0
SLOW_SECONDS: Final = 15.0
"""For how long a client may take nothing. The connection is closed after `frame.timeout.ms` only:
in between it can still hear why it was let go."""
RETRY_MS: Final = 1000
"""How long a browser waits before it connects again."""
RESTARTING: Final = 1012
REASON_BYTES_MAX: Final = 123
"""Of the frame that closes a socket."""
_FAREWELL_SECONDS: Final = 1.0

_encode: Final = msgspec.json.Encoder().encode


class Event(NamedTuple):
    """Something that a client hears of."""

    data: bytes
    """A JSON object with at least one field."""
    cursor: str
    """Where to go on after it."""
    kind: str = ""


class _End(NamedTuple):
    kind: str
    facts: dict[str, Any]
    close_code: int
    """Of a socket."""


class Feed:
    """What waits for one client, and how it ends.

    Several may put into it, and one takes from it. Owned by the event loop.
    """

    def __init__(self, cursor: str = "", *, bytes_max: int = FEED_BYTES_MAX) -> None:
        self.cursor = cursor
        """After what was taken."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: deque[Event] = deque()
        self._end: _End | None = None
        self._is_told = False
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._end is not None

    @property
    def close_code(self) -> int:
        return NORMAL if self._end is None else self._end.close_code

    @property
    def close_reason(self) -> str:
        return "" if self._end is None else str(self._end.facts.get("detail", ""))

    async def over(self) -> None:
        """Wait until nobody wants more."""
        await self._over.wait()

    async def room(self) -> bool:
        """Wait until there is room; whether it is still wanted."""
        while self._bytes >= self._bytes_max and not self.is_over:
            self._taken.clear()
            try:
                async with asyncio.timeout(SLOW_SECONDS):
                    await self._taken.wait()
            except TimeoutError:
                self._drop(f"nothing was read for {SLOW_SECONDS:g} s while {self._bytes_max} bytes waited")
        return not self.is_over

    def put(self, events: Sequence[Event]) -> None:
        """Add events, for which there is room."""
        if not self.is_over:
            self._events.extend(events)
            self._bytes += sum(len(event.data) + len(event.cursor) for event in events)
            self._filled.set()

    def offer(self, event: Event) -> bool:
        """Add an event if there is room; a client without any is let go. Whether it was added."""
        if not self.is_over and self._bytes >= self._bytes_max:
            self._drop(f"{self._bytes_max} bytes waited to be read")
        if self.is_over:
            return False
        self.put([event])
        return True

    def end(self, kind: str, close_code: int, facts: dict[str, Any]) -> None:
        """Tell the client, after all that it has still to hear, why there is no more."""
        if self._end is None:
            self._end = _End(kind, facts, close_code)
            self._filled.set()
            self._taken.set()
            self._over.set()

    def _drop(self, why: str) -> None:
        self._events.clear()
        self._bytes = 0
        detail = f"{why}; connect again with this cursor, and read faster"
        self.end("dropped", TRY_AGAIN, {"reason": "slow", "detail": detail})

    async def take(self) -> list[Event]:
        """Some events, once there are any; none when it is over."""
        while not self._events:
            if self._end is not None:
                return self._last(self._end)
            self._filled.clear()
            await self._filled.wait()
        portion: list[Event] = []
        size = 0
        while self._events and size < PORTION_BYTES:
            portion.append(self._events.popleft())
            size += len(portion[-1].data) + len(portion[-1].cursor)
        self._bytes -= size
        self.cursor = portion[-1].cursor
        self._taken.set()
        return portion

    async def take_for(self, asked: Head) -> list[Event]:
        """The same, for who has asked so; the end, once what proved who asks no longer holds."""
        events = await self.take()
        if events and not asked.is_still_proved():
            self._events.clear()
            self.end("error", REFUSED, {"status": 401, "detail": "what proved who asks has ended"})
            events = [] if self._end is None else self._last(self._end)
        return events

    def _last(self, end: _End) -> list[Event]:
        if self._is_told or not end.kind:
            return []
        self._is_told = True
        return [Event(_encode({"cursor": self.cursor, **end.facts}), self.cursor, end.kind)]


Source = Callable[[Feed], Awaitable[None]]
"""Fills a feed for as long as it is wanted; what it raises ends the feed."""


async def _fill(feed: Feed, source: Source) -> None:
    try:
        await source(feed)
        feed.end("", NORMAL, {})
    except (BrokerError, Problem) as error:
        problem = problem_of(error) if isinstance(error, BrokerError) else error
        code = TRY_AGAIN if problem.status == 503 else REFUSED
        facts = {"status": problem.status, "detail": problem.detail, **problem.facts}
        feed.end("error", code, facts)
    except Exception:
        _log.exception("a stream failed")
        detail = "a bug in tidelog; see the node's log"
        feed.end("error", FAILED, {"status": 500, "detail": detail})


async def _pump(
    node: "Node", feed: Feed, source: Source, write: Coroutine[Any, Any, None], leave: Awaitable[None]
) -> None:
    """Fill and write until one of the two has ended, the client has gone or the node stops."""
    filling = asyncio.ensure_future(in_turn(_fill(feed, source)))
    writing, leaving = asyncio.ensure_future(in_turn(write)), asyncio.ensure_future(leave)
    try:
        await asyncio.wait((writing, leaving, node.stop_wanted), return_when=asyncio.FIRST_COMPLETED)
        if not writing.done() and not leaving.done():
            detail = "the node is stopping; connect to another with this cursor"
            feed.end("error", RESTARTING, {"status": 503, "detail": detail})
            await asyncio.wait(
                (writing, leaving), timeout=_FAREWELL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        if writing.done() and not isinstance(
            error := writing.exception(), OSError | WebSocketDisconnect | None
        ):
            raise error
    finally:
        for task in (filling, writing, leaving):
            task.cancel()
        await asyncio.gather(filling, writing, leaving, return_exceptions=True)


# Server-sent events.


class EventStream(Response):
    """The answer that goes on: events of a source, as long as the client listens."""

    is_endless = True

    def __init__(self, node: "Node", feed: Feed, source: Source) -> None:
        # Neither kept by a cache nor held back by a proxy until it is long enough.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers=headers, media_type=MEDIA_TYPE)
        self.body = None
        self._node = node
        self._feed = feed
        self._source = source

    async def write(self, request: Request, send: Send) -> None:
        await _pump(self._node, self._feed, self._source, self._write(request, send), request.gone())

    async def _write(self, request: Request, send: Send) -> None:
        feed = self._feed
        # A browser that loses the connection before the first event goes on from here, too.
        body = f"retry: {RETRY_MS}\nid: {feed.cursor}\n\n".encode()
        while body:
            await send(body)
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    body = b"".join(map(_as_lines, await feed.take_for(request)))
            except TimeoutError:
                body = b": heartbeat\n\n"


def _as_lines(event: Event) -> bytes:
    kind = f"event: {event.kind}\n" if event.kind else ""
    # JSON has ends of lines only where it could have spaces.
    data = event.data.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"%sid: %s\ndata: %s\n\n" % (kind.encode(), event.cursor.encode(), data)


# WebSockets.


async def push_to_socket(node: "Node", socket: WebSocket, feed: Feed, source: Source) -> None:
    """Accept, push the events of a source as messages, and close when that is over."""
    await socket.accept()
    await _pump(node, feed, source, _write_to_socket(socket, feed), socket.gone())


async def _write_to_socket(socket: WebSocket, feed: Feed) -> None:
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                events = await feed.take_for(socket)
        except TimeoutError:
            events = [Event(_encode({"cursor": feed.cursor}), feed.cursor, "heartbeat")]
        for event in events:
            await socket.send_text(_as_message(event))
        if not events:
            reason = feed.close_reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
            await socket.close(feed.close_code, reason)
            return


def _as_message(event: Event) -> str:
    name, what = ("event", event.kind) if event.kind else ("cursor", event.cursor)
    return f'{{"{name}":"{what}",{event.data[1:].decode()}'
