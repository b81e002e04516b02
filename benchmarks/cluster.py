"""Three nodes on this machine, and what can be seen of them from outside.

Rule 1: the cluster is `tidelog cluster up`, with its defaults; nothing is tuned.
Rule 2: looking costs the nodes as little as it can: one small document, or none at all.
"""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, TypeVar

from benchmarks.bench import ASK_SECONDS_MAX, Bench, run_fast
from benchmarks.process import cpu_seconds, forget_peak, memory_bytes, peak_memory_bytes
from tests.support.cluster import ClusterProcess, wait_until
from tidelog.client.kafka import KafkaClient
from tidelog.faces.local import control
from tidelog.model import NodeId

NODES: Final = 3
LOOK_SECONDS: Final = 0.1
LOOK_SECONDS_MAX: Final = 10.0
WHOLE_SECONDS_MAX: Final = 300.0
SEGMENT: Final = "00000000000000000000.log"
ESTABLISHED: Final = "01"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    """A partition, as the node that was asked knows it."""

    leader: NodeId | None
    replicas: tuple[NodeId, ...]
    in_sync: frozenset[NodeId]

    @property
    def is_whole(self) -> bool:
        return self.leader is not None and len(self.in_sync) == len(self.replicas)

    @property
    def is_at_home(self) -> bool:
        """Whether its preferred leader leads it."""
        return self.leader == self.replicas[0]


class Cluster(ClusterProcess):
    """A `tidelog cluster up` that is looked at while it is loaded or broken."""

    @property
    def bootstrap(self) -> str:
        """All nodes, for clients."""
        return self.ready["kafka"]

    @property
    def node_ids(self) -> range:
        return range(1, self.nodes + 1)

    def kafka_port(self, node: NodeId) -> int:
        return int(self.bootstraps[node - 1].rpartition(":")[2])

    def http_port(self, node: NodeId) -> int:
        return int(self.ready["http"].split(",")[node - 1].rpartition(":")[2])

    def pid(self, node: NodeId) -> int:
        return self._pids()[node]

    def _pids(self) -> dict[NodeId, int]:
        """Of those that run."""
        content = json.loads((self.data / "cluster.json").read_text())
        return {node["id"]: node["pid"] for node in content["nodes"] if node["pid"]}

    # Breaking it.

    def act(self, command: str, node: NodeId) -> None:
        """`tidelog cluster COMMAND N`, without the command line's own milliseconds."""
        control.ask(self.data, command, node)

    # What the nodes say.

    def view(self, node: NodeId, topics: Iterable[str] = ()) -> dict[str, Any]:
        """`GET /v1/cluster` of one node, with these topics alone."""
        address = self.ready["http"].split(",")[node - 1]
        url = f"http://{address}/v1/cluster?topics={','.join(topics)}"
        with urllib.request.urlopen(url, timeout=LOOK_SECONDS_MAX) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def partitions(self, topic: str, node: NodeId = 1) -> dict[int, PartitionSeen]:
        return {
            one["partition"]: PartitionSeen(
                leader=one["leader"], replicas=tuple(one["replicas"]), in_sync=frozenset(one["in_sync"])
            )
            for seen in self.view(node, [topic])["topics"]
            for one in seen["partitions"]
        }

    def controller(self, node: NodeId = 1) -> NodeId | None:
        found: NodeId | None = self.view(node)["controller"]
        return found

    def leader(self, topic: str) -> NodeId:
        """Of partition 0."""
        found = self.partitions(topic)[0].leader
        assert found is not None, f"nobody leads {topic}"
        return found

    def wait_whole(self, topics: Iterable[str] = (), *, at_home: bool = False) -> None:
        """Wait until all nodes serve, and all replicas of these topics are in sync.

        `at_home` waits for the preferred leaders, too: so that none moves while others look. A
        topic that was found whole is not looked at again.
        """
        give_up_at = perf_counter() + WHOLE_SECONDS_MAX

        def wait(is_so: Callable[[], bool], what: str) -> None:
            while not is_so():
                assert perf_counter() < give_up_at, f"{what} is not whole"
                sleep(LOOK_SECONDS)

        def is_topic_whole() -> bool:
            seen = self.partitions(topic, self.controller() or 1).values()
            return all(one.is_whole and (one.is_at_home or not at_home) for one in seen)

        wait(self._do_all_serve, "the cluster")
        for topic in topics:
            wait(is_topic_whole, topic)

    def _do_all_serve(self) -> bool:
        """Whether all nodes name the same controller, which has fenced none of them.

        A node that comes back knows nothing newer than its end; one that was the controller and
        was paused believes that it still is.
        """
        named = {self.controller(node) for node in self.node_ids}
        controller = named.pop()
        if named or controller is None:
            return False
        brokers = self.view(controller)["brokers"]
        return len(brokers) == self.nodes and not any(broker["fenced"] for broker in brokers)

    # What the system says.

    def cpu_seconds(self) -> float:
        """Of all nodes that run."""
        return sum(map(cpu_seconds, self._pids().values()))

    def memory_bytes(self) -> int:
        """Of the largest node."""
        return max(map(memory_bytes, self._pids().values()))

    def peak_memory_bytes(self) -> int:
        return max(map(peak_memory_bytes, self._pids().values()))

    def forget_peak(self) -> None:
        for pid in self._pids().values():
            forget_peak(pid)

    def peer_connections(self) -> int:
        """Established connections to the peers' listeners, each counted at its listening end."""
        ports, count = self.peer_ports(), 0
        for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            count += state == ESTABLISHED and int(local.rpartition(":")[2], 16) in ports
        return count

    def peer_ports(self) -> set[int]:
        content = json.loads((self.data / "cluster.json").read_text())
        return {int(node["peer"].rpartition(":")[2]) for node in content["nodes"]}

    def segment(self, node: NodeId, topic: str) -> Path:
        """The first segment that a node has of partition 0, once there is something in it."""
        found: list[Path] = []

        def is_there() -> bool:
            found[:] = (self.data / f"node-{node}").rglob(f"{topic}-0/{SEGMENT}")
            return bool(found)

        wait_until(is_there, f"node {node} has no log of {topic}")
        return found[0]

    # Topics.

    def ask(self, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
        async def run() -> T:
            async with KafkaClient(self.bootstrap, timeout_seconds=ASK_SECONDS_MAX) as client:
                return await work(client)

        return run_fast(run())

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = NODES,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Make a topic and wait until all of its replicas are in sync."""
        self.ask(
            lambda client: client.create_topic(
                topic, partitions=partitions, replication=replication, configs=configs
            )
        )
        self.wait_whole([topic])

    def delete(self, topic: str) -> None:
        self.ask(lambda client: client.delete_topic(topic))


def cluster_of_three(bench: Bench) -> AbstractContextManager[Cluster]:
    return cluster_of(bench, NODES)


@contextmanager
def cluster_of(bench: Bench, nodes: int) -> Iterator[Cluster]:
    """Nodes with empty directories; all is gone afterwards."""
    data = bench.fresh("cluster")
    try:
        with (cluster := Cluster(data, nodes)):
            wait_until(cluster.is_whole, "the cluster did not form")
            yield cluster
            assert cluster.interrupt() == 0, "the nodes did not stop cleanly"
    finally:
        bench.remove(data)


class PeerTraffic:
    """Bytes on the connections between the nodes, in both directions; nobody else's.

    What a connection moved between the last `look` and its end is missed, so look often.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._filter = " or ".join(f"sport = :{port}" for port in sorted(cluster.peer_ports()))
        self._seen: dict[str, int] = {}
        self.bytes = 0
        self.look()
        self.bytes = 0

    @staticmethod
    def can_be_seen() -> bool:
        return shutil.which("ss") is not None

    def look(self) -> int:
        """How many bytes there were since the beginning."""
        asked = subprocess.run(
            ["ss", "--no-header", "--numeric", "--tcp", "--info", "--oneline", self._filter],
            capture_output=True,
            text=True,
            timeout=LOOK_SECONDS_MAX,
            check=True,
        )
        seen = {}
        for line in asked.stdout.splitlines():
            _, _, _, listener, other, *_ = line.split()
            moved = re.findall(r"bytes_(?:sent|received):(\d+)", line)
            seen[f"{listener} {other}"] = sum(map(int, moved))
        self.bytes += sum(size - self._seen.get(name, 0) for name, size in seen.items())
        self._seen = seen
        return self.bytes
