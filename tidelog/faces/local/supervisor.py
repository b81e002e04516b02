"""The nodes of one directory as child processes: started, watched, paused, stopped.

| command | signal            | then                                          |
|---------|-------------------|-----------------------------------------------|
| start   | -                 | the process is made; it serves, or says which |
|         |                   | voters it waits for                           |
| stop    | SIGTERM, SIGCONT  | it ends by itself, clean                      |
| kill    | SIGKILL           | it is gone                                    |
| pause   | SIGSTOP           | nothing of it runs; peers hear nothing        |
| resume  | SIGCONT           | it goes on, and learns what it missed         |

Rule 1: cluster.json is replaced whenever a state changes, before anybody is answered.
Rule 2: children have a process group of their own: Ctrl-C reaches this process alone, which then
        stops them in order.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from tidelog.errors import TidelogError
from tidelog.faces.local import layout
from tidelog.faces.local.control import REQUEST_BYTES_MAX, remove_socket, socket_path
from tidelog.faces.local.layout import ClusterFile, NodeEntry, State
from tidelog.faces.notify import VARIABLE, fields_of, listening
from tidelog.model import NodeId

READY_SECONDS_MAX: Final = 60.0
SETTLE_SECONDS_MAX: Final = 10.0
"""Within which a node that was started serves as a rule, or knows whom it waits for."""
STOP_SECONDS_MAX: Final = 40.0
"""A node gives its clients and its disk this long; whoever takes longer is killed."""
SAY_SECONDS: Final = 10.0
WAITING: Final = "waiting for "
"""How a node's status begins while it misses voters."""
_ALIVE: Final = (State.STARTING, State.RUNNING, State.PAUSED)


class CannotDo(TidelogError):
    """The node is not in a state for that; the message says what to do."""


class Supervisor:
    """All nodes of one directory."""

    def __init__(self, directory: Path, content: ClusterFile, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.content = content
        self._say = say
        self._nodes = {entry.id: Child(self, entry) for entry in content.nodes}
        self._server: asyncio.AbstractServer | None = None
        self.is_stopping = False

    # From the first start to the last stop.

    async def run(self, announce: Callable[[str], None]) -> None:
        """Start all nodes, announce them, and stop them when a signal comes."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if stopped.is_set():  # asked twice: do not wait any longer
                for child in self._nodes.values():
                    child.send_kill()
            stopped.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop)
        self.content.pid = os.getpid()
        stopping = loop.create_task(stopped.wait())
        try:
            await self._listen()
            starting = loop.create_task(self._start_all())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                announce(layout.ready_line(self.content, self.directory))
                await stopping
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            self._say("stopping the nodes")
        finally:
            stopping.cancel()
            await self._stop_all()

    async def _start_all(self) -> None:
        await self.note()
        for child in self._nodes.values():
            await child.spawn()
        waits = [asyncio.create_task(child.wait_ready()) for child in self._nodes.values()]
        saying = asyncio.create_task(self._say_who_is_late())
        try:
            await asyncio.gather(*waits)
        finally:
            saying.cancel()
            for wait in waits:
                wait.cancel()
        for child in self._nodes.values():
            child.check_running()  # the first may have ended while the last was starting

    async def _say_who_is_late(self) -> None:
        while True:
            await asyncio.sleep(SAY_SECONDS)
            late = [c.entry.id for c in self._nodes.values() if c.entry.state is State.STARTING]
            for number in late:
                self._say(f"still waiting for node {number}; see {self.log_path(number)}")

    async def _stop_all(self) -> None:
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
            remove_socket(self.directory)
        children = self._nodes.values()
        await asyncio.gather(*(child.end(State.STOPPED, STOP_SECONDS_MAX) for child in children))
        self.content.pid = None
        await self.note()

    async def note(self) -> None:
        """Let cluster.json say how things are."""
        self.write()

    def write(self) -> None:
        layout.write(self.directory, self.content)

    def log_path(self, number: NodeId) -> Path:
        return self.directory / f"node-{number}.log"

    def child_ended(self, child: "Child", code: int) -> None:
        """A process has ended; if nobody asked for it, tell what happened and what to do."""
        entry = child.entry
        if entry.state not in _ALIVE:
            return
        # Only a node that was asked to, by a signal or over HTTP, ends with 0.
        was, entry.state = entry.state, State.STOPPED if code == 0 else State.FAILED
        if self.is_stopping or was is State.STARTING:
            return  # whoever waits for it tells
        self._say(
            f"node {entry.id} {describe_exit(code)}; its log is {self.log_path(entry.id)}. Bring "
            f"it back: tidelog cluster start {entry.id} --data {self.directory}"
        )

    # What commands ask.

    async def _listen(self) -> None:
        mask = os.umask(0o177)  # the socket is for this user alone
        try:
            remove_socket(self.directory)  # one that was killed has left its own
            with socket_path(self.directory) as path:
                self._server = await asyncio.start_unix_server(self._serve, path, limit=REQUEST_BYTES_MAX)
        finally:
            os.umask(mask)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline())
            writer.write(answer + b"\n")
            await writer.drain()
        except (OSError, ValueError):
            pass  # it went away, or sent something else
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> bytes:
        try:
            await self._perform(json.loads(line))
        except TidelogError as error:
            return msgspec.json.encode({"problem": str(error)})
        return msgspec.json.encode(self.content)

    async def _perform(self, request: dict[str, Any]) -> None:
        command, number = request["command"], request["node"]
        if command == "status":
            return
        actions: dict[str, Callable[[Child], Awaitable[None]]] = {
            "start": Child.start,
            "stop": Child.stop,
            "kill": Child.kill,
            "pause": Child.pause,
            "resume": Child.resume,
        }
        self.content.node(number)
        if self.is_stopping:
            raise CannotDo("the cluster is stopping")
        child = self._nodes[number]
        async with child.busy:
            await actions[command](child)
        if command == "start":
            await (child.serve() if request.get("wait") else child.settle())


class Child:
    """One node's process, or its place while there is none."""

    def __init__(self, supervisor: Supervisor, entry: NodeEntry) -> None:
        self.entry = entry
        self.busy = asyncio.Lock()
        self._supervisor = supervisor
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._hearing: asyncio.DatagramTransport | None = None
        self._ready = asyncio.Event()
        self._settled = asyncio.Event()
        """It serves, or has said whom it waits for."""

    # Commands.

    async def start(self) -> None:
        if self.entry.state in _ALIVE:
            raise CannotDo(f"node {self.entry.id} runs already, as process {self.entry.pid}")
        await self.spawn()

    async def serve(self) -> None:
        """Wait until a node that was started serves."""
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self.wait_ready()
        except TimeoutError:
            why = self.entry.waits_for or "its log says why"
            raise CannotDo(
                f"node {self.entry.id} runs but does not serve after {READY_SECONDS_MAX:.0f} s: "
                f"{why}. See {self._supervisor.log_path(self.entry.id)}"
            ) from None

    async def settle(self) -> None:
        """Wait until it is known what becomes of a start; not for what only others can change."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                await self._wait_for(self._settled)

    async def stop(self) -> None:
        self._require_process()
        if not await self.end(State.STOPPED, STOP_SECONDS_MAX):
            raise CannotDo(
                f"node {self.entry.id} did not stop within {STOP_SECONDS_MAX:.0f} s and was killed"
            )

    async def kill(self) -> None:
        self._require_process()
        await self.end(State.KILLED, 0)

    async def pause(self) -> None:
        process = self._require_process()
        process.send_signal(signal.SIGSTOP)
        for _ in range(1000):  # a thread may still be in a disk's call
            if process.returncode is not None or process_state(process.pid) in "Tt":
                break
            await asyncio.sleep(0.005)
        await self._enter(State.PAUSED)

    async def resume(self) -> None:
        process = self._require_process()
        process.send_signal(signal.SIGCONT)
        await self._enter(State.RUNNING if self._ready.is_set() else State.STARTING)

    def _require_process(self) -> asyncio.subprocess.Process:
        if self._process is None or self.entry.state not in _ALIVE:
            where = self._supervisor.directory
            raise CannotDo(
                f"node {self.entry.id} does not run; start it: tidelog cluster start "
                f"{self.entry.id} --data {where}"
            )
        return self._process

    async def _enter(self, state: State) -> None:
        if self.entry.state in _ALIVE:  # it may have died meanwhile
            self.entry.state = state
        await self._supervisor.note()

    # The process.

    async def spawn(self) -> None:
        """Make the process; `wait_ready` tells when it serves."""
        supervisor, entry = self._supervisor, self.entry
        options = layout.options(supervisor.content, entry, supervisor.directory)
        self._ready.clear()
        self._settled.clear()
        entry.waits_for = None
        listener, address = listening()
        self._hearing, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Notices(self), sock=listener
        )
        with supervisor.log_path(entry.id).open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidelog.faces.local.child",
                str(os.getpid()),
                "start",
                *options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                process_group=0,
                env={**os.environ, VARIABLE: address},
            )
        entry.pid, entry.state, entry.exit_code = self._process.pid, State.STARTING, None
        self._watching = asyncio.create_task(self._watch(self._process))
        await supervisor.note()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Read its ready line, then wait for its end."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.startswith(b"ready "):
                self._ready.set()
                self.entry.waits_for = None
                await self._enter(State.RUNNING)
                self._settled.set()
        code = await process.wait()
        if self._hearing is not None:
            self._hearing.close()
        self.entry.waits_for = None
        self._supervisor.child_ended(self, code)
        self.entry.pid, self.entry.exit_code = None, code
        await self._supervisor.note()

    async def wait_ready(self) -> None:
        """Wait until it serves; CannotDo if it ends instead."""
        await self._wait_for(self._ready)

    async def _wait_for(self, event: asyncio.Event) -> None:
        assert self._watching is not None
        happening = asyncio.create_task(event.wait())
        try:
            await asyncio.wait({happening, self._watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            happening.cancel()
        self.check_running()

    def noticed(self, status: str) -> None:
        """The node says how it is."""
        waits_for = status if status.startswith(WAITING) else None
        if waits_for != self.entry.waits_for:
            self.entry.waits_for = waits_for
            self._supervisor.write()
        if waits_for is not None:
            self._settled.set()

    def check_running(self) -> None:
        if self._watching is None or self._watching.done():
            path = self._supervisor.log_path(self.entry.id)
            raise CannotDo(
                f"node {self.entry.id} {describe_exit(self.entry.exit_code or 0)} before the start "
                f"was done: {last_line(path)} (all of it is in {path})"
            )

    async def end(self, state: State, seconds_max: float) -> bool:
        """Let the process end: by itself within so many seconds, or by force. Whether it did."""
        process, watching = self._process, self._watching
        if process is None or watching is None or watching.done():
            return True
        self.entry.state = state
        if seconds_max and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # paused, it would not hear of it
        await asyncio.wait({watching}, timeout=seconds_max)
        in_time = watching.done()
        if not in_time:
            self.send_kill()
            await watching
        return in_time

    def send_kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


class _Notices(asyncio.DatagramProtocol):
    """What one node says of itself."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def datagram_received(self, data: bytes, addr: object) -> None:
        status = fields_of(data).get("STATUS")
        if status is not None:
            self._child.noticed(status)


def describe_exit(code: int) -> str:
    """How a process ended, for people."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return "ended" if code == 0 else f"ended with exit code {code}"


def last_line(path: Path) -> str:
    """The last thing that a node said."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 4096, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "it said nothing"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def process_state(pid: int) -> str:
    """The kernel's letter for a process: R, S, D, T when stopped, Z; X if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]
