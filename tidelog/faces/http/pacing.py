"""Shares the loop between those who use HTTP and everybody else.

A handler keeps the loop for a millisecond or two between two awaits, which is fine; a hundred that
are ready at once would keep it for a hundred times as long, and Kafka's clients would wait.

Rule 1: in one turn of the loop all requests together get `TURN_SECONDS`, or `ALONE_SECONDS` while
        nobody else asks for anything, and whoever began within them ends its step. The others go
        on in the next turns, in their order; in between the loop looks after its sockets.
Rule 2: while some wait for their turn the loop never rests. Whoever shares the interpreter with it
        is told so, and when it is over.
Rule 3: to wait costs nothing, however many do: they stand in a line, and a turn resumes only those
        who go on in it. Who is cancelled keeps its place, and hears of it when it is its turn.
Rule 4: a request that does not wait costs no task (`Meter.begin`). Its first step runs at once; only
        a request that waits then, or finds the turn used up, gets a task.
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # documented, for those who run steps of tasks
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = 0.0002
"""A produce takes about six turns from its bytes to its answer, so it waits six times as long."""
UNNOTED_SECONDS: Final = TURN_SECONDS / 2
"""As long as requests have used no more, nobody counts the turns: what they used is only added up."""
ALONE_SECONDS: Final = 0.001
"""Longer turns spend less on the loop itself: requests get a fifth more done."""


class _Line:
    """Those who wait for their turn, in their order. A task waits in it as for a future.

    A future would have the loop resume the task, one trip later. A turn resumes it by itself, so
    it knows what each has used before it lets the next one go on.
    """

    __slots__ = ("_asyncio_future_blocking", "_loop", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self.waiting: deque[tuple[Callable[[_Line], object], Context]] = deque()
        """How each task is resumed."""

    def opened(self) -> "_Line":
        """Itself, for one task that waits; the task takes the mark off when it joins."""
        self._asyncio_future_blocking = True
        return self

    # What a task asks of a future.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, resume: "Callable[[_Line], object]", *, context: Context) -> None:
        self.waiting.append((resume, context))

    def result(self) -> None:
        """Nothing: it is the task's turn."""

    def cancel(self, msg: object = None) -> bool:
        """No: the task keeps its place, and is told there."""
        return False


class Meter:
    """What all requests have used of this turn of the loop, and the line of those who wait.

    Invariant: while somebody stands in the line, the next turn is going to come.
    """

    __slots__ = (
        "_always_tasks",
        "_clock",
        "_has_others",
        "_is_crowded",
        "_is_used",
        "_line",
        "_loop",
        "_on_crowded",
        "_turn_seconds",
        "used",
    )

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        *,
        has_others: Callable[[], bool] = lambda: True,
        on_crowded: Callable[[bool], None] = lambda is_crowded: None,
        always_tasks: bool = False,
    ) -> None:
        """`always_tasks` is for work whose libraries know a task by its identity, as anyio's do."""
        self._clock = clock
        self._has_others = has_others
        self._on_crowded = on_crowded
        self._always_tasks = always_tasks
        self._loop = asyncio.get_running_loop()
        self._turn_seconds = TURN_SECONDS
        self._is_used = False
        """Whether the next turn is going to come."""
        self._is_crowded = False
        self._line = _Line(self._loop)
        self.used = 0.0

    def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
        """Begin the work of a request, at once if this turn allows it; its task, unless it has ended."""
        if self.used < self._turn_seconds and not self._line.waiting and not self._always_tasks:
            place: Any = _Place()
            try:
                _enter_task(self._loop, place)  # whoever asks for the task in a step finds it
            except RuntimeError:  # this is a step of another task
                pass
            else:
                return copy_context().run(self._begin, work, place)
        return self._loop.create_task(self.share(work))

    def _begin(self, work: Coroutine[Any, Any, None], place: Any) -> "asyncio.Task[None] | None":
        _meter.set(self)
        began = self._clock()
        try:
            waits_for = work.send(None)
        except StopIteration:
            return None
        finally:
            _leave_task(self._loop, place)
            self.used += self._clock() - began
            if self.used > UNNOTED_SECONDS and not self._is_used:
                self._renew_soon()
        place.task = self._loop.create_task(_Begun(self, work, waits_for))
        return place.task  # type: ignore[no-any-return]

    async def share(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of a request, a step at a time, when it is its turn."""
        _meter.set(self)
        return await _Shared(self, work)

    def step(self, work: Coroutine[Any, Any, T], error: BaseException | None) -> Any:
        """Go on with the work up to where it waits again."""
        began = self._clock()
        try:
            return work.send(None) if error is None else work.throw(error)
        finally:
            self.used += self._clock() - began
            if self.used > UNNOTED_SECONDS and not self._is_used:
                self._renew_soon()

    def line(self) -> "_Line | None":
        """Where to wait for the next step; None if it is one of this turn."""
        line = self._line
        if self.used < self._turn_seconds and not line.waiting:
            return None
        if not self._is_used:
            self._renew_soon()
        if not self._is_crowded:
            self._crowd(True)
        return line.opened()

    def _renew_soon(self) -> None:
        self._is_used = True
        self._loop.call_soon(self._renew)  # runs before those who go on from now on

    def _renew(self) -> None:
        self._is_used = False
        self.used = 0.0
        line, waiting = self._line, self._line.waiting
        if waiting:
            self._renew_soon()  # whatever comes of this turn
        self._turn_seconds = TURN_SECONDS if self._has_others() else ALONE_SECONDS
        self._crowd(bool(waiting))
        while waiting and self.used < self._turn_seconds:
            resume, context = waiting.popleft()
            context.run(resume, line)  # its step; what fails in it is the task's own

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
        return _steps(self._meter, self._work)


def _steps(
    meter: Meter, work: Coroutine[Any, Any, T], waits_for: Any = None, *, is_begun: bool = False
) -> Generator[Any, None, T]:
    """The steps of some work; if it has begun, it waits for `waits_for`."""
    error: BaseException | None = None
    try:
        while True:
            if is_begun:
                try:
                    yield waits_for
                except GeneratorExit:
                    raise
                except BaseException as thrown:  # what it waited for failed, or it is cancelled
                    error = thrown
            is_begun = True
            try:
                if (line := meter.line()) is not None:
                    yield line
            except asyncio.CancelledError as cancelled:
                error = cancelled
            try:
                waits_for = meter.step(work, error)
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]
            error = None
    finally:
        work.close()  # if nobody waits for its end any more


class _Begun(Coroutine[Any, None, None]):
    """Work whose first step has run, for the task that goes on with it.

    A task that is cancelled before it has begun never enters a coroutine that is new. This one is
    inside already, where the work waits: so the work hears of it.
    """

    __slots__ = ("_steps", "_waits_for")

    def __init__(self, meter: Meter, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._steps = _steps(meter, work, waits_for, is_begun=True)
        next(self._steps)
        self._waits_for = [waits_for]
        if waits_for is not None:  # a future with the mark refuses others until a task has joined
            waits_for._asyncio_future_blocking = False

    def send(self, value: Any) -> Any:
        if not self._waits_for:
            return self._steps.send(value)
        waits_for = self._waits_for.pop()
        if waits_for is not None:
            waits_for._asyncio_future_blocking = True
        return waits_for

    def throw(self, *error: Any) -> Any:
        self._waits_for.clear()
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Generator[Any, None, None]:
        return self._steps


class _Place:
    """Stands for the task of a request that has none yet, in its first step.

    `asyncio.timeout` and others note the task that they run in, to cancel it later.
    """

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    def cancel(self, msg: object = None) -> bool:
        return self.task is not None and self.task.cancel(msg)

    def done(self) -> bool:
        return self.task is not None and self.task.done()

    def cancelling(self) -> int:
        return 0 if self.task is None else self.task.cancelling()

    def uncancel(self) -> int:
        return 0 if self.task is None else self.task.uncancel()

    def get_name(self) -> str:
        return "a request" if self.task is None else self.task.get_name()
