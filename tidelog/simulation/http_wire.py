"""The HTTP client's connections, over the simulated network.

Everything above a stream of bytes is what users run: httpx, its pool of connections, h11, and on
the other side the node's own listener. Only sockets are replaced, by the streams of `network.py`.

Rule: a connection that is not used never expires here: the pool counts that by the real clock.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import httpcore
import httpx

from tidelog.host import Network

CONNECTIONS_MAX: Final = 20


class SimulatedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport, whose pool connects through a `Network`."""

    def __init__(self, network: Network) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=CONNECTIONS_MAX,
            keepalive_expiry=None,
            network_backend=_Backend(network),
        )


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, network: Network) -> None:
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = _Stream()
        try:
            async with asyncio.timeout(timeout):
                await self._network.connect(lambda: stream.bytes, host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Bytes(asyncio.Protocol):
    """What has come for a stream, and how it ended."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.is_over = False
        self.error: Exception | None = None
        self.came = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.came.set()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        self.is_over, self.error = True, self.error or error
        self.came.set()
        self.may_write.set()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()


class _Stream(httpcore.AsyncNetworkStream):
    """One connection, as httpcore wants it."""

    def __init__(self) -> None:
        self.bytes = _Bytes()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        stream = self.bytes
        try:
            async with asyncio.timeout(timeout):
                while not stream.received and not stream.is_over:
                    stream.came.clear()
                    await stream.came.wait()
        except TimeoutError as error:
            raise httpcore.ReadTimeout from error
        if not stream.received and stream.error is not None:
            raise httpcore.ReadError(str(stream.error))
        found = bytes(stream.received[:max_bytes])
        del stream.received[:max_bytes]
        return found

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        stream = self.bytes
        assert stream.transport is not None
        if stream.is_over:
            raise httpcore.WriteError(str(stream.error or "the connection is closed"))
        stream.transport.write(buffer)
        try:
            async with asyncio.timeout(timeout):
                await stream.may_write.wait()
        except TimeoutError as error:
            raise httpcore.WriteTimeout from error

    async def aclose(self) -> None:
        if self.bytes.transport is not None:
            self.bytes.transport.close()

    def get_extra_info(self, info: str) -> Any:
        """Whether an idle connection has something to read: its end, most likely."""
        if info == "is_readable":
            return self.bytes.is_over or bool(self.bytes.received)
        return None
