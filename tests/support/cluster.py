"""A real `tidelog cluster up` on free ports, for tests; leaving it ends every process of it."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tidelog.faces.cli import main

SECONDS_MAX = 60.0


class ClusterProcess:
    """`tidelog cluster up`, and the commands that go with it."""

    def __init__(self, data: Path, nodes: int = 3) -> None:
        self.data = data
        self.nodes = nodes
        self.log = data.parent / (data.name + ".log")
        """The standard error of `up`, of all its starts."""
        self.ready: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        # kio would load hypothesis, and half of a start would be that.
        stub = data.parent / "stubs" / "hypothesis.py"
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text("raise ImportError\n")
        self.environment = {**os.environ, "PYTHONPATH": str(stub.parent), "COLUMNS": "400"}

    def __enter__(self) -> "ClusterProcess":
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_up:
            self.kill()

    # `up` itself.

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def bootstraps(self) -> list[str]:
        return self.ready["kafka"].split(",")

    def up(self, *options: str) -> None:
        """Start it and wait for its ready line; the first time on free ports."""
        if not options and not (self.data / "cluster.json").exists():
            options = ("--kafka-port", "0", "--http-port", "0", "--peer-port", "0")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tidelog.faces.cli",
                    "cluster",
                    "up",
                    "--nodes",
                    str(self.nodes),
                    "--data",
                    str(self.data),
                    *options,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
            )
        line = self._read_line()
        self.ready = dict(field.split("=", 1) for field in line.split()[1:])

    def _read_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + SECONDS_MAX
        received = b""
        while b"\n" not in received:
            left = max(deadline - time.monotonic(), 0)
            readable, _, _ = select.select([self._process.stdout], [], [], left)
            chunk = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            if not chunk:
                self.kill()
                logs = [self.log, *sorted(self.data.glob("node-*.log"))]
                raise AssertionError("\n".join(path.read_text()[-2000:] for path in logs))
            received += chunk
        line = received.decode().splitlines()[0]
        assert line.startswith("ready "), line
        return line

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        return self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL: it cannot stop its nodes."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        pids = self.pids()
        self._process.send_signal(number)
        code = self._process.wait(SECONDS_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()
        wait_until(lambda: not any(map(is_process, pids)), "a process was left behind")
        return code

    # Its commands.

    def command(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "tidelog.faces.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=SECONDS_MAX,
            check=False,
        )

    def cluster(self, command: str, node: int | None = None) -> Any:
        """`tidelog cluster COMMAND [N] --json`; in this process, which has all imported already."""
        arguments = [command] if node is None else [command, str(node)]
        if command == "start":
            arguments.append("--wait")
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["cluster", *arguments, "--data", str(self.data), "--json"])
        assert code == 0, err.getvalue()
        return json.loads(out.getvalue())

    def pids(self) -> list[int]:
        content = json.loads((self.data / "cluster.json").read_text())
        return [node["pid"] for node in content["nodes"] if node["pid"]]

    def is_whole(self) -> bool:
        """Whether all nodes run, one of them is the controller, and none is fenced."""
        found = self.cluster("status")
        return found["controller"] is not None and all(
            node["state"] == "running" and node["fenced"] is False for node in found["nodes"]
        )


def is_process(pid: int) -> bool:
    """Whether it runs, or could; one that has ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(is_so: Callable[[], bool], problem: str, seconds_max: float = SECONDS_MAX) -> float:
    """Wait; how long that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + seconds_max, problem
        time.sleep(0.05)
    return time.monotonic() - began
