"""A whole broker in memory, in virtual time: no socket, no file, no thread, no clock.

Rule: the same seed and the same calls give the same history.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar

from tidelog.broker.broker import Broker
from tidelog.config import NodeConfig, TopicConfig
from tidelog.host import Clock, Host, Lane, LoopNetwork
from tidelog.simulation.disk import SimulatedDisk

T = TypeVar("T")

WALL_MS_AT_START: Final = 1_800_000_000_000
SESSION_IDS_MAX: Final = 6
DATA: Final = "/data"
TAIL_BYTES_MAX: Final = 4 * 1024
"""Less than any setting allows, so that many reads go to the files."""


class _Jump:
    """Stands where a selector would: instead of sleeping it moves the clock."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        assert timeout is not None, "nothing is scheduled, and somebody waits"
        self._loop.now += max(timeout, 0)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.failures: list[str] = []
        self._selector = _Jump(self)
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._on_exception)

    def time(self) -> float:
        return self.now

    def _process_events(self, events: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


class LoopClock(Clock):
    """The loop's time, as both kinds of time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return WALL_MS_AT_START + int(asyncio.get_running_loop().time() * 1000)


class LaterOffload:
    """Runs work on the loop after a delay, so that other requests come in between."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def run(self, work: Callable[[], T], lane: Lane = Lane.ANY) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def perform() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        loop.call_later(self._random.choice((0, 0, 0.001, 0.01)), perform)
        return future


class FewIds(Random):
    """A generator that gives fetch sessions small numbers, which a fuzzer can guess."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        if stop == 2**31:
            stop = SESSION_IDS_MAX + 1
        return super().randrange(start, stop, step)


class Complaints(logging.Handler):
    """Collects what the code under test logs as its own failure."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.records.append(self.format(record))


def make_host(seed: int, disk: SimulatedDisk) -> Host:
    return Host(
        clock=LoopClock(),
        disk=disk,
        offload=LaterOffload(Random(seed)),
        network=LoopNetwork(),
        random=FewIds(seed),
    )


def small_config() -> NodeConfig:
    """A node whose limits a case of a few kilobytes can pass."""
    return NodeConfig(
        data=DATA,
        fetch_sessions_max=SESSION_IDS_MAX - 2,
        max_incremental_fetch_partitions=8,
        topic_defaults=TopicConfig(
            segment_bytes=8 * 1024, max_message_bytes=4 * 1024, index_interval_bytes=256
        ),
    )


def raise_fatal(error: BaseException) -> None:
    raise error


def make_broker(seed: int, disk: SimulatedDisk) -> Broker:
    broker = Broker(make_host(seed, disk), small_config(), raise_fatal)
    broker.budget.bytes_max = TAIL_BYTES_MAX
    return broker
