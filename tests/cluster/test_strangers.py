"""Strangers at the ports of real nodes' peers, with bytes of their own; and somebody who has the secret.

Every attack of a stranger here did what its name says to a cluster whose nodes believed whoever connected.
"""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.test_cluster_up import consume, produce
from tests.support.cluster import ClusterProcess, wait_until
from tidelog.peers.handshake import NONCE_BYTES, Dialer, Ends, Seals
from tidelog.peers.wire import PROTOCOL, Challenge, Hello, Welcome
from tidelog.security.secrets import Secret

pytestmark = pytest.mark.slow

REFUSED = {"type": "Refusal", "reason": "refused"}
EPOCH_LAST = 2**31 - 2
STATE = [7, [1, 2, 3], [1, 2, 3], 1, 0]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("strangers") / "data") as cluster:
        produce(cluster.bootstraps[0], cluster, "orders", "before")
        yield cluster


class Caller:
    """A connection to the port of a node's peers."""

    def __init__(self, at: str) -> None:
        host, _, port = at.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._number = 0
        self._seals: Seals | None = None

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, **message: Any) -> Any:
        """The answer; None if the connection ends instead, or nothing comes."""
        body = bytes([0]) + struct.pack(">I", self._number) + msgspec.msgpack.encode(message)
        self._number += 1
        if self._seals is not None:
            body += self._seals.sending.of([body])
        try:
            self._socket.sendall(struct.pack(">i", len(body)) + body)
            (size,) = struct.unpack(">i", self._read(4))
            frame = memoryview(bytearray(self._read(size)))
        except OSError:
            return None
        if self._seals is not None:
            frame = self._seals.receiving.open(frame)
        return msgspec.msgpack.decode(frame[5:])

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self._socket.recv(count - len(found))
            if not more:
                raise ConnectionResetError
            found += more
        return found

    def greet(self, cluster: str | None, node: int, wanted: int, directory: str = "mine") -> Any:
        hello = {"cluster": cluster, "node": node, "directory": directory, "wanted": wanted}
        return self.ask(type="Hello", protocol=PROTOCOL, **hello)

    def prove(self, secret: Secret, cluster: str, node: int, wanted: int) -> Any:
        own, other = (
            f"{host} {port}" for host, port in (self._socket.getsockname(), self._socket.getpeername())
        )
        dialer = Dialer(secret, bytes(range(NONCE_BYTES)), Ends(own, other))
        challenge = self.ask(**msgspec.to_builtins(dialer.greeting, builtin_types=(bytes,)))
        hello = Hello(protocol=PROTOCOL, cluster=cluster, node=node, directory="mine", wanted=wanted)
        proved = dialer.challenged(msgspec.convert(challenge, Challenge), hello)
        told = self.ask(**msgspec.to_builtins(proved, builtin_types=(bytes,)))
        if told is not None and told["type"] == "Welcome":
            self._seals = dialer.welcomed(msgspec.convert(told, Welcome))
        return told


def nodes_of(cluster: ClusterProcess) -> dict[int, str]:
    """Where each node listens to its peers."""
    content = json.loads((cluster.data / "cluster.json").read_text())
    return {node["id"]: node["peer"] for node in content["nodes"]}


def cluster_id(cluster: ClusterProcess) -> str:
    text = (cluster.data / "node-1" / "meta.properties").read_text()
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith("cluster.id="))


def records() -> dict[str, list[dict[str, Any]]]:
    """What must never be committed."""
    topic = {"type": "TopicCreated", "name": "../../owned", "id": "7" * 32, "replicas": [[1, 2, 3]]}
    return {
        "a partition of no topic": [
            {"type": "PartitionChanged", "topic": "7" * 32, "partition": 0, "state": STATE}
        ],
        "a directory elsewhere": [{**topic, "partitions": [STATE]}],
        "another leader of the quorum": [{"type": "LeaderChanged", "epoch": 9, "leader": 9, "voters": []}],
        "a topic twice": [{**topic, "name": "orders", "partitions": [STATE]}],
        "settings of nonsense": [
            {"type": "NodeConfigChanged", "node": None, "config": {"num.partitions": "none"}}
        ],
    }


def wishes(node: int, wanted: int) -> list[dict[str, Any]]:
    """What would harm the node that hears it, or the cluster."""
    key, voter = [node, "mine"], [wanted, "mine"]
    vote = {"candidate": key, "voter": voter, "last_epoch": 5, "end": 2**40, "pre": False}
    fetch = {"replica": key, "offset": 0, "last_epoch": -1, "synced_end": 2**40, "high_watermark": 0}
    return [
        {"type": "StopNode"},
        {"type": "WhoAreYou", "quorum": [node]},
        {"type": "BeginEpoch", "epoch": EPOCH_LAST, "leader": [key, "127.0.0.1", 1]},
        {"type": "Vote", "epoch": EPOCH_LAST, **vote},
        {"type": "Fetch", "epoch": EPOCH_LAST, **fetch},
        *({"type": "Proposal", "based_on": 0, "records": each} for each in records().values()),
    ]


def check_unharmed(cluster: ClusterProcess, before: dict[int, int]) -> None:
    """The same processes go on, in an epoch of their own, and all that was written is there."""
    status = cluster.cluster("status")
    assert {node["id"]: node["pid"] for node in status["nodes"]} == before
    wait_until(cluster.is_whole, "the cluster is not whole")
    described = cluster.command("quorum", "describe", "--bootstrap", cluster.bootstraps[0], "--json")
    assert described.returncode == 0, described.stderr
    assert json.loads(described.stdout)["epoch"] < 2**20
    assert "before" in consume(cluster.bootstraps[0], cluster, "orders")
    assert not list(cluster.data.parent.glob("owned*")), "a directory was made outside"
    assert not list(cluster.data.glob("owned*"))


def pids(cluster: ClusterProcess) -> dict[int, int]:
    return {node["id"]: node["pid"] for node in cluster.cluster("status")["nodes"]}


@pytest.mark.parametrize("claims", ["ours", "none"])
def test_a_stranger_is_told_nothing_and_harms_nothing(cluster: ClusterProcess, claims: str) -> None:
    before = pids(cluster)
    known = cluster_id(cluster) if claims == "ours" else None

    for wanted, at in nodes_of(cluster).items():
        others = [node for node in (1, 2, 3, 9) if node != wanted]
        for number, wish in enumerate(wishes(others[0], wanted)):
            with Caller(at) as stranger:
                told = stranger.greet(known, others[number % len(others)], wanted)
                heard = stranger.ask(**wish)
            assert (told, heard) == (REFUSED, None)

    check_unharmed(cluster, before)


def test_a_stranger_who_says_nothing_first_is_not_heard(cluster: ClusterProcess) -> None:
    before = pids(cluster)

    for wanted, at in nodes_of(cluster).items():
        for wish in wishes(9, wanted):
            with Caller(at) as stranger:
                assert stranger.ask(**wish) is None

    check_unharmed(cluster, before)


def test_a_stranger_who_guesses_a_secret_gets_a_nonce_and_is_refused(cluster: ClusterProcess) -> None:
    before = pids(cluster)

    for wanted, at in nodes_of(cluster).items():
        with Caller(at) as stranger:
            assert stranger.prove(Secret([b"guessed" * 6]), cluster_id(cluster), 9, wanted) == REFUSED
            assert stranger.ask(type="StopNode") is None

    check_unharmed(cluster, before)


def test_whoever_has_the_secret_cannot_have_what_ends_nodes_committed(cluster: ClusterProcess) -> None:
    before = pids(cluster)
    secret = Secret.parse((cluster.data / "cluster.secret").read_bytes())
    fates: dict[str, set[str]] = {what: set() for what in records()}

    for wanted, at in nodes_of(cluster).items():
        with Caller(at) as insider:
            assert insider.prove(secret, cluster_id(cluster), 9, wanted)["type"] == "Welcome"
            for wish in wishes(9, wanted)[2:5]:
                insider.ask(**wish)
            for what, proposed in records().items():
                newest = insider.ask(type="Proposal", based_on=0, records=[])["offset"]
                fate = insider.ask(type="Proposal", based_on=newest, records=proposed)
                fates[what].add({0: "taken", 1: "stale", 2: "elsewhere", 3: "refused"}[fate["fate"]])

    assert all(found <= {"refused", "elsewhere"} and "refused" in found for found in fates.values()), fates
    check_unharmed(cluster, before)


def test_what_nodes_make_is_their_user_s_alone(cluster: ClusterProcess) -> None:
    made: list[Path] = [cluster.data, *cluster.data.rglob("*")]

    assert (cluster.data / "cluster.secret") in made
    assert [path for path in made if path.exists() and path.stat().st_mode & 0o077] == []
    secret = (cluster.data / "cluster.secret").read_bytes().strip()
    texts = [*cluster.data.glob("node-*.log"), cluster.data / "cluster.json", cluster.log]
    assert all(secret not in path.read_bytes() for path in texts)
    for pid in cluster.pids():
        assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert secret not in Path(f"/proc/{pid}/environ").read_bytes()
