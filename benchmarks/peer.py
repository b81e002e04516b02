"""The other end of a limit: the least that a server of its kind can do.

`python -m benchmarks.peer sink` receives and forgets; `echo` sends back what comes, through the
same event loop as the node's; `answer` does so for every 100 bytes by themselves, as a server must
that looks at its requests. Each prints its port and runs until its standard input closes, so it
never outlives who started it.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final, cast

import uvloop

RECEIVE_BYTES: Final = 1024 * 1024
MESSAGE_BYTES: Final = 100


def sink() -> None:
    """Receive until the sender closes its side, then answer one byte."""
    buffer = bytearray(RECEIVE_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _announce(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    while connection.recv_into(buffer):
                        pass
                    connection.sendall(b"!")
                except OSError:
                    pass  # that sender has gone; the next one may come


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Answer(_Echo):
    def __init__(self) -> None:
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) // MESSAGE_BYTES * MESSAGE_BYTES
        for at in range(0, whole, MESSAGE_BYTES):
            self._transport.write(data[at : at + MESSAGE_BYTES])
        self._rest = data[whole:]


async def serve(protocol: Callable[[], asyncio.Protocol]) -> None:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    _announce(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _announce(port: int) -> None:
    print(port, flush=True)


def _end_with_parent() -> None:
    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started us
    _end_with_parent()
    if sys.argv[1] == "sink":
        sink()
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(_Echo if sys.argv[1] == "echo" else _Answer))
