"""Nodes that form a cluster inside of this process.

    with Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        cluster.leader_of("orders", 0).kill()
        cluster.wait_in_sync("orders", [1, 2])

The nodes are real, their sockets are real, on ports of 127.0.0.1 that nobody else gets, and so are
their files, in a temporary directory. All run on one event loop in one thread; every method here is
for other threads: it returns when it is done, or raises `NotInTime`.

Rule 1: `SETTINGS` are shorter than a node's own where a test would wait, and nowhere else: what is
        promised to clients stays, `durability` above all.
Rule 2: leaving ends all nodes without a word, and removes what they wrote.
"""

import asyncio
import atexit
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from tidelog.client.kafka import KafkaClient
from tidelog.faces.local.layout import State, quorum_size
from tidelog.model import NodeId
from tidelog.testing.errors import NotRunning
from tidelog.testing.faults import Faults
from tidelog.testing.loop import LoopThread
from tidelog.testing.machine import Machine
from tidelog.testing.node import SECONDS_MAX, InProcessNode
from tidelog.testing.settings import SETTINGS
from tidelog.testing.view import ClusterStatus, PartitionStatus, View
from tidelog.testing.wires import Ways

T = TypeVar("T")

NODES_MAX: Final = 9
_LOOK_SECONDS: Final = 0.005
_END_SECONDS_MAX: Final = 60.0


class Cluster:
    """One, three or more nodes, from `start` to `stop`."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        seed: object = None,
        directory: Path | str | None = None,
    ) -> None:
        """`settings` are a node's, as in a file of settings; they are stronger than `SETTINGS`.

        `seed` is what faults are drawn from; without one, a random one. What the nodes write is
        in a temporary directory that goes with the cluster, or in `directory`, which stays.
        """
        if not 1 <= nodes <= NODES_MAX:
            raise ValueError(f"a cluster of {nodes} nodes; it can have 1 to {NODES_MAX}")
        self._count = nodes
        self._settings = {**SETTINGS, **(settings or {})}
        self._given_directory = None if directory is None else Path(directory)
        self._loop: LoopThread | None = None
        self._nodes: dict[NodeId, InProcessNode] = {}
        self._machines: dict[NodeId, Machine] = {}
        self._directory: Path | None = None
        self._view = View(self._nodes)
        self._ways: Ways | None = None
        self._names = count(1)
        self.faults = Faults(self, seed)

    def __repr__(self) -> str:
        return f"<Cluster of {self._count}: {[*self._nodes.values()] or 'not started'}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getitem__(self, node: NodeId) -> InProcessNode:
        self._require_loop()
        try:
            return self._nodes[node]
        except KeyError:
            raise KeyError(f"there is no node {node}; this cluster has {self.ids}") from None

    def __iter__(self) -> Iterator[InProcessNode]:
        self._require_loop()
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return self._count

    # From start to stop.

    def start(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Start all nodes, and wait until all of them serve clients."""
        if self._loop is not None:
            raise RuntimeError("the cluster runs already")
        loop = self._loop = LoopThread("tidelog-cluster")
        atexit.register(self.stop)
        try:
            self._build(loop)
            self._run(self._start_all, seconds_max)
        except BaseException:
            self.stop()
            raise

    def _build(self, loop: LoopThread) -> None:
        given = self._given_directory
        self._directory = Path(tempfile.mkdtemp(prefix="tidelog-")) if given is None else given
        ways = self._ways = Ways(self.faults.seed)
        for node in range(1, self._count + 1):
            data = self._directory / f"node-{node}"
            self._machines[node] = Machine(node, data, ways)
        voters = range(1, quorum_size(self._count) + 1)
        quorum = ",".join(f"{node}@{self._machines[node].peer}" for node in voters)
        peers = {(m.peer.host, m.peer.number): m for m in self._machines.values()}
        secret = secrets.token_hex(32).encode()
        for node, machine in self._machines.items():
            config = machine.config(quorum if self._count > 1 else "", self._settings, secret)
            self._nodes[node] = InProcessNode(loop, machine, config, peers)

    async def _start_all(self) -> None:
        for node in self._nodes.values():
            await node.begin()
        await asyncio.gather(*(node.until_ready() for node in self._nodes.values()))

    def stop(self) -> None:
        """End all nodes at once, without a word, and remove what they wrote."""
        atexit.unregister(self.stop)
        loop, self._loop = self._loop, None
        if loop is None:
            return
        try:
            loop.run(self._end_all(), _END_SECONDS_MAX)
        finally:
            loop.close()
            for machine in self._machines.values():
                machine.release()
            self._nodes.clear()
            self._machines.clear()
            self._ways = None
            if self._given_directory is None and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    async def _end_all(self) -> None:
        self.faults.forget()
        await asyncio.gather(*(node.end() for node in self._nodes.values()))
        for wire in list(self._ways.wires if self._ways is not None else ()):
            wire.outer.abort()

    # Where it is.

    @property
    def ids(self) -> tuple[NodeId, ...]:
        return tuple(range(1, self._count + 1))

    @property
    def bootstrap(self) -> str:
        """HOST:PORT,... of all nodes, for Kafka clients; the same until `stop`."""
        return ",".join(node.kafka for node in self)

    @property
    def http(self) -> str:
        """The addresses of all nodes' HTTP faces, between commas; of one node, its address."""
        return ",".join(node.http for node in self)

    @property
    def directory(self) -> Path:
        """Where the nodes write, each in a directory of its own."""
        self._require_loop()
        assert self._directory is not None
        return self._directory

    # Topics.

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
        seconds_max: float = SECONDS_MAX,
    ) -> str:
        """Create a topic, on all nodes or three of them by default; its name.

        When this returns every node that runs knows the topic, and it has its leaders.
        """

        async def work() -> str:
            async with self._client(seconds_max) as client:
                await client.create_topic(
                    name, partitions=partitions, replication=replication, configs=config
                )
            await _until(lambda: self._view.is_led_everywhere(name))
            return name

        return self._run(work, seconds_max)

    def new_topic(self, prefix: str = "topic", **options: Any) -> str:
        """Create a topic with a name that this cluster has not had yet; the name."""
        return self.create_topic(f"{prefix}-{next(self._names)}", **options)

    def delete_topic(self, name: str, *, seconds_max: float = SECONDS_MAX) -> None:
        async def work() -> None:
            async with self._client(seconds_max) as client:
                await client.delete_topic(name)

        self._run(work, seconds_max)

    def partitions(self, topic: str) -> list[PartitionStatus]:
        """The partitions of a topic, in order; none if no node knows it."""
        return self._require_loop().call(self._view.partitions, topic)

    def leader_of(self, topic: str, partition: int = 0, *, seconds_max: float = SECONDS_MAX) -> InProcessNode:
        """The node that leads a partition, once one does that runs, and knows that it does."""

        async def work() -> InProcessNode:
            return await _found(lambda: self._view.leader(topic, partition))

        return self._run(work, seconds_max, f"nobody leads {topic}-{partition}")

    def wait_in_sync(
        self,
        topic: str,
        members: Collection[NodeId | InProcessNode] | None = None,
        *,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        """Wait until every partition has a leader, and all of its replicas are in sync.

        With `members`, until those of its replicas are in sync that are among them, and no others.
        """
        wanted = None if members is None else frozenset(map(id_of, members))

        async def work() -> None:
            await _until(lambda: self._view.is_in_sync(topic, wanted))

        self._run(work, seconds_max, f"{topic} is not in sync")

    # How it is.

    def status(self) -> ClusterStatus:
        return self._require_loop().call(self._view.status)

    def controller(self, *, seconds_max: float = SECONDS_MAX) -> InProcessNode:
        """The node that leads the metadata quorum, once one does."""

        async def work() -> InProcessNode:
            return await _found(self._view.controller)

        return self._run(work, seconds_max, "nobody leads the quorum")

    def wait_ready(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Wait until all nodes that were started serve, and the controller counts on each."""

        async def work() -> None:
            started = [n for n in self if n.state in (State.STARTING, State.RUNNING)]
            await asyncio.gather(*(node.until_ready() for node in started))
            await _until(lambda: self._view.is_whole({node.id for node in started}))

        self._run(work, seconds_max)

    # For faults.

    @property
    def loop(self) -> LoopThread:
        """Where the nodes run."""
        return self._require_loop()

    @property
    def ways(self) -> Ways:
        """What goes between nodes, and between these and their clients."""
        self._require_loop()
        assert self._ways is not None
        return self._ways

    def machine(self, node: NodeId) -> Machine:
        """What a node has outside of itself."""
        self._require_loop()
        return self._machines[node]

    def reseed(self, seed: object) -> None:
        if self._ways is not None:
            self._ways.reseed(seed)

    # For threads.

    def _require_loop(self) -> LoopThread:
        if self._loop is None:
            raise NotRunning("the cluster does not run; start it first")
        return self._loop

    def _run(
        self, work: Callable[[], Coroutine[Any, Any, T]], seconds_max: float, problem: str = "not done"
    ) -> T:
        loop = self._require_loop()
        return loop.run(work(), seconds_max, problem=lambda: f"{problem}; {self!r}")

    def _client(self, seconds_max: float) -> KafkaClient:
        running = [node.kafka for node in self._view.running()]
        if not running:
            raise NotRunning("none of the cluster's nodes runs")
        return KafkaClient(",".join(running), timeout_seconds=seconds_max)


def id_of(node: NodeId | InProcessNode) -> NodeId:
    return node.id if isinstance(node, InProcessNode) else node


async def _found(look: Callable[[], T | None]) -> T:
    """What `look` finds, as soon as it finds something; what it looks at changes in many places."""
    while (found := look()) is None:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)
    return found


async def _until(is_so: Callable[[], bool]) -> None:
    await _found(lambda: is_so() or None)
