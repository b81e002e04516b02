"""uvicorn's connections, with limits of ours, and without its server.

uvicorn's own server takes the process's signals, wakes ten times a second and waits a tenth of a
second to stop. The node has a loop, signals and listeners already, so only the connection is used:
h11, which bounds what a request's head may take.

Rule: a connection that owes us something and is silent for too long is closed, whatever its part.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tidelog.faces.http.app import make_app
from tidelog.faces.http.problems import MEDIA_TYPE, problem_bytes

if TYPE_CHECKING:
    from tidelog.faces.node import Node

HEAD_BYTES_MAX: Final = 32 * 1024
KEEP_ALIVE_SECONDS: Final = 60
SWEEP_SECONDS: Final = 5.0


class Server:
    """All HTTP connections of a node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        # It warns of every request that is not HTTP: whoever likes could fill the node's log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self.config = Config(
            make_app(node), http="h11", ws="none", lifespan="off", interface="asgi3",
            log_config=None, access_log=False, proxy_headers=False, server_header=False,
            date_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )  # fmt: skip
        self.config.load()
        self.state = ServerState()
        self.left = asyncio.Event()
        """Set whenever a connection has ended."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    def connection(self) -> "HttpConnection":
        return HttpConnection(self)

    @property
    def connections(self) -> "list[HttpConnection]":
        return list(self.state.connections)  # type: ignore[arg-type]

    @property
    def is_full(self) -> bool:
        return len(self.state.connections) >= self._node.broker.config.connections_max

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

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            silent_seconds_max = self._node.broker.config.frame_timeout_ms / 1000
            for connection in self.connections:
                connection.close_if_stale(loop.time() - silent_seconds_max)


class HttpConnection(H11Protocol):
    """One connection. uvicorn closes it when it is idle between requests; we, within one."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.config, server.state, {}, asyncio.get_running_loop())
        self._server = server
        self._progress_at = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        if self._server.is_full:
            transport.abort()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.left.set()

    def data_received(self, data: bytes) -> None:
        self._progress_at = self.loop.time()
        super().data_received(data)

    def resume_writing(self) -> None:
        self._progress_at = self.loop.time()
        super().resume_writing()

    def close_if_stale(self, oldest: float) -> None:
        """Close it if nothing has moved since `oldest` and the next move is the client's."""
        if self._progress_at >= oldest or self.timeout_keep_alive_task is not None:
            return
        cycle: Any = self.cycle  # None before the first request
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering and not cycle.more_body and not self.flow.write_paused:
            return  # we owe it an answer
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are not HTTP, or a head that is too long."""
        detail = f"this is no HTTP/1.1 request with a head of at most {HEAD_BYTES_MAX} bytes"
        body = problem_bytes(400, detail)
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
