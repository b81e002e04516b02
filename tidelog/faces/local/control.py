"""How commands ask the running `tidelog cluster up`: a socket in its directory.

    request  := {"command": "kill", "node": 2, "wait": false}  newline
    answer   := cluster.json as it is now  |  {"problem": "..."}   newline

Only the user who runs the cluster may connect. A path of a Unix socket may have 107 bytes, which
temporary directories pass easily; so it is named through the open directory in /proc.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tidelog.errors import TidelogError
from tidelog.faces.local.layout import ClusterFile
from tidelog.model import NodeId

SOCKET_NAME: Final = "cluster.sock"
REQUEST_BYTES_MAX: Final = 4096


class NotRunning(TidelogError):
    """No `tidelog cluster up` runs on the directory."""


class ControlRefused(TidelogError):
    """It did not do it; the message says why."""


@contextmanager
def socket_path(directory: Path) -> Iterator[str]:
    """The socket's path, short whatever the directory's is; while this lasts."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)


def remove_socket(directory: Path) -> None:
    (directory / SOCKET_NAME).unlink(missing_ok=True)


def ask(
    directory: Path,
    command: str,
    node: NodeId | None = None,
    *,
    wait: bool = False,
    seconds_max: float = 90.0,
) -> ClusterFile:
    """Let the running `cluster up` do something; how the cluster is then.

    `wait`: a node that is started must serve before this returns.
    """
    request = {"command": command, "node": node, "wait": wait}
    missing = f"no cluster runs in {directory}; start it: tidelog cluster up --data {directory}"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds_max)
        try:
            with socket_path(directory) as path:
                connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = _read_line(connection)
        except TimeoutError:
            raise ControlRefused(
                f"`tidelog cluster up` did not answer within {seconds_max:g} s; is it paused?"
            ) from None
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise NotRunning(missing) from None
        except OSError as error:
            raise ControlRefused(f"`tidelog cluster up` does not answer: {error}") from None
    if not answer:
        raise NotRunning(f"the cluster in {directory} ended meanwhile")
    document: dict[str, Any] = json.loads(answer)
    if "problem" in document:
        raise ControlRefused(document["problem"])
    return msgspec.convert(document, ClusterFile)


def _read_line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        chunk = connection.recv(65536)
        if not chunk:
            break
        received += chunk
    return bytes(received)
