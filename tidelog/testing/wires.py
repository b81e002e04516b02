"""Connections that can be cut, delayed and broken, in each direction by itself.

    a node's protocol  <->  Wire  <->  the event loop's transport  <->  a real socket

Rule 1: inside a connection bytes keep their order, and none is lost while it lasts. They are late,
        or stay away; beyond that only the whole connection breaks.
Rule 2: what is cut falls silent: nothing passes, neither bytes nor the end of a connection nor a
        new one. When the way is mended what was held passes, in order.
Rule 3: where nothing is wrong, nothing is held: bytes go on in the call that brought them.
Rule 4: between two nodes it is the wire of who has called that holds what goes either way, and the
        other one's holds nothing.

Owned by the event loop of the cluster.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

from tidelog.host import Bytes
from tidelog.model import NodeId
from tidelog.testing.lives import Life

CLIENTS: Final = "clients"
"""The place of all who are no nodes of the cluster."""

Place: TypeAlias = NodeId | str

_HELD_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WayTrouble:
    """What happens to all that goes one way."""

    is_cut: bool = False
    seconds: tuple[float, float] = (0.0, 0.0)
    """How much longer it takes, at least and at most."""
    break_chance: float = 0.0
    """How likely a piece of data breaks its connection instead."""


class Way:
    """From one place to another."""

    def __init__(self, generator: random.Random) -> None:
        self.random = generator
        self._troubles: list[WayTrouble] = []
        self._waiting: dict[Lane, None] = {}
        self._mended = asyncio.Event()
        self._mended.set()
        self.is_clear = True
        self.is_cut = False

    def add(self, trouble: WayTrouble) -> None:
        self._troubles.append(trouble)
        self._look()

    def remove(self, trouble: WayTrouble) -> None:
        self._troubles = [other for other in self._troubles if other is not trouble]
        self._look()

    def _look(self) -> None:
        self.is_clear = not self._troubles
        self.is_cut = any(trouble.is_cut for trouble in self._troubles)
        if self.is_cut:
            self._mended.clear()
            return
        self._mended.set()
        waiting, self._waiting = self._waiting, {}
        for lane in waiting:
            lane.go_on()

    def wait(self, lane: "Lane") -> None:
        """Tell `lane` when it is cut no more."""
        self._waiting[lane] = None

    async def passable(self) -> None:
        """Wait until something could pass, and for as long as it would take."""
        await self._mended.wait()
        if seconds := self.delay():
            await asyncio.sleep(seconds)

    def delay(self) -> float:
        return sum(self.random.uniform(*trouble.seconds) for trouble in self._troubles)

    def breaks(self) -> bool:
        """Whether this piece of data breaks its connection."""
        return any(
            trouble.break_chance and self.random.random() < trouble.break_chance for trouble in self._troubles
        )


class Ways:
    """Between all nodes of a cluster, and between these and their clients."""

    def __init__(self, seed: object) -> None:
        self._seed = seed
        self._ways: dict[tuple[Place, Place], Way] = {}
        self.wires: dict[Wire, None] = {}
        self.clear = Way(random.Random(0))
        """A way to which nothing happens."""

    def reseed(self, seed: object) -> None:
        """Draw from another seed from now on."""
        self._seed = seed
        for (source, target), way in self._ways.items():
            way.random = self._fork(source, target)

    def _fork(self, source: Place, target: Place) -> random.Random:
        return random.Random(f"{self._seed} from {source} to {target}")

    def between(self, source: Place, target: Place) -> Way:
        way = self._ways.get((source, target))
        if way is None:
            way = self._ways[source, target] = Way(self._fork(source, target))
        return way

    def break_all(self, ways: Iterable[Way]) -> int:
        """Break the connections that go one of these ways; how many."""
        found = set(ways)
        broken = [wire for wire in list(self.wires) if found & {wire.way_out, wire.way_in}]
        for wire in broken:
            wire.break_off()
        return len(broken)


class Lane:
    """One direction of one connection: what is held back, in order."""

    def __init__(self, way: Way, context: Context) -> None:
        self._way = way
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[float, Callable[[], object], int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.is_paused = False
        """Whether who gets it does not want more just now."""
        self.held_bytes = 0

    @property
    def is_direct(self) -> bool:
        """Whether what comes now may pass in the same call."""
        return self._way.is_clear and not self._held

    def put(self, happen: Callable[[], object], size: int = 0) -> None:
        """Let `happen` be called in its turn."""
        self._held.append((self._loop.time() + self._way.delay(), happen, size))
        self.held_bytes += size
        self.go_on()

    def clear(self) -> None:
        """Forget what is held back."""
        self._held.clear()
        self.held_bytes = 0

    def go_on(self) -> None:
        """Something may pass again."""
        if self._timer is not None or not self._held or self.is_paused:
            return
        if self._way.is_cut:
            self._way.wait(self)
            return
        wait = max(self._held[0][0] - self._loop.time(), 0.0)
        self._timer = self._loop.call_later(wait, self._pass, context=self._context)

    def _pass(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._held and not self.is_paused and not self._way.is_cut:
            due, happen, size = self._held[0]
            if due > now:
                break
            self._held.popleft()
            self.held_bytes -= size
            happen()
        self.go_on()


class Wire(asyncio.Protocol):
    """One connection: a protocol for the event loop, with a transport for the node's protocol."""

    def __init__(self, inner: asyncio.BaseProtocol, life: Life, ways: Ways, *, out: Way, back: Way) -> None:
        """`out` is the way of what the node sends, `back` of what it receives."""
        self.inner = inner
        self.way_out = out
        self.way_in = back
        self.transport = WireTransport(self)
        self.outer: asyncio.Transport
        self._life = life
        self._ways = ways
        self.going = Lane(out, life.context)
        self.coming = Lane(back, life.context)
        self.is_closing = False
        self.is_lost = False
        """Whether the node's protocol was told of the end."""
        self._is_outer_full = False
        self._is_told_full = False
        self.is_held_up = False
        """Whether the socket is not read because so much waits already."""

    # From the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outer = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        if self._life.is_over:
            self.outer.abort()
            return
        self._life.connections[self] = None
        self._ways.wires[self] = None
        self.inner.connection_made(self.transport)

    def data_received(self, data: bytes) -> None:
        if self.coming.is_direct:
            self._deliver(data)
        elif self.way_in.breaks():
            self.break_off()
        else:
            self.coming.put(partial(self._deliver_held, data), len(data))
            if self.coming.held_bytes > _HELD_BYTES_MAX and not self.is_held_up:
                self.is_held_up = True
                self.outer.pause_reading()

    def _deliver_held(self, data: bytes) -> None:
        self._deliver(data)
        if self.is_held_up and self.coming.held_bytes < _HELD_BYTES_MAX // 2:
            self.is_held_up = False
            if not self.outer.is_closing() and not self.coming.is_paused:
                self.outer.resume_reading()

    def _deliver(self, data: bytes) -> None:
        if self.is_closing:
            return
        if not isinstance(self.inner, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, self.inner).data_received(data)
            return
        rest = memoryview(data)
        while rest and not self.is_closing:
            inner = self.inner
            assert isinstance(inner, asyncio.BufferedProtocol)
            space = memoryview(inner.get_buffer(len(rest)))
            taken = min(len(space), len(rest))
            space[:taken] = rest[:taken]
            inner.buffer_updated(taken)
            rest = rest[taken:]

    def eof_received(self) -> bool | None:
        if self.coming.is_direct:
            return self._tell_eof()
        self.coming.put(self._deliver_eof)
        return True

    def _deliver_eof(self) -> None:
        if not self.is_closing and not self._tell_eof():
            self.transport.close()

    def _tell_eof(self) -> bool | None:
        inner = cast("asyncio.Protocol | asyncio.BufferedProtocol", self.inner)
        return inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._life.connections.pop(self, None)
        self._ways.wires.pop(self, None)
        if self.is_closing or self.coming.is_direct:
            self.lose(exc)
        else:
            self.coming.put(partial(self.lose, exc))

    def pause_writing(self) -> None:
        self._is_outer_full = True
        self.look_at_buffers()

    def resume_writing(self) -> None:
        self._is_outer_full = False
        self.look_at_buffers()

    def look_at_buffers(self) -> None:
        """Ask the node's protocol to pause while much is held back for it, or to go on."""
        is_full = self._is_outer_full or self.going.held_bytes > _HELD_BYTES_MAX
        if is_full == self._is_told_full or self.is_lost:
            return
        self._is_told_full = is_full
        if is_full:
            self.inner.pause_writing()
        else:
            self.inner.resume_writing()

    # The end.

    def lose(self, exc: Exception | None) -> None:
        """Tell the node's protocol that this is over, once."""
        if not self.is_lost:
            self.is_lost = self.is_closing = True
            self.coming.clear()
            self.inner.connection_lost(exc)

    def break_off(self) -> None:
        """Break the connection for both sides, cut or not; what is held back is lost."""
        self.going.clear()
        self.outer.abort()
        asyncio.get_running_loop().call_soon(self.lose, ConnectionResetError("broken by the test"))

    def abandon(self) -> None:
        """Its process is gone. Behind a cut the other side does not hear of it yet."""
        self.is_closing = self.is_lost = True
        self.coming.clear()
        self.going.clear()
        self.end_outer(self.outer.abort)

    def end_outer(self, end: Callable[[], object]) -> None:
        """Let the socket end, in its turn."""
        if self.going.is_direct:
            end()
        else:
            self.going.put(end)


class WireTransport(asyncio.Transport):
    """What the node's protocol has of a wire."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def __repr__(self) -> str:
        return f"<WireTransport of {self._wire.inner!r}>"

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._wire.outer.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._wire.inner = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._wire.inner

    # Sending.

    def write(self, data: Bytes) -> None:
        self._send(data, self._wire.outer.write)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        wire = self._wire
        if wire.going.is_direct and not wire.is_closing:
            wire.outer.writelines(list_of_data)
        else:
            self._send(b"".join(list_of_data), wire.outer.write)

    def _send(self, data: Bytes, write: Callable[[bytes], object]) -> None:
        wire = self._wire
        if wire.is_closing:
            return
        if wire.going.is_direct:
            write(data)  # type: ignore[arg-type]  # any bytes, as transports take them
        elif wire.way_out.breaks():
            wire.break_off()
        else:
            wire.going.put(partial(self._send_held, bytes(data)), len(data))
            wire.look_at_buffers()

    def _send_held(self, data: bytes) -> None:
        self._wire.outer.write(data)
        self._wire.look_at_buffers()

    def can_write_eof(self) -> bool:
        return self._wire.outer.can_write_eof()

    def write_eof(self) -> None:
        self._wire.end_outer(self._wire.outer.write_eof)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._wire.outer.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._wire.outer.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        return self._wire.outer.get_write_buffer_size() + self._wire.going.held_bytes

    # Receiving.

    def is_reading(self) -> bool:
        return not self._wire.coming.is_paused and not self._wire.is_closing

    def pause_reading(self) -> None:
        wire = self._wire
        wire.coming.is_paused = True
        if not wire.outer.is_closing():
            wire.outer.pause_reading()

    def resume_reading(self) -> None:
        wire = self._wire
        wire.coming.is_paused = False
        if not wire.is_held_up and not wire.outer.is_closing():
            wire.outer.resume_reading()
        wire.coming.go_on()

    # Ending.

    def is_closing(self) -> bool:
        return self._wire.is_closing or self._wire.outer.is_closing()

    def close(self) -> None:
        """Close once what is held back has left."""
        wire = self._wire
        if not wire.is_closing:
            wire.is_closing = True
            wire.end_outer(wire.outer.close)

    def abort(self) -> None:
        wire = self._wire
        wire.is_closing = True
        wire.going.clear()
        if wire.way_out.is_cut:  # the other side hears nothing of it, this one does
            asyncio.get_running_loop().call_soon(wire.lose, None)
        wire.end_outer(wire.outer.abort)
