"""All HTTP connections of a node, without uvicorn's server.

uvicorn's own server takes the process's signals, wakes ten times a second and waits a tenth of a
second to stop. The node has a loop, signals and listeners already, so only the connections are
used (`connections.py`).

Rule 1: a connection that owes us something and is silent for too long is closed, whatever its part.
Rule 2: a stop waits for answers under way, but not for long, and for streams not at all.
Rule 3: whatever is done to all connections or requests is done in the order in which they came.
"""

import asyncio
import logging
from collections.abc import Iterator, MutableSet
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from tidelog.faces.http.app import make_app
from tidelog.faces.http.connections import HttpConnection, SocketConnection
from tidelog.faces.http.pacing import Meter

if TYPE_CHECKING:
    from tidelog.faces.node import Node

KEEP_ALIVE_SECONDS: Final = 60
PING_SECONDS: Final = 20.0
SWEEP_SECONDS: Final = 5.0
END_SECONDS_MAX: Final = 1.0

Connection: TypeAlias = HttpConnection | SocketConnection
T = TypeVar("T")


class _InOrder(MutableSet[T]):
    """A set for uvicorn that keeps the order in which things came."""

    def __init__(self) -> None:
        self._things: dict[T, None] = {}

    def __contains__(self, thing: object) -> bool:
        return thing in self._things

    def __iter__(self) -> Iterator[T]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def add(self, value: T) -> None:
        self._things[value] = None

    def discard(self, value: T) -> None:
        self._things.pop(value, None)


class _State(ServerState):
    """What uvicorn's connections share."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: Any = _InOrder[Connection]()
        self.tasks: Any = _InOrder[asyncio.Task[None]]()


class Server:
    """Makes connections, sweeps out those that are stale, and ends them all."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._app = make_app(node)
        clock = node.broker.host.clock.monotonic
        self._meter = Meter(clock, has_others=node.is_asked_by_kafka, on_crowded=node.on_crowded)
        # It warns of every request that is not HTTP: whoever likes could fill the node's log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self.config = Config(
            self._serve, http=HttpConnection, ws=SocketConnection, lifespan="off",
            interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, date_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ws_ping_interval=PING_SECONDS, ws_ping_timeout=PING_SECONDS,
        )  # fmt: skip
        self.config.load()
        self.state = _State()
        self.left = asyncio.Event()
        """Set whenever a connection has ended."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    def connection(self) -> HttpConnection:
        return HttpConnection(self)

    @property
    def connections(self) -> list[Connection]:
        return list(self.state.connections)

    @property
    def is_full(self) -> bool:
        return len(self.state.connections) >= self._node.broker.config.connections_max

    @property
    def message_bytes_max(self) -> int:
        """The largest message of a WebSocket: as much as a body may have."""
        return self._node.broker.config.http_max_body_bytes

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._meter.share(self._app(scope, receive, send))  # type: ignore[arg-type]
        except asyncio.CancelledError:
            pass  # by us, at the end, when the connection is gone; uvicorn would log it as a bug

    # The end.

    def end_streams(self) -> None:
        """Let those go who would listen for ever; others are still answered."""
        for connection in self.connections:
            connection.end_stream()

    def close(self) -> None:
        self._sweeper.cancel()
        for connection in self.connections:
            connection.shutdown()

    async def wait_closed(self, seconds_max: float) -> None:
        """Let answers under way go out, for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self.state.connections:
                    self.left.clear()
                    await self.left.wait()
        for connection in self.connections:
            connection.transport.abort()
        await asyncio.sleep(0)  # they hear of it
        if tasks := list(self.state.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=END_SECONDS_MAX)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            silent_seconds_max = self._node.broker.config.frame_timeout_ms / 1000
            await asyncio.sleep(min(SWEEP_SECONDS, silent_seconds_max))
            for connection in self.connections:
                connection.close_if_stale(loop.time() - silent_seconds_max)
