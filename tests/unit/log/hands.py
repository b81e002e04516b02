"""An offload that does nothing by itself, for tests that need to stand between two steps."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tidelog.host import Lane

T = TypeVar("T")


class Hands:
    """An offload whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Lane, Callable[[], Callable[[], None]]]] = []

    def run(self, work: Callable[[], T], lane: Lane = Lane.ANY) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def perform() -> Callable[[], None]:
            try:
                return partial(future.set_result, work())
            except Exception as error:
                return partial(future.set_exception, error)

        self.waiting.append((lane, perform))
        return future

    async def work(self, lane: Lane | None = None) -> None:
        """Do the oldest piece of work, of that lane if given, and let the loop hear of it."""
        await asyncio.sleep(0)
        self.do(lane)()
        for _ in range(3):
            await asyncio.sleep(0)

    def do(self, lane: Lane | None = None) -> Callable[[], None]:
        """Do the work, and return what tells the loop of it."""
        at = next(i for i, (of, _) in enumerate(self.waiting) if lane in (None, of))
        return self.waiting.pop(at)[1]()

    async def work_off(self) -> None:
        await asyncio.sleep(0)
        while self.waiting:
            await self.work()
