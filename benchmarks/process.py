"""Other processes: what they cost, and the plain ones that limits are measured with."""

import os
import socket
import subprocess
import sys
from types import TracebackType
from typing import Final, Self

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
STOP_SECONDS_MAX: Final = 10.0


def cpu_seconds(pid: int) -> float:
    """Of all threads, in user and kernel mode; in steps of a clock tick, 10 ms."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def cpu_seconds_below() -> float:
    """Of all processes below this one, with those that they have waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(name)] = int(fields[1])
        ticks[int(name)] = sum(map(int, fields[11:15]))

    def is_below(pid: int) -> bool:
        parent = parents.get(pid, 0)
        return parent == os.getpid() or (parent != 0 and is_below(parent))

    return sum(spent for pid, spent in ticks.items() if is_below(pid)) / TICKS_PER_SECOND


def in_session(leader: int) -> list[int]:
    """The processes of a session, of which some may be others' children."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getsid(int(name)) == leader:
                    found.append(int(name))
            except OSError:
                pass  # it has ended
    return found


def memory_bytes(pid: int) -> int:
    """Resident now."""
    return _status_bytes(pid, "VmRSS")


def peak_memory_bytes(pid: int) -> int:
    """The most that was resident since the start, or since `forget_peak`."""
    return _status_bytes(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _status_bytes(pid: int, name: str) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has ended")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, for those who cannot be asked which one they got."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def end_process(process: subprocess.Popen[bytes], seconds_max: float = STOP_SECONDS_MAX) -> int:
    """SIGTERM, and SIGKILL if that takes too long; its exit code."""
    process.terminate()
    try:
        return process.wait(seconds_max)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Peer:
    """A `benchmarks.peer` process of a given kind, while the `with` lasts."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer", self._kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            self._stop()
            raise RuntimeError(f"the plain {self._kind} process did not start")
        self.port = int(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _stop(self) -> None:
        process = self._process
        assert process is not None
        end_process(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
