"""Several nodes that form a cluster, each a process of its own, with ways between them to cut.

Rule 1: whoever looks asks a node that can answer: not one that is gone or frozen.
Rule 2: leaving ends every process.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.faces.raw import RawClient
from tests.support.cluster import wait_until
from tests.support.network import HOST, Network
from tests.support.node import NodeProcess
from tidelog.errors import TidelogError
from tidelog.faces.cli.segments import partition_directories, segment_files
from tidelog.model import NodeId, Offset
from tidelog.records import BatchHeader, iterate_batches
from tidelog.wire.apis import Api

LATEST: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition, as a node told of it."""

    leader: NodeId
    epoch: int
    replicas: tuple[NodeId, ...]
    in_sync: frozenset[NodeId]


class Nodes:
    """The processes, by node id."""

    def __init__(
        self,
        directory: Path,
        ids: Iterable[NodeId],
        settings: dict[str, Any] | None = None,
        *,
        voters: Collection[NodeId] | None = None,
    ) -> None:
        """All of them vote in the quorum, unless `voters` are named."""
        self.network = Network(ids)
        port, listener_port = self.network.port, self.network.listener_port
        voting = self.network.nodes if voters is None else voters
        quorum = ",".join(f"{node}@{HOST}:{port[node]}" for node in voting)
        self._processes = {
            node: NodeProcess(
                directory / f"node-{node}",
                {
                    "http": "",
                    "node.id": node,
                    "quorum": quorum,
                    "peer": f"{HOST}:{listener_port[node]}",
                    **(settings or {}),
                },
            )
            for node in self.network.nodes
        }
        self.frozen: set[NodeId] = set()

    def __enter__(self) -> Self:
        try:
            self.start(*self.ids)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.__exit__()
        self.network.__exit__()

    def __getitem__(self, node: NodeId) -> NodeProcess:
        return self._processes[node]

    @property
    def ids(self) -> tuple[NodeId, ...]:
        return self.network.nodes

    @property
    def bootstrap(self) -> str:
        return ",".join(process.bootstrap for process in self._processes.values())

    # What happens to them.

    def start(self, *nodes: NodeId) -> None:
        """Start all of these at once, and wait until each of them serves."""
        for node in nodes:
            self.network.admit(node)
            self[node].launch()
        for node in nodes:
            self[node].wait_ready()

    def kill(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.network.refuse(node)
            self[node].kill()
            self.frozen.discard(node)

    def stop(self, node: NodeId) -> None:
        """A clean stop: the node says goodbye, so its peers can reach it until the end."""
        assert self[node].stop() == 0, self[node].log.read_text()[-4000:]
        self.network.refuse(node)

    def freeze(self, node: NodeId) -> None:
        self[node].freeze()
        self.frozen.add(node)

    def thaw(self, node: NodeId) -> None:
        self.frozen.discard(node)
        self[node].thaw()

    def mend(self) -> None:
        """Everybody runs and hears everybody when this returns; leaders may still be wanting."""
        self.network.mend()
        for node in list(self.frozen):
            self.thaw(node)
        self.start(*(node for node in self.ids if not self[node].is_running))

    # What there is to see.

    def any(self) -> NodeId:
        """A node that can answer."""
        return next(node for node in self.ids if self.can_answer(node))

    def can_answer(self, node: NodeId) -> bool:
        return self[node].is_running and node not in self.frozen

    def ask(self, api: Api, version: int, fields: dict[str, Any], via: NodeId | None = None) -> Any:
        with RawClient(self[self.any() if via is None else via].port) as client:
            return client.ask(api, version, fields)

    def partitions(self, topic: str, via: NodeId | None = None) -> list[PartitionView]:
        """The partitions of a topic, in order; none if nobody knows it."""
        fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        (found,) = self.ask(Api.METADATA, 8, fields, via).topics
        parts = sorted(found.partitions, key=lambda part: part.partition_index)
        return [
            PartitionView(
                leader=part.leader_id,
                epoch=part.leader_epoch,
                replicas=tuple(part.replica_nodes),
                in_sync=frozenset(part.isr_nodes),
            )
            for part in parts
        ]

    def partition(self, topic: str, number: int = 0, via: NodeId | None = None) -> PartitionView:
        return self.partitions(topic, via)[number]

    def active(self, via: NodeId | None = None) -> set[NodeId]:
        """The brokers that are not fenced."""
        return {broker.node_id for broker in self.ask(Api.METADATA, 8, {"topics": []}, via).brokers}

    def controller(self, via: NodeId | None = None) -> NodeId:
        fields = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        answer = self.ask(Api.DESCRIBE_QUORUM, 0, fields, via)
        return int(answer.topics[0].partitions[0].leader_id)

    def watermark(self, topic: str, number: int = 0) -> Offset | None:
        """What a client is told of the end by the partition's leader; None if it is not told."""
        leader = self.partition(topic, number).leader
        if leader not in self.ids:
            return None
        asked = {"partition_index": number, "timestamp": LATEST, "current_leader_epoch": -1}
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
        found = self.ask(Api.LIST_OFFSETS, 5, fields, leader).topics[0].partitions[0]
        return None if found.error_code else int(found.offset)

    def log_bytes(self, node: NodeId, topic: str, number: int = 0) -> bytes:
        """The node's copy, as it lies in its files."""
        files = segment_files(self[node].data / f"{topic}-{number}")
        return b"".join(file.read_bytes() for file in files)

    def log_headers(self, node: NodeId, topic: str, number: int = 0) -> list[BatchHeader]:
        return [header for header, _ in iterate_batches(self.log_bytes(node, topic, number))]

    def log_end(self, node: NodeId, topic: str, number: int = 0) -> Offset:
        headers = self.log_headers(node, topic, number)
        return headers[-1].next_offset if headers else 0

    def stored(self, node: NodeId) -> dict[str, list[tuple[Offset, bytes]]]:
        """Every batch of every partition that the node holds, with its base offset."""
        return {
            path.name: [
                (header.base_offset, bytes(batch))
                for file in segment_files(path)
                for header, batch in iterate_batches(file.read_bytes())
            ]
            for path in partition_directories(self[node].data)
        }

    # What can be waited for.

    def until(self, is_so: Callable[[], bool], problem: str, seconds_max: float = 30.0) -> float:
        """Wait; a node that cannot answer just now is asked again. How long it took."""

        def is_so_now() -> bool:
            try:
                return is_so()
            except (OSError, AssertionError, IndexError, TidelogError):
                return False

        return wait_until(is_so_now, problem, seconds_max)

    def until_all_see(
        self, is_so: Callable[[NodeId], bool], problem: str, *, without: Collection[NodeId] = ()
    ) -> None:
        """Wait until it is so by what each node says that can answer; some hear news late."""

        def is_seen() -> bool:
            seers = [node for node in self.ids if self.can_answer(node) and node not in without]
            return all(is_so(node) for node in seers)

        self.until(is_seen, problem)

    def until_active(self, *nodes: NodeId) -> None:
        """Wait until these are unfenced, and all others fenced."""
        self.until_all_see(lambda via: self.active(via) == set(nodes), f"others than {nodes} act")

    def until_in_sync(self, topic: str, members: Collection[NodeId], number: int = 0) -> None:
        self.until_all_see(
            lambda via: self.partition(topic, number, via).in_sync == set(members),
            f"in sync in {topic}-{number} are not {sorted(members)}",
        )

    def until_all_in_sync(self, topic: str) -> None:
        def is_so(via: NodeId) -> bool:
            found = self.partitions(topic, via)
            return bool(found) and all(p.in_sync == set(p.replicas) for p in found)

        self.until_all_see(is_so, f"not every replica of {topic} is in sync")
        # A leader may hear that it leads a moment before it can.
        self.until(
            lambda: all(
                self.watermark(topic, number) is not None for number in range(len(self.partitions(topic)))
            ),
            f"some leader of {topic} does not lead yet",
        )
