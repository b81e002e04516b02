"""uvicorn's connections, HTTP and WebSocket, with bounds of ours.

Rule 1: bad input costs the sender. What may grow with what a client sends is bounded here: a
        request's head, requests that wait behind another, pieces of a message, answers to pings.
        And no input is worth a line in the node's log.
Rule 2: what was begun is answered in order: nothing is written into the middle of an answer.
Rule 3: whoever waits for a client learns that it has gone, whichever of its requests that is.
"""

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol

from tidelog.faces.http.app import ENDLESS
from tidelog.faces.http.problems import MEDIA_TYPE, problem_bytes
from tidelog.host import give_up_on_silence

if TYPE_CHECKING:
    from tidelog.faces.http.server import Server

HEAD_BYTES_MAX: Final = 32 * 1024
PIPELINED_MAX: Final = 100
"""Requests that wait for the answer to an earlier one; more are not taken."""
FRAGMENTS_MAX: Final = 1024
"""Pieces of one message: the empty ones would count for nothing otherwise."""
MESSAGES_MAX: Final = 1024
"""Messages that came together and nobody has taken."""
UNREAD_BYTES_MAX: Final = 1024 * 1024
"""What may wait for a client that says something and does not listen."""
GOODBYE_SECONDS_MAX: Final = 1.0

GOING_DOWN: Final = 1012
BAD_TEXT: Final = 1007
TOO_MANY: Final = 1008

_HEAD: Final = b"HTTP/1.1 "
"""How the head of an answer begins."""
_NO_REQUEST: Final = f"this is no HTTP/1.1 request with a head of at most {HEAD_BYTES_MAX} bytes"


def _refusal(detail: str) -> bytes:
    """The answer to what never became a request."""
    body = problem_bytes(400, detail)
    head = (
        f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class TooMuch(Exception):
    """A client sends more than is good for us; the parser passes it on."""


class _Progress:
    """When something moved on a connection for the last time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()
        self._unsent = 0

    def _moves(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()

    def _is_still_since(self, moment: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._moves()  # slowly, but it reads
        self._unsent = unsent
        return self._moved_at < moment


class _Joined:
    """The transport of one answer. Its head leaves with what follows it in the same turn.

    A packet by itself would cost as much again, here and at the client.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is None and data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
        elif self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            if not self._transport.is_closing():
                self._transport.write(head)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()


class HttpConnection(_Progress, HttpToolsProtocol):
    """One connection. uvicorn closes it when it is idle between requests; we, within one."""

    def __init__(self, server: "Server") -> None:
        _Progress.__init__(self)
        HttpToolsProtocol.__init__(
            self, server.config, server.state, {}, asyncio.get_running_loop()
        )
        self.ws_protocol_class = partial(SocketConnection, server)  # type: ignore[assignment]
        self._server = server
        self._running: RequestResponseCycle | None = None
        """What is answered now; `cycle` is what came last, and may wait behind it."""
        self._is_in_head = False
        self._head_bytes = 0
        self._unheard_bytes = 0
        """Received since the parser made something of it: it keeps what it has not understood."""
        self._is_spoilt = False
        """Whether nothing more is read here."""

    def __repr__(self) -> str:
        state = "spoilt" if self._is_spoilt else "answering" if self._is_answering else "idle"
        return f"HttpConnection({self.client}, {state}, {len(self.pipeline)} waiting)"

    @property
    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    # What the transport says.

    def connection_made(self, transport: Any) -> None:
        give_up_on_silence(transport)
        if self._server.is_full:
            transport.abort()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        if self._running is not None:
            self._let_go(self._running)
        self._server.left.set()

    def data_received(self, data: bytes) -> None:
        self._moves()
        if self._is_spoilt:
            return
        self._unheard_bytes += len(data)
        super().data_received(data)
        if self._unheard_bytes > HEAD_BYTES_MAX and not self._is_spoilt:
            self.send_400_response(_NO_REQUEST)

    def resume_writing(self) -> None:
        self._moves()
        super().resume_writing()

    # What the parser says.

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = self._unheard_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._is_in_head:  # a trailer comes after the body, when all was decided by the head
            super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._unheard_bytes = 0
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise TooMuch

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if len(self.pipeline) >= PIPELINED_MAX:
            raise TooMuch
        if self._is_answering and self.parser.should_upgrade():
            raise TooMuch  # it would speak another protocol in the middle of an answer
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unheard_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unheard_bytes = 0
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        is_fit = self.scope["method"] == "GET" and self.url.isascii()
        return is_fit and super()._should_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        cycle.transport = _Joined(self.transport, self.loop)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are not HTTP, or too many of them; nothing more is read here."""
        self._is_spoilt = True
        running = self._running
        if running is None or running.response_complete:
            self._refuse()
        elif running is self.cycle and running.more_body:  # its own body is broken
            if not running.response_started:
                self._refuse()
            self._let_go(running)
            self.transport.close()
        else:
            running.keep_alive = False
            self.pipeline.clear()

    def _refuse(self) -> None:
        self.transport.write(_refusal(_NO_REQUEST))
        self.transport.close()

    # What the server wants.

    def close_if_stale(self, oldest: float) -> None:
        """Close it if nothing has moved since `oldest` and the next move is the client's."""
        if not self._is_still_since(oldest):
            return
        if self.timeout_keep_alive_task is not None and not self._unsent:
            return  # between two requests
        if self._is_answering and not self.flow.write_paused and not self._is_their_turn:
            return
        self.transport.abort()

    @property
    def _is_their_turn(self) -> bool:
        """Whether what is answered now is not all there; when others wait, we do not even read."""
        return self.cycle.more_body and not self.pipeline and not self._is_spoilt

    def end_stream(self) -> None:
        """End an answer that would go on for ever, so that its client goes elsewhere."""
        running = self._running
        if running is None or running.response_complete or ENDLESS not in running.scope:
            return
        self._is_spoilt = True
        if not running.disconnected:
            self._let_go(running)
            if running.chunked_encoding:
                running.transport.write(b"0\r\n\r\n")
            running.transport.close()

    def shutdown(self) -> None:
        self.end_stream()
        super().shutdown()

    @staticmethod
    def _let_go(cycle: RequestResponseCycle) -> None:
        """Tell the application that nobody waits for this answer."""
        if not cycle.response_complete:
            cycle.disconnected = True
        cycle.message_event.set()


class SocketConnection(_Progress, WebSocketsSansIOProtocol):
    """A connection that became a WebSocket. Pings find out whether the other side is there."""

    def __init__(self, server: "Server", **given: Any) -> None:
        _Progress.__init__(self)
        WebSocketsSansIOProtocol.__init__(self, **given)
        self.conn = _Handshake(max_size=server.message_bytes_max, logger=self.logger)
        self._server = server

    def __repr__(self) -> str:
        return f"SocketConnection({self.client}, {self.conn.state.name.lower()})"

    # What the transport says.

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.left.set()

    def data_received(self, data: bytes) -> None:
        self._moves()
        super().data_received(data)
        if not self.handshake_initiated:  # a head that httptools has taken, and websockets has not
            self.transport.write(_refusal(f"this opens no WebSocket: {self.conn.handshake_exc}"))
            self.transport.close()

    def resume_writing(self) -> None:
        self._moves()
        super().resume_writing()

    # What the parser says.

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS_MAX:
            self._fail(TOO_MANY, "a message has too many fragments")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            try:
                self.frames = [b"".join(self.frames)]
                self.frames[0].decode()
            except UnicodeDecodeError:
                self._fail(BAD_TEXT, "text must be UTF-8")
                return
        if self.queue.qsize() >= MESSAGES_MAX:
            self._fail(TOO_MANY, "too many messages that nobody reads")
            return
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self.transport.abort()
        else:
            super().handle_ping()

    def _fail(self, code: int, reason: str) -> None:
        self.frames = []
        if not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is None:  # it spoke before it was answered, and nonsense
            self.transport.abort()
        else:
            super().handle_parser_exception()

    async def send(self, message: Any) -> None:
        if self.close_sent and self.handshake_complete:
            raise ClientDisconnected  # we ended it; the application could not know
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # by a refusal; uvicorn would call it a bug

    # What the server wants.

    def close_if_stale(self, oldest: float) -> None:
        """Close it if nothing has moved since `oldest` though the client has much to read."""
        is_stuck = self.transport.is_closing() or not self.writable.is_set()
        if self._is_still_since(oldest) and is_stuck:
            self.transport.abort()

    def end_stream(self) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Say goodbye, and wait a little for theirs."""
        self.stop_keepalive()
        if self.close_timer is not None or self.transport.is_closing():
            return
        if not self.handshake_complete:
            self.transport.abort()
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_DOWN})
        self.conn.send_close(GOING_DOWN, "the node is stopping")
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(GOODBYE_SECONDS_MAX, self.transport.close)


class _Handshake(ServerProtocol):
    """Refuses by problem documents."""

    def reject(self, status: HTTPStatus | int, text: str) -> Response:
        body = problem_bytes(HTTPStatus(status), text.strip() or HTTPStatus(status).description)
        given = super().reject(status, text)
        headers = Headers(given.headers)
        for name, value in (("content-type", MEDIA_TYPE), ("content-length", str(len(body)))):
            del headers[name]
            headers[name] = value
        return Response(given.status_code, given.reason_phrase, headers, body)
