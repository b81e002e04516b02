"""The same request again and again, as fast as it is answered.

Rule 1: the sender does next to nothing: requests are made beforehand and are the same to the last
        byte, answers are counted by their size. So one core of this process outruns any server.
Rule 2: an answer that has another size than the first one's makes the run fail.

`tidelog.client.load` makes each request its own and looks at each answer, as a client must. With
1 MB per request that costs nothing; with 100 bytes it is a good part of the work on two cores.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, cast

import uvloop

from tidelog.client.frames import CLIENT, FRAME_HEAD, NO_TAGS, ProduceFrame, make_batch, uvarint
from tidelog.wire.apis import Api

METADATA_VERSION: Final = 12
ANSWER_SECONDS_MAX: Final = 30.0
NO_TOPIC_ID: Final = bytes(16)

SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Requests answered, and how long that took."""

    requests: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


# metadata 12 := header, topics: [id: uuid, name: compact_string, tags], create: int8,
#                authorized_operations: int8, tags            (the rest as in client/frames.py)


def metadata_request(topic: str) -> bytes:
    body = CLIENT + uvarint(2) + NO_TOPIC_ID + uvarint(len(topic) + 1) + topic.encode() + NO_TAGS
    body += b"\x00\x00" + NO_TAGS
    return FRAME_HEAD.pack(FRAME_HEAD.size - 4 + len(body), Api.METADATA, METADATA_VERSION, 1) + body


def produce_request(topic: str, partition: int, *, record_bytes: int, now_ms: int) -> bytes:
    """One record in one batch for one partition, acks=all."""
    batch, _ = make_batch(record_bytes, 0, now_ms=now_ms)
    return b"".join(ProduceFrame.make(topic, [partition], batch, -1).buffers(1))


def connect(port: int) -> socket.socket:
    """A blocking connection that sends at once."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the server closed the connection")
        view = view[count:]
    return buffer


def receive_frame(connection: socket.socket) -> bytearray:
    """One frame without its size."""
    return receive_exactly(connection, SIZE.unpack(receive_exactly(connection, SIZE.size))[0])


def ask(port: int, request: bytes) -> bytearray:
    """Send one request; return its answer, without its size."""
    with connect(port) as connection:
        connection.sendall(request)
        return receive_frame(connection)


def answer_bytes_of(port: int, request: bytes) -> int:
    """The size of the answer to `request`, with the four bytes that tell it."""
    return SIZE.size + len(ask(port, request))


class _Pump(asyncio.Protocol):
    """One connection with `depth` unanswered requests, until `stop_at`."""

    def __init__(self, request: bytes, answer_bytes: int) -> None:
        self.requests = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._answer_bytes = answer_bytes
        self._partial_bytes = 0
        self._unanswered = 0
        self._stop_at = 0.0

    def start(self, depth: int, stop_at: float) -> None:
        self._stop_at = stop_at
        self._unanswered = depth
        self.transport.write(self._request * depth)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        count, self._partial_bytes = divmod(self._partial_bytes + len(data), self._answer_bytes)
        self.requests += count
        if perf_counter() < self._stop_at:
            self.transport.write(self._request * count)
            return
        self._unanswered -= count
        if self._unanswered == 0 and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed the connection"))


def pump(
    port: int, request: bytes, *, answer_bytes: int, connections: int, depth: int, seconds: float
) -> Rate:
    """Keep `depth` requests unanswered on each connection for `seconds`; count the answers."""

    async def run() -> Rate:
        loop = asyncio.get_running_loop()
        pumps = []
        for _ in range(connections):
            _, one = await loop.create_connection(lambda: _Pump(request, answer_bytes), "127.0.0.1", port)
            pumps.append(one)
        started = perf_counter()
        try:
            for one in pumps:
                one.start(depth, started + seconds)
            async with asyncio.timeout(seconds + ANSWER_SECONDS_MAX):
                await asyncio.gather(*(one.done for one in pumps))
            elapsed = perf_counter() - started
        except TimeoutError:
            raise RuntimeError("an answer is missing, or has another size than usual") from None
        finally:
            for one in pumps:
                one.done.cancel()
                one.transport.abort()
        return Rate(requests=sum(one.requests for one in pumps), seconds=elapsed)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def send_all(port: int, topic: str, frames: Sequence[ProduceFrame], *, depth: int) -> Rate:
    """Send each request once, `depth` of them unanswered, and check every answer."""
    unsent = iter(enumerate(frames))
    with connect(port) as connection:

        def send() -> None:
            for number, frame in itertools.islice(unsent, 1):
                connection.sendall(b"".join(frame.buffers(number)))

        started = perf_counter()
        for _ in range(depth):
            send()
        for frame in frames:
            frame.check(receive_frame(connection), topic)
            send()
        return Rate(requests=len(frames), seconds=perf_counter() - started)
