"""The replication stream of a real node, spoken by hand."""

import gzip
import hashlib
import json
import sqlite3
import uuid
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.node import NodeProcess
from tidelog.copies.stream import protocol
from tidelog.copies.stream.protocol import LogEntry

SECONDS = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    data = tmp_path_factory.mktemp("replicate") / "data"
    with NodeProcess(data, {"replication.stream.full.sync.threshold": 50}) as node:
        yield node
        assert " ERROR " not in node.log.read_text()


@pytest.fixture
def bucket() -> str:
    return f"b{uuid.uuid4().hex}"


def ask(node: NodeProcess, method: str, path: str, body: object = None) -> Any:
    host, _, port = node.http.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=SECONDS)
    try:
        headers = {"content-type": "application/json"}
        connection.request(method, path, json.dumps(body or {}), headers)
        response = connection.getresponse()
        found = json.loads(response.read())
        assert response.status < 300, found
        return found
    finally:
        connection.close()


def put(node: NodeProcess, bucket: str, count: int, *, prefix: str = "k") -> None:
    operations = [{"op": "put", "key": f"{prefix}{n}", "value": {"n": n}} for n in range(count)]
    ask(node, "POST", f"/v1/kv/{bucket}:batch", {"operations": operations})


class Replica:
    """One connection, and what came over it."""

    def __init__(self, node: NodeProcess, **hello: Any) -> None:
        self._opened = connect(f"ws://{node.http}/v1/replicate")
        self._socket: ClientConnection = self._opened.__enter__()
        self.say({"type": "hello", "replica_id": "r1", "version": "0.1.0", **hello})

    def say(self, message: object) -> None:
        self._socket.send(message if isinstance(message, str) else json.dumps(message))

    def hear(self) -> Any:
        message = self._socket.recv(timeout=SECONDS)
        if isinstance(message, bytes):
            if message[:1] != protocol.GZIP:
                return message
            message = gzip.decompress(message[1:]).decode()
        return json.loads(message)

    def entries(self, count: int) -> list[dict[str, Any]]:
        """The next so many operations, their checksums looked at."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            message = self._socket.recv(timeout=SECONDS)
            if isinstance(message, bytes):
                message = gzip.decompress(message[1:]).decode()
            batch = protocol.decode_from_node(message)
            if isinstance(batch, protocol.Batch):
                for entry in batch.entries:
                    protocol.check(entry)
                    found.append({"offset": entry.offset, **json.loads(bytes(entry.operation))})
                self.say({"type": "ack", "offset": batch.next_offset})
        return found

    def close(self) -> None:
        self._opened.__exit__(None, None, None)


@pytest.fixture
def replica(node: NodeProcess) -> Iterator[Any]:
    made: list[Replica] = []

    def make(**hello: Any) -> Replica:
        made.append(Replica(node, **hello))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_replica_is_sent_what_it_lacks_and_what_comes(node, bucket, replica):
    put(node, bucket, 3)
    one = replica(source={"bucket": bucket})
    ack = one.hear()
    assert (ack["type"], ack["current_offset"], ack["log_oldest_offset"]) == ("hello_ack", 3, 0)
    one.say({"type": "sync", "from_offset": 1})
    assert one.hear() == {"type": "sync_start", "mode": "incremental", "from_offset": 1}

    assert [(e["offset"], e["type"], e["key"]) for e in one.entries(2)] == [
        (1, "kv_set", "k1"),
        (2, "kv_set", "k2"),
    ]
    ask(node, "DELETE", f"/v1/kv/{bucket}/k0")
    (gone,) = one.entries(1)
    assert (gone["type"], gone["keys"]) == ("kv_del", ["k0"])
    while not ask(node, "GET", "/v1/replicate/replicas")["replicas"][0]["offset"]:
        pass  # the acknowledgement is on its way
    (known,) = ask(node, "GET", "/v1/replicate/replicas")["replicas"]
    assert (known["replica_id"], known["source"]) == ("r1", {"bucket": bucket})


def test_who_is_too_far_behind_gets_a_database_and_goes_on_from_there(node, bucket, replica, tmp_path: Path):
    put(node, bucket, 100)
    put(node, bucket, 100)
    one = replica(source={"bucket": bucket})
    one.hear()
    one.say({"type": "sync", "from_offset": 10})
    start = one.hear()
    assert (start["mode"], start["from_offset"]) == ("full", 200)

    data = b""
    while len(data) < start["snapshot"]["size"]:
        piece = one.hear()
        assert piece[:1] == protocol.SNAPSHOT
        data += piece[1:]
    assert hashlib.sha256(data).hexdigest() == start["snapshot"]["sha256"]
    (tmp_path / "copy.db").write_bytes(data)
    database = sqlite3.connect(tmp_path / "copy.db")
    assert database.execute("SELECT count(*), max(version) FROM entries").fetchone() == (100, 199)
    assert database.execute("SELECT applied, topic FROM meta").fetchone()[0] == 200
    database.close()
    put(node, bucket, 1, prefix="new")
    assert [(e["offset"], e["key"]) for e in one.entries(1)] == [(200, "new0")]


def test_queues_rooms_and_pubsub_are_heard_too(node, bucket, replica):
    ask(node, "PUT", f"/v1/queues/{bucket}", {})
    queue = replica(source={"queue": bucket})
    queue.hear()
    queue.say({"type": "sync", "from_offset": 0})
    queue.hear()
    ask(node, "POST", f"/v1/queues/{bucket}/messages", {"messages": [{"value": {"n": 1}}]})
    declared, told = queue.entries(2)
    assert declared["type"] == "queue_declare"
    assert (told["type"], told["message"]["value"]) == ("queue_publish", {"n": 1})
    (got,) = ask(node, "POST", f"/v1/queues/{bucket}/receive")["messages"]
    ask(node, "POST", f"/v1/queues/{bucket}/ack", {"receipts": [got["receipt"]]})
    given, done = queue.entries(2)
    assert (given["type"], given["sequence"]) == ("queue_delivery", done["sequence"])
    assert (done["type"], done["sequence"]) == ("queue_ack", told["message"]["sequence"])

    ask(node, "POST", f"/v1/rooms/{bucket}/events", {"data": 1})
    room = replica(source={"room": bucket})
    room.hear()
    room.say({"type": "sync", "from_offset": 0})
    room.hear()
    (event,) = room.entries(1)
    assert (event["type"], event["event"]["data"]) == ("stream_publish", 1)

    live = replica(source={"pubsub": "a.*"})
    live.hear()
    live.say({"type": "sync"})
    assert live.hear()["mode"] == "live"
    while not ask(node, "POST", "/v1/pubsub/a.b", {"data": 7})["receivers"]:
        pass  # it is being subscribed
    heard = live.entries(1)[0]
    assert (heard["type"], heard["topic"], heard["message"]) == ("pubsub_publish", "a.b", 7)


@pytest.mark.parametrize(
    ("hello", "sync", "code"),
    [
        ({"source": {"bucket": "none"}}, None, "OffsetNotFound"),
        ({"source": {}}, None, "ProtocolError"),
        ({"source": {"bucket": "x"}, "format": "xml"}, None, "ProtocolError"),
        ({"source": {"bucket": "{bucket}"}}, {"type": "ack", "offset": 1}, "ProtocolError"),
        ({"source": {"bucket": "{bucket}"}}, "no JSON", "ProtocolError"),
        ({"source": {"bucket": "{bucket}"}}, {"type": "sync", "from_offset": 9}, "OffsetNotFound"),
        (
            {"source": {"bucket": "{bucket}"}, "snapshots": False},
            {"type": "sync", "from_offset": 0, "topic_id": "0" * 32},
            "LogTruncated",
        ),
    ],
)
def test_each_mistake_has_its_own_code(node, bucket, replica, hello, sync, code):
    put(node, bucket, 1)
    hello["source"] = {k: v.replace("{bucket}", bucket) for k, v in hello["source"].items()}
    one = replica(**hello)
    if sync is not None:
        assert one.hear()["type"] == "hello_ack"
        one.say(sync)

    failed = one.hear()

    assert (failed["type"], failed["code"]) == ("error", code), failed


def test_the_same_comes_as_lines(node, bucket):
    put(node, bucket, 3)
    host, _, port = node.http.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=SECONDS)
    body = {"replica_id": "lines", "source": {"bucket": bucket}, "from_offset": 0}
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/replicate", json.dumps(body), headers)
    response = connection.getresponse()
    lines = [json.loads(response.readline()) for _ in range(3)]
    assert [line["type"] for line in lines] == ["hello_ack", "sync_start", "batch"]
    entry = protocol.decode_from_node(json.dumps(lines[2]["entries"][0] | {"type": "log_entry"}))
    assert isinstance(entry, LogEntry)
    acked = ask(node, "POST", "/v1/replicate/ack", {"replica_id": "lines", "offset": 3})
    assert acked == {"replica_id": "lines", "offset": 3}
    connection.close()
