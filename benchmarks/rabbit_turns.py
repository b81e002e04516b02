"""Publishing to RabbitMQ and taking from it, on many connections, one turn after the other.

Rule 1: as in `closed.py`, one turn is under way on each connection, and what is published is
        confirmed before the next.
Rule 2: an acknowledgement has no answer. With as many messages unacknowledged as a turn has, the
        next ones come once it is stored: a turn is from one acknowledgement to the messages
        behind it. The messages of the last turn go back.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, cast

from benchmarks.amqp import (
    ACK,
    BODY,
    DELIVER,
    END,
    FRAME_BYTES,
    GOT,
    HEAD,
    METHOD,
    Channel,
    ack,
    consume,
    get,
)
from benchmarks.closed import SILENT_SECONDS_MAX, Refused, Timed, undisturbed
from benchmarks.queue_turns import Stock
from tidelog.client.load import percentiles

_PRIME_SECONDS_MAX: Final = 60.0


class Talk(asyncio.Protocol):
    """One connection's turns."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.latencies: list[float] = []
        self.ready: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.stop_at = 0.0
        self.stop: Callable[[], None] = lambda: None
        """Ends the load for all."""
        self._began_at = 0.0
        self._partial = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._prime()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError("RabbitMQ closed the connection"))

    def data_received(self, data: bytes) -> None:
        data = self._partial + data
        at, size = 0, len(data)
        while size - at >= FRAME_BYTES:
            kind, _, length = HEAD.unpack_from(data, at)
            end = at + FRAME_BYTES + length
            if end > size:
                break
            if kind == METHOD:
                start = at + HEAD.size
                found = int.from_bytes(data[start : start + 4], "big")
                try:
                    self._on_method(found, data[start + 4 : end - len(END)])
                except Refused as error:
                    self._fail(error)
                    return
            elif kind == BODY:
                self._on_body()
            at = end
        self._partial = data[at:]

    def start(self, now: float, stop_at: float) -> None:
        self.stop_at = stop_at
        self._next(now)

    def close(self) -> None:
        for one in (self.ready, self.done):
            one.cancel()
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        for one in (self.ready, self.done):
            if not one.done():
                one.set_exception(error)

    def _end_turn(self) -> None:
        now = perf_counter()
        self.latencies.append(now - self._began_at)
        self._next(now)

    def _next(self, now: float) -> None:
        if now < self.stop_at and not self._may_go_on():
            self.stop()
        if now < self.stop_at:
            self._began_at = now
            self._begin()
        elif not self.done.done():
            self._end()
            self.done.set_result(None)

    # What kinds of turns differ in.

    def _prime(self) -> None:
        """Whatever comes before the clock runs."""
        self.ready.set_result(None)

    def _may_go_on(self) -> bool:
        return True

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        """The last turn is over."""

    def _on_method(self, found: int, arguments: bytes) -> None:
        raise Refused(f"RabbitMQ said {found >> 16}.{found & 0xFFFF}: {arguments[:200]!r}")

    def _on_body(self) -> None:
        """A message is whole."""


class Publishing(Talk):
    """So many messages at once, confirmed before the next: to each queue in turn."""

    def __init__(self, requests: Sequence[bytes], count: int, at: int, wanted: Stock | None = None) -> None:
        """`wanted`: how many messages in all; None for as many as there is time for."""
        super().__init__()
        self._wanted = wanted
        self._requests = requests
        self._count = count
        self._at = at
        self._sent = 0
        self._unconfirmed: set[int] = set()

    def _may_go_on(self) -> bool:
        return self._wanted is None or self._wanted.left >= self._count

    def _begin(self) -> None:
        if self._wanted is not None:
            self._wanted.left -= self._count
        self._unconfirmed = set(range(self._sent + 1, self._sent + self._count + 1))
        self._sent += self._count
        self._at += 1
        self._transport.write(self._requests[self._at % len(self._requests)])

    def _on_method(self, found: int, arguments: bytes) -> None:
        if found != ACK:
            super()._on_method(found, arguments)
        tag, is_multiple = int.from_bytes(arguments[:8], "big"), arguments[8]
        if is_multiple:
            self._unconfirmed = {one for one in self._unconfirmed if one > tag}
        else:
            self._unconfirmed.discard(tag)
        if not self._unconfirmed:
            self._end_turn()


class Getting(Talk):
    """One message at a time, which is gone when it is sent."""

    def __init__(self, queue: str, stock: Stock) -> None:
        super().__init__()
        self._request = get(queue)
        self._stock = stock

    def _may_go_on(self) -> bool:
        return self._stock.left > 0

    def _begin(self) -> None:
        self._stock.left -= 1
        self._transport.write(self._request)

    def _on_method(self, found: int, arguments: bytes) -> None:
        if found != GOT:
            super()._on_method(found, arguments)

    def _on_body(self) -> None:
        self._end_turn()


class Taking(Talk):
    """So many messages, acknowledged together; then the next."""

    def __init__(self, queue: str, count: int, stock: Stock) -> None:
        super().__init__()
        self._queue = queue
        self._count = count
        self._stock = stock
        self._came = 0
        self._tag = 0

    def _prime(self) -> None:
        self._stock.left -= self._count
        assert self._stock.left >= 0, "there is enough for everybody's first turn"
        self._transport.write(consume(self._queue, self._count))

    def _may_go_on(self) -> bool:
        return self._stock.left >= self._count

    def _end(self) -> None:
        self._stock.left += self._count  # those that came last go back

    def _begin(self) -> None:
        self._stock.left -= self._count
        self._came = 0
        self._transport.write(ack(self._tag))

    def _on_method(self, found: int, arguments: bytes) -> None:
        if found == DELIVER:
            at = 1 + arguments[0]
            self._tag = int.from_bytes(arguments[at : at + 8], "big")
        elif found >> 16 != 60:  # that it has begun is said in its class, too
            super()._on_method(found, arguments)

    def _on_body(self) -> None:
        self._came += 1
        if self._came < self._count:
            return
        if not self.ready.done():
            self.ready.set_result(None)
        else:
            self._end_turn()


def talk_closed(talks: Sequence[tuple[Channel, Callable[[], Talk]]], *, seconds: float) -> Timed:
    """Keep one turn under way on each connection, until the time or a stock is over."""

    async def run() -> Timed:
        loop = asyncio.get_running_loop()
        running: list[Talk] = []

        def stop() -> None:
            for one in running:
                one.stop_at = 0.0

        try:
            for channel, make in talks:
                channel.socket.setblocking(False)
                _, talk = await loop.create_connection(make, sock=channel.socket)
                talk.stop = stop
                running.append(talk)
            async with asyncio.timeout(_PRIME_SECONDS_MAX):
                await asyncio.gather(*(one.ready for one in running))
            started = perf_counter()
            for one in running:
                one.start(started, started + seconds)
            async with asyncio.timeout(seconds + SILENT_SECONDS_MAX):
                await asyncio.gather(*(one.done for one in running))
            elapsed = perf_counter() - started
        finally:
            for one in running:
                one.close()
        latencies = [seconds for one in running for seconds in one.latencies]
        assert latencies, "there was something to do"
        return Timed(requests=len(latencies), seconds=elapsed, milliseconds=percentiles(latencies))

    return undisturbed(run())
