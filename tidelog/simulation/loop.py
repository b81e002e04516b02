"""An event loop whose time is virtual: one heap of (time, sequence) and no wall clock.

Rule 1: time moves only here, to the next event, once nothing is left to do now. What is due at
        the same moment runs in the order in which it was asked for.
Rule 2: every callback belongs to a process, found in the context it runs in. A dead process runs
        no more; a paused one keeps what is due and runs all of it when it resumes.
Rule 3: a process reads its machine's clock, which may run fast or slow: `time`, `call_at` and
        `call_later` are in its seconds. `now` and `at` are in the world's.
Rule 4: what goes wrong in a callback, or in a task that nobody awaits, is kept in `errors`.
"""

import asyncio
import gc
import heapq
import logging
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

T = TypeVar("T")

_NANOSECOND: Final = 1e-9
"""Added when a machine's time becomes the world's, so that no timer fires before its time."""
_SWEEP_TASKS_MIN: Final = 64
_SWEEP_TIMERS_MIN: Final = 256
_YOUNG_GARBAGE_EVENTS: Final = 10_000
_OLD_GARBAGE_EVENTS: Final = 40 * _YOUNG_GARBAGE_EVENTS

START_WALL_MS: Final = 1_700_000_000_000
"""When every simulation begins: 14 November 2023."""


class MachineClock:
    """One machine's two clocks, both wrong in their own way.

    Invariant: `monotonic` never falls, whatever `rate` becomes.
    """

    def __init__(self, loop: "VirtualLoop", *, seconds: float = 0.0, wall_ms: float = START_WALL_MS) -> None:
        self._loop = loop
        self._since = loop.now
        self._seconds = seconds
        self._wall_ahead_ms = wall_ms - seconds * 1000
        self._jumped_ms = 0.0
        self.rate = 1.0

    def __repr__(self) -> str:
        return f"<MachineClock {self.monotonic():.6f} s at {self.rate}, wall {self.wall_ms()} ms>"

    def monotonic(self) -> float:
        return self._seconds + (self._loop.now - self._since) * self.rate

    def wall_ms(self) -> int:
        return round(self._wall_ahead_ms + self.monotonic() * 1000)

    def when(self, seconds: float) -> float:
        """The world's time at which `monotonic` will have reached `seconds`."""
        return self._since + (seconds - self._seconds) / self.rate + _NANOSECOND

    def skew(self, rate: float) -> None:
        """Run `rate` times as fast from now on. Timers that are set keep their moment."""
        assert rate > 0
        self._seconds = self.monotonic()
        self._since = self._loop.now
        self.rate = rate

    def jump_wall_ms(self, ms: float) -> None:
        """Set the wall clock forward, or back with a negative `ms`."""
        self._wall_ahead_ms += ms
        self._jumped_ms += ms

    def follow(self, before: "MachineClock") -> None:
        """Go on, after a reboot, as wrong as the machine's clock was before."""
        self._jumped_ms = before._jumped_ms
        self.skew(before.rate)

    def heal(self) -> None:
        """Take back what skews and jumps made of it, but for the past."""
        if self.rate != 1.0:
            self.skew(1.0)
        self.jump_wall_ms(-self._jumped_ms)


class _State(IntEnum):
    RUNNING = 0
    PAUSED = 1
    DEAD = 2


class Process:
    """Something that can die: one life of a node, a client, or the world itself."""

    __slots__ = (
        "_sweep_at",
        "clock",
        "context",
        "has_threads",
        "name",
        "parked",
        "ran_at",
        "state",
        "tasks",
        "woke_at",
    )

    def __init__(self, name: str, clock: MachineClock, *, has_threads: bool = False) -> None:
        self.name = name
        self.clock = clock
        self.has_threads = has_threads
        """Whether it may give work to threads of its own, as clients do and nodes never."""
        self.state = _State.RUNNING
        self.ran_at = 0
        """The count of events at its newest one: while that stays, nothing of it has changed."""
        self.parked: list[Event] = []  # came due while it was paused
        self.woke_at = 0.0
        """When its newest pause ended, in the world's time."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Keeps them from the garbage collector, which would run their clean-up when it likes."""
        self._sweep_at = _SWEEP_TASKS_MIN
        self.context = Context()
        self.context.run(_PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name} {self.state.name.lower()}>"

    @property
    def is_alive(self) -> bool:
        return self.state is not _State.DEAD

    @property
    def is_paused(self) -> bool:
        return self.state is _State.PAUSED

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.append(task)
        if len(self.tasks) >= self._sweep_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._sweep_at = max(_SWEEP_TASKS_MIN, 2 * len(self.tasks))


_PROCESS: Final[ContextVar[Process]] = ContextVar("process")


class Event(asyncio.TimerHandle):
    """A callback and the context, thus the process, that it runs in."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "VirtualLoop",
        context: Context,
    ) -> None:
        # Not asyncio's own: there is one for every event, and that one does more than is needed.
        self._when = when
        self._callback = callback
        self._args = args
        self._loop: VirtualLoop = loop
        self._context = context
        self._cancelled = False
        self._scheduled = False
        self._repr = None
        self._source_traceback = None

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = _nothing
            self._args = ()
            if self._scheduled:
                self._loop._timers_cancelled += 1


def _nothing() -> None:
    """What a cancelled event would do."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, and in which process."""

    process: str
    error: BaseException
    message: str


class VirtualLoop(asyncio.BaseEventLoop):
    """Timers, callbacks and tasks of many processes. No sockets, threads or signals.

    It also serves as an ordinary loop for `asyncio.Runner`: all is then one process.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_debug(False)
        self.now = 0.0
        self.events = 0
        self.errors: list[Failure] = []
        self.after_event: Callable[[], int] | None = None
        """Called after the event with the number `look_at`, and after one in which something went
        wrong, outside of all processes. It says when it wants to be called next; what it raises
        ends the run."""
        self.look_at = 0
        self._soon: deque[Event] = deque()
        self._heap: list[tuple[float, int, Event]] = []
        self._sequence = 0
        self._timers_cancelled = 0
        self._muted = False
        self.world = Process("world", MachineClock(self))
        self.set_exception_handler(self._keep_error)

    def __repr__(self) -> str:
        return f"<VirtualLoop {self.now:.6f} s, {self.events} events, {len(self._heap)} timers>"

    # Asking for events.

    def time(self) -> float:
        return _PROCESS.get(self.world).clock.monotonic()

    @property
    def process(self) -> Process:
        """The process whose callback is running."""
        return _PROCESS.get(self.world)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Event:
        event = Event(self.now, callback, args, self, copy_context() if context is None else context)
        self._soon.append(event)
        return event

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Event:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Event:
        clock = _PROCESS.get(self.world).clock
        if context is None:
            context = copy_context()
        if when <= clock.monotonic():
            event = self.call_soon(callback, *args, context=context)
        else:
            event = self.at(clock.when(when), context, callback, *args)
        event._when = when  # in the time that the process knows
        return event

    def at(self, when: float, context: Context, callback: Callable[..., object], *args: Any) -> Event:
        """Call back at `when` of the world's time, in the process of `context`."""
        event = Event(when, callback, args, self, context)
        if when <= self.now:
            self._soon.append(event)
        else:
            self._sequence += 1
            event._scheduled = True
            heapq.heappush(self._heap, (when, self._sequence, event))
        return event

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        process = _PROCESS.get(self.world) if context is None else context.get(_PROCESS, self.world)
        # asyncio's own names count up over all loops, so two runs would not have the same.
        task = asyncio.Task(coro, loop=self, name=name or process.name, context=context)
        process.adopt(task)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """A client's thread does its work at once, in no time. A node has the host's Offload."""
        assert self.process.has_threads, "threads have no virtual time; use the host's Offload"
        done: asyncio.Future[Any] = self.create_future()
        self.call_soon(_perform, done, func, *args)
        return done

    # Life and death.

    def pause(self, process: Process) -> None:
        if process.state is _State.RUNNING:
            process.state = _State.PAUSED

    def resume(self, process: Process) -> None:
        """Let it run again, beginning with all that came due meanwhile."""
        if process.state is _State.PAUSED:
            process.state = _State.RUNNING
            process.woke_at = self.now
            self._soon.extend(process.parked)
            process.parked.clear()

    def kill(self, process: Process) -> None:
        """End a process here and now. Its tasks unwind unheard, and nothing of it runs again.

        The caller has made its disk and its network dead before: the unwinding must change
        nothing. Not to be called by the process itself.
        """
        assert _PROCESS.get(self.world) is not process, "a process cannot clean up after itself"
        self._end(process)

    def _end(self, process: Process) -> None:
        process.state = _State.DEAD
        process.parked.clear()
        self._muted = True
        logged = logging.root.manager.disable
        logging.disable()
        try:
            while process.tasks:
                tasks, process.tasks = process.tasks, []
                for task in tasks:
                    if not task.done():
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        _unwind(process, task)
        finally:
            self._muted = False
            logging.disable(logged)

    # Running.

    def run_events(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Run what is due up to `until`, or until `stop` says so at the end of a moment.

        Whether it stopped by `stop`; otherwise the time is then `until`. The collector runs at
        fixed counts of events only: what it does to abandoned tasks is part of the history.
        """
        assert events._get_running_loop() is None, "a loop is running already"
        collects = gc.isenabled()
        gc.disable()
        events._set_running_loop(self)
        try:
            while True:
                self._run_soon()
                if stop is not None and stop():
                    return True
                if not self._advance(until):
                    return False
        finally:
            events._set_running_loop(None)
            if collects:
                gc.enable()

    def _run_once(self) -> None:
        """One moment, for those who run this as an ordinary loop."""
        if not self._soon and not self._stopping:  # type: ignore[attr-defined]
            assert self._advance(math.inf), "deadlock: everybody waits, and for nothing"
        self._run_soon(len(self._soon))

    def _run_soon(self, count: int = -1) -> None:
        """Run all that is due now, or the next `count`."""
        soon, world, after = self._soon, self.world, self.after_event
        while soon and count:
            count -= 1
            event = soon.popleft()
            if event._cancelled:
                continue
            context = event._context
            process = context.get(_PROCESS, world)
            if process.state:
                if process.state is _State.PAUSED:
                    process.parked.append(event)
                continue
            process.ran_at = self.events = self.events + 1
            try:
                context.run(event._callback, *event._args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self._fail(process, error, f"in {event._callback!r}")
            if after is not None and self.events >= self.look_at:
                self.look_at = after()
            if self.events % _YOUNG_GARBAGE_EVENTS == 0 and not gc.isenabled():
                gc.collect(2 if self.events % _OLD_GARBAGE_EVENTS == 0 else 1)

    def _advance(self, until: float) -> bool:
        """Move on to the next event, if it is due by `until`; otherwise to `until`."""
        heap, soon = self._heap, self._soon
        if self._timers_cancelled > max(_SWEEP_TIMERS_MIN, len(heap) // 2):
            heap[:] = [entry for entry in heap if not entry[2]._cancelled]
            heapq.heapify(heap)
            self._timers_cancelled = 0
        while heap and heap[0][2]._cancelled:
            heapq.heappop(heap)
            self._timers_cancelled -= 1
        if not heap or heap[0][0] > until:
            self.now = max(self.now, until) if until < math.inf else self.now
            return False
        now = self.now = max(self.now, heap[0][0])
        while heap and heap[0][0] <= now:
            event = heapq.heappop(heap)[2]
            event._scheduled = False
            if event._cancelled:
                self._timers_cancelled -= 1
            else:
                soon.append(event)
        return True

    # What goes wrong.

    def _fail(self, process: Process, error: BaseException, message: str) -> None:
        if process.is_alive:
            self.errors.append(Failure(process.name, error, message))
            self.look_at = 0

    def _keep_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task failed and nobody asked, or something was destroyed that still waited."""
        message = context.get("message", "")
        error = context.get("exception") or RuntimeError(message)
        if not self._muted and not self.is_closed():
            self._fail(self.process, error, message)

    # What an ordinary loop has and this one does without.

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Events count themselves."""

    def close(self) -> None:
        if not self.is_closed() and not self.is_running():
            self._end(self.world)
            self._soon.clear()
            self._heap.clear()
            super().close()


def _unwind(process: Process, task: "asyncio.Task[Any]") -> None:
    """Run a dead task's clean-up, whose every call falls on deaf ears."""
    coroutine = task.get_coro()
    assert coroutine is not None
    try:
        process.context.copy().run(coroutine.close)
    except BaseException:
        pass  # the dead say much


def _perform(done: "asyncio.Future[Any]", work: Callable[..., Any], *args: Any) -> None:
    try:
        result = work(*args)
    except Exception as error:
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)
