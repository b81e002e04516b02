"""A server of TLS: how many may be shaking hands at once.

Rule 1: a connection is its protocol's once its handshake is done. Until then it is counted here, and those
        that have been here longest make room for further ones.
Rule 2: nobody who stays silent keeps others from being served: a handshake has an end.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_log = logging.getLogger(__name__)

HANDSHAKES_MAX: Final = 256
TLS_SECONDS_MAX: Final = 10.0
"""For a handshake, and for the farewell of a connection that is closed."""
BACKLOG: Final = 1024
RETRY_SECONDS: Final = 1.0
"""After an accept that failed: there are no descriptors."""


class TlsServer:
    """Accepts connections at some sockets, and hands each over once it speaks TLS."""

    def __init__(
        self, factory: Callable[[], asyncio.BaseProtocol], sockets: list[socket.socket], tls: ssl.SSLContext
    ) -> None:
        self._factory = factory
        self._tls = tls
        self._handshakes: dict[socket.socket, None] = {}
        """The earliest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.sockets = sockets
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(one)) for one in sockets]

    def close(self) -> None:
        """Accept nobody any more; whoever speaks TLS by now stays."""
        for task in self._accepting:
            task.cancel()
        for one in self.sockets:
            one.close()
        while self._handshakes:
            self._end_earliest()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("no connection can be accepted: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self._end_earliest()
            self._handshakes[connection] = None
            task = loop.create_task(self._shake(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_SECONDS_MAX,
                ssl_shutdown_timeout=TLS_SECONDS_MAX,
            )
        except OSError:
            pass  # it did not speak TLS, or not in time; an SSLError is an OSError
        finally:
            self._handshakes.pop(connection, None)

    def _end_earliest(self) -> None:
        """Let a handshake fail: its client says no more."""
        earliest = next(iter(self._handshakes))
        del self._handshakes[earliest]
        with suppress(OSError):
            earliest.shutdown(socket.SHUT_RDWR)


async def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at all addresses of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if family == socket.AF_INET6 and not socket.has_ipv6:
                continue
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind(address)
            one.listen(BACKLOG)
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return sockets
