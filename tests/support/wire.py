"""The way of one client to one node, which a test can cut, break and damage.

Rule: what is cut falls silent, and nothing of it is lost: it arrives when the way is mended.
"""

import asyncio
from contextlib import suppress
from typing import Final, Self

from tests.clients.loop import shared_loop

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 64 * 1024
_SECONDS_MAX: Final = 10.0


class Wire:
    """A proxy before a node. Its methods are for other threads than its own."""

    def __init__(self, target: str) -> None:
        self.target = target
        """HOST:PORT, for connections that are yet to be made."""
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._open: asyncio.Event
        self._damages: list[tuple[bytes, bytes]] = []
        self.made = 0
        """How many connections there were."""

    def __enter__(self) -> Self:
        shared_loop().run(self._start(), _SECONDS_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        shared_loop().run(self._stop(), _SECONDS_MAX)

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port}"

    def cut(self) -> None:
        """Nothing arrives any more, in either direction."""
        shared_loop().run(self._set(False), _SECONDS_MAX)

    def mend(self) -> None:
        shared_loop().run(self._set(True), _SECONDS_MAX)

    def tear(self) -> None:
        """End all connections, and let none be made until the way is mended."""
        shared_loop().run(self._tear(), _SECONDS_MAX)

    def damage(self, sent: bytes, arrives: bytes) -> None:
        """Let the next bytes of the node that are `sent` arrive as others of the same length."""
        assert len(sent) == len(arrives)
        self._damages.append((sent, arrives))

    @property
    def is_damage_done(self) -> bool:
        return not self._damages

    # In the loop.

    async def _start(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._end_all()

    async def _set(self, is_open: bool) -> None:
        if is_open:
            self._open.set()
        else:
            self._open.clear()

    async def _tear(self) -> None:
        self._open.clear()
        await self._end_all()

    async def _end_all(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, caller: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.made += 1
        try:
            await self._open.wait()
            host, _, port = self.target.rpartition(":")
            called, requests = await asyncio.open_connection(host, int(port))
            try:
                await self._pass(caller, requests, called, answers)
            finally:
                requests.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or we are
        finally:
            self._connections.discard(task)
            answers.transport.abort()

    async def _pass(
        self,
        caller: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
        called: asyncio.StreamReader,
        answers: asyncio.StreamWriter,
    ) -> None:
        pumps = [
            asyncio.create_task(self._pump(caller, requests, damages=False)),
            asyncio.create_task(self._pump(called, answers, damages=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, damages: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                await self._open.wait()
                target.write(self._damaged(data) if damages else data)
                await target.drain()

    def _damaged(self, data: bytes) -> bytes:
        for sent, arrives in list(self._damages):
            if sent in data:
                self._damages.remove((sent, arrives))
                data = data.replace(sent, arrives, 1)
        return data
