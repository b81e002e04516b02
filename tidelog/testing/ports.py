"""Ports that nobody else gets.

A port that was free a moment ago may be another's by the time it is used: tests run side by side.
So a socket is bound to each port, and kept, without ever listening. The kernel then gives the port
to nobody who asks for any; who names it may bind it as well, since both say SO_REUSEADDR and this
one does not listen. While the node is away, callers are refused, as by a process that is gone.
"""

import socket
from typing import Final

LOCALHOST: Final = "127.0.0.1"


class ReservedPort:
    """One port of this machine, from now until `release`."""

    def __init__(self, port: int = 0, host: str = LOCALHOST) -> None:
        """Port 0 is for any; OSError if it is taken."""
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except BaseException:
            self._socket.close()
            raise
        self.host = host
        self.number: int = self._socket.getsockname()[1]

    def __str__(self) -> str:
        return f"{self.host}:{self.number}"

    def release(self) -> None:
        self._socket.close()


def reserve(*places: tuple[str, int]) -> list[ReservedPort]:
    """One for each host and port, or none: OSError if one of them is taken."""
    ports: list[ReservedPort] = []
    try:
        for host, port in places:
            ports.append(ReservedPort(port, host))
    except BaseException:
        for reserved in ports:
            reserved.release()
        raise
    return ports
