"""How soon those have a record who wait for it.

Rule 1: all wait before it is written, and the next one is written when all have it. So what is
        measured is the way from a write to everybody, and not a queue.
Rule 2: whoever writes does so over Kafka, whatever the others speak.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from benchmarks.closed import (
    Connection,
    ReadAnswer,
    Target,
    Timed,
    all_done,
    connect,
    kafka_answer,
    undisturbed,
)
from tidelog.client.load import percentiles

PARK_SECONDS: Final = 0.05
"""Until those who wait are known to do so, before the first record."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where to wait for a record, and what to ask for one at an offset."""

    port: int
    ask_for: Callable[[int], bytes]


class _Delivery:
    """One who writes, and those who wait."""

    def __init__(self, request: bytes, first: int, seconds: float) -> None:
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.seconds = 0.0
        self._request = request
        self._offset = first
        self._seconds_wanted = seconds
        self._writer: Connection
        self._waiters: list[tuple[Connection, Waiting]] = []
        self._missing = 0
        self._started_at = 0.0
        self._written_at = 0.0

    @property
    def connections(self) -> list[Connection]:
        return [self._writer, *(connection for connection, _ in self._waiters)]

    async def connect(self, port: int, waiting: Sequence[Waiting], read: ReadAnswer) -> None:
        self._writer = await connect(port, kafka_answer, lambda _: self._on_one())
        for one in waiting:
            self._waiters.append((await connect(one.port, read, self._on_got), one))

    async def start(self) -> None:
        self._wait()
        await asyncio.sleep(PARK_SECONDS)
        self._started_at = perf_counter()
        self._write()

    def _wait(self) -> None:
        for connection, one in self._waiters:
            connection.send(one.ask_for(self._offset))

    def _write(self) -> None:
        self._missing = len(self._waiters) + 1
        self._written_at = perf_counter()
        self._writer.send(self._request)

    def _on_got(self, answer: bytes) -> None:
        self.latencies.append(perf_counter() - self._written_at)
        self._on_one()

    def _on_one(self) -> None:
        self._missing -= 1
        if self._missing:
            return
        self._offset += 1
        self.seconds = perf_counter() - self._started_at
        if self.seconds >= self._seconds_wanted:
            self.done.set_result(None)
        else:
            self._wait()
            self._write()


def deliver(
    write: Target, waiting: Sequence[Waiting], read: ReadAnswer, *, first: int, seconds: float
) -> Timed:
    """Write one record after the other, the first at offset `first`, while all these wait.

    A latency is that of one who waits, from the record's sending to the end of the answer.
    """

    async def run() -> Timed:
        delivery = _Delivery(write.requests[0], first, seconds)
        await delivery.connect(write.port, waiting, read)
        try:
            await delivery.start()
            await all_done([delivery.done], delivery.connections)
        finally:
            for connection in delivery.connections:
                connection.close()
        return Timed(
            requests=len(delivery.latencies),
            seconds=delivery.seconds,
            milliseconds=percentiles(delivery.latencies),
        )

    return undisturbed(run())
