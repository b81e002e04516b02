"""A real node in a process of its own, on a free port, for tests with real clients.

It can be frozen, stopped, killed and started again, on the same port and data; leaving it kills it.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0

TIDELOG = "import sys; sys.modules['hypothesis'] = None; from tidelog.faces.cli import main; sys.exit(main())"
"""`tidelog` as users have it. kio would load hypothesis, and half of a start would be that."""


class NodeProcess:
    """`tidelog start` on port 0, and what it printed."""

    def __init__(self, data: Path, settings: dict[str, Any] | None = None, *, program: str = TIDELOG) -> None:
        self.data = data
        self._program = program
        self._settings = {"http": "127.0.0.1:0"} | (settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.http = ""
        """HOST:PORT, another one with every start; empty without an HTTP face."""
        self.log = data.parent / (data.name + ".log")
        """The node's standard error, of all its starts."""

    def __enter__(self) -> "NodeProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()

    @property
    def bootstrap(self) -> str:
        assert self._port, "the node was never started"
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the node and wait until clients can connect; later starts keep the port."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process; `wait_ready` then, for the node may need others to be launched."""
        assert not self.is_running, "the node runs already"
        settings = [f"--set={key}={value}" for key, value in self._settings.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    self._program,
                    "start",
                    "--data",
                    str(self.data),
                    "--kafka",
                    f"127.0.0.1:{self._port}",
                    *settings,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def wait_ready(self) -> None:
        """Wait until clients can connect."""
        ready = self._read_ready_line()
        fields = dict(field.split("=", 1) for field in ready.split()[1:])
        self._port = int(fields["kafka"].rpartition(":")[2])
        self.http = fields.get("http", "")

    def _read_ready_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        received = b""
        while b"\n" not in received:
            readable, _, _ = select.select(
                [self._process.stdout], [], [], max(deadline - time.monotonic(), 0)
            )
            chunk = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            if not chunk:
                self.kill()
                raise AssertionError(f"the node did not start:\n{self.log.read_text()[-4000:]}")
            received += chunk
        line = received.decode().splitlines()[0]
        assert line.startswith("ready "), line
        return line

    def freeze(self) -> None:
        """SIGSTOP: nothing moves any more when this returns. Then `thaw` it, or end it."""
        os.kill(self.pid, signal.SIGSTOP)
        # The kernel reports a stop once the last thread stands, even one that was in a disk's call.
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the node ended by itself"

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no chance to finish anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: a clean stop; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)  # frozen, it would not hear of it
        code = self._process.wait(STOP_SECONDS_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code
