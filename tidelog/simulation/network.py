"""Byte streams between simulated hosts, as TCP would carry them, and what can happen to them.

Rule 1: inside a connection bytes keep their order and none is lost while both ends live. They are
        late, cut into pieces anywhere, or stay away; beyond that only the whole connection breaks.
Rule 2: the kernel holds `window_bytes` for each direction. What exceeds them stays in the sender's
        transport, which asks its protocol to pause, as asyncio's do; a killed process loses it.
Rule 3: an end's callbacks run in its own process, so whoever is paused hears of it later and
        whoever is dead never.
Rule 4: every delay comes from the generator given.

| what happens to one side      | what the other side sees                                         |
|-------------------------------|------------------------------------------------------------------|
| its process is killed         | what was under way, then the end of the stream, or a reset if it |
|                               | had not read everything; new connections are refused             |
| its process is paused         | silence; new connections are made, and then silence              |
| its machine loses power       | silence; once it is up again, a reset for whoever sends          |
| the way to it is cut          | silence; after healing, what was held back arrives               |
| the way to it is clogged      | everything, seconds late                                         |
| `reset`                       | a part of what was under way, then a reset, at both ends         |
| `reset_one_end`               | nothing, until it sends something: that is answered by a reset   |
| `forget`                      | nothing, for ever: what either end sends is lost, as when a      |
|                               | firewall drops its state; one end may be reset at that           |
"""

import asyncio
import errno
import os
import random
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from tidelog.simulation.connection import End, Link
from tidelog.simulation.loop import Process, VirtualLoop
from tidelog.simulation.trace import Trace

_SYN_RETRY_SECONDS: Final = 1.0
_SYN_SECONDS_MAX: Final = 127.0
_WILDCARDS: Final = ("0.0.0.0", "::", "", "127.0.0.1", "localhost")


class SimulatedNetwork:
    """The wires between all hosts. `of` gives one process its `tidelog.host.Network`."""

    def __init__(
        self,
        loop: VirtualLoop,
        generator: random.Random,
        trace: Trace,
        *,
        latency_seconds: tuple[float, float] = (0.0001, 0.002),
        spike_chance: float = 0.0,
        spike_seconds: float = 0.2,
        split_chance: float = 0.05,
        window_bytes: int = 64 * 1024,
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.latency_seconds = latency_seconds
        self.spike_chance = spike_chance
        self.spike_seconds = spike_seconds
        self.split_chance = split_chance
        self.window_bytes = window_bytes
        self.effects: Counter[str] = Counter()
        """What the faults did: bytes held back, connections refused or reset, splits, retries."""
        self._random = generator
        self._draw = generator.random
        self._links: dict[tuple[str, str], Link] = {}
        self._hosts: dict[str, bool] = {}  # whether it has power
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._ends: dict[Process, dict[End, None]] = {}
        self._isolated: Counter[str] = Counter()
        self._ports_given = 40_000

    # Who is there.

    def of(self, process: Process, host: str) -> "HostNetwork":
        """The network as `process` on `host` knows it."""
        self._hosts[host] = True
        self._ends.setdefault(process, {})
        return HostNetwork(self, process, host)

    def connections(self, process: Process) -> int:
        return len(self._ends.get(process, ()))

    def on_killed(self, process: Process) -> None:
        """A process died; its kernel closes what it had open. Call it before the loop's `kill`."""
        for end in self._leave(process):
            end.on_owner_killed()

    def on_power_lost(self, host: str, processes: Iterable[Process]) -> None:
        """A machine went dark: nobody is told."""
        self._hosts[host] = False
        for process in processes:
            for end in self._leave(process):
                end.on_owner_silent()

    def on_power_back(self, host: str) -> None:
        """The machine is up and knows nothing of its old connections."""
        self._hosts[host] = True
        for ends in self._ends.values():
            for end in list(ends):
                if end.remote_host == host:
                    end.on_peer_booted()

    def _leave(self, process: Process) -> list[End]:
        self._listeners = {
            at: listener for at, listener in self._listeners.items() if listener.process is not process
        }
        return list(self._ends.pop(process, ()))

    # Faults.

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from `source` to `target`, until `mend`. Cuts add up."""
        self.link(source, target).cuts += 1

    def mend(self, source: str, target: str) -> None:
        """Take back one cut."""
        link = self.link(source, target)
        link.cuts = max(0, link.cuts - 1)
        if not link.cuts:
            self._release(link)

    def isolate(self, host: str) -> None:
        """Cut a host off from all others, also from those who come later."""
        self._isolated[host] += 1
        for (source, target), link in self._links.items():
            if source != target and host in (source, target):
                link.cuts += 1

    def rejoin(self, host: str) -> None:
        """Take back one `isolate`."""
        if self._isolated[host]:
            self._isolated[host] -= 1
            for source, target in self._links:
                if source != target and host in (source, target):
                    self.mend(source, target)

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Let everything take about `seconds`; 0 ends it. What is under way stays late."""
        self.link(source, target).clog_seconds = seconds

    def heal(self) -> None:
        """End every cut and clog."""
        self._isolated.clear()
        for link in self._links.values():
            link.cuts = 0
            link.clog_seconds = 0.0
            self._release(link)

    def reset(self, process: Process, *, chance: float = 1.0) -> int:
        """Break connections of a process in the middle of whatever they carry; how many."""
        count = 0
        for end in list(self._ends.get(process, ())):
            if self._draw() < chance:
                count += 1
                end.break_off()
        self.effects["connections reset"] += count
        return count

    def reset_one_end(self, process: Process, *, chance: float = 1.0) -> int:
        """Break one end of connections of a process, without a word to the other; how many."""
        count = 0
        for end in list(self._ends.get(process, ())):
            if self._draw() < chance:
                count += 1
                (end if self._draw() < 0.5 else end.peer).break_off_alone()
        self.effects["connections half-open"] += count
        return count

    def forget(self, process: Process, *, chance: float = 1.0) -> int:
        """Lose whatever is sent on connections of a process from now on; how many.

        Of some of them one end is reset, and the other never hears of it.
        """
        count = 0
        for end in list(self._ends.get(process, ())):
            if self._draw() < chance:
                count += 1
                end.forget()
                if self._draw() < 0.5:
                    (end if self._draw() < 0.5 else end.peer).break_off_alone()
        self.effects["connections forgotten"] += count
        return count

    def is_cut(self, source: str, target: str) -> bool:
        return self.link(source, target).cuts > 0

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            low, high = self.latency_seconds
            link = Link(low + (high - low) / 4 * self._draw() if source != target else 0.00001)
            if source != target:
                link.cuts = self._isolated[source] + self._isolated[target]
            self._links[source, target] = link
        return link

    def _release(self, link: Link) -> None:
        waiting, link.waiting = link.waiting, {}
        for end in waiting:
            end.on_way_mended()

    # Travelling.

    def delay(self, link: Link) -> float:
        low, high = self.latency_seconds
        seconds = link.seconds_least + (high - low) * self._draw() ** 3
        if link.clog_seconds:
            seconds += link.clog_seconds * (0.5 + self._draw())
        elif self.spike_chance and self._draw() < self.spike_chance:
            seconds += self.spike_seconds * self._draw()
        return seconds

    def has_power(self, host: str) -> bool:
        return self._hosts.get(host, False)

    # Connecting.

    def listen(self, listener: "_Listener") -> None:
        at = (listener.host, listener.port)
        if at in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"{at[0]}:{at[1]}")
        self._listeners[at] = listener

    def stop_listening(self, listener: "_Listener") -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    def free_port(self) -> int:
        self._ports_given += 1
        return self._ports_given

    def send_syn(self, attempt: "_Attempt") -> None:
        """Ask for a connection. Runs in the world: kernels answer for paused processes, too."""
        if not attempt.process.is_alive or attempt.future.done():
            return
        way, way_back = self._ways(attempt)
        arrives = self.loop.now + self.delay(way)
        if way.cuts or way_back.cuts or not self.has_power(attempt.host):
            self.effects["connections retried"] += 1
            if self.loop.now + attempt.retry_seconds > attempt.began + _SYN_SECONDS_MAX:
                self._refuse(attempt, arrives, errno.ETIMEDOUT)
            else:
                retry = self.loop.now + attempt.retry_seconds
                attempt.retry_seconds *= 2
                self.loop.at(retry, self.loop.world.context, self.send_syn, attempt)
            return
        self.loop.at(arrives, self.loop.world.context, self._receive_syn, attempt)

    def _ways(self, attempt: "_Attempt") -> tuple[Link, Link]:
        mine, other = attempt.network.host, attempt.host
        return self.link(mine, other), self.link(other, mine)

    def _receive_syn(self, attempt: "_Attempt") -> None:
        if not attempt.process.is_alive:
            return
        answer_arrives = self.loop.now + self.delay(self._ways(attempt)[1])
        listener = self._listeners.get((attempt.host, attempt.port))
        if listener is None:
            self.effects["connections refused"] += 1
            self._refuse(attempt, answer_arrives, errno.ECONNREFUSED)
            return
        client_at = (attempt.network.host, self.free_port())
        server_at = (listener.host, listener.port)
        client = End(self, attempt.process, client_at, server_at)
        server = End(self, listener.process, server_at, client_at)
        client.join(server)
        server.join(client)
        server.last_arrival = answer_arrives  # nothing overtakes the news of the connection
        self.loop.call_soon(server.open, listener.factory, context=listener.process.context)
        self.loop.at(answer_arrives, attempt.process.context, attempt.succeed, client)

    def _refuse(self, attempt: "_Attempt", when: float, code: int) -> None:
        error = OSError(code, os.strerror(code), f"{attempt.host}:{attempt.port}")
        self.loop.at(when, attempt.process.context, attempt.fail, error)

    def enter(self, end: End) -> None:
        self._ends[end.process][end] = None

    def leave(self, end: End) -> None:
        ends = self._ends.get(end.process)
        if ends is not None:
            ends.pop(end, None)


class HostNetwork:
    """What one process has of the network: a `tidelog.host.Network`."""

    def __init__(self, network: SimulatedNetwork, process: Process, host: str) -> None:
        self._network = network
        self._process = process
        self.host = host

    def __repr__(self) -> str:
        return f"<HostNetwork of {self._process.name}>"

    async def serve(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.AbstractServer:
        assert tls is None, "nothing is encrypted in simulated networks"
        if host != self.host and host not in _WILDCARDS:
            code = errno.EADDRNOTAVAIL
            raise OSError(code, os.strerror(code), f"{host}:{port}")
        listener = _Listener(
            self._network, self._process, factory, self.host, port or self._network.free_port()
        )
        self._network.listen(listener)
        return listener

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        host = self.host if host in _WILDCARDS else host
        if host not in self._network._hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"there is no host {host}")
        attempt = _Attempt(self._network, self, self._process, factory, host, port)
        self._network.send_syn(attempt)
        return await attempt.future


class _Listener(asyncio.AbstractServer):
    """A port that is listened on."""

    def __init__(
        self,
        network: SimulatedNetwork,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
    ) -> None:
        self._network = network
        self.process = process
        self.factory = factory
        self.host = host
        self.port = port
        self.sockets = (self,)  # it answers the one question that sockets of servers are asked

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        self._network.stop_listening(self)

    async def wait_closed(self) -> None:
        """Nothing takes time here."""

    def is_serving(self) -> bool:
        return self._network._listeners.get((self.host, self.port)) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    async def start_serving(self) -> None:
        """It does since it was made."""

    async def serve_forever(self) -> None:
        raise NotImplementedError


class _Attempt:
    """Somebody wants to connect."""

    def __init__(
        self,
        fabric: SimulatedNetwork,
        network: HostNetwork,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
    ) -> None:
        self.network = network
        self.process = process
        self.host = host
        self.port = port
        self.began = fabric.loop.now
        self.retry_seconds = _SYN_RETRY_SECONDS
        self.future: asyncio.Future[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]] = (
            fabric.loop.create_future()
        )
        self._factory = factory

    def succeed(self, end: End) -> None:
        if self.future.done():  # who asked was cancelled
            end.abort()
        elif not end.is_closing():
            protocol = end.open(self._factory)
            self.future.set_result((end, protocol))
        else:
            self.fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def fail(self, error: OSError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
