"""An event loop in a thread of its own, for tests that are not coroutines, or have another loop.

Rule 1: every task is made here, so that it belongs to the life in whose context it was asked for.
Rule 2: when it is closed nothing of it is left: no task, no thread, no descriptor.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar

import uvloop

from tidelog.testing.errors import NotInTime, NotRunning
from tidelog.testing.lives import life_of

T = TypeVar("T")

_CLOSE_SECONDS_MAX: Final = 10.0


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self.loop.set_task_factory(_make_task)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_finish())
        finally:
            self.loop.close()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive() and not self.loop.is_closed()

    def run(
        self,
        work: Coroutine[Any, Any, T],
        seconds_max: float,
        *,
        problem: Callable[[], str] = lambda: "it took too long",
    ) -> T:
        """The result of `work`; NotInTime after so many seconds, saying `problem`."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this is the nodes' own thread; call from a thread of yours")
        if not self.is_open:
            work.close()
            raise NotRunning("the cluster was stopped; start it, or make another one")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(seconds_max)
        except concurrent.futures.TimeoutError:
            if future.done():  # it was the work itself that raised
                raise
            said = problem()
            raise NotInTime(f"not within {seconds_max:g} s: {said}") from None
        finally:
            future.cancel()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function` where the nodes run; its result."""

        async def work() -> T:
            return function(*args)

        return self.run(work(), _CLOSE_SECONDS_MAX)

    def close(self) -> None:
        """End all that runs, and wait for it."""
        if self.is_open:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_CLOSE_SECONDS_MAX)
            assert not self._thread.is_alive(), "a callback does not return"


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T] | Generator[Any, None, T],
    context: Context | None = None,
    **options: Any,
) -> "asyncio.Task[T]":
    task: asyncio.Task[T] = asyncio.Task(work, loop=loop, context=context, **options)
    life = life_of(context)
    if life is not None:
        life.adopt(task)
    return task


async def _finish() -> None:
    """Cancel what is left, and let go of the loop's own threads and generators."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS_MAX / 2)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
