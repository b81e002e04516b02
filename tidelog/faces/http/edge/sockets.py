"""WebSockets: what handlers see, and the connection that became one.

Rule 1: `websockets` speaks the protocol, without I/O of its own. What it does not bound is bounded
        here: fragments of a message, frames of one turn, pongs to somebody who does not listen. While
        messages wait to be taken, nothing more is parsed.
Rule 2: nothing is compressed: the loop has better things to do. No input is worth a line in the log.
Rule 3: pings find out whether the other side is there. A stop says 1012, and waits a little for the answer.
"""

import asyncio
import logging
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as WireRequest
from websockets.http11 import Response as WireResponse

from tidelog.faces.http.edge.bodies import Share
from tidelog.faces.http.edge.handshake import Handshake
from tidelog.faces.http.edge.messages import REQUEST_ID, Head, Response
from tidelog.faces.http.problems import MEDIA_TYPE, problem_bytes

if TYPE_CHECKING:
    from tidelog.faces.http.edge.server import Server

FRAGMENTS_MAX: Final = 1024
"""Pieces of one message: the empty ones would count for nothing otherwise."""
UNREAD_BYTES_MAX: Final = 1024 * 1024
"""What may wait for a client that says something and does not listen."""
PING_SECONDS: Final = 20.0
GOODBYE_SECONDS_MAX: Final = 1.0
"""For how long a stop waits for the answer to its goodbye."""
CLOSE_SECONDS_MAX: Final = 10.0

GONE: Final = 1005
CONTROLS_MAX: Final = 64
"""Pings and pongs that may come at once."""
SLICE_BYTES: Final = 2048
"""What is parsed at once: a frame may have six bytes."""
TURN_FRAMES: Final = 128
"""After so many frames others get their turn: each keeps the loop for some microseconds."""
NEVER_OPENED: Final = 1006
BAD_TEXT: Final = 1007
TOO_MANY: Final = 1008
SILENT: Final = 1011
GOING_DOWN: Final = 1012
NO_ROOM: Final = 1013

_log = logging.getLogger(__name__)
_wire_log = logging.getLogger(f"{__name__}.wire")
_wire_log.setLevel(logging.ERROR)


class WebSocketDisconnect(Exception):
    """The socket has ended; nothing more is heard or said."""

    def __init__(self, code: int = 1000, reason: str = "") -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Line(Protocol):
    """What carries the messages of a socket. WebSocketDisconnect where it has ended."""

    async def accept(self, headers: dict[str, str]) -> None:
        """Open it."""

    async def hear(self) -> str | bytes:
        """The next message of the client."""

    async def say(self, message: str | bytes) -> None:
        """Send a message; waits while the client reads too slowly."""

    async def close(self, code: int, reason: str) -> None:
        """Send the last word."""


class WebSocket(Head):
    """A socket as its handler sees it."""

    line: Line
    is_accepted = False
    is_over = False

    async def accept(self) -> None:
        await self.line.accept({REQUEST_ID: self.request_id} if self.request_id else {})
        self.is_accepted = True

    async def receive(self) -> str | bytes:
        try:
            return await self.line.hear()
        except WebSocketDisconnect:
            self.is_over = True
            raise

    async def receive_text(self) -> str:
        """The next message; TypeError if it is none of text."""
        message = await self.receive()
        if not isinstance(message, str):
            raise TypeError("a message of text was expected")
        return message

    async def gone(self) -> None:
        """Wait until the client has gone; what it says is for nobody."""
        try:
            while True:
                await self.receive()
        except WebSocketDisconnect:
            pass

    async def send_text(self, text: str) -> None:
        await self.line.say(text)

    async def send_bytes(self, data: bytes) -> None:
        await self.line.say(data)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.is_over = True
        await self.line.close(code, reason)


class SocketConnection(asyncio.Protocol):
    """A connection that became a WebSocket, and the line of its handler."""

    def __init__(self, server: "Server", socket: WebSocket) -> None:
        self.transport: asyncio.Transport
        self._server = server
        self._socket = socket
        socket.line = self
        self._loop = asyncio.get_running_loop()
        self._wire = Handshake(max_size=server.limits().message_bytes, logger=_wire_log)
        self._answer: WireResponse | None = None
        """To the request that opens it; sent by `accept`."""
        self._is_open = False
        self._is_closing = False
        """Whether our last word was said."""
        self._messages: deque[str | bytes] = deque()
        self._end: WebSocketDisconnect | None = None
        """What is heard after the messages."""
        self._heard = asyncio.Event()
        self._fragments: list[bytes] = []
        self._unheard_bytes = 0
        """Received of a message that is not whole."""
        self._share = Share(server.bodies)
        self._controls = 0
        """Pings and pongs of the bytes that came last."""
        self._unparsed = b""
        """What came and waits; nothing is read meanwhile. No frame is answered before the head."""
        self._is_parsing_soon = False
        self._is_text = False
        self._is_reading = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._ping: bytes | None = None
        """Which was not answered yet."""
        self._pings = 0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._moved_at = self._loop.time()
        self._unsent = 0

    def __repr__(self) -> str:
        return f"SocketConnection({self.client}, {self._wire.state.name.lower()})"

    @property
    def client(self) -> Any:
        return self.transport.get_extra_info("peername")

    # What the transport says.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._server.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        self._share.hold(0)
        self._stop_timers()
        self._finish(GONE if self._is_open else NEVER_OPENED)
        self._writable.set()
        self._server.left.set()

    def eof_received(self) -> None:
        pass

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._moved_at = self._loop.time()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._moved_at = self._loop.time()
        if self._answer is None:  # the head, alone and whole
            self._take(data)
        else:
            self._controls = 0
            self._unparsed += data
            self._parse()

    def _parse(self) -> None:
        """Take what came, until there are messages; the rest once they are taken."""
        self._is_parsing_soon = False
        data, at, frames = self._unparsed, 0, 0
        while at < len(data) and frames < TURN_FRAMES and self._takes_more:
            frames += self._take(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._unparsed = data[at:]
        if self._unparsed or not self._takes_more:
            self._pause_reading()
        if self._takes_more:
            self._resume_reading()

    @property
    def _takes_more(self) -> bool:
        return self._is_open and (self._is_closing or not self._messages) and not self.transport.is_closing()

    def _take(self, data: bytes) -> int:
        """Do what these bytes say; how many frames there were."""
        self._wire.receive_data(data)
        if self._wire.parser_exc is not None:
            self._give_up()
            return 0
        events = self._wire.events_received()
        for event in events:
            if isinstance(event, WireRequest):
                self._on_request(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._unheard_bytes = 0 if events and not self._fragments else self._unheard_bytes + len(data)
        if not self._share.hold(self._unheard_bytes):
            self._fail(NO_ROOM, "large messages of others fill the memory for them; try again")
        if self._answer is None:  # a head that httptools has taken, and websockets has not
            body = problem_bytes(400, f"this opens no WebSocket: {self._wire.handshake_exc}")
            head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
            self.transport.close()
        return len(events)

    # What the parser says.

    def _on_request(self, request: WireRequest) -> None:
        self._answer = self._wire.accept(request)
        if self._answer.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._is_closing = True
            self._wire.send_response(self._answer)
            self._flush()
            self.transport.close()
            return
        task = self._server.meter.begin(self._serve())
        if task is not None:
            self._server.tasks[self._socket] = task

    def _on_frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._is_text = frame.opcode is Opcode.TEXT
                self._fragments = [bytes(frame.data)]
            case Opcode.CONT if len(self._fragments) >= FRAGMENTS_MAX:
                self._fail(TOO_MANY, "a message has too many fragments")
                return
            case Opcode.CONT:
                self._fragments.append(bytes(frame.data))
            case Opcode.PING | Opcode.PONG if self._is_flooded():
                return
            case Opcode.PING:
                if self.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
                    self.transport.abort()
                else:
                    self._flush()
                return
            case Opcode.PONG:
                if bytes(frame.data) == self._ping:
                    self._ping = None
                return
            case Opcode.CLOSE:
                self._on_close()
                return
        if frame.fin:
            self._on_message()

    def _is_flooded(self) -> bool:
        self._controls += 1
        if self._controls > CONTROLS_MAX:
            self._fail(TOO_MANY, "too many pings or pongs at once")
        return self._controls > CONTROLS_MAX

    def _on_message(self) -> None:
        data, self._fragments = b"".join(self._fragments), []
        if self._is_closing:
            return
        message: str | bytes = data
        if self._is_text:
            try:
                message = data.decode()
            except UnicodeDecodeError:
                self._fail(BAD_TEXT, "text must be UTF-8")
                return
        self._messages.append(message)
        self._heard.set()

    def _on_close(self) -> None:
        if self._is_closing:
            if self._close_timer is not None:  # both have said it
                self._close_timer.cancel()
                self._close_timer = None
                self.transport.close()
        elif not self.transport.is_closing():
            said = self._wire.close_rcvd
            assert said is not None
            self._finish(said.code, said.reason)
            self._flush()
            self.transport.close()

    def _fail(self, code: int, reason: str) -> None:
        self._fragments = []
        if not self._is_closing:
            self._wire.fail(code, reason)
            self._give_up()

    def _give_up(self) -> None:
        """The protocol has ended the conversation."""
        said = self._wire.close_sent
        if said is None:  # the client spoke before it was answered, and nonsense
            self.transport.abort()
            return
        self._finish(said.code, said.reason)
        self._flush()
        self._is_closing = True
        self.transport.close()

    def _finish(self, code: int, reason: str = "") -> None:
        """Nothing more is heard."""
        if self._end is None:
            self._end = WebSocketDisconnect(code, reason)
            self._heard.set()

    def _ended(self) -> WebSocketDisconnect:
        end = self._end
        return WebSocketDisconnect(GONE) if end is None else WebSocketDisconnect(end.code, end.reason)

    def _flush(self) -> None:
        self.transport.write(b"".join(self._wire.data_to_send()))

    # The handler, and its line.

    async def _serve(self) -> None:
        try:
            refusal = await self._server.app.open(self._socket)
            if refusal is not None:
                self._refuse(refusal)
        except (WebSocketDisconnect, asyncio.CancelledError):
            pass
        except Exception:
            _log.exception("a socket failed: %s", self._socket)
        finally:
            self._server.tasks.pop(self._socket, None)
            if self._close_timer is None:
                self.transport.close()

    def _refuse(self, refusal: Response) -> None:
        """Say by an answer of HTTP why there is no socket."""
        if self._is_open or self._is_closing or self.transport.is_closing():
            return
        self._is_closing = True
        body = refusal.body or b""
        self.transport.write(
            b"%bdate: %b\r\nconnection: close\r\n\r\n%b" % (refusal.head(), self._server.date(), body)
        )
        self.transport.close()

    async def accept(self, headers: dict[str, str]) -> None:
        await self._writable.wait()
        if self._answer is None or self._is_closing or self.transport.is_closing():
            raise WebSocketDisconnect(NEVER_OPENED)
        del self._answer.headers["Date"]
        self._answer.headers.update({**headers, "date": self._server.date().decode()})
        self._is_open = True
        self._wire.send_response(self._answer)
        self._flush()
        self._ping_timer = self._loop.call_later(PING_SECONDS, self._send_ping)
        self._resume_reading()

    async def hear(self) -> str | bytes:
        while not self._messages:
            if self._end is not None:
                raise self._ended()
            self._heard.clear()
            await self._heard.wait()
        message = self._messages.popleft()
        if not self._messages:
            self._resume_reading()
        return message

    async def say(self, message: str | bytes) -> None:
        await self._writable.wait()
        if self._is_closing or self._end is not None:
            raise self._ended()
        try:
            if isinstance(message, str):
                self._wire.send_text(message.encode())
            else:
                self._wire.send_binary(message)
        except InvalidState:
            raise WebSocketDisconnect(GONE) from None
        self._flush()

    async def close(self, code: int, reason: str) -> None:
        await self._writable.wait()
        if self._is_closing or self._end is not None or self.transport.is_closing():
            raise self._ended()
        self._say_goodbye(code, reason, CLOSE_SECONDS_MAX)

    def _say_goodbye(self, code: int, reason: str, seconds_max: float) -> None:
        """Say the last word, and wait so long for theirs."""
        self._finish(code, reason)
        try:
            self._wire.send_close(code, reason)
        except InvalidState:
            self.transport.close()
            return
        self._flush()
        self._is_closing = True
        self._resume_reading()
        self._close_timer = self._loop.call_later(seconds_max, self.transport.close)

    def _pause_reading(self) -> None:
        if self._is_reading and not self.transport.is_closing():
            self._is_reading = False
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        """Go on with what is not parsed, or else read on."""
        if self._unparsed:
            if not self._is_parsing_soon:
                self._is_parsing_soon = True
                self._loop.call_soon(self._parse)
        elif not self._is_reading and not self.transport.is_closing():
            self._is_reading = True
            self.transport.resume_reading()

    # Whether anybody is there.

    def _send_ping(self) -> None:
        self._ping_timer = None
        if self._is_closing or self.transport.is_closing():
            return
        if self._ping is not None:
            self._fail(SILENT, "pings were not answered")
            return
        self._pings += 1
        self._ping = b"%d" % self._pings
        self._wire.send_ping(self._ping)
        self._flush()
        self._ping_timer = self._loop.call_later(PING_SECONDS, self._send_ping)

    def _stop_timers(self) -> None:
        for timer in (self._ping_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._ping_timer = self._close_timer = None

    # What the server wants.

    def close_if_stale(self, oldest: float) -> None:
        """Close it if nothing has moved since `oldest` though the client has much to read."""
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._moved_at = self._loop.time()  # slowly, but it reads
        self._unsent = unsent
        is_stuck = self.transport.is_closing() or not self._writable.is_set()
        if self._moved_at < oldest and is_stuck:
            self.transport.abort()

    def end_stream(self) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Say goodbye, and wait a little for theirs."""
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._close_timer is not None or self.transport.is_closing():
            return
        if not self._is_open:
            self.transport.abort()
            return
        self._say_goodbye(GOING_DOWN, "the node is stopping", GOODBYE_SECONDS_MAX)
