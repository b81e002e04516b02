"""Threads for blocking work, one lane each for work that must not wait for other work."""

import asyncio
import contextlib
import platform
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeVar

from tidelog.host.doors import Lane
from tidelog.host.process import libc

T = TypeVar("T")

_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
"""The number of the system call, which the C library has no name for."""
_IOPRIO_WHO_PROCESS: Final = 1  # 0 for its id: the calling thread alone
_IOPRIO_CLASS_IDLE: Final = 3
_IOPRIO_CLASS_SHIFT: Final = 13


class ThreadOffload:
    """A thread for writes, two for syncs, an idle one, one for schemas, a few for everything else.

    Simpler than an executor of the standard library, and worth it: a hand-over to the disk and
    back is on the way of every acknowledged record.
    """

    def __init__(self, threads: int = 4) -> None:
        self._lanes: dict[Lane, SimpleQueue[Callable[[], None] | None]] = {}
        self._threads: list[tuple[Lane, threading.Thread]] = []
        for lane in Lane:
            self._lanes[lane] = SimpleQueue()
            for number in range(threads if lane is Lane.ANY else 1):
                serve = _serve_idly if lane is Lane.IDLE else _serve
                thread = threading.Thread(
                    target=serve, args=(self._lanes[lane],), daemon=True, name=f"{lane.value}-{number}"
                )
                self._threads.append((lane, thread))
                thread.start()

    def run(self, work: Callable[[], T], lane: Lane = Lane.ANY) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def perform() -> None:
            try:
                result = work()
            except BaseException as error:
                outcome = partial(_fail, future, error)
            else:
                outcome = partial(_succeed, future, result)
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(outcome)

        self._lanes[lane].put(perform)
        return future

    def close(self) -> None:
        """Let the threads finish what they have, and wait for them."""
        for lane, _ in self._threads:
            self._lanes[lane].put(None)
        for _, thread in self._threads:
            thread.join()


def _serve(lane: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (perform := lane.get()) is not None:
        perform()


def _serve_idly(lane: "SimpleQueue[Callable[[], None] | None]") -> None:
    """As `_serve`, with the device's idle priority, where the kernel and its scheduler know one.

    The processor's priority stays: a thread that waits for its turn while it holds the
    interpreter's lock would keep all others waiting.
    """
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_CLASS_IDLE << _IOPRIO_CLASS_SHIFT)
    _serve(lane)


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
