"""One connection of the simulated network: two ends, each with what it sends and what came for it.

Rule: an end's callbacks run in its own process; whatever one end wants of the other it sends.
"""

import asyncio
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from tidelog.host import Bytes
from tidelog.simulation.loop import Process

if TYPE_CHECKING:
    from tidelog.simulation.network import SimulatedNetwork

_END_OF_STREAM: Final = b""
_RESET: Final = b"\0reset"
"""Compared by identity; its content is never sent."""
_HIGH_WATER_BYTES: Final = 64 * 1024


class Link:
    """The way from one host to another; the way back is another link."""

    __slots__ = ("clog_seconds", "cuts", "seconds_least", "waiting")

    def __init__(self, seconds_least: float) -> None:
        self.seconds_least = seconds_least
        self.cuts = 0
        self.clog_seconds = 0.0
        self.waiting: dict[End, None] = {}  # with something held back by a cut


class End(asyncio.Transport):
    """One end of a connection: what it sends, and what has come for it.

    Invariant: `in_flight` counts what was handed to the kernel and not read at the other end.
    Invariant: `_buffer` holds something only while `in_flight` fills the window.
    """

    def __init__(
        self, network: "SimulatedNetwork", process: Process, at: tuple[str, int], peer_at: tuple[str, int]
    ) -> None:
        super().__init__()
        self.process = process
        self.remote_host = peer_at[0]
        self.in_flight = 0
        self.last_arrival = 0.0
        self.peer: End
        self.gone = False  # its owner died or its machine did; no callback runs here again
        self.is_forgotten = False
        """Whether something on the way drops all that is sent here, and tells nobody."""
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

    def join(self, peer: "End") -> None:
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
        if self.is_forgotten:
            return
        when = self._loop.now + self._network.delay(self._out)
        if when < self.last_arrival:
            when = self.last_arrival
        self.last_arrival = when
        self._loop.at(when, self.peer.process.context, self.peer.arrive, data)

    def _send_into_nothing(self) -> None:
        """The other end is no more. Its kernel says so, if there is one and it can."""
        network = self._network
        is_passable = not (self._out.cuts or self._in.cuts or self.is_forgotten)
        if network.has_power(self.remote_host) and is_passable:
            when = self._loop.now + network.delay(self._out) + network.delay(self._in)
            self._loop.at(when, self.process.context, self.arrive, _RESET)

    def on_peer_booted(self) -> None:
        """What was not acknowledged is sent again some time, and answered with a reset."""
        if self.peer.gone and self.in_flight and not self.is_forgotten:
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
                if self.peer.gone:
                    self.abort()  # what is left to be sent to the dead is answered with a reset
                else:
                    self.close()
            return
        size = len(data)
        self._network.trace.note(
            self.process.name, f"< {self._peer_at[0]}:{self._peer_at[1]} {size} bytes {zlib.crc32(data):08x}"
        )
        peer = self.peer
        peer.in_flight -= size
        if peer._buffer and not peer._refilling and not peer.gone:
            peer._refilling = True
            when = self._loop.now + self._network.delay(self._out)
            self._loop.at(when, peer.process.context, peer._refill)
        if self._buffered:
            self._fill(cast(asyncio.BufferedProtocol, protocol), data)
        else:
            cast(asyncio.Protocol, protocol).data_received(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: Bytes) -> None:
        while data:
            if not self._reading or self._closing:
                self.peer.in_flight += len(data)
                self._unread.appendleft(bytes(data))
                return
            space, size = memoryview(cast(memoryview, protocol.get_buffer(len(data)))), len(data)
            if len(space) >= size:  # nearly always
                space[:size] = data
                protocol.buffer_updated(size)
                return
            data, rest = memoryview(data)[: len(space)], memoryview(data)[len(space) :]
            space[:] = data
            protocol.buffer_updated(len(data))
            data = rest

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
            if self._held or (self._in.cuts and self.peer.in_flight):
                # It is sent again once the way is mended, and refused, whoever lives here then.
                self._tell_peer(_RESET)
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
            else:
                end._reset()

    def break_off_alone(self) -> None:
        """A reset at this end. The one for the other end is lost; it may get one when it sends."""
        self._reset()

    def forget(self) -> None:
        """From now on whatever either end sends is lost, its end and resets included."""
        self.is_forgotten = self.peer.is_forgotten = True

    def _reset(self) -> None:
        if not self.gone:
            self._loop.call_soon(self.arrive, _RESET, context=self.process.context)

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
