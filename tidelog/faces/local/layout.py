"""The directory of a cluster on one machine.

    DIR/cluster.secret  the secret by which the nodes know each other; nobody else may read it
    DIR/cluster.json    the nodes: addresses, pids and states, and the quorum
    DIR/cluster.lock    held by the running `tidelog cluster up`
    DIR/cluster.sock    where that listens to the other commands
    DIR/node-N/         the data of node N
    DIR/node-N.log      what node N writes to standard error, of all its starts

Rule: ports are chosen once and kept: clients know them, and the quorum remembers its voters' by
heart.
"""

import random
import socket
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from tidelog.errors import TidelogError
from tidelog.model import NodeId

HOST: Final = "127.0.0.1"
FILE_NAME: Final = "cluster.json"
LOCK_NAME: Final = "cluster.lock"
SECRET_NAME: Final = "cluster.secret"
VOTERS_MAX: Final = 7
NODES_MAX: Final = 100
DEFAULT_PORTS: Final = {"kafka": 9092, "http": 8080, "peer": 9192}
FREE_PORTS: Final = range(15000, 32000)
"""Where free ports are looked for: below those that the kernel gives to outgoing connections,
which could take a node's port while the node is away."""


class LayoutError(TidelogError):
    """The directory cannot hold the cluster that was asked for; the message says what to do."""


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    KILLED = "killed"
    """On request; one that died by itself is `FAILED`."""
    FAILED = "failed"


class NodeEntry(msgspec.Struct, kw_only=True):
    """One node: where it is reached, and what became of its process."""

    id: NodeId
    kafka: str
    http: str
    peer: str
    pid: int | None = None
    state: State = State.STOPPED
    exit_code: int | None = None
    waits_for: str | None = None
    """Which voters it needs before it can serve, as it says."""


class ClusterFile(msgspec.Struct, kw_only=True):
    """cluster.json."""

    pid: int | None = None
    """Of `tidelog cluster up`, while it runs."""
    quorum: str
    nodes: list[NodeEntry]

    def node(self, number: NodeId) -> NodeEntry:
        for entry in self.nodes:
            if entry.id == number:
                return entry
        known = ", ".join(str(entry.id) for entry in self.nodes)
        raise LayoutError(f"there is no node {number}; this cluster has nodes {known}")

    @property
    def voters(self) -> set[NodeId]:
        return {int(part.partition("@")[0]) for part in self.quorum.split(",")}


def read(directory: Path) -> ClusterFile | None:
    """What cluster.json says; None if there is none."""
    path = directory / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise LayoutError(
            f"{path} is damaged ({error}); remove it and start the cluster with the ports that it "
            "had, its data stays"
        ) from None


def write(directory: Path, content: ClusterFile) -> None:
    """Replace cluster.json: whoever reads it sees the old one or this one, whole."""
    from tidelog.host import Path as DiskPath
    from tidelog.host import SystemDisk, replace_file

    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    replace_file(SystemDisk(), DiskPath(directory / FILE_NAME), text + b"\n")


def check_directory(directory: Path) -> None:
    """Refuse a directory that holds something else."""
    if (directory / "meta.properties").exists():
        raise LayoutError(
            f"{directory} holds the data of one node, not of a cluster: run it with `tidelog start "
            f"--data {directory}` (or `make run NODES=1`), or choose another --data for the cluster"
        )


def quorum_size(nodes: int) -> int:
    """How many of so many nodes vote: all, but an odd number, and at most seven."""
    size = min(nodes, VOTERS_MAX)
    return size if size % 2 else size - 1


def plan(
    known: ClusterFile | None,
    nodes: int | None,
    ports: Mapping[str, int | None],
    *,
    is_free: Callable[[int], bool],
    free_ports: Iterator[int],
) -> tuple[ClusterFile, list[str]]:
    """The cluster to start, and what a person should know about it.

    `ports` has the first port of each kind, None where nobody chose one: then what cluster.json
    has counts, and the default where that has nothing. 0 is for free ports.
    """
    existing = known.nodes if known is not None else []
    count = nodes or len(existing) or 3
    if count < len(existing):
        raise LayoutError(
            f"this cluster has {len(existing)} nodes, and cannot be started with {count}: their "
            f"data would be missing. Leave --nodes out, or choose another --data"
        )
    chosen, notes = dict(ports), []
    if known is None and ports["http"] is None:
        wanted = range(DEFAULT_PORTS["http"], DEFAULT_PORTS["http"] + count)
        if not all(map(is_free, wanted)):
            notes.append(
                f"ports {wanted[0]} to {wanted[-1]} are not all free, so HTTP gets others; "
                "--http-port chooses"
            )
            chosen["http"] = 0

    def address(kind: str, number: NodeId) -> str:
        first, index = chosen[kind], number - 1
        if first is None and index < len(existing):
            return str(getattr(existing[index], kind))
        if first is None:  # a node that is new: where those before it go on
            first = _port(getattr(existing[0], kind)) if existing else DEFAULT_PORTS[kind]
            if existing and not is_free(first + index):
                first = 0
        port = next(free_ports) if first == 0 else first + index
        if port > 65535:
            raise LayoutError(f"--{kind}-port {first} leaves no room for {count} nodes")
        return f"{HOST}:{port}"

    entries = [
        NodeEntry(id=n, kafka=address("kafka", n), http=address("http", n), peer=address("peer", n))
        for n in range(1, count + 1)
    ]
    addresses = [a for entry in entries for a in (entry.kafka, entry.http, entry.peer)]
    if len(set(addresses)) < len(addresses):
        raise LayoutError(
            f"the ports of {count} nodes overlap; choose --kafka-port, --http-port and --peer-port "
            f"at least {count} apart"
        )
    # A quorum is formed once: nodes that came later follow it.
    voters = known.voters if known is not None else set(range(1, quorum_size(count) + 1))
    quorum = ",".join(f"{entry.id}@{entry.peer}" for entry in entries if entry.id in voters)
    if len(voters) == 1 and count > 1:
        notes.append(
            f"node {min(voters)} alone keeps the metadata of these {count} nodes: while it is "
            "down, no partition gets another leader. Three nodes or more share it (--nodes 3)"
        )
    return ClusterFile(quorum=quorum, nodes=entries), notes


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def is_port_free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except (OSError, OverflowError):
            return False
        return True


def some_free_ports() -> Iterator[int]:
    """Ports that nobody listens on, at random: two clusters that start at once want others."""
    given: set[int] = set()
    while True:
        port = random.choice(FREE_PORTS)
        if port not in given and is_port_free(port):
            given.add(port)
            yield port


def options(content: ClusterFile, entry: NodeEntry, directory: Path) -> list[str]:
    """`tidelog start`'s options for one node."""
    return [
        "--data",
        str(directory / f"node-{entry.id}"),
        "--node-id",
        str(entry.id),
        "--kafka",
        entry.kafka,
        "--http",
        entry.http,
        "--peer",
        entry.peer,
        "--quorum",
        content.quorum,
        "--set",
        f"cluster.secret.file={directory / SECRET_NAME}",
    ]


def ready_line(content: ClusterFile, directory: Path) -> str:
    kafka = ",".join(entry.kafka for entry in content.nodes)
    http = ",".join(entry.http for entry in content.nodes)
    return f"ready kafka={kafka} http={http} nodes={len(content.nodes)} data={directory}"
