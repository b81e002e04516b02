"""One HTTP connection: bytes in, requests out; answers in, bytes out.

Rule 1: bad input costs the sender. What may grow with what a client sends is bounded here: a
        request's head, what comes of a body before somebody wants it, requests that wait behind
        another. And no input is worth a line in the log.
Rule 2: what was begun is answered in order: nothing is written into the middle of an answer.
Rule 3: whoever waits for a client learns that it has gone, whichever of its requests that is.
Rule 4: the parser's callbacks only take notes. Requests begin after it has returned, so most of
        them begin with their whole body, and their answer is one write in the same turn.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httptools

from tidelog.faces.http.edge.bodies import Share
from tidelog.faces.http.edge.messages import Headers, Request, Response
from tidelog.faces.http.edge.routes import target_of
from tidelog.faces.http.edge.sockets import SocketConnection, WebSocket
from tidelog.faces.http.problems import MEDIA_TYPE, problem_bytes
from tidelog.host import give_up_on_silence

if TYPE_CHECKING:
    from tidelog.faces.http.edge.server import Server

_log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 32 * 1024
PIPELINED_MAX: Final = 100
"""Requests that wait for the answer to an earlier one; more are not taken."""
UNWANTED_BYTES_MAX: Final = 64 * 1024
"""What may come of a body that nobody asks for."""
KEEP_ALIVE_SECONDS: Final = 60
"""For how long a connection is kept between two requests."""
HEADERS_MAX: Final = 256
"""Headers of a request: each costs much more memory than its bytes."""
PIECES_MAX: Final = 4096
"""Pieces of a body that may be as small as they like; then they have `PIECE_BYTES` on average."""
PIECE_BYTES: Final = 32
BURST_BYTES: Final = 64 * 1024
"""After so many bytes at once others get their turn: the loop would read on while there is more."""
APART_BYTES: Final = 64 * 1024
"""A body of so many bytes is not copied behind its head."""

_METHODS: Final = {one.encode(): one for one in ("GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS")}
_NO_REQUEST: Final = f"this is no HTTP/1.1 request with a head of at most {HEAD_BYTES_MAX} bytes"


def refusal(detail: str) -> bytes:
    """The answer to what never became a request."""
    body = problem_bytes(400, detail)
    head = (
        f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class TooMuch(Exception):
    """A client sends more than is good for us; the parser passes it on."""


class HttpConnection(asyncio.Protocol):
    """One connection, and the requests on it that are not answered yet.

    Invariant: a request is on its way to `_incoming`, waits in `_queue`, or is `_running`; the
    newest may be in `_incoming` and one of the other two.
    """

    __slots__ = (
        "_app",
        "_endless",
        "_head_bytes",
        "_headers",
        "_host",
        "_incoming",
        "_is_advancing",
        "_is_in_head",
        "_is_last",
        "_is_reading",
        "_is_spoilt",
        "_is_used",
        "_loop",
        "_moved_at",
        "_parser",
        "_pieces",
        "_principal",
        "_queue",
        "_running",
        "_server",
        "_unheard_bytes",
        "_unsent",
        "_url",
        "_writable",
        "transport",
    )

    def __init__(self, server: "Server") -> None:
        self.transport: asyncio.Transport
        self._server = server
        self._app = server.app
        self._loop = asyncio.get_running_loop()
        self._parser = _parser_for(self)
        self._queue: deque[Request] = deque()
        """In the order in which they are to be answered."""
        self._running: Request | None = None
        self._incoming: Request | None = None
        """Whose body is still coming."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_in_head = False
        self._head_bytes = 0
        self._pieces = 0
        """Of the body that is coming."""
        self._unheard_bytes = 0
        """Received since the parser made something of it: it keeps what it has not understood."""
        self._is_spoilt = False
        """Whether nothing more is read here."""
        self._is_last = False
        """Whether the connection ends with the answers under way."""
        self._is_advancing = False
        self._is_reading = True
        self._is_used = False
        """Whether a request was answered here."""
        self._endless: Request | None = None
        """Which is answered by what has no end."""
        self._writable: asyncio.Event | None = None
        """Of a transport that has too much to send: set when it has not, or is lost."""
        self._moved_at = self._loop.time()
        self._unsent = 0

    def __repr__(self) -> str:
        state = "spoilt" if self._is_spoilt else "idle" if self._running is None else "answering"
        return f"HttpConnection({self.client}, {state}, {len(self._queue)} waiting)"

    @property
    def client(self) -> Any:
        return self.transport.get_extra_info("peername")

    # What the transport says.

    def connection_made(self, transport: Any) -> None:
        give_up_on_silence(transport)
        self.transport = transport
        self._host: str = (self.client or ("",))[0]
        self._principal = self._server.principal_of(transport)
        if self._server.is_full:
            transport.abort()
        self._server.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        self._drop_queue()
        self._incoming = None
        if self._running is not None:
            self._running.lose()
        if self._writable is not None:
            self._writable.set()
        self._server.left.set()

    def eof_received(self) -> None:
        pass

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        self._moved_at = self._loop.time()
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self._advance()

    def data_received(self, data: bytes) -> None:
        self._moved_at = self._loop.time()
        if self._is_spoilt:
            return
        self._unheard_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._on_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._spoil()
        else:
            if self._unheard_bytes > HEAD_BYTES_MAX:
                self._spoil()
        self._advance()
        if len(data) >= BURST_BYTES and self._may_read:
            self.transport.pause_reading()
            self._loop.call_soon(self._read_on)

    @property
    def _may_read(self) -> bool:
        return self._is_reading and not self._is_spoilt and not self.transport.is_closing()

    def _read_on(self) -> None:
        if self._may_read:
            self.transport.resume_reading()

    # What the parser says.

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = self._unheard_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._unheard_bytes = 0
        self._head_bytes += len(url)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise TooMuch
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unheard_bytes = 0
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_BYTES_MAX or len(self._headers) >= HEADERS_MAX:
            raise TooMuch
        if self._is_in_head:  # a trailer comes after the body, when all was decided by the head
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        parser = self._parser
        path, query = target_of(self._url)
        if self._queue or self._running is not None:
            waiting = len(self._queue) + (self._running is not None)
            if waiting > PIPELINED_MAX or parser.should_upgrade():
                raise TooMuch  # it would speak another protocol in the middle of an answer
        elif parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise TooMuch  # this is no tunnel
            return  # the parser has a body taken for the other protocol: `_on_upgrade` sees to it
        method: bytes = parser.get_method()
        name = _METHODS.get(method) or method.decode()
        request = Request(name, path, query, Headers(self._headers), self._host)
        request.principal, request.share = self._principal, Share(self._server.bodies)
        if not parser.should_keep_alive():
            request.keep_alive = False
        if parser.get_http_version() == "1.0":
            request.takes_chunks = request.keep_alive = False
        self._pieces = 0
        self._incoming = request
        self._queue.append(request)

    def on_body(self, body: bytes) -> None:
        self._unheard_bytes = 0
        request = self._incoming
        if request is not None and not request.is_disconnected:
            self._pieces += 1
            request.feed(body)
            if self._pieces > PIECES_MAX and request.size < self._pieces * PIECE_BYTES:
                raise TooMuch
            if request.size > UNWANTED_BYTES_MAX and not request.is_wanted:
                self._pause_reading()

    def on_message_complete(self) -> None:
        self._unheard_bytes = 0
        if self._incoming is not None:
            self._incoming.finish()
            self._incoming = None

    # Upgrades.

    def _opens_socket(self) -> bool:
        if not self._app.takes_sockets or self._parser.get_method() != b"GET" or not self._url.isascii():
            return False
        headers = dict(self._headers)
        tokens = [token.strip().lower() for token in headers.get(b"connection", b"").split(b",")]
        return b"upgrade" in tokens and headers.get(b"upgrade", b"").lower() == b"websocket"

    def _on_upgrade(self, rest: bytes) -> None:
        """Speak another protocol. A request that offers one that we do not know is read once more,
        as if it had not: the parser left its body to that protocol."""
        if not self._opens_socket():
            kept = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
            version = self._parser.get_http_version().encode()
            start = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, version)
            self._parser = _parser_for(self)
            self.data_received(b"%b%b\r\n%b" % (start, b"".join(kept), rest))
            return
        del self._server.connections[self]
        path, query = target_of(self._url)
        socket = WebSocket("WS", path, query, Headers(self._headers), self._host)
        socket.principal = self._principal
        connection = SocketConnection(self._server, socket)
        connection.connection_made(self.transport)
        if self._writable is not None:
            connection.pause_writing()  # the transport says it once only
        head = [b"GET %b HTTP/1.1" % self._url, *(b"%b: %b" % header for header in self._headers)]
        self.transport.set_protocol(connection)
        connection.data_received(b"\r\n".join(head) + b"\r\n\r\n")
        if rest and not self.transport.is_closing():
            connection.data_received(rest)
        self._is_spoilt = True

    # Requests and their answers.

    def _advance(self) -> None:
        """Begin with what waits, as long as it ends at once and its client reads."""
        if self._is_advancing:
            return
        self._is_advancing = True
        queue, server = self._queue, self._server
        while queue and self._running is None and self._writable is None:
            request = self._running = queue.popleft()
            request.on_wanted = self._on_wanted
            task = server.meter.begin(self._serve(request))
            if task is not None:
                server.tasks[request] = task
        self._is_advancing = False
        if queue and not (self._running is not None and self._running.is_wanted):
            self._pause_reading()

    async def _serve(self, request: Request) -> None:
        try:
            response = await self._app.serve(request)
            if response.body is not None:
                if self._writable is not None:
                    await self._drain()
                self._answer(request, response, response.body)
            else:
                await self._stream(request, response)
        except asyncio.CancelledError:  # unanswered: the next answer would be taken for this one
            request.keep_alive = False
        except Exception:
            _log.exception("an answer failed: %s", request)
            request.keep_alive = False
        finally:
            self._server.tasks.pop(request, None)
            request.release()
            self._on_answered(request)

    def _answer(self, request: Request, response: Response, body: bytes) -> None:
        if request.is_disconnected:
            return
        head = response.head()
        is_kept = request.keep_alive and not self._is_last and response.headers is None
        close = b"" if is_kept or self._keeps(request, response) else b"connection: close\r\n"
        if request.method == "HEAD":
            body = b""
        if len(body) < APART_BYTES:
            self.transport.write(b"%bdate: %b\r\n%b\r\n%b" % (head, self._server.date(), close, body))
        else:
            head = b"%bdate: %b\r\n%b\r\n" % (head, self._server.date(), close)
            self.transport.writelines((head, body))

    async def _stream(self, request: Request, response: Response) -> None:
        is_chunked = request.takes_chunks and request.method != "HEAD"
        more = b"transfer-encoding: chunked\r\n" if is_chunked else b""
        if not self._keeps(request, response):
            more += b"connection: close\r\n"
        if request.is_disconnected:
            return
        request.on_wanted = self._resume_reading  # who asked whether to go on is not told any more
        self.transport.write(b"%bdate: %b\r\n%b\r\n" % (response.head(), self._server.date(), more))
        if request.method == "HEAD":
            return
        if response.is_endless:
            self._endless = request

        async def send(piece: bytes) -> None:
            if self._writable is not None:
                await self._drain()
            if piece and not request.is_disconnected:
                framed = (b"%x\r\n" % len(piece), piece, b"\r\n") if is_chunked else (piece,)
                self.transport.writelines(framed)

        await response.write(request, send)
        if is_chunked and not request.is_disconnected:
            self.transport.write(b"0\r\n\r\n")

    def _keeps(self, request: Request, response: Response) -> bool:
        """Whether the connection goes on after this answer; whether it says so."""
        if response.closes:
            request.keep_alive = False
            return True  # said already
        if response.body is None and not request.takes_chunks:
            request.keep_alive = False  # its end is the answer's
        return request.keep_alive and not (self._is_last and not self._queue)

    async def _drain(self) -> None:
        while self._writable is not None and not self._writable.is_set():
            await self._writable.wait()

    def _on_answered(self, request: Request) -> None:
        self._running = None
        self._endless = None
        self._is_used = True
        self._moved_at = self._loop.time()
        if not request.is_complete:
            self._incoming = None  # what is left of the body is not for anybody
        if not request.keep_alive or (self._is_last and not self._queue):
            self._is_spoilt = True
            self._drop_queue()
            self.transport.close()
            return
        if not self._is_reading and not self._queue:
            self._resume_reading()
        if self._queue and not self._is_advancing:
            self._loop.call_soon(self._advance)

    def _on_wanted(self) -> None:
        """Somebody waits for the client: for more of the body, or for its end."""
        request = self._running
        if request is not None:
            request.on_wanted = self._resume_reading
            expects = request.headers.get("expect", "").lower() == "100-continue"
            if expects and not request.is_complete and not request.is_disconnected:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._resume_reading()

    def _pause_reading(self) -> None:
        if self._is_reading and not self.transport.is_closing():
            self._is_reading = False
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self.transport.is_closing():
            self._is_reading = True
            self.transport.resume_reading()

    def _spoil(self) -> None:
        """Bytes that are not HTTP, or too many of them; nothing more is read here."""
        self._is_spoilt = True
        first = self._running or (self._queue[0] if self._queue else None)
        broken, self._incoming = self._incoming, None
        self._drop_queue()
        if first is None or (first is broken and first is not self._running):
            self._refuse()
        elif first is broken:  # its own body is broken
            if self._endless is not first:
                self._refuse()
            first.lose()
            self.transport.close()
        else:
            self._is_last = True
            first.keep_alive = False
            if first is not self._running:
                self._queue.append(first)

    def _drop_queue(self) -> None:
        while self._queue:
            self._queue.pop().release()

    def _refuse(self) -> None:
        self.transport.write(refusal(_NO_REQUEST))
        self.transport.close()

    # What the server wants.

    def close_if_stale(self, oldest: float) -> None:
        """Close it if nothing has moved since `oldest` and the next move is the client's."""
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._moved_at = self._loop.time()  # slowly, but it reads
        self._unsent = unsent
        if self._moved_at >= oldest:
            return
        if self._running is None and self._is_used and not unsent and not self._is_in_head:
            if self._moved_at < self._loop.time() - KEEP_ALIVE_SECONDS:
                self.transport.close()
        elif self._running is None or self._writable is not None or self._is_their_turn:
            self.transport.abort()

    @property
    def _is_their_turn(self) -> bool:
        """Whether what is answered now is not all there; when others wait, we do not even read."""
        return self._incoming is not None and not self._queue and not self._is_spoilt

    def end_stream(self) -> None:
        """End an answer that would go on for ever, so that its client goes elsewhere."""
        request = self._endless
        if request is None:
            return
        self._is_spoilt = True
        if not request.is_disconnected:
            request.lose()
            if request.takes_chunks:
                self.transport.write(b"0\r\n\r\n")
            self.transport.close()

    def shutdown(self) -> None:
        self.end_stream()
        self._is_last = True
        if self._running is None and not self._queue:
            self.transport.close()


def _parser_for(connection: HttpConnection) -> Any:
    parser = httptools.HttpRequestParser(connection)
    # A client that says "connection: close" may have sent more, which is not answered.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
