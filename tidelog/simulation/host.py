"""A host whose every answer comes from a seed.

Rule 1: time stands still until the test moves it.
Rule 2: blocking work runs as a whole at a later turn of the event loop, and its future completes
        at a turn later still. What is under way together starts and ends in any order, as it does
        on threads; the generator decides.
Rule 3: a `SimulatedCrash` is the end of the process: its work never completes, no other work runs,
        and whoever made the host is told.

It works on any asyncio loop. Timers (`asyncio.sleep`) are the loop's own: for one seed to have one
history, the loop's time must be simulated, too.
"""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from tidelog.host import Disk, Host, Lane
from tidelog.simulation.disk import SimulatedCrash

T = TypeVar("T")

START_WALL_MS: Final = 1_700_000_000_000
"""When every simulation begins: 14 November 2023."""


class SimulatedClock:
    """Stands still; `advance` moves both times, `jump_wall_ms` the one that may jump."""

    def __init__(self, *, seconds: float = 0.0, wall_ms: int = START_WALL_MS) -> None:
        self._seconds = seconds
        self._wall_ahead_ms = wall_ms - seconds * 1000

    def __repr__(self) -> str:
        return f"<SimulatedClock {self._seconds} s, wall {self.wall_ms()} ms>"

    def monotonic(self) -> float:
        return self._seconds

    def wall_ms(self) -> int:
        return round(self._wall_ahead_ms + self._seconds * 1000)

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "only the wall clock goes back"
        self._seconds += seconds

    def jump_wall_ms(self, ms: int) -> None:
        """Set the wall clock forward, or back with a negative `ms`."""
        self._wall_ahead_ms += ms


class SimulatedOffload:
    """Runs blocking work on the loop's own thread, in an order drawn from `generator`.

    Invariant: the work of a lane starts and ends in the order it came, except in `Lane.ANY`.
    Invariant: once `is_dead`, nothing is pending, and nothing will be.
    """

    def __init__(
        self, generator: random.Random, *, idle: float = 0.5, on_crash: Callable[[], None] | None = None
    ) -> None:
        """`idle` is the chance of a turn in which nothing happens: the slowness of the disk."""
        self._random = generator
        self._idle = idle
        self._on_crash = on_crash
        self._lanes: dict[Lane, deque[Callable[[], None]]] = {}
        self._busy: list[deque[Callable[[], None]]] = []  # the lanes with something to do
        self._turning = False
        self.is_dead = False

    def run(self, work: Callable[[], T], lane: Lane = Lane.ANY) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if not self.is_dead:
            # Each piece of work in `ANY` is like a lane of its own.
            todo = self._lanes.setdefault(lane, deque()) if lane is not Lane.ANY else deque()
            todo.append(partial(self._perform, todo, work, future))
            if len(todo) == 1:
                self._busy.append(todo)
            if not self._turning:
                self._turning = True
                asyncio.get_running_loop().call_soon(self._turn)
        return future

    def _turn(self) -> None:
        if self._busy and self._random.random() >= self._idle:
            todo = self._random.choice(self._busy)
            todo.popleft()()
            if not todo and not self.is_dead:
                self._busy.remove(todo)
        self._turning = bool(self._busy)
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)

    def _perform(
        self, todo: deque[Callable[[], None]], work: Callable[[], T], future: "asyncio.Future[T]"
    ) -> None:
        try:
            result = work()
        except SimulatedCrash:
            self._die()
        except Exception as error:
            todo.appendleft(partial(_fail, future, error))
        else:
            todo.appendleft(partial(_succeed, future, result))

    def _die(self) -> None:
        self.is_dead = True
        self._busy.clear()
        self._lanes.clear()
        if self._on_crash is not None:
            self._on_crash()


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():  # its owner may have been cancelled
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class RefusingNetwork:
    """Nobody is there: for a node that is driven without its listeners."""

    async def serve(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.AbstractServer:
        raise OSError(f"the simulated network cannot listen on {host}:{port}")

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        raise ConnectionRefusedError(f"nobody listens on {host}:{port}")


def simulated_host(
    seed: object,
    disk: Disk,
    *,
    clock: SimulatedClock | None = None,
    idle: float = 0.5,
    on_crash: Callable[[], None] | None = None,
) -> Host:
    """A host for one life of a node: each part draws from a generator of its own.

    The disk outlives it, as does the clock, if one is given. `on_crash` is called when the disk
    raises `SimulatedCrash` in offloaded work; the node is then as good as dead.
    """
    return Host(
        clock=clock if clock is not None else SimulatedClock(),
        disk=disk,
        offload=SimulatedOffload(random.Random(f"{seed} offload"), idle=idle, on_crash=on_crash),
        network=RefusingNetwork(),
        random=random.Random(f"{seed} host"),
    )
