"""TCP through the event loop, and connections whose other side is gone."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from tidelog.host.doors import Listening
from tidelog.host.handshakes import BACKLOG, TlsServer, listen


class LoopNetwork:
    """TCP through the running event loop."""

    async def serve(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Listening:
        if tls is not None:
            return TlsServer(factory, await listen(host, port), tls)
        return await asyncio.get_running_loop().create_server(factory, host, port, backlog=BACKLOG)

    async def connect(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)


_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def give_up_on_silence(
    transport: asyncio.BaseTransport, *, unacknowledged_seconds_max: int | None = None
) -> None:
    """Let the kernel find out that the other side of a connection is gone without a word.

    An idle connection is probed: one whose machine lost power, or that a firewall has forgotten,
    breaks within a minute. Nothing is probed while bytes wait to be acknowledged: those are sent
    again for a quarter of an hour, or for `unacknowledged_seconds_max`. That bound also ends a
    connection whose other side does not read for so long, so it is not for clients.
    """
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if unacknowledged_seconds_max is not None:
            milliseconds = unacknowledged_seconds_max * 1000
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
