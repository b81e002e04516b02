"""Requests over HTTP without a socket: the node's own application answers, in the node's process.

Rule 1: only the connection is left out. What a request begins ends with its node, and what it is
        answered after that nobody hears.
Rule 2: who has a connection hears at once that its node has ended; what was said before, it hears
        before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import msgspec

from tidelog.errors import TidelogError
from tidelog.faces.http.app import make_app
from tidelog.faces.http.edge.messages import Headers, Request, Response
from tidelog.faces.http.edge.server import App
from tidelog.faces.http.edge.sockets import NEVER_OPENED, WebSocket, WebSocketDisconnect
from tidelog.faces.node import Node
from tidelog.simulation.machine import Machine
from tidelog.simulation.node_calls import Down
from tidelog.simulation.world import World

_apps: "WeakKeyDictionary[Node, App]" = WeakKeyDictionary()
SWITCHING: Final = 101


class Unanswered(TidelogError):
    """The node has ended: nobody knows what became of the request."""


# What an application says.


class Started(NamedTuple):
    """An answer has begun; or a socket is open, with status 101."""

    status: int
    headers: dict[str, str]


class Piece(NamedTuple):
    """A part of an answer's body."""

    body: bytes
    is_last: bool


class Said(NamedTuple):
    """A message of a socket."""

    message: str | bytes


class Closed(NamedTuple):
    """The last word on a socket."""

    code: int
    reason: str


Message: TypeAlias = Started | Piece | Said | Closed


class Door:
    """One request to an application, or one socket, without a connection."""

    def __init__(
        self,
        app: App,
        method: str,
        path: str,
        tell: Callable[[Message], Awaitable[None]],
        *,
        headers: Mapping[str, str] | None = None,
        body: Sequence[bytes] = (),
    ) -> None:
        """`method` is WS for a socket; `path` has the query, quoted. What is answered goes to `tell`."""
        self._app = app
        self._tell = tell
        self._said: asyncio.Queue[str | bytes | WebSocketDisconnect] = asyncio.Queue()
        raw_path, _, query = path.encode().partition(b"?")
        known = Headers([(n.lower().encode(), v.encode("latin-1")) for n, v in (headers or {}).items()])
        self._request: Request | WebSocket
        if method == "WS":
            self._request = WebSocket(method, raw_path, query, known)
            self._request.line = _Line(self._said, tell)
            return
        request = self._request = Request(method, raw_path, query, known)
        for piece in body:
            request.feed(piece)
        request.finish()

    async def run(self) -> None:
        """Let the application serve it to its end."""
        request = self._request
        if isinstance(request, WebSocket):
            refusal = await self._app.open(request)
            if refusal is not None:
                await self._answer(refusal, refusal.body or b"")
            return
        response = await self._app.serve(request)
        if response.body is not None:
            await self._answer(response, response.body)
            return
        await self._tell(Started(response.status_code, headers_of(response)))

        async def send(piece: bytes) -> None:
            await self._tell(Piece(piece, False))

        await response.write(request, send)
        if not request.is_disconnected:
            await self._tell(Piece(b"", True))

    async def _answer(self, response: Response, body: bytes) -> None:
        await self._tell(Started(response.status_code, headers_of(response)))
        await self._tell(Piece(body, True))

    # The client.

    def say(self, message: str | bytes) -> None:
        self._said.put_nowait(message)

    def hang_up(self, code: int = NEVER_OPENED) -> None:
        if isinstance(self._request, WebSocket):
            self._said.put_nowait(WebSocketDisconnect(code))
        else:
            self._request.lose()


class _Line:
    """What carries the messages of a socket."""

    def __init__(
        self,
        said: "asyncio.Queue[str | bytes | WebSocketDisconnect]",
        tell: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._said = said
        self._tell = tell

    async def accept(self, headers: dict[str, str]) -> None:
        await self._tell(Started(SWITCHING, headers))

    async def hear(self) -> str | bytes:
        message = await self._said.get()
        if isinstance(message, WebSocketDisconnect):
            raise message
        return message

    async def say(self, message: str | bytes) -> None:
        await self._tell(Said(message))

    async def close(self, code: int, reason: str) -> None:
        await self._tell(Closed(code, reason))


def headers_of(response: Response) -> dict[str, str]:
    """What an answer says of itself, by names in lower case."""
    lines = response.head().decode("latin-1").split("\r\n")[1:-1]
    return dict(line.split(": ", 1) for line in lines)


# Nodes.


def app_of(node: Node) -> App:
    """A node's application, made when it is first asked."""
    if node not in _apps:
        _apps[node] = make_app(node)
    return _apps[node]


def _headers(machine: Machine, headers: Mapping[str, str] | None) -> dict[str, str]:
    return {"content-type": "application/json", "host": machine.name, **(headers or {})}


async def call(
    machine: Machine,
    method: str,
    path: str,
    *,
    query: str = "",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """The status, and the document, with which a node answers; for `node_calls.ask_node`."""
    status, parts = 0, []

    async def tell(message: Message) -> None:
        nonlocal status
        if isinstance(message, Started):
            status = message.status
        elif isinstance(message, Piece):
            parts.append(message.body)

    path = f"{path}?{query}" if query else path
    known = _headers(machine, headers)
    await Door(app_of(machine.node), method, path, tell, headers=known, body=[body]).run()
    document = b"".join(parts)
    return status, msgspec.json.decode(document) if document else None


class Exchange:
    """One connection to a node, for a request whose answer goes on; closed by who opened it.

    Down if the node is not there to be asked.
    """

    def __init__(
        self,
        world: World,
        node: int,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        machine = world.machines[node]
        if not machine.is_up or machine.process is None:
            raise Down(f"node {node} is down")
        self._world = world
        self._machine = machine
        self._heard: asyncio.Queue[Message | None] = asyncio.Queue()
        self._is_closed = False
        self._is_lost = False
        self._is_socket = method == "WS"
        self._door = Door(
            app_of(machine.node),
            method,
            f"{path}?{urlencode(query)}" if query else path,
            self._tell,
            headers=_headers(machine, headers),
            body=[body],
        )
        world.on_end.append(self._on_end)
        asyncio.get_running_loop().create_task(
            self._run(f"{method} {path}"), context=machine.process.context.copy()
        )

    async def _run(self, name: str) -> None:
        try:
            await self._door.run()
        except Exception as error:  # nobody awaits it
            found = {"message": f"{name} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(found)
        finally:
            self._heard.put_nowait(None)

    async def _tell(self, message: Message) -> None:
        if not self._is_closed and not self._is_lost:
            self._heard.put_nowait(message)
        elif self._is_socket:
            raise WebSocketDisconnect(NEVER_OPENED)

    def _on_end(self, machine: Machine) -> None:
        if machine is self._machine:
            self._is_lost = True
            self._heard.put_nowait(None)

    # What the client does.

    async def document(self, seconds_max: float) -> tuple[int, Any]:
        """The status and the document of an answer that ends; Unanswered if its node does first."""
        status, parts = 0, []
        async with asyncio.timeout(seconds_max):
            while (message := await self.hear(seconds_max)) is not None:
                if isinstance(message, Started):
                    status = message.status
                elif isinstance(message, Piece):
                    parts.append(message.body)
                    if message.is_last:
                        data = b"".join(parts)
                        return status, msgspec.json.decode(data) if data else None
        raise Unanswered(f"{self._machine.name} has ended before it answered")

    async def hear(self, seconds_max: float) -> Message | None:
        """The next message of the node; None after the last one. TimeoutError if none comes."""
        async with asyncio.timeout(seconds_max):
            message = await self._heard.get()
        if message is None:
            self._heard.put_nowait(None)
        return message

    def say(self, message: str | bytes) -> None:
        self._door.say(message)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._world.on_end.remove(self._on_end)
            self._door.hang_up()
