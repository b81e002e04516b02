"""What a node tells the supervisor that started it, by systemd's protocol (sd_notify).

    message := field ("\n" field)*        one datagram to the socket named by NOTIFY_SOCKET
    field   := "READY=1" | "STATUS=" text

`tidelog cluster up` listens in the same way to the nodes that it starts.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

VARIABLE: Final = "NOTIFY_SOCKET"


def notifier(environment: Mapping[str, str] = os.environ) -> Callable[[str], None] | None:
    """Sends a message to the supervisor; None if there is none who listens."""
    address = environment.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return None
    if address.startswith("@"):  # a name without a file
        address = "\0" + address[1:]

    def notify(message: str) -> None:
        with (
            suppress(OSError),  # it listens no more, or too slowly; it is only told
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(message.encode(), address)

    return notify


def listening() -> tuple[socket.socket, str]:
    """A socket for the messages of one process, and what its NOTIFY_SOCKET must be."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    listener.setblocking(False)
    listener.bind("")  # the kernel chooses a name
    return listener, "@" + listener.getsockname()[1:].decode()


def fields_of(message: bytes) -> dict[str, str]:
    lines = message.decode("utf-8", "replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)
