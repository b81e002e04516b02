"""The HTTP socket: open from the first moment of a start, served by code that comes later.

Rule: this module is imported by every node, so it imports nothing heavy. What is heavy is loaded
in a thread when the first connection comes; until then connections wait with their first bytes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.host import Host, Listening
from tidelog.model import Endpoint

if TYPE_CHECKING:
    from tidelog.faces.http.server import Server
    from tidelog.faces.node import Node
    from tidelog.faces.tls import Certificates

_log = logging.getLogger(__name__)

_STOP_SECONDS_MAX: Final = 2.0


class HttpListener:
    """Accepts HTTP clients of one node."""

    def __init__(self, host: Host, node: "Node", certificates: "Certificates | None" = None) -> None:
        """With `certificates` clients speak TLS."""
        self._host = host
        self._certificates = certificates
        self._node = node
        self._listening: Listening | None = None
        self._server: Server | None = None
        self._loading: asyncio.Task[None] | None = None
        self.waiting: dict[_Waiting, None] = {}
        """In the order in which they came, which is the order in which they are served."""

    async def start(self, at: Endpoint) -> Endpoint:
        """Listen; where that turned out to be."""
        tls = None if self._certificates is None else self._certificates.context
        self._listening = await self._host.network.serve(self._accept, at.host, at.port, tls=tls)
        sockets = getattr(self._listening, "sockets", ())
        return Endpoint(host=at.host, port=sockets[0].getsockname()[1] if sockets else at.port)

    def end_streams(self) -> None:
        """Let those go who listen for ever, while others are still answered."""
        if self._server is not None:
            self._server.end_streams()

    def close(self) -> None:
        """Accept nobody any more; answers under way still go out."""
        if self._loading is not None:
            self._loading.cancel()
        if self._listening is not None:
            self._listening.close()
        for one in list(self.waiting):
            one.drop()
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Let everybody go, once what they were answered has left."""
        self.close()
        if self._server is not None:
            await self._server.wait_closed(_STOP_SECONDS_MAX)

    # Connections.

    def _accept(self) -> asyncio.BaseProtocol:
        if self._server is not None:
            return self._server.connection()
        if len(self.waiting) >= self._node.broker.config.connections_max:
            return _Unwanted()
        return _Waiting(self)

    def load(self) -> None:
        """Begin to load what serves connections, unless that has begun."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        try:
            make = await self._host.offload.run(_import)
        except ImportError:
            _log.exception("the HTTP face cannot be loaded")
            for one in list(self.waiting):
                one.drop()
            self._loading = None
            return
        server = self._server = make(self._node)
        if self._certificates is not None:
            server.principal_of = self._certificates.principal
        for one in list(self.waiting):
            one.hand_over(server.connection())


def _import() -> "Callable[[Node], Server]":
    from tidelog.faces.http.server import Server

    return Server


class _Waiting(asyncio.Protocol):
    """A connection that came before the code that serves it."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream, as every Network gives
        self._listener.waiting[self] = None
        self._listener.load()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._transport.pause_reading()  # earlier, uvloop would not listen

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.waiting.pop(self, None)

    def drop(self) -> None:
        self._listener.waiting.pop(self, None)
        self._transport.abort()

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Let `protocol` have the connection, from its first byte on."""
        self._listener.waiting.pop(self, None)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if self._received and not self._transport.is_closing():
            self._transport.resume_reading()
            protocol.data_received(bytes(self._received))


class _Unwanted(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
