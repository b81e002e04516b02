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
"""

import asyncio
import errno
import os
import random
import socket
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from tidelog.host import Bytes
from tidelog.simulation.loop import Process, VirtualLoop
from tidelog.simulation.trace import Trace

_END_OF_STREAM: Final = b""
_RESET: Final = b"\0reset"
"""Compared by identity; its content is never sent."""

_SYN_RETRY_SECONDS: Final = 1.0
_SYN_SECONDS_MAX: Final = 127.0
_HIGH_WATER_BYTES: Final = 64 * 1024
_WILDCARDS: Final = ("0.0.0.0", "::", "", "127.0.0.1", "localhost")


class _Link:
    """The way from one host to another; the way back is another link."""

    __slots__ = ("clog_seconds", "cuts", "seconds_least", "waiting")

    def __init__(self, seconds_least: float) -> None:
        self.seconds_least = seconds_least
        self.cuts = 0
        self.clog_seconds = 0.0
        self.waiting: dict[_End, None] = {}  # with something held back by a cut


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
        self._links: dict[tuple[str, str], _Link] = {}
        self._hosts: dict[str, bool] = {}  # whether it has power
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._ends: dict[Process, dict[_End, None]] = {}
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

    def _leave(self, process: Process) -> list["_End"]:
        self._listeners = {
            at: listener
            for at, listener in self._listeners.items()
            if listener.process is not process
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

    def is_cut(self, source: str, target: str) -> bool:
        return self.link(source, target).cuts > 0

    def link(self, source: str, target: str) -> _Link:
        link = self._links.get((source, target))
        if link is None:
            low, high = self.latency_seconds
            link = _Link(low + (high - low) / 4 * self._draw() if source != target else 0.00001)
            if source != target:
                link.cuts = self._isolated[source] + self._isolated[target]
            self._links[source, target] = link
        return link

    def _release(self, link: _Link) -> None:
        waiting, link.waiting = link.waiting, {}
        for end in waiting:
            end.on_way_mended()

    # Travelling.

    def delay(self, link: _Link) -> float:
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

    def _ways(self, attempt: "_Attempt") -> tuple[_Link, _Link]:
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
        client = _End(self, attempt.process, client_at, server_at)
        server = _End(self, listener.process, server_at, client_at)
        client.join(server)
        server.join(client)
        server.last_arrival = answer_arrives  # nothing overtakes the news of the connection
        self.loop.call_soon(server.open, listener.factory, context=listener.process.context)
        self.loop.at(answer_arrives, attempt.process.context, attempt.succeed, client)

    def _refuse(self, attempt: "_Attempt", when: float, code: int) -> None:
        error = OSError(code, os.strerror(code), f"{attempt.host}:{attempt.port}")
        self.loop.at(when, attempt.process.context, attempt.fail, error)

    def enter(self, end: "_End") -> None:
        self._ends[end.process][end] = None

    def leave(self, end: "_End") -> None:
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
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.AbstractServer:
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

    def succeed(self, end: "_End") -> None:
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


class _End(asyncio.Transport):
    """One end of a connection: what it sends, and what has come for it.

    Invariant: `in_flight` counts what was handed to the kernel and not read at the other end.
    Invariant: `_buffer` holds something only while `in_flight` fills the window.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        process: Process,
        at: tuple[str, int],
        peer_at: tuple[str, int],
    ) -> None:
        super().__init__()
        self.process = process
        self.remote_host = peer_at[0]
        self.in_flight = 0
        self.last_arrival = 0.0
        self.peer: _End
        self.gone = False  # its owner died or its machine did; no callback runs here again
        self._network = network
        self._loop = network.loop
        self._at = at
        self._peer_at = peer_at
        self._out = network.link(at[0], peer_at[0])
        self._in = network.link(peer_at[0], at[0])
        self._protocol: asyncio.BaseProtocol | None = None
        self._buffered = False
        self._buffer: deque[Bytes] = deque()
        self._buffer_bytes = 0
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._refilling = False
        self._reading = True
        self._held: deque[bytes] = deque()  # a cut holds it back
        self._unread: deque[bytes] = deque()  # the protocol does not read
        self._closing = False
        self._lost = False
        self._breaking = False
        network.enter(self)

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closing" if self._closing else "open"
        return f"<end {self._name} {state}, {self.in_flight} bytes in flight>"

    @property
    def _name(self) -> str:
        return f"{self._at[0]}:{self._at[1]}-{self._peer_at[0]}:{self._peer_at[1]}"

    def join(self, peer: "_End") -> None:
        self.peer = peer

    def open(self, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        protocol = factory()
        self.set_protocol(protocol)
        self._note("connected")
        protocol.connection_made(self)
        if self._unread and self._reading:
            self._loop.call_soon(self._read)
        return protocol

    def _note(self, what: str) -> None:
        self._network.trace.note(
            self.process.name, f"{what} :{self._at[1]} {self._peer_at[0]}:{self._peer_at[1]}"
        )

    # The transport's methods.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._peer_at, "sockname": self._at}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            if self._unread:
                self._loop.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 4 * low if low is not None else _HIGH_WATER_BYTES
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: Bytes) -> None:
        if self._closing or self._lost or not len(data):
            return
        room = self._network.window_bytes - self.in_flight
        if not self._buffer and room > 0:
            if len(data) <= room:
                self._send(bytes(data))
                return
            self._send(bytes(data[:room]))
            data = data[room:]
        self._buffer.append(bytes(data))  # the caller may change it meanwhile
        self._buffer_bytes += len(data)
        if self._buffer_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.is_closing():
            self._closing = True
            if not self._buffer:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._buffer.clear()
            self._buffer_bytes = 0
            self._loop.call_soon(self._lose, None)

    # Sending.

    def _send(self, data: bytes) -> None:
        self.in_flight += len(data)
        network = self._network
        if self.peer.gone:
            self._send_into_nothing()
            return
        if network.split_chance and len(data) > 1 and network._draw() < network.split_chance:
            network.effects["writes split"] += 1
            cut = network._random.randrange(1, len(data))
            self._dispatch(data[:cut])
            self._dispatch(data[cut:])
        else:
            self._dispatch(data)

    def _dispatch(self, data: bytes) -> None:
        when = self._loop.now + self._network.delay(self._out)
        if when < self.last_arrival:
            when = self.last_arrival
        self.last_arrival = when
        self._loop.at(when, self.peer.process.context, self.peer.arrive, data)

    def _send_into_nothing(self) -> None:
        """The other end is no more. Its kernel says so, if there is one and it can."""
        network = self._network
        if network.has_power(self.remote_host) and not (self._out.cuts or self._in.cuts):
            when = self._loop.now + network.delay(self._out) + network.delay(self._in)
            self._loop.at(when, self.process.context, self.arrive, _RESET)

    def on_peer_booted(self) -> None:
        """What was not acknowledged is sent again some time, and answered with a reset."""
        if self.peer.gone and self.in_flight:
            when = self._loop.now + 0.2 + 3 * self._network._draw()
            self._loop.at(when, self.process.context, self.arrive, _RESET)

    def _refill(self) -> None:
        """The other end has read: hand the kernel more."""
        self._refilling = False
        if self._lost:
            return
        while self._buffer and (room := self._network.window_bytes - self.in_flight) > 0:
            data = self._buffer.popleft()
            if len(data) > room:
                self._buffer.appendleft(data[room:])
                data = data[:room]
            self._buffer_bytes -= len(data)
            self._send(cast(bytes, data))
        if self._writing_paused and self._buffer_bytes <= self._low:
            self._writing_paused = False
            self.get_protocol().resume_writing()
        if self._closing and not self._buffer:
            self._lose(None)

    # Receiving.

    def arrive(self, data: bytes) -> None:
        """Something came, unless a cut holds it back: bytes, the end of the stream, or a reset."""
        if self._held or self._in.cuts:
            self._network.effects["deliveries held back"] += 1
            self._held.append(data)
            self._in.waiting[self] = None
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        if self._lost:
            if data is not _RESET and data is not _END_OF_STREAM:
                self._tell_peer(_RESET)  # nobody will read it
            return
        if data is _RESET:
            self._unread.clear()
            self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        elif not self._reading or self._unread or self._protocol is None or self._closing:
            self._unread.append(data)
        elif self._breaking and data is not _END_OF_STREAM:
            self._breaking = False
            if part := data[: self._network._random.randrange(len(data))]:
                self._deliver(part)
            self.arrive(_RESET)
        else:
            self._deliver(data)

    def on_way_mended(self) -> None:
        """What was held back is sent again; until it is here, everything else waits behind it."""
        if self._held:
            when = self._loop.now + self._network.delay(self._in)
            self._loop.at(when, self.process.context, self._take_held)

    def _take_held(self) -> None:
        if self._in.cuts:
            self._in.waiting[self] = None
            return
        held, self._held = self._held, deque()
        for data in held:
            self._take(data)

    def _read(self) -> None:
        while self._unread and self._reading and not self._closing:
            self._deliver(self._unread.popleft())

    def _deliver(self, data: bytes) -> None:
        protocol = self._protocol
        if data is _END_OF_STREAM:
            self._note("end of stream")
            if not cast(asyncio.Protocol, protocol).eof_received():
                self.close()
            return
        size = len(data)
        self._network.trace.note(
            self.process.name,
            f"< {self._peer_at[0]}:{self._peer_at[1]} {size} bytes {zlib.crc32(data):08x}",
        )
        peer = self.peer
        peer.in_flight -= size
        if peer._buffer and not peer._refilling and not peer.gone:
            peer._refilling = True
            when = self._loop.now + self._network.delay(self._out)
            self._loop.at(when, peer.process.context, peer._refill)
        if self._buffered:
            self._fill(cast(asyncio.BufferedProtocol, protocol), memoryview(data))
        else:
            cast(asyncio.Protocol, protocol).data_received(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: memoryview) -> None:
        while data:
            if not self._reading or self._closing:
                self.peer.in_flight += len(data)
                self._unread.appendleft(bytes(data))
                return
            space = memoryview(cast(memoryview, protocol.get_buffer(len(data))))
            size = min(len(space), len(data))
            space[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]

    # Ending.

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._buffer.clear()
        self._buffer_bytes = 0
        self._note("lost" if error is None else "reset")
        if error is None:
            self._tell_peer(_RESET if self._unread else _END_OF_STREAM)
        self._network.leave(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _tell_peer(self, what: bytes) -> None:
        if not self.peer._lost and not self.peer.gone:
            self._dispatch(what)

    def break_off(self) -> None:
        """A reset at both ends, in the middle of what is under way."""
        for end in (self, self.peer):
            if end.peer.in_flight:
                end._breaking = True  # with the next bytes that arrive
            elif not end.gone:
                self._loop.call_soon(end.arrive, _RESET, context=end.process.context)

    def on_owner_killed(self) -> None:
        if not self._lost:
            self._tell_peer(_RESET if self._unread or self.peer.in_flight else _END_OF_STREAM)
        self._vanish()

    def on_owner_silent(self) -> None:
        self.peer._held.clear()  # what a cut held back, only the sender could send again
        self._vanish()

    def _vanish(self) -> None:
        self.gone = self._lost = self._closing = True
        self._buffer.clear()
        self._held.clear()
        self._unread.clear()
