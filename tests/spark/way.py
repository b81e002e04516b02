"""The way to a server, through a port of ours, so that a test can have the server go."""

import socket
import threading
from contextlib import suppress
from typing import Final, Self

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 64 * 1024


class Way:
    """Carries bytes to a port and back, until it refuses everybody or falls silent."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._is_open = threading.Event()
        self._is_open.set()
        self._sockets: list[socket.socket] = []
        self._door = socket.create_server((HOST, 0))
        self.port: int = self._door.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()

    def refuse(self) -> None:
        """As if the server's process were gone."""
        _end(self._door)
        for one in self._sockets:
            _end(one)
        self._is_open.set()

    def fall_silent(self) -> None:
        """As if the network swallowed everything: connections stay, and carry nothing."""
        self._is_open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._door.accept()
                called = socket.create_connection((HOST, self._to))
                self._sockets += caller, called
                for source, target in ((caller, called), (called, caller)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                self._is_open.wait()
                target.sendall(chunk)
        for one in (source, target):
            _end(one)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
