"""Shares the loop between those who use HTTP and everybody else.

A handler keeps the loop for a millisecond or two between two awaits, which is fine; a hundred that
are ready at once would keep it for a hundred times as long, and Kafka's clients would wait.

Rule: in one turn of the loop all requests together get `TURN_SECONDS`, and whoever began within
them ends its step. The others go on in the next turns, in their order; in between the loop looks
after its sockets.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = 0.001


class Meter:
    """What all requests have used of this turn of the loop."""

    __slots__ = ("_clock", "_is_used", "_loop", "used")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._is_used = False
        self.used = 0.0

    async def share(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of a request, a step at a time, when it is its turn."""
        _meter.set(self)
        return await _Shared(self, work)

    def step(self, work: Coroutine[Any, Any, T], error: BaseException | None) -> Any:
        """Go on with the work up to where it waits again."""
        if not self._is_used:
            self._is_used = True
            self._loop.call_soon(self._renew)  # runs before those who give way now
        began = self._clock()
        try:
            return work.send(None) if error is None else work.throw(error)
        finally:
            self.used += self._clock() - began

    def _renew(self) -> None:
        self._is_used = False
        self.used = 0.0


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


async def in_turn(work: Coroutine[Any, Any, T]) -> T:
    """The work that a handler gives to a task of its own: it counts as the handler's."""
    meter = _meter.get()
    return await (work if meter is None else _Shared(meter, work))


class _Shared(Generic[T]):
    """Work that can be awaited, in steps that a meter allows."""

    __slots__ = ("_meter", "_work")

    def __init__(self, meter: Meter, work: Coroutine[Any, Any, T]) -> None:
        self._meter = meter
        self._work = work

    def __await__(self) -> Generator[Any, None, T]:
        meter, work = self._meter, self._work
        error: BaseException | None = None
        try:
            while True:
                try:
                    while meter.used >= TURN_SECONDS:
                        yield
                except asyncio.CancelledError as cancelled:
                    error = cancelled
                try:
                    waits_for = meter.step(work, error)
                except StopIteration as ended:
                    return ended.value  # type: ignore[no-any-return]
                error = None
                try:
                    yield waits_for
                except GeneratorExit:
                    raise
                except BaseException as thrown:  # what it waited for failed, or it is cancelled
                    error = thrown
        finally:
            work.close()  # if nobody waits for its end any more
