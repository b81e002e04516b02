"""NATS as a peer: one server or three with JetStream, which syncs before it answers.

Rule 1: nothing is tuned but `sync_interval: always`, without which a message is answered before it is
        safe, and lost with the machine for up to two minutes.
Rule 2: the server comes as a Go module of a pinned version, once, into a directory that git ignores.
Rule 3: no process outlives the `with`, nor do its files outlive the caller's directory.
"""

import json
import shutil
import socket
import subprocess
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.clients import Unavailable
from benchmarks.process import end_process, free_ports

MODULE: Final = Path(__file__).with_name("nats")
PROGRAM: Final = Path(__file__).parents[1] / ".suites" / "nats" / "nats-server"
BUILD_SECONDS_MAX: Final = 600
START_SECONDS_MAX: Final = 30.0
ASK_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.05
HOST: Final = "127.0.0.1"

HELLO: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


class Nats:
    """So many servers that are one cluster, while the `with` lasts."""

    def __init__(self, directory: Path, nodes: int = 1) -> None:
        """Build the server, which the first time takes a download; or Unavailable."""
        self._program = _built()
        self._directory = directory
        self._nodes = nodes
        self._started: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []

    def __enter__(self) -> Self:
        self._directory.mkdir()
        self.ports = free_ports(self._nodes)
        routes = free_ports(self._nodes)
        try:
            for number, (port, route) in enumerate(zip(self.ports, routes, strict=True)):
                home = self._directory / str(number)
                home.mkdir()
                config = home / "nats.conf"
                config.write_text(self._config(number, port, route, routes, home))
                self._started.append(
                    subprocess.Popen(
                        [str(self._program), "--config", str(config)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
            for port in self.ports:
                self._wait_ready(port)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._started]

    def _config(self, number: int, port: int, route: int, routes: list[int], home: Path) -> str:
        lines = [
            f"server_name: node{number}",
            f'listen: "{HOST}:{port}"',
            f'jetstream {{ store_dir: "{home}", sync_interval: always }}',
        ]
        if self._nodes > 1:
            others = ", ".join(f'"nats://{HOST}:{one}"' for one in routes)
            lines.append(f'cluster {{ name: bench, listen: "{HOST}:{route}", routes: [{others}] }}')
        return "\n".join([*lines, ""])

    def _wait_ready(self, port: int) -> None:
        """Until JetStream answers, which in a cluster takes an election."""
        give_up_at = monotonic() + START_SECONDS_MAX
        while monotonic() < give_up_at and all(one.poll() is None for one in self._started):
            try:
                with NatsTalk(port) as talk:
                    talk.ask("$JS.API.STREAM.NAMES", {})
                    return
            except (OSError, RuntimeError):
                sleep(POLL_SECONDS)
        raise RuntimeError("nats-server did not start")

    def _stop(self) -> None:
        for process in self._started:
            end_process(process)


class NatsTalk:
    """A connection to a server, with an inbox of its own."""

    def __init__(self, port: int, inbox: str = "_INBOX.once") -> None:
        self.socket = socket.create_connection((HOST, port), timeout=ASK_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inbox = inbox
        self._came = b""
        try:
            self.socket.sendall(HELLO + b"SUB %b 1\r\nPING\r\n" % inbox.encode())
            while self._line() != b"PONG":
                pass
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def ask(self, subject: str, document: Any) -> Any:
        """What JetStream answers; RuntimeError if it refuses."""
        self.socket.sendall(publish(subject, self._inbox, json.dumps(document).encode()))
        while not (line := self._line()).startswith((b"MSG ", b"HMSG ")):
            if line.startswith(b"-ERR"):
                raise RuntimeError(line.decode())
        size = int(line.rpartition(b" ")[2]) + 2
        while len(self._came) < size:
            self._receive()
        body, self._came = self._came[: size - 2], self._came[size:]
        found = json.loads(body) if body.startswith(b"{") else {"error": body.decode()}
        if "error" in found:
            raise RuntimeError(f"NATS refused {subject}: {found['error']}")
        return found

    def _line(self) -> bytes:
        while b"\r\n" not in self._came:
            self._receive()
        line, _, self._came = self._came.partition(b"\r\n")
        return line

    def _receive(self) -> None:
        more = self.socket.recv(1 << 16)
        if not more:
            raise ConnectionError("NATS closed the connection")
        self._came += more


def publish(subject: str, inbox: str, body: bytes) -> bytes:
    return f"PUB {subject} {inbox} {len(body)}\r\n".encode() + body + b"\r\n"


def _built() -> Path:
    """The server, made anew when its pinned version has changed."""
    pinned, beside = MODULE / "go.sum", PROGRAM.with_name("go.sum")
    if PROGRAM.is_file() and beside.is_file() and beside.read_bytes() == pinned.read_bytes():
        return PROGRAM
    go = shutil.which("go")
    if go is None:
        raise Unavailable("no go to build NATS with (Debian: golang)")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    built = subprocess.run(
        [go, "build", "-o", str(PROGRAM), "github.com/nats-io/nats-server/v2"],
        cwd=MODULE,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if built.returncode:
        raise Unavailable(f"NATS cannot be built: {built.stderr.strip()[-500:]}")
    shutil.copy(pinned, beside)
    return PROGRAM
