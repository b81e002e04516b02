"""All HTTP connections of a process that serves: made, swept when stale, and ended.

Rule 1: a connection that owes us something and is silent for too long is closed, whatever its part.
Rule 2: a stop waits for answers under way, but not for long, and for streams not at all.
Rule 3: whatever is done to all connections or requests is done in the order in which they came.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Final, NamedTuple, Protocol, TypeAlias

from tidelog.faces.http.edge.bodies import Bodies
from tidelog.faces.http.edge.connection import HttpConnection
from tidelog.faces.http.edge.messages import Request, Response
from tidelog.faces.http.edge.sockets import SocketConnection, WebSocket
from tidelog.faces.http.pacing import Meter
from tidelog.security.principals import ANONYMOUS, Principal

SWEEP_SECONDS: Final = 5.0
END_SECONDS_MAX: Final = 1.0

Connection: TypeAlias = HttpConnection | SocketConnection


class App(Protocol):
    """What is served."""

    takes_sockets: bool

    async def serve(self, request: Request) -> Response:
        """The answer to a request; whatever goes wrong is one, too."""

    async def open(self, socket: WebSocket) -> Response | None:
        """Serve a socket to its end; the answer that refuses it, if it was not accepted."""


class Limits(NamedTuple):
    """What clients may use."""

    connections: int
    message_bytes: int
    """Of one message of a WebSocket."""
    silent_seconds: float
    """For how long a client may be silent that has begun to say something, or has something to read."""
    body_bytes: int
    """Of large bodies together, until their requests are answered."""


class Server:
    """The connections of one application."""

    def __init__(
        self, app: App, meter: Meter, *, limits: Callable[[], Limits], wall_ms: Callable[[], int]
    ) -> None:
        self.app = app
        self.meter = meter
        self.limits = limits
        self.bodies = Bodies(lambda: limits().body_bytes)
        self.connections: dict[Connection, None] = {}
        self.tasks: dict[Request | WebSocket, asyncio.Task[None]] = {}
        """Of the requests that wait for something."""
        self.principal_of: Callable[[asyncio.BaseTransport], Principal] = lambda transport: ANONYMOUS
        """Who has proved by a certificate who it is."""
        self.left = asyncio.Event()
        """Set whenever a connection has ended."""
        self._wall_ms = wall_ms
        self._second = 0
        self._date = b""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    def connection(self) -> HttpConnection:
        return HttpConnection(self)

    @property
    def is_full(self) -> bool:
        return len(self.connections) >= self.limits().connections

    def date(self) -> bytes:
        """The time, as answers have it."""
        second = self._wall_ms() // 1000
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date

    # The end.

    def end_streams(self) -> None:
        """Let those go who would listen for ever; others are still answered."""
        for connection in list(self.connections):
            connection.end_stream()

    def close(self) -> None:
        self._sweeper.cancel()
        for connection in list(self.connections):
            connection.shutdown()

    async def wait_closed(self, seconds_max: float) -> None:
        """Let answers under way go out, for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self.connections:
                    self.left.clear()
                    await self.left.wait()
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # they hear of it
        if tasks := list(self.tasks.values()):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=END_SECONDS_MAX)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            silent_seconds_max = self.limits().silent_seconds
            await asyncio.sleep(min(SWEEP_SECONDS, silent_seconds_max))
            for connection in list(self.connections):
                connection.close_if_stale(loop.time() - silent_seconds_max)
