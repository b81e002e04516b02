"""Requests and answers, as handlers see them.

Rule 1: nothing here knows of sockets. Whoever has the connection feeds a request what comes of
        its body, and says when its client has gone; who serves requests in-process does the same.
Rule 2: the name or the value of a header never holds the end of a line.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

from tidelog.faces.http.edge.bodies import LARGE_BYTES, NoRoom, Share
from tidelog.faces.http.pacing import in_turn
from tidelog.security.principals import ANONYMOUS

Send: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends a piece of an answer; waits while its client reads too slowly."""

REQUEST_ID: Final = "x-request-id"
UNBOUNDED: Final = 1 << 62

HTML: Final = "text/html"
_FOR_BROWSERS: Final = b"x-content-type-options: nosniff\r\ncross-origin-resource-policy: same-origin\r\n"
"""What comes from here is what it says it is, and no part of pages elsewhere."""
_NO_PAGE: Final = b"content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n"
"""Shown as a page it may do nothing."""
_NO_PARAMS: Final[Mapping[str, str]] = MappingProxyType({})
_WITHOUT_LENGTH: Final = frozenset({204, 304})
_UNFIT: Final = frozenset("\r\n\0")


class ClientDisconnect(Exception):
    """The client has gone before it sent the whole body."""


class BodyTooLong(Exception):
    """The body is longer than `bytes_max`; what is left of it is not read."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"a request has at most {bytes_max} bytes here")
        self.bytes_max = bytes_max


class Headers:
    """The headers of a request. Names are in lower case; of one name the first counts."""

    __slots__ = ("first", "raw")

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self.raw = raw
        self.first = dict(reversed(raw))

    def get(self, name: str, default: str | None = None) -> Any:
        found = self.first.get(name.encode("latin-1"))
        return default if found is None else found.decode("latin-1")

    def __contains__(self, name: str) -> bool:
        return name.encode("latin-1") in self.first

    def __repr__(self) -> str:
        return f"Headers({self.raw})"


class Head:
    """What a client asks for: the part that HTTP requests and WebSockets share."""

    request_id = ""
    """Which answers carry; empty until the application has given one."""
    path_params: Mapping[str, Any] = MappingProxyType({})
    principal = ANONYMOUS
    """Who asks, as far as that was proved."""
    is_still_proved: Callable[[], bool] = staticmethod(lambda: True)
    """Whether what proved it holds, for answers that go on for long."""
    _query: Mapping[str, str] | None = None

    def __init__(
        self, method: str, raw_path: bytes, query_string: bytes, headers: Headers, host: str = ""
    ) -> None:
        """`raw_path` is ASCII, as it came; `host` is the client's address without its port."""
        path = raw_path.decode("ascii")
        self.method = method
        self.raw_path = raw_path
        self.path = unquote(path) if "%" in path else path
        self.query_string = query_string
        self.headers = headers
        self.host = host

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method} {self.path})"

    @property
    def query_params(self) -> Mapping[str, str]:
        """The parameters of the query; of one name the last counts."""
        if not self.query_string:
            return _NO_PARAMS
        if self._query is None:
            self._query = dict(parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True))
        return self._query


class Request(Head):
    """One HTTP request, of which the head is there and the body may still come."""

    bytes_max = UNBOUNDED
    size = 0
    is_complete = False
    """Whether all of the body is there."""
    is_disconnected = False
    """Whether nobody waits for the answer any more."""
    is_wanted = False
    """Whether somebody waits for more of the body, or for the client to go."""
    keep_alive = True
    takes_chunks = True
    """Whether its client knows chunked answers: HTTP/1.0 does not."""
    share: Share | None = None
    """What its body takes of the room for all."""
    on_wanted: Callable[[], None] | None = None
    """Called when somebody begins to wait for the client."""
    _body = b""
    """What has come, where that was one piece."""
    _pieces: list[bytes] | None = None
    """What has come, where that was more."""
    _moved: asyncio.Event | None = None
    _is_dropped = False
    """Whether there was no room for the body."""

    # Whoever has the connection.

    def feed(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > LARGE_BYTES and self.share is not None and not self._is_dropped:
            self._is_dropped = not self.share.hold(self.size)
        if self._is_dropped:
            self._body, self._pieces = b"", []
        elif self._pieces is not None:
            if self.size <= self.bytes_max:  # longer, it is going to be refused
                self._pieces.append(piece)
        elif self._body:
            self._pieces = [self._body, piece]
        else:
            self._body = piece
        if self._moved is not None:
            self._moved.set()

    def release(self) -> None:
        """The body is for nobody any more."""
        if self.share is not None:
            self.share.hold(0)
            self.share = None

    def finish(self) -> None:
        """The body is complete."""
        self.is_complete = True
        if self._moved is not None:
            self._moved.set()

    def lose(self) -> None:
        """Nobody waits for the answer."""
        self.is_disconnected = True
        if self._moved is not None:
            self._moved.set()

    # Handlers.

    async def body(self) -> bytes:
        """All of the body; BodyTooLong, NoRoom or ClientDisconnect where that is not to be had."""
        while not self.is_complete and self.size <= self.bytes_max and not self._is_dropped:
            if self.is_disconnected:
                raise ClientDisconnect
            await self._move()
        if self.size > self.bytes_max:
            raise BodyTooLong(self.bytes_max)
        if self._is_dropped:
            raise NoRoom
        if self._pieces is not None:
            self._body, self._pieces = b"".join(self._pieces), None
        return self._body

    async def gone(self) -> None:
        """Wait until nobody waits for the answer."""
        while not self.is_disconnected:
            await self._move()

    async def _move(self) -> None:
        if self._moved is None:
            self._moved = asyncio.Event()
        self._moved.clear()
        self.is_wanted = True
        if self.on_wanted is not None:
            self.on_wanted()
        await self._moved.wait()


class Response:
    """An answer whose body is known."""

    is_endless = False
    """Whether it goes on until somebody has enough, so that a stop does not wait for its end."""

    def __init__(
        self,
        content: bytes | str = b"",
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        self.body: bytes | None = content.encode() if isinstance(content, str) else content
        self.status_code = status_code
        self.headers: dict[str, str] | None = None if headers is None else dict(headers)
        self.media_type = media_type
        self.request_id = ""

    def add(self, name: str, value: str) -> None:
        """Set a header; `name` is in lower case."""
        if self.headers is None:
            self.headers = {}
        self.headers[name] = value

    def head(self) -> bytes:
        """Status line and headers, but for those of the connection and the empty line."""
        media_type, more = self.media_type, b""
        if self.headers:
            more = b"".join([_line(name, value) for name, value in self.headers.items()])
            if "content-type" in self.headers:
                media_type = None
        start = _start(self.status_code, media_type)
        name = b"x-request-id: %b\r\n" % self.request_id.encode("latin-1") if self.request_id else b""
        if self.body is not None and self.status_code not in _WITHOUT_LENGTH:
            return b"%bcontent-length: %d\r\n%b%b" % (start, len(self.body), name, more)
        return start + name + more

    @property
    def closes(self) -> bool:
        """Whether nothing follows it on its connection."""
        return self.headers is not None and self.headers.get("connection") == "close"

    async def write(self, request: Request, send: Send) -> None:
        """Send the body piece by piece, if it is not known before."""
        raise NotImplementedError


def _line(name: str, value: str) -> bytes:
    if not (_UNFIT.isdisjoint(name) and _UNFIT.isdisjoint(value)):
        raise ValueError(f"the header {name!r} holds the end of a line")
    return f"{name}: {value}\r\n".encode("latin-1")


@lru_cache(maxsize=256)
def _start(status: int, media_type: str | None) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    start = f"HTTP/1.1 {status} {phrase}\r\n".encode() + _FOR_BROWSERS
    if media_type != HTML:  # a page says for itself what it needs
        start += _NO_PAGE
    if media_type is None:
        return start
    is_text = media_type.startswith("text/") and "charset=" not in media_type
    return start + _line("content-type", f"{media_type}; charset=utf-8" if is_text else media_type)


class StreamingResponse(Response):
    """An answer of pieces that are made while it is sent, until its client goes."""

    is_endless = True

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        self.body = None
        self._pieces = pieces

    async def write(self, request: Request, send: Send) -> None:
        writing = asyncio.ensure_future(in_turn(self._write(send)))
        leaving = asyncio.ensure_future(request.gone())
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        async for piece in self._pieces:
            await send(piece)
