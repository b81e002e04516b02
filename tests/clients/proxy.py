"""A proxy in front of a node that counts answers and loses some, as networks do."""

import asyncio
import struct
import threading
from typing import Final, Self

from tests.clients.loop import shared_loop

_SIZE: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhi")
"""API key, version and correlation id: how every request begins."""
_PRODUCE: Final = 0
_SECONDS_MAX: Final = 10.0


class LossyProxy:
    """Passes frames on, except for the answers that it was told to lose."""

    def __init__(self) -> None:
        self._target: tuple[str, int] | None = None
        self._to_lose = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.lost = threading.Semaphore(0)
        """Released once for every answer lost."""
        self.produces = 0
        self.produce_answers = 0

    def __enter__(self) -> Self:
        shared_loop().run(self._start(), _SECONDS_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        shared_loop().run(self._stop(), _SECONDS_MAX)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def point_at(self, port: int) -> None:
        """Pass what comes on to the node on `port`."""
        self._target = ("127.0.0.1", port)

    def lose_next_answer(self) -> None:
        """Let the next Produce reach the node; when it is answered, cut the connection instead."""
        self._to_lose += 1

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        assert self._target is not None
        node, requests = await asyncio.open_connection(*self._target)
        produces: dict[int, bool] = {}  # whether to lose the answer, by correlation id
        pumps = [
            asyncio.create_task(self._pass_requests(client, requests, produces)),
            asyncio.create_task(self._pass_answers(node, answers, produces)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            answers.transport.abort()
            requests.transport.abort()
            self._connections.discard(task)

    async def _pass_requests(
        self, client: asyncio.StreamReader, requests: asyncio.StreamWriter, produces: dict[int, bool]
    ) -> None:
        while True:
            frame = await _read_frame(client)
            key, _, correlation_id = _REQUEST.unpack_from(frame, _SIZE.size)
            if key == _PRODUCE:
                self.produces += 1
                produces[correlation_id] = self._to_lose > 0
                self._to_lose = max(self._to_lose - 1, 0)
            requests.write(frame)
            await requests.drain()

    async def _pass_answers(
        self, node: asyncio.StreamReader, answers: asyncio.StreamWriter, produces: dict[int, bool]
    ) -> None:
        while True:
            frame = await _read_frame(node)
            lose = produces.pop(_SIZE.unpack_from(frame, _SIZE.size)[0], None)
            self.produce_answers += lose is not None
            if lose:
                self.lost.release()
                return
            answers.write(frame)
            await answers.drain()


async def _read_frame(stream: asyncio.StreamReader) -> bytes:
    size = await stream.readexactly(_SIZE.size)
    return size + await stream.readexactly(_SIZE.unpack(size)[0])
