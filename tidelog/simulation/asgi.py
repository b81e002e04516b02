"""Requests over HTTP without a socket: the node's own application answers, in the node's process.

Rule 1: only the connection is left out. What a request begins ends with its node, and what it is
        answered after that nobody hears.
Rule 2: who has a connection hears at once that its node has ended; what was said before, it hears
        before.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import msgspec
from uvicorn.protocols.utils import ClientDisconnected

from tidelog.errors import TidelogError
from tidelog.faces.http.app import make_app
from tidelog.faces.node import Node
from tidelog.simulation.asking import Down
from tidelog.simulation.machine import Machine
from tidelog.simulation.world import World

_apps: "WeakKeyDictionary[Node, Any]" = WeakKeyDictionary()
_JSON: Final = (b"content-type", b"application/json")


class Unanswered(TidelogError):
    """The node has ended: nobody knows what became of the request."""


def app_of(node: Node) -> Any:
    """A node's application, made when it is first asked."""
    if node not in _apps:
        _apps[node] = make_app(node)
    return _apps[node]


def scope_of(
    machine: Machine, method: str, path: str, query: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    """A request, as ASGI has it; `method` WS for one that opens a WebSocket."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "client": ("client", 1), "server": (machine.name, 8080),
        "headers": [
            _JSON, (b"host", machine.name.encode()),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ],
    }  # fmt: skip
    if method == "WS":
        scope |= {"type": "websocket", "scheme": "ws", "subprotocols": []}
        del scope["method"]
    return scope


async def call(
    machine: Machine,
    method: str,
    path: str,
    *,
    query: str = "",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """The status, and the document, with which a node answers; for `asking.ask_node`."""
    status, parts = 0, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(bytes(message.get("body", b"")))

    scope = scope_of(machine, method, path, query, headers or {})
    await app_of(machine.node)(scope, receive, send)
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
        self._heard: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_closed = False
        self._is_lost = False
        self._is_socket = method == "WS"
        first = "websocket.connect" if self._is_socket else "http.request"
        self._said.put_nowait({"type": first, "body": body, "more_body": False})
        scope = scope_of(machine, method, path, urlencode(query or {}), headers or {})
        world.on_end.append(self._on_end)
        asyncio.get_running_loop().create_task(
            self._run(machine.node, scope), context=machine.process.context.copy()
        )

    async def _run(self, node: Node, scope: dict[str, Any]) -> None:
        try:
            await app_of(node)(scope, self._said.get, self._send)
        except Exception as error:  # nobody awaits it
            found = {"message": f"{scope['path']} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(found)
        finally:
            self._heard.put_nowait(None)

    async def _send(self, message: dict[str, Any]) -> None:
        if not self._is_closed and not self._is_lost:
            self._heard.put_nowait(message)
        elif self._is_socket:
            raise ClientDisconnected

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
                if message["type"] == "http.response.start":
                    status = message["status"]
                    continue
                parts.append(bytes(message.get("body", b"")))
                if not message.get("more_body"):
                    data = b"".join(parts)
                    return status, msgspec.json.decode(data) if data else None
        raise Unanswered(f"{self._machine.name} has ended before it answered")

    async def hear(self, seconds_max: float) -> dict[str, Any] | None:
        """The next message of the node; None after the last one. TimeoutError if none comes."""
        async with asyncio.timeout(seconds_max):
            message = await self._heard.get()
        if message is None:
            self._heard.put_nowait(None)
        return message

    def say(self, message: dict[str, Any]) -> None:
        self._said.put_nowait(message)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._world.on_end.remove(self._on_end)
            kind = "websocket.disconnect" if self._is_socket else "http.disconnect"
            self.say({"type": kind, "code": 1006})
