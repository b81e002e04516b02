"""One node of a cluster inside of this process.

| state    | how it is left                                                                       |
|----------|--------------------------------------------------------------------------------------|
| stopped  | `start`                                                                              |
| starting | it is ready: running; it cannot start: failed; `kill`; `stop`, which kills it, too   |
| running  | `stop`: stopped; `kill`: killed; its disk fails: failed; an operator stops it        |
| killed   | `start`                                                                              |
| failed   | `start`                                                                              |

Rule: methods are for threads of tests, coroutines for the thread in which the nodes run.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.config import NodeConfig
from tidelog.faces.local.layout import State
from tidelog.faces.node import Node
from tidelog.model import NodeId
from tidelog.testing.errors import NotRunning, StartFailed
from tidelog.testing.lives import Life
from tidelog.testing.loop import LoopThread
from tidelog.testing.machine import Machine, Peers

SECONDS_MAX: Final = 30.0
"""How long anything is waited for, unless the caller says otherwise."""
_KILL_SECONDS_MAX: Final = 30.0
_ALIVE: Final = (State.STARTING, State.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """How one node is."""

    id: NodeId
    state: State
    kafka: str
    http: str
    is_controller: bool
    """Whether it leads the metadata quorum, by what it knows itself."""
    leads: int
    """How many partitions it leads, by what it knows itself."""
    error: str | None
    """Why it failed."""


class InProcessNode:
    """A real node, started and ended by a test."""

    def __init__(self, loop: LoopThread, machine: Machine, config: NodeConfig, peers: Peers) -> None:
        self.id = machine.node
        self.kafka = str(machine.kafka)
        """HOST:PORT for Kafka clients, the same with every start."""
        self.http = f"http://{machine.http}"
        """The address of the HTTP face, the same with every start."""
        self.state = State.STOPPED
        self.error: BaseException | None = None
        """Why it failed."""
        self._loop = loop
        self._machine = machine
        self._config = config
        self._peers = peers
        self._node: Node | None = None
        self._life: Life | None = None
        self._settled = asyncio.Event()
        """Set unless it is starting."""
        self._busy = asyncio.Lock()
        self._overseeing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<InProcessNode {self.id} {self.state} kafka={self.kafka} http={self.http}>"

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def data(self) -> Path:
        """Its directory; it stays as it is when the node is stopped or killed."""
        return self._machine.data

    @property
    def node(self) -> Node:
        """The node itself, while it runs, for those who look inside; owned by the nodes' thread."""
        if self._node is None or self.state not in _ALIVE:
            raise NotRunning(f"node {self.id} is {self.state}")
        return self._node

    # For threads.

    def start(self, *, wait: bool = True, seconds_max: float = SECONDS_MAX) -> None:
        """Start it, on the data that it left, and wait until it serves."""
        self._run(self.begin(), seconds_max)
        if wait:
            self.wait_ready(seconds_max=seconds_max)

    def wait_ready(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Wait until it serves clients; StartFailed if it ends instead."""
        self._run(self.until_ready(), seconds_max)

    def stop(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Stop it in order: others lead what it led, and its next start has nothing to recover."""
        self._run(self._stop(), seconds_max)

    def kill(self) -> None:
        """End it as SIGKILL would: nothing is finished, nobody is told, the data stays."""
        self._run(self.end(), _KILL_SECONDS_MAX)

    def restart(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Stop it in order, and start it again."""
        self.stop(seconds_max=seconds_max)
        self.start(seconds_max=seconds_max)

    def status(self) -> NodeStatus:
        return self._loop.call(self.look)

    def _run(self, work: Coroutine[Any, Any, None], seconds_max: float) -> None:
        self._loop.run(work, seconds_max, problem=lambda: f"{self!r}")

    # Where the nodes run.

    async def begin(self) -> None:
        """Begin to start it; `until_ready` tells how that went."""
        async with self._busy:
            if self.state in _ALIVE:
                raise StartFailed(f"node {self.id} is {self.state} already")
            life = self._life = Life(f"node {self.id}")
            host = self._machine.host(life, self._peers)
            node = self._node = life.context.run(Node, host, self._config)
            self.state, self.error = State.STARTING, None
            self._settled.clear()
            self._overseeing = asyncio.get_running_loop().create_task(self._oversee(life, node))

    async def _oversee(self, life: Life, node: Node) -> None:
        """See it through its start, and see to it when it fails."""
        starting = life.spawn(node.start())
        first: list[asyncio.Future[Any]] = [starting, node.failure, life.ended]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not life.is_over and starting.done() and not node.failure.done():
            if (error := starting.exception()) is not None:
                await self._fail(life, error)
                return
            self.state = State.RUNNING
            self._settled.set()
            ends: list[asyncio.Future[Any]] = [node.failure, node.stop_wanted, life.ended]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if life.is_over:
            return
        if node.failure.done():
            await self._fail(life, node.failure.result())
        else:
            await self._stop()

    async def _fail(self, life: Life, error: BaseException | None) -> None:
        """It cannot go on: its process would exit at once."""
        self.error = error
        self._left(State.FAILED)
        await life.end()

    def _left(self, state: State) -> None:
        self.state = state
        self._settled.set()

    async def until_ready(self) -> None:
        await self._settled.wait()
        if self.state is not State.RUNNING:
            why = f": {self.error}" if self.error is not None else ""
            raise StartFailed(f"node {self.id} is {self.state}{why}") from self.error

    async def _stop(self) -> None:
        async with self._busy:
            if self.state not in _ALIVE:
                return
            life, node = self._life, self._node
            assert life is not None
            assert node is not None
            if self.state is State.RUNNING:
                stopping = life.spawn(node.stop())
                first: list[asyncio.Future[Any]] = [stopping, node.failure, life.ended]
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if not stopping.done():
                    return  # it failed or was killed meanwhile; whoever noticed ends it
                stopping.result()
            self._left(State.STOPPED)
            await life.end()

    async def end(self) -> None:
        """Kill it, if it lives; returns when nothing of it is left."""
        life = self._life
        if life is not None:
            if self.state in _ALIVE:
                self._left(State.KILLED)
            await life.end()

    def look(self) -> NodeStatus:
        """How it is; where the nodes run."""
        node = self._node if self.state is State.RUNNING else None
        return NodeStatus(
            id=self.id,
            state=self.state,
            kafka=self.kafka,
            http=self.http,
            is_controller=node is not None and node.broker.member.quorum.raft.leader == self.id,
            leads=0 if node is None else len(node.broker.image.led.get(self.id, {})),
            error=None if self.error is None else str(self.error),
        )
