"""The eight cases of copies outside of the cluster, by name, on three real nodes."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.cluster import wait_until
from tests.support.nodes import Nodes
from tests.support.wire import Wire
from tidelog.client import (
    Client,
    ConnectionFailed,
    EmbeddedReplica,
    OutcomeUnknown,
    Put,
    ReplicaStatus,
    Unavailable,
)
from tidelog.testing.settings import SETTINGS

pytestmark = pytest.mark.slow

NODES = (1, 2, 3)
THRESHOLD = 200
"""Who lacks more entries gets a snapshot."""
TIMEOUT_SECONDS = 3
"""For how long a copy may acknowledge nothing."""
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    settings = {
        **SETTINGS,
        "http": "127.0.0.1:0",
        "replication.stream.full.sync.threshold": THRESHOLD,
        "replication.stream.heartbeat.interval.ms": 100,
        "replication.stream.replica.timeout.secs": TIMEOUT_SECONDS,
    }
    with Nodes(tmp_path_factory.mktemp("three"), NODES, settings) as nodes:
        yield nodes
        for node in NODES:
            assert "Traceback" not in nodes[node].log.read_text()


@pytest.fixture
def nodes(shared: Nodes) -> Nodes:
    shared.mend()
    shared.until_active(*NODES)
    return shared


@pytest.fixture
def client(nodes: Nodes) -> Iterator[Client]:
    with Client([nodes[node].http for node in NODES]) as client:
        yield client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that hears nothing for a second looks elsewhere."""
    monkeypatch.setattr("tidelog.copies.embedded.plan.SILENCE_SECONDS_MIN", 1.0)


class Bucket:
    """A bucket that is written to, and what was acknowledged of it."""

    def __init__(self, client: Client, name: str) -> None:
        self._kv = client.kv(name)
        self._kv.create()
        self.name = name
        self.state: dict[str, Any] = {}
        self.end = 0
        self.token = "0:0"

    def write(self, count: int, prefix: str = "k") -> None:
        """Write keys over and over, and delete some."""
        for first in range(0, count, 50):
            numbers = range(first, min(first + 50, count))
            operations = [Put(f"{prefix}{n % 60}", {"n": n, "at": self.end}) for n in numbers]
            for operation, result in zip(operations, self._kv.batch(operations), strict=True):
                assert result.version is not None
                self._note(result.key, operation.value, result.version)

    def put(self, key: str, value: Any) -> str:
        """Write one key, however long that takes; the token that stands for it."""
        name = f"{key}-{self.end}"
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                entry = self._kv.put(key, value, idempotency_key=name, sync_timeout=2)
            except (Unavailable, OutcomeUnknown):
                assert time.monotonic() < deadline, "nobody takes it"
            else:
                self._note(key, value, entry.version)
                return self.token

    def delete(self, key: str) -> None:
        self._kv.delete(key)
        self.end += 1
        self.state.pop(key)

    def _note(self, key: str, value: Any, version: int) -> None:
        self.state[key], self.end = value, version + 1
        self.token = f"0:{self.end}"


class Seen:
    """What a copy has told of changes: of each key's versions none twice, none out of order."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.pause = 0.0

    def __call__(self, changes: Any) -> None:
        time.sleep(self.pause)
        self.versions += [change.version for change in changes]


def copy_of(bucket: Bucket, address: str, path: Path, **options: Any) -> EmbeddedReplica:
    return EmbeddedReplica(
        address, bucket=bucket.name, path=path / "copy.db", backoff=0.05, timeout=3, **options
    )


def same(copy: EmbeddedReplica, bucket: Bucket) -> None:
    copy.wait(bucket.token)
    assert dict(copy.items()) == bucket.state


def until(copy: EmbeddedReplica, is_so: Callable[[ReplicaStatus], bool]) -> ReplicaStatus:
    wait_until(lambda: is_so(copy.status()), f"it stays {copy.status()}", SECONDS_MAX)
    return copy.status()


def replicas(nodes: Nodes) -> dict[str, dict[str, Any]]:
    """What all nodes tell of copies, by name."""
    found = {}
    for node in NODES:
        if nodes.can_answer(node):
            with Client(nodes[node].http, discover=False) as client:
                for one in client.request("GET", "/v1/replicate/replicas")["replicas"]:
                    found[one["replica_id"]] = one
    return found


def leader_of(nodes: Nodes, bucket: Bucket) -> int:
    return nodes.partition(bucket.name).leader


# The cases.


def test_1_basic_master_replica_sync(nodes, client, tmp_path):
    bucket = Bucket(client, "basic")
    bucket.write(100)
    bucket.delete("k3")

    with copy_of(bucket, nodes[1].http, tmp_path, replica_id="replica-1") as copy:
        copy.wait(SECONDS_MAX)
        same(copy, bucket)
        bucket.write(30)
        same(copy, bucket)
        bucket.delete("k5")
        wait_until(lambda: copy.get("k5") is None, "the deletion has not come")

        status = until(copy, lambda status: status.state == "in_sync")
        assert (status.lag_entries, status.lag_ms, status.errors) == (0, 0, 0)
        assert status.applied_offset == bucket.end
        told = replicas(nodes)["replica-1"]
        assert told["status"] == "in_sync" and told["offset"] == bucket.end


def test_2_replica_catch_up_after_disconnect(nodes, client, tmp_path):
    bucket, seen = Bucket(client, "catch-up"), Seen()
    bucket.write(50)

    with (
        Wire(nodes[1].http) as wire,
        copy_of(bucket, wire.address, tmp_path, discover=False, on_change=seen) as copy,
    ):
        same(copy, bucket)
        before = dict(copy.items())
        wire.tear()
        until(copy, lambda status: status.state == "disconnected")
        bucket.write(THRESHOLD // 2)
        assert dict(copy.items()) == before  # it can be read all the time
        wire.mend()
        same(copy, bucket)

        (status,) = copy.status().partitions
        assert status.full_syncs == 1 and status.reconnects == 1 and status.errors >= 1
        assert status.operations_applied == THRESHOLD // 2
        assert seen.versions == sorted(set(seen.versions))


def test_3_multiple_replicas_simultaneously(nodes, client, tmp_path):
    bucket = Bucket(client, "several")
    bucket.write(50)
    forms = ("binary", "json", "binary", "json", "binary")

    with ExitStack() as stack:
        copies = [
            stack.enter_context(
                copy_of(
                    bucket,
                    nodes[1 + number % 3].http,
                    tmp_path / str(number),
                    format=form,
                    replica_id=f"several-{number}",
                )
            )
            for number, form in enumerate(forms)
        ]
        bucket.write(200)
        for copy in copies:
            same(copy, bucket)

        told = replicas(nodes)
        assert {f"several-{number}" for number in range(5)} <= told.keys()


def test_4_network_partition_recovery(nodes, client, tmp_path):
    bucket, seen = Bucket(client, "cut"), Seen()
    bucket.write(50)
    nodes.until_all_in_sync(bucket.name)
    leader = leader_of(nodes, bucket)

    with (
        Wire(nodes[leader].http) as wire,
        copy_of(bucket, wire.address, tmp_path / "1", discover=False, on_change=seen) as cut_off,
        copy_of(bucket, nodes[leader].http, tmp_path / "2") as moving,
    ):
        same(cut_off, bucket)
        same(moving, bucket)

        # Between a copy and its node: it finds out by itself, and goes on where it was.
        wire.cut()
        bucket.put("during", 1)
        until(cut_off, lambda status: status.state == "disconnected")
        wire.mend()
        same(cut_off, bucket)
        assert cut_off.status().partitions[0].full_syncs == 1

        # Between the nodes: who leads loses the others, and another leads instead.
        nodes.network.isolate(leader)
        others = [nodes[node].http for node in NODES if node != leader]
        with Client(others) as of_others:
            there = Bucket(of_others, bucket.name)
            there.state, there.end, there.token = bucket.state, bucket.end, bucket.token
            there.put("elsewhere", 2)
        bucket.end, bucket.token = there.end, there.token
        same(moving, bucket)
        nodes.mend()
        same(cut_off, bucket)
        assert seen.versions == sorted(set(seen.versions))


def test_5_replica_promotion(nodes, client, tmp_path):
    bucket, seen = Bucket(client, "promoted"), Seen()
    bucket.write(50)
    nodes.until_all_in_sync(bucket.name)
    old = leader_of(nodes, bucket)
    new = next(node for node in NODES if node != old)

    with copy_of(bucket, nodes[old].http, tmp_path, on_change=seen) as copy:
        same(copy, bucket)
        client.request("POST", f"/v1/topics/{bucket.name}/partitions/0/promote", body={"node": new})
        nodes.until(lambda: leader_of(nodes, bucket) == new, "nobody was promoted")
        bucket.write(50)
        same(copy, bucket)

        nodes.kill(old)  # the old master, from which it copied
        bucket.put("after", 1)
        same(copy, bucket)

        (status,) = copy.status().partitions
        assert status.full_syncs == 1
        assert seen.versions == sorted(set(seen.versions))


def test_6_large_offset_gap_is_a_full_sync(nodes, client, tmp_path):
    bucket, seen = Bucket(client, "gap"), Seen()
    bucket.write(50, prefix="old")
    with copy_of(bucket, nodes[1].http, tmp_path) as copy:
        same(copy, bucket)
    bucket.write(2 * THRESHOLD)
    bucket.delete("old7")

    with copy_of(bucket, nodes[2].http, tmp_path, on_change=seen) as copy:
        assert copy.get("old7") is not None  # until it is in sync
        same(copy, bucket)
        wait_until(lambda: copy.get("old7") is None, "the deletion has not come")

        (status,) = copy.status().partitions
        assert (status.full_syncs, status.errors) == (1, 0)
        assert status.operations_applied < THRESHOLD


@pytest.mark.parametrize("form", ["binary", "json"])
def test_7_checksum_mismatch_handling(nodes, client, tmp_path, form):
    bucket = Bucket(client, f"damaged-{form}")
    bucket.write(10)

    with (
        Wire(nodes[1].http) as wire,
        copy_of(bucket, wire.address, tmp_path, discover=False, format=form) as copy,
    ):
        same(copy, bucket)
        wire.damage(b"precious", b"worthles")
        bucket.put("value", "precious")
        same(copy, bucket)

        assert wire.is_damage_done and copy.get("value") == "precious"
        (status,) = copy.status().partitions
        assert (status.errors, status.full_syncs) == (1, 1)
        assert status.last_error is not None and "ChecksumMismatch" in status.last_error


def test_8_slow_replica_handling(nodes, client, tmp_path):
    bucket, slow = Bucket(client, "slow"), Seen()
    bucket.write(10)
    hello = {"type": "hello", "replica_id": "silent", "source": {"bucket": bucket.name}}

    with (
        copy_of(bucket, nodes[1].http, tmp_path / "1", replica_id="quick") as quick,
        copy_of(bucket, nodes[1].http, tmp_path / "2", replica_id="slow", on_change=slow) as behind,
        connect(f"ws://{nodes[1].http}/v1/replicate", proxy=None) as silent,
    ):
        same(quick, bucket)
        same(behind, bucket)
        silent.send(json.dumps(hello))
        assert json.loads(silent.recv())["type"] == "hello_ack"
        silent.send(json.dumps({"type": "sync", "from_offset": 0}))
        farewell = in_thread(lambda: last_of(silent))

        # One that is slow holds up nobody, and is seen to be behind; in the end it has everything.
        slow.pause = 0.2
        for number in range(10):
            bucket.put("hot", number)
        same(quick, bucket)
        assert replicas(nodes)["quick"]["status"] == "in_sync"
        assert replicas(nodes)["slow"]["status"] == "lagging"
        slow.pause = 0.0
        same(behind, bucket)

        # One that acknowledges nothing is let go, and told why; then it is forgotten.
        assert farewell() == ("ConnectionFailed", "nothing was acknowledged for too long")
        wait_until(lambda: "silent" not in replicas(nodes), "it is not forgotten")


def last_of(socket: Any) -> tuple[str, str]:
    while True:
        message = socket.recv(timeout=SECONDS_MAX)
        document = json.loads(message) if isinstance(message, str) else {"type": "bytes"}
        if document["type"] == "error":
            return document["code"], document["detail"]


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin some work; what is returned waits for its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def result() -> Any:
        thread.join(SECONDS_MAX)
        return found[0]

    return result


def test_a_copy_without_a_cluster_says_that_it_has_none(tmp_path):
    with (
        EmbeddedReplica("127.0.0.1:1", bucket="b", path=tmp_path / "c.db") as copy,
        pytest.raises(ConnectionFailed, match="disconnected"),
    ):
        copy.wait(0.3)
