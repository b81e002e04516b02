"""Taking messages: ask for some, say that they are done, and ask again, on many connections.

Rule 1: as in `closed.py` one request is under way on each connection, and the same generator asks
        all servers. A turn is timed as a whole, from asking for messages to their last receipt.
Rule 2: nobody asks where nothing is left: the load ends for all when one queue cannot fill a turn.
Rule 3: a turn that brings less than it asked for makes the run fail.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import msgspec

from benchmarks.closed import (
    Connection,
    ReadAnswer,
    Refused,
    Timed,
    all_done,
    connect,
    http_request,
    redis_request,
    undisturbed,
)
from tidelog.client.load import percentiles

_LINE_END: Final = b"\r\n"
_ENTRY_LINES: Final = 8
"""Of an entry with one field: two arrays, and three strings of two lines each."""
_STREAM_LINES: Final = 5
_ENTRY_ID: Final = re.compile(rb"\r\n(\d+-\d+)\r\n")


@dataclass(slots=True)
class Stock:
    """How many messages can still be taken."""

    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one connection asks for, again and again."""

    port: int
    ask: bytes
    count: int
    """Messages of a turn."""
    stock: Stock
    settle: Callable[[bytes], bytes] | None = None
    """What acknowledges the messages of an answer; None where asking is all."""


class _Taker:
    """One connection's turns."""

    def __init__(self, turn: Turn, stop: Callable[[], None]) -> None:
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stop_at = 0.0
        self.connection: Connection
        self._turn = turn
        self._stop = stop
        self._began_at = 0.0
        self._is_settling = False

    async def connect(self, read: ReadAnswer) -> None:
        self.connection = await connect(self._turn.port, read, self._on_answer)

    def begin(self, now: float) -> None:
        stock, count = self._turn.stock, self._turn.count
        if stock.left < count:
            self._stop()
        if now >= self.stop_at:
            self.done.set_result(None)
            return
        stock.left -= count
        self._began_at = now
        self.connection.send(self._turn.ask)

    def _on_answer(self, answer: bytes) -> None:
        settle = self._turn.settle
        if settle is not None and not self._is_settling:
            try:
                request = settle(answer)
            except Refused as error:
                if not self.done.done():
                    self.done.set_exception(error)
                return
            self._is_settling = True
            self.connection.send(request)
            return
        self._is_settling = False
        now = perf_counter()
        self.latencies.append(now - self._began_at)
        self.begin(now)


def take_closed(turns: Sequence[Turn], read: ReadAnswer, *, seconds: float) -> Timed:
    """Keep one turn under way on each connection, until the time or a stock is over."""

    async def run() -> Timed:
        takers: list[_Taker] = []

        def stop() -> None:
            for taker in takers:
                taker.stop_at = 0.0

        try:
            for turn in turns:
                taker = _Taker(turn, stop)
                await taker.connect(read)
                takers.append(taker)
            started = perf_counter()
            for taker in takers:
                taker.stop_at = started + seconds
            for taker in takers:
                taker.begin(started)
            await all_done([one.done for one in takers], [one.connection for one in takers])
            elapsed = perf_counter() - started
        finally:
            for taker in takers:
                taker.connection.close()
        latencies = [seconds for one in takers for seconds in one.latencies]
        assert latencies, "there was something to take"
        return Timed(requests=len(latencies), seconds=elapsed, milliseconds=percentiles(latencies))

    return undisturbed(run())


# Our work queues.


class _Receipt(msgspec.Struct):
    receipt: str


class _Received(msgspec.Struct):
    messages: list[_Receipt]


_decode_received: Final = msgspec.json.Decoder(_Received).decode


def acknowledging(queue: str, count: int) -> Callable[[bytes], bytes]:
    """From an answer of `receive` to the request that acknowledges it."""

    def settle(answer: bytes) -> bytes:
        found = _decode_received(answer[answer.index(b"\r\n\r\n") + 4 :]).messages
        if len(found) != count:
            raise Refused(f"{len(found)} messages came instead of {count}")
        body = msgspec.json.encode({"receipts": [one.receipt for one in found]})
        return http_request("POST", f"/v1/queues/{queue}/ack", body)

    return settle


# Streams of Redis.


def stream_answer(count: int) -> ReadAnswer:
    """What XREADGROUP answers with so many entries, and XACK of them."""
    lines = _STREAM_LINES + _ENTRY_LINES * count

    def read(data: bytes) -> int:
        kind = data[:1]
        if kind == b"*" and data[:3] != b"*-1":
            return len(data) if data.count(_LINE_END) == lines and data.endswith(_LINE_END) else 0
        if not data.endswith(_LINE_END):
            return 0
        if kind != b":" or int(data[1:-2]) != count:
            raise Refused(data[:200].decode(errors="replace"))
        return len(data)

    return read


def added_answer(count: int) -> ReadAnswer:
    """What so many XADDs answer that were sent together."""

    def read(data: bytes) -> int:
        if data[:1] == b"-" or b"\r\n-" in data:
            raise Refused(data[:200].decode(errors="replace"))
        return len(data) if data.count(_LINE_END) == 2 * count and data.endswith(_LINE_END) else 0

    return read


def acking(stream: bytes, group: bytes) -> Callable[[bytes], bytes]:
    return lambda answer: redis_request(b"XACK", stream, group, *_ENTRY_ID.findall(answer))
