"""Shares the loop between those who use HTTP and everybody else.

A handler keeps the loop for a millisecond or two between two awaits, which is fine; a hundred that
are ready at once would keep it for a hundred times as long, and Kafka's clients would wait.

Rule 1: in one turn of the loop all requests together get `TURN_SECONDS`, or `ALONE_SECONDS` while
        nobody else asks for anything, and whoever began within them ends its step. The others go
        on in the next turns, in their order; in between the loop looks after its sockets.
Rule 2: while some wait for their turn the loop never rests. Whoever shares the interpreter with it
        is told so, and when it is over.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = 0.0002
"""A produce takes about six turns from its bytes to its answer, so it waits six times as long."""
ALONE_SECONDS: Final = 0.001
"""Longer turns spend less on the loop itself: requests get a fifth more done."""


class Meter:
    """What all requests have used of this turn of the loop."""

    __slots__ = (
        "_clock", "_has_others", "_is_crowded", "_is_used", "_loop", "_on_crowded",
        "_somebody_waits", "_turn_seconds", "used",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        *,
        has_others: Callable[[], bool] = lambda: True,
        on_crowded: Callable[[bool], None] = lambda is_crowded: None,
    ) -> None:
        self._clock = clock
        self._has_others = has_others
        self._on_crowded = on_crowded
        self._loop = asyncio.get_running_loop()
        self._turn_seconds = TURN_SECONDS
        self._is_used = False
        self._is_crowded = False
        self._somebody_waits = False
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

    def must_wait(self) -> bool:
        """Whether the next step is one of the next turn."""
        if self.used < self._turn_seconds:
            return False
        self._somebody_waits = True
        self._crowd(True)
        return True

    def _renew(self) -> None:
        self._is_used = False
        self.used = 0.0
        self._turn_seconds = TURN_SECONDS if self._has_others() else ALONE_SECONDS
        self._crowd(self._somebody_waits)
        self._somebody_waits = False

    def _crowd(self, is_crowded: bool) -> None:
        if is_crowded is not self._is_crowded:
            self._is_crowded = is_crowded
            self._on_crowded(is_crowded)


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
                    while meter.must_wait():
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
