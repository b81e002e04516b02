"""Redis as a peer: one server, with its defaults, whose every write goes to an append-only file.

Rule 1: nothing is tuned. `appendfsync always` syncs before it answers, as our default does;
        `everysec` answers first, and may lose a second of writes.
Rule 2: the process does not outlive its `with`, nor do its files outlive the caller's directory.
"""

import shutil
import socket
import subprocess
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Final, Self

from benchmarks.clients import Unavailable
from benchmarks.process import end_process, free_ports

START_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.02


class Redis:
    """A `redis-server`, while the `with` lasts."""

    def __init__(self, directory: Path, fsync: str) -> None:
        """Unavailable if there is none. The directory is made; `fsync`: always or everysec."""
        found = shutil.which("redis-server")
        if found is None:
            raise Unavailable("no redis-server (Debian: redis-server)")
        self._program = found
        self._directory = directory
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._directory.mkdir()
        (self.port,) = free_ports(1)  # its port 0 means none
        self._process = subprocess.Popen(
            [
                self._program,
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(self._directory),
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                self._fsync,
                "--daemonize",
                "no",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait_ready(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = monotonic() + START_SECONDS_MAX
        while monotonic() < give_up_at and process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            sleep(POLL_SECONDS)
        raise RuntimeError("redis-server did not start")

    def _stop(self) -> None:
        assert self._process is not None
        end_process(self._process)
