"""Many connections that ask, wait for the answer, and ask again: HTTP, Redis and Kafka alike.

Rule 1: requests are made beforehand, and answers are looked at no more than it takes to know that
        they are whole and no refusal. So the same generator costs all three about the same.
Rule 2: the load is closed, and no connection has two requests under way. A latency is that of one
        request, from its sending to its last byte; how many there are per second follows from it.
Rule 3: a refusal makes the run fail.
"""

import asyncio
import gc
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, TypeAlias, TypeVar, cast

from benchmarks.bench import run_fast
from tidelog.client.load import percentiles

T = TypeVar("T")

SILENT_SECONDS_MAX: Final = 30.0

ReadAnswer: TypeAlias = Callable[[bytes], int]
"""How many bytes the answer at the beginning has, or 0 if it is not whole; raises a refusal."""

_HEAD_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_LENGTH: Final = b"\r\ncontent-length: "
_FRAME_SIZE: Final = struct.Struct(">i")


class Refused(Exception):
    """A server did not do what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Requests that were answered, and how long they took."""

    requests: int
    seconds: float
    milliseconds: Mapping[str, float]
    """Percentiles of one request."""

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


# The ends of answers.


def http_answer(data: bytes) -> int:
    head = data.find(_HEAD_END)
    if head < 0:
        return 0
    at = data.find(_LENGTH, 0, head + 2)
    if at < 0:
        raise Refused(f"an answer without a length: {data[:200]!r}")
    at += len(_LENGTH)
    size = head + 4 + int(data[at : data.index(_LINE_END, at)])
    if len(data) < size:
        return 0
    if data[9:10] != b"2":
        raise Refused(data[:size].decode(errors="replace"))
    return size


def redis_answer(data: bytes) -> int:
    """A simple string, a number or a bulk string."""
    end = data.find(_LINE_END)
    if end < 0:
        return 0
    kind = data[:1]
    if kind == b"-" or data[:3] == b"$-1":
        raise Refused(data[:end].decode(errors="replace"))
    size = end + 2
    if kind == b"$":
        size += int(data[1:end]) + 2
    return size if len(data) >= size else 0


def kafka_answer(data: bytes) -> int:
    """One frame. Whether it is a refusal is seen at the end, by what the log holds."""
    if len(data) < _FRAME_SIZE.size:
        return 0
    size: int = _FRAME_SIZE.size + _FRAME_SIZE.unpack_from(data)[0]
    return size if len(data) >= size else 0


# Requests.


def http_request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def redis_request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


# The load.


@dataclass(frozen=True, slots=True)
class Target:
    """Where to ask, and for what: each connection goes through all requests, and begins anew."""

    port: int
    requests: Sequence[bytes]


class Connection(asyncio.Protocol):
    """One connection; `on_answer` is called with each whole answer."""

    def __init__(self, read: ReadAnswer, on_answer: Callable[[bytes], None]) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._read = read
        self._on_answer = on_answer
        self._partial = b""
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        try:
            size = self._read(data)
        except Refused as error:
            self._fail(error)
            return
        if size == 0:
            self._partial = data
        elif size < len(data):
            self._fail(Refused("an answer that nobody asked for"))
        else:
            self._partial = b""
            self._on_answer(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_closed:
            self._fail(ConnectionError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def close(self) -> None:
        self._is_closed = True
        self.failed.cancel()
        self._transport.abort()


async def connect(port: int, read: ReadAnswer, on_answer: Callable[[bytes], None]) -> Connection:
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(lambda: Connection(read, on_answer), "127.0.0.1", port)
    return made


class _Asker:
    """One connection's requests, one after the other."""

    def __init__(self, target: Target, at: int) -> None:
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._target = target
        self._at = at
        self._stop_at = 0.0
        self._sent_at = 0.0
        self.connection: Connection

    async def connect(self, read: ReadAnswer) -> None:
        self.connection = await connect(self._target.port, read, self._on_answer)

    def start(self, stop_at: float) -> None:
        self._stop_at = stop_at
        self._ask(perf_counter())

    def _ask(self, now: float) -> None:
        self._sent_at = now
        requests = self._target.requests
        self._at += 1
        self.connection.send(requests[self._at % len(requests)])

    def _on_answer(self, answer: bytes) -> None:
        now = perf_counter()
        self.latencies.append(now - self._sent_at)
        if now < self._stop_at:
            self._ask(now)
        elif not self.done.done():
            self.done.set_result(None)


def ask_closed(targets: Sequence[Target], read: ReadAnswer, *, connections: int, seconds: float) -> Timed:
    """Keep one request under way on each connection; the targets have their connections in turn."""

    async def run() -> Timed:
        askers = []
        try:
            for number in range(connections):
                target = targets[number % len(targets)]
                asker = _Asker(target, number * len(target.requests) // connections)
                await asker.connect(read)
                askers.append(asker)
            started = perf_counter()
            for asker in askers:
                asker.start(started + seconds)
            await all_done([one.done for one in askers], [one.connection for one in askers])
            elapsed = perf_counter() - started
        finally:
            for asker in askers:
                asker.connection.close()
        latencies = [seconds for one in askers for seconds in one.latencies]
        return Timed(requests=len(latencies), seconds=elapsed, milliseconds=percentiles(latencies))

    return undisturbed(run())


def ask_once(port: int, request: bytes, read: ReadAnswer) -> None:
    """Ask, and wait for the answer."""
    asked = ask_closed([Target(port, [request])], read, connections=1, seconds=0.0)
    assert asked.requests == 1


def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Run it without the garbage collector, whose pauses would be taken for a server's."""
    gc.collect()
    gc.disable()
    try:
        return run_fast(work)
    finally:
        gc.enable()


async def all_done(done: Sequence["asyncio.Future[None]"], connections: Sequence[Connection]) -> None:
    """Wait until all of these are done; raise what fails on a connection before."""
    failed = [one.failed for one in connections]
    unfinished: set[asyncio.Future[None]] = set(done)
    while unfinished:
        finished, rest = await asyncio.wait(
            [*unfinished, *failed], return_when=asyncio.FIRST_COMPLETED, timeout=SILENT_SECONDS_MAX
        )
        if not finished:
            raise Refused(f"nothing more came for {SILENT_SECONDS_MAX:.0f} s")
        for one in finished:
            one.result()
        unfinished &= rest
