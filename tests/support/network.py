"""The ways between nodes, which a test can cut: whoever calls a node calls a proxy of ours.

Rule 1: what is cut falls silent. Nothing is refused, closed or lost: what was on its way waits, and
        arrives when the way is mended, or is lost then if the test wants it so.
Rule 2: a way has a direction; a connection uses two, whoever made it.
Rule 3: where no process listens, no proxy does: a process that is gone refuses its callers.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Self

from tests.clients.loop import shared_loop
from tidelog.faces.local.layout import some_free_ports
from tidelog.model import NodeId
from tidelog.peers.wire import HEADER, SIZE_COUNTED, STRANGER_BYTES_MAX, Hello, decode_greeting

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 256 * 1024
_SECONDS_MAX: Final = 10.0


class Network:
    """A proxy before each of some nodes. Its methods are for other threads than its own."""

    def __init__(self, nodes: Iterable[NodeId]) -> None:
        ports = some_free_ports()
        self.nodes = tuple(nodes)
        self.port = {node: next(ports) for node in self.nodes}
        """Where its peers find a node."""
        self.listener_port = {node: next(ports) for node in self.nodes}
        """Where the node itself must listen."""
        self._servers: dict[NodeId, asyncio.Server] = {}
        self._open: dict[tuple[NodeId, NodeId], asyncio.Event] = {}
        self._connections: dict[asyncio.Task[None], frozenset[NodeId]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shared_loop().run(self._close_all(), _SECONDS_MAX)

    # Nodes that come and go.

    def admit(self, node: NodeId) -> None:
        """A process listens there from now on."""
        shared_loop().run(self._admit(node), _SECONDS_MAX)

    def refuse(self, node: NodeId) -> None:
        """No process listens there any more."""
        shared_loop().run(self._refuse(node), _SECONDS_MAX)

    # Ways that are cut and mended.

    def cut(self, source: NodeId, target: NodeId, *, both_ways: bool = True) -> None:
        """Nothing that `source` says arrives at `target`, nor the other way round."""
        ways = {(source, target), (target, source)} if both_ways else {(source, target)}
        shared_loop().run(self._cut(ways), _SECONDS_MAX)

    def isolate(self, node: NodeId) -> None:
        """The node hears nobody, and nobody hears it."""
        others = [other for other in self.nodes if other != node]
        ways = {way for other in others for way in ((node, other), (other, node))}
        shared_loop().run(self._cut(ways), _SECONDS_MAX)

    def mend(self, *, lose: bool = False) -> None:
        """Everybody hears everybody; what waited arrives, or with `lose` its connections break."""
        shared_loop().run(self._mend(lose), _SECONDS_MAX)

    # In the loop.

    async def _admit(self, node: NodeId) -> None:
        async def connected(caller: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                await self._connected(task, node, caller, answers)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # one side is gone, or we are
            finally:
                self._connections.pop(task, None)
                answers.transport.abort()

        if node not in self._servers:
            self._servers[node] = await asyncio.start_server(connected, HOST, self.port[node])

    async def _refuse(self, node: NodeId) -> None:
        server = self._servers.pop(node, None)
        if server is not None:
            server.close()

    async def _cut(self, ways: Iterable[tuple[NodeId, NodeId]]) -> None:
        for way in ways:
            self._way(*way).clear()

    async def _mend(self, lose: bool) -> None:
        cut = [way for way, is_open in self._open.items() if not is_open.is_set()]
        if lose:
            pairs = {frozenset(way) for way in cut}
            await self._end([task for task, pair in self._connections.items() if pair in pairs])
        for way in cut:
            self._open[way].set()

    async def _close_all(self) -> None:
        for node in self.nodes:
            await self._refuse(node)
        await self._end(list(self._connections))

    async def _end(self, tasks: "list[asyncio.Task[None]]") -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _way(self, source: NodeId, target: NodeId) -> asyncio.Event:
        way = self._open.get((source, target))
        if way is None:
            way = self._open[source, target] = asyncio.Event()
            way.set()
        return way

    # One connection.

    async def _connected(
        self,
        task: "asyncio.Task[None]",
        node: NodeId,
        caller: asyncio.StreamReader,
        answers: asyncio.StreamWriter,
    ) -> None:
        self._connections[task] = frozenset((node,))
        head = await caller.readexactly(HEADER.size)
        size = HEADER.unpack(head)[0] - SIZE_COUNTED
        assert size <= STRANGER_BYTES_MAX
        body = await caller.readexactly(size)
        hello = decode_greeting(memoryview(body))
        assert isinstance(hello, Hello)
        self._connections[task] = frozenset((node, hello.node))
        await self._way(hello.node, node).wait()
        called, requests = await asyncio.open_connection(HOST, self.listener_port[node])
        requests.write(head + body)
        pumps = [
            asyncio.create_task(_pump(caller, requests, self._way(hello.node, node))),
            asyncio.create_task(_pump(called, answers, self._way(node, hello.node))),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            requests.transport.abort()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, way: asyncio.Event) -> None:
    """Pass on what comes, its end included, while the way is open."""
    with suppress(OSError):
        while True:
            data = await source.read(CHUNK_BYTES)
            await way.wait()
            if not data:
                return
            target.write(data)
            await target.drain()
