"""Blocking work in virtual time.

Rule 1: a piece of work runs as a whole at one moment, after a delay; its future completes at a
        later one. A process that dies between the two has done it and never hears of it.
Rule 2: the write, sync and idle lanes are one thread each: the next piece starts when the last
        one ended. In `Lane.ANY` nothing waits for anything.
Rule 3: a stalled disk starts nothing; what was started before the stall ends in it.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tidelog.host import Lane
from tidelog.simulation.disk import SimulatedCrash
from tidelog.simulation.loop import Process, VirtualLoop

T = TypeVar("T")

_Work: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DiskPace:
    """How slow one machine's disk is; outlives its processes."""

    def __init__(self, generator: random.Random, seconds: tuple[float, float] = (0.00002, 0.001)) -> None:
        self.seconds = seconds
        self.factor = 1.0
        self.stalled_until = 0.0
        self._draw = generator.random

    def delay(self) -> float:
        low, high = self.seconds
        return self.factor * (low + (high - low) * self._draw() ** 4)


class VirtualOffload:
    """A `tidelog.host.Offload` for one process."""

    def __init__(self, loop: VirtualLoop, process: Process, pace: DiskPace) -> None:
        self._loop = loop
        self._context = process.context
        self._pace = pace
        self._lanes: dict[Lane, deque[_Work]] = {}  # a lane is here while it is busy

    def run(self, work: Callable[[], T], lane: Lane = Lane.ANY) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        if lane is Lane.ANY:
            self._begin(work, future, None)
        elif (waiting := self._lanes.get(lane)) is not None:
            waiting.append((work, future))
        else:
            self._lanes[lane] = deque()
            self._begin(work, future, lane)
        return future

    def _begin(self, work: Callable[[], Any], future: "asyncio.Future[Any]", lane: Lane | None) -> None:
        when = self._loop.now + self._pace.delay()
        self._loop.at(when, self._context, self._perform, work, future, lane)

    def _perform(self, work: Callable[[], Any], future: "asyncio.Future[Any]", lane: Lane | None) -> None:
        if self._loop.now < self._pace.stalled_until:
            until = self._pace.stalled_until
            self._loop.at(until, self._context, self._perform, work, future, lane)
            return
        try:
            outcome = partial(_succeed, future, work())
        except SimulatedCrash:
            return  # the disk has told the machine
        except Exception as error:
            outcome = partial(_fail, future, error)
        self._loop.at(self._loop.now + self._pace.delay(), self._context, self._end, outcome, lane)

    def _end(self, outcome: Callable[[], None], lane: Lane | None) -> None:
        outcome()
        if lane is not None:
            waiting = self._lanes[lane]
            if waiting:
                self._begin(*waiting.popleft(), lane)
            else:
                del self._lanes[lane]


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():  # its owner may have been cancelled
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
