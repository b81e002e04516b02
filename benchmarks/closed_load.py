"""`closed.py`, with a generator in C: it costs the machine a few microseconds per request.

Rule 1: connections are opened here, with whatever a protocol says first; the program gets them as
        they are, and a plan of what to ask (`closed_load.c` has its form).
Rule 2: as in `closed.py` a refusal makes the run fail.
"""

import json
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.clients import COMPILE_SECONDS_MAX, Unavailable
from benchmarks.closed import Refused, Timed

SOURCE: Final = Path(__file__).with_name("closed_load.c")
GRACE_SECONDS: Final = 40.0
"""What the program may take longer than it was told: it gives up on a silent server by itself."""
TURNS_MAX: Final = 1 << 40

HTTP: Final = "http"
REDIS: Final = "redis"
NATS: Final = "nats"
AMQP: Final = "amqp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """The second request of a turn: made of what stands between two marks of the first one's answer."""

    opening: bytes
    closing: bytes
    head: bytes = b""
    """What its length follows, plus `extra`, in digits; empty for none."""
    extra: int = 0
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Program:
    """What a connection asks, again and again."""

    requests: Sequence[bytes]
    settling: Settling | None = None
    tag_at: int = -1
    """Where each request has the number of its turn, as 8 bytes."""

    def planned(self) -> bytes:
        settling = self.settling
        parts = [b"program %d %d %d\n" % (len(self.requests), settling is not None, self.tag_at)]
        strings = list(self.requests)
        if settling is not None:
            extra = str(settling.extra).encode()
            strings += [settling.opening, settling.closing, settling.head, extra]
            strings += [settling.before, settling.after]
        parts += [b"%d\n%b" % (len(one), one) for one in strings]
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Talk:
    """A connection that is ready, its program, and with which request it begins."""

    socket: socket.socket
    program: Program
    start: int = 0


class ClosedLoad:
    """The generator, built for this machine."""

    def __init__(self, directory: Path) -> None:
        """Build it in `directory`; Unavailable without a compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise Unavailable("no C compiler (Debian: gcc)")
        self._program = directory / "closed_load"
        built = subprocess.run(
            [compiler, "-O2", "-Wall", "-Wextra", "-o", str(self._program), str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS_MAX,
            check=False,
        )
        if built.returncode:
            raise Unavailable(f"{SOURCE.name} does not compile: {built.stderr.strip()[-500:]}")

    def ask(self, kind: str, talks: Sequence[Talk], *, seconds: float, turns_max: int = TURNS_MAX) -> Timed:
        """Keep one turn under way on each connection, for so long or so often; close them all."""
        programs = list({id(talk.program): talk.program for talk in talks}.values())
        numbers = {id(program): number for number, program in enumerate(programs)}
        plan = [program.planned() for program in programs]
        plan += [
            b"connection %d %d %d\n" % (talk.socket.fileno(), numbers[id(talk.program)], talk.start)
            for talk in talks
        ]
        try:
            ended = subprocess.run(
                [str(self._program), kind, str(seconds), str(turns_max)],
                input=b"".join(plan),
                capture_output=True,
                pass_fds=[talk.socket.fileno() for talk in talks],
                timeout=seconds + GRACE_SECONDS,
                check=False,
            )
        finally:
            for talk in talks:
                talk.socket.close()
        if ended.returncode:
            raise Refused(ended.stderr.decode(errors="replace").strip()[-500:])
        found = json.loads(ended.stdout)
        milliseconds = {name: found[name] for name in ("p50", "p95", "p99", "max")}
        return Timed(requests=found["turns"], seconds=found["seconds"], milliseconds=milliseconds)


def opened(port: int) -> socket.socket:
    """A connection without anything said on it."""
    found = socket.create_connection(("127.0.0.1", port))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def spread(ports: Sequence[int], program: Program, connections: int) -> list[Talk]:
    """Connections to these ports in turn; no two begin with the same request, if there are enough."""
    count = len(program.requests)
    return [
        Talk(opened(ports[at % len(ports)]), program, at * count // connections) for at in range(connections)
    ]
