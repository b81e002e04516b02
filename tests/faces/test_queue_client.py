"""Queues, rooms, pub/sub and copies of the Python client, and their commands, on a real node."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.cluster import wait_until
from tests.support.node import NodeProcess
from tidelog.client import (
    AsyncClient,
    AsyncEmbeddedReplica,
    Client,
    Conflict,
    EmbeddedReplica,
    NotFound,
    OffsetNotFound,
    Put,
    QueueFull,
    SyncFailed,
    ToPublish,
)
from tidelog.faces.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {"replication.stream.full.sync.threshold": 50, "replication.stream.heartbeat.interval.ms": 100}
    with NodeProcess(tmp_path_factory.mktemp("queues") / "data", settings) as node:
        yield node
        assert " ERROR " not in node.log.read_text()


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with Client(node.http) as client:
        yield client


# Work queues.


def test_a_message_goes_from_hand_to_hand_until_it_is_done(client):
    queue = client.queue("jobs")
    queue.declare(visibility=30)
    made = queue.publish({"to": "ada"}, attributes={"kind": "mail"}, key="ada")
    again = queue.publish_many([ToPublish(value=1), ToPublish(value=2, delay=600)])

    first, second = queue.receive(10, wait=1)
    assert (first.id, first.value, first.attributes, first.key) == (
        made,
        {"to": "ada"},
        {"kind": "mail"},
        "ada",
    )
    assert second.id == again[0] and first.delivery_count == 1
    described = queue.describe()
    assert (described["depth"], described["in_flight"], described["delayed"]) == (3, 2, 1)

    first.ack()
    second.extend(60)
    second.nack()
    (third,) = queue.receive(wait=1)
    assert (third.value, third.delivery_count) == (1, 2)
    with pytest.raises((NotFound, Conflict)) as caught:
        second.ack()
    assert caught.value.problem["results"][0]["outcome"] in ("expired", "unknown")
    third.ack()
    assert queue.purge() == 1
    assert queue.receive() == []
    assert "jobs" in client.queues()
    assert queue.delete() is True


def test_what_nobody_manages_to_do_is_dead_and_can_be_brought_back(client):
    queue = client.queue("hopeless")
    queue.declare(max_deliveries=1)
    queue.publish("no")
    (message,) = queue.receive(wait=1)
    message.nack()

    assert queue.describe()["dead"] == 1
    (dead,) = client.queue("hopeless.dead").receive(wait=1)
    assert dead.value == "no"
    dead.nack()
    assert queue.redrive() == 1
    assert queue.receive(wait=1)[0].value == "no"


def test_the_same_key_publishes_once_and_a_full_queue_says_so(client):
    queue = client.queue("small")
    queue.declare(messages_max=1)

    assert queue.publish(1, idempotency_key="it") == queue.publish(1, idempotency_key="it")
    with pytest.raises(QueueFull, match="may hold 1"):
        queue.publish(2)
    with pytest.raises(NotFound, match="PUT /v1/queues/none"):
        client.queue("none").publish(1)


def test_consumers_compete_and_each_message_is_done_once(client):
    queue = client.queue("shared")
    queue.declare()
    queue.publish_many([ToPublish(value=number) for number in range(30)])
    done: list[int] = []

    def work() -> None:
        done.extend(message.value for message in queue.consume(max=3, idle=0.2))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(done) == list(range(30))
    assert queue.describe()["depth"] == 0


def test_coroutines_consume_and_leave_what_they_did_not_do(node):
    async def story() -> tuple[list[Any], int]:
        async with AsyncClient(node.http) as client:
            queue = client.queue("async")
            await queue.declare()
            await queue.publish_many([ToPublish(value=number) for number in range(3)])
            seen = []
            async with aclosing(queue.consume(max=3)) as messages:
                async for message in messages:
                    seen.append(message.value)
                    if len(seen) == 2:
                        break
            return seen, (await queue.describe())["in_flight"]

    assert asyncio.run(story()) == ([0, 1], 0)


# Queues with pointers.


def test_every_client_reads_all_messages_of_a_queue_with_pointers(client):
    queues = client.pointer_queues
    number = queues.create()
    sent = [queues.append(number, value) for value in ("a", {"b": None}, 3)]

    read = [queues.read(number, "ada") for _ in sent]

    assert [(one.id, one.value) for one in read if one is not None] == [
        (sent[0], "a"),
        (sent[1], {"b": None}),
        (sent[2], 3),
    ]
    assert queues.read(number, "ada") is None
    again = queues.read(number, "bob", idempotency_key="once")
    assert again == queues.read(number, "bob", idempotency_key="once")
    assert number in queues.list()
    assert sent == [one.id for one in queues.messages() if one.queue_id == number]
    assert {(one.client_id, one.message_id) for one in queues.pointers()} == {
        ("ada", sent[2]),
        ("bob", sent[0]),
    }
    assert queues.broker_info()["broker_id"] == 1
    with pytest.raises(NotFound):
        queues.append(number + 800, 1)


# Rooms and pub/sub.


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def test_a_room_remembers_and_is_heard_from_any_point_on(client):
    room = client.room("lobby")
    ids = [room.publish({"n": number}, event="step") for number in range(3)]

    history = room.history(ids[1])
    with closing(room.subscribe(from_=ids[0])) as heard:
        first = next(heard)
        room.publish("live")
        rest = [next(heard) for _ in range(3)]
    with closing(room.subscribe(from_=first.cursor)) as heard:
        assert next(heard).id == ids[1]

    assert [event.data for event in history.events] == [{"n": 1}, {"n": 2}]
    assert (first.event, first.data, rest[-1].data) == ("step", {"n": 0}, "live")
    assert "lobby" in client.rooms() and room.describe()["next"] == 4
    assert room.delete() is True


def test_who_listens_now_hears_and_nobody_else(client):
    assert client.pubsub.publish("news.sport", 1) == 0

    def listen() -> Any:
        with closing(client.pubsub.subscribe("news.*", "other")) as heard:
            return next(heard)

    thread, found = in_thread(listen)
    wait_until(lambda: "news.*" in client.pubsub.stats()["topics"], "nobody listens")
    assert client.pubsub.publish("news.sport", {"score": 3}) == 1
    thread.join()

    assert (found[0].topic, found[0].data) == ("news.sport", {"score": 3})


# Copies.


def test_a_copy_follows_a_bucket_and_goes_on_after_a_restart(client, node, tmp_path):
    kv = client.kv("config")
    kv.create(partitions=3)
    kv.batch([Put(f"k{number:02}", number) for number in range(30)])
    path = tmp_path / "config.db"
    told: list[Any] = []

    with EmbeddedReplica(node.http, bucket="config", path=path, on_change=told.extend) as copy:
        with pytest.raises(SyncFailed, match="another replica"):
            EmbeddedReplica(node.http, bucket="config", path=path)
        status = copy.wait(10)
        assert (status.state, status.lag_entries, status.errors) == ("in_sync", 0, 0), status
        assert dict(copy.items()) == {f"k{number:02}": number for number in range(30)}
        entry = kv.put("k00", {"new": True})
        copy.wait(entry.token)
        assert (copy.get("k00"), copy.version("k00")) == ({"new": True}, entry.version)
        kv.delete("k01")
        wait_until(lambda: copy.get("k01") is None, "it is still there")
        assert [one.key for one in copy.scan("k0")][:2] == ["k00", "k02"]
        listed = client.request("GET", "/v1/replicate/replicas")["replicas"]
        assert {one["replica_id"] for one in listed} >= {copy.replica_id, f"{copy.replica_id}/2"}
    kv.put("k00", "later")

    with EmbeddedReplica(node.http, bucket="config", path=path) as copy:
        assert copy.get("k00") in ({"new": True}, "later")  # at once, before it is connected
        status = copy.wait(10)
        assert copy.get("k00") == "later"
        assert [one.full_syncs for one in status.partitions] == [0, 0, 0]
    assert {one.key for one in told} == {f"k{number:02}" for number in range(30)}
    assert told[-1].is_deleted and told[-1].key == "k01"


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
def test_a_bucket_that_is_made_anew_with_other_partitions_is_copied_anew(
    client, node, tmp_path, before, after
):
    kv = client.kv(f"anew-{before}")
    kv.create(partitions=before)
    kv.batch([Put(f"k{number}", number) for number in range(20)])
    known: dict[str, Any] = {}

    def hear(changes: Any) -> None:
        for change in changes:
            known[change.key] = None if change.is_deleted else change.value

    copied = {"bucket": f"anew-{before}", "path": tmp_path / "c", "backoff": 0.01}
    with EmbeddedReplica(node.http, on_change=hear, **copied) as copy:
        copy.wait(10)
        assert len(copy) == 20 and "k7" in copy and "k20" not in copy and 7 not in copy

        kv.drop()
        kv.create(partitions=after)
        expected = {f"k{number}": "new" for number in range(0, 30, 2)}
        entries = kv.batch([Put(key, value) for key, value in expected.items()])
        wait_until(lambda: dict(copy.items()) == expected, "it is as it was")

        assert len(copy.wait(10).partitions) == after
        assert [copy.get(f"k{number}") for number in range(4)] == ["new", None, "new", None]
        assert {key: value for key, value in known.items() if value is not None} == expected
        assert len(known) == 25 and entries
        wait_until(lambda: len(list(tmp_path.glob("c/*.db"))) == after, "files are left")
    assert {one.name for one in tmp_path.glob("c/*.db*")} == {f"{n}.db" for n in range(after)}


def test_an_empty_copy_is_a_copy(client, node):
    client.kv("empty").create()

    with EmbeddedReplica(node.http, bucket="empty") as copy:
        assert copy  # before it has heard of anything, too
        copy.wait(10)
        assert copy and len(copy) == 0 and "k" not in copy


def test_a_copy_that_is_far_behind_gets_everything_at_once(client, node, tmp_path):
    kv = client.kv("far")
    kv.create()
    with EmbeddedReplica(node.http, bucket="far", path=tmp_path / "c", format="json") as copy:
        copy.wait(10)
    kv.batch([Put(f"k{number:03}", number) for number in range(100)])

    with EmbeddedReplica(node.http, bucket="far", path=tmp_path / "c", format="json") as copy:
        status = copy.wait(10)

        assert (len(copy), status.partitions[0].full_syncs) == (100, 1)


def test_a_copy_that_hangs_up_leaves_nothing_at_its_node(client, node):
    client.kv("hang-up").create()
    client.kv("hang-up").batch([Put(f"k{number}", "x" * 1000) for number in range(900)])
    left = node.data / "views" / "0.copy"
    left.write_bytes(b"what a crash has left")
    hello = {"type": "hello", "replica_id": "r", "source": {"bucket": "hang-up"}}

    for heard in range(4):
        with connect(f"ws://{node.http}/v1/replicate", proxy=None, close_timeout=0) as socket:
            socket.send(json.dumps(hello))
            socket.send('{"type":"sync"}')
            for _ in range(heard):
                socket.recv()

    wait_until(lambda: not list(node.data.glob("views/*.copy*")), "a snapshot is left")


def test_a_copy_of_a_queue_has_what_is_not_done(client, node):
    queue = client.queue("copied")
    queue.declare()
    queue.publish("a")
    client.queue("copied-2").declare()

    with EmbeddedReplica(node.http, queue="copied") as copy:
        copy.wait(10)
        number = queue.publish({"b": 1}, attributes={"x": "y"})
        wait_until(lambda: len(copy) == 2, "it has not come")
        found = copy.message(number)
        assert found is not None and (found.value, found.attributes) == ({"b": 1}, {"x": "y"})
        assert number in copy and number + 99 not in copy and "b" not in copy
        queue.receive(wait=1)[0].ack()
        wait_until(lambda: [one.value for one in copy.messages()] == [{"b": 1}], "it is not gone")
        with pytest.raises(TypeError, match="messages"):
            copy.get("a")


def test_a_copy_of_what_is_not_there_says_so_and_gets_it_when_it_comes(client, node):
    with EmbeddedReplica(node.http, bucket="to-come", backoff=0.01) as copy:
        with pytest.raises(OffsetNotFound, match="to-come"):
            copy.wait(0.5)
        with pytest.raises(SyncFailed, match="never in sync"):
            copy.get("k")
        assert copy.status().errors > 1

        client.kv("to-come").create()
        entry = client.kv("to-come").put("k", 1)
        copy.wait(entry.token)

        assert copy.get("k") == 1


def test_coroutines_have_copies_too(client, node):
    kv = client.kv("for-tasks")
    kv.create()
    entry = kv.put("k", 1)

    async def story() -> Any:
        async with AsyncEmbeddedReplica(node.http, bucket="for-tasks") as copy:
            await copy.wait(entry.token)
            return copy.get("k")

    assert asyncio.run(story()) == 1


@pytest.mark.parametrize(
    "wrong", [{}, {"bucket": "a", "queue": "b"}, {"bucket": "a", "format": "xml"}, {"queue": ""}]
)
def test_a_copy_of_nothing_cannot_be_made(wrong):
    with pytest.raises(ValueError, match=r"bucket|format"):
        EmbeddedReplica("http://127.0.0.1:1", **wrong)


def test_a_copy_whose_thread_dies_keeps_nobody_waiting(monkeypatch, caplog, tmp_path):
    def options(core: object, connections_max: int) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr("tidelog.copies.embedded.replica.options", options)

    with EmbeddedReplica("http://127.0.0.1:1", bucket="b", path=tmp_path / "c") as copy:
        with pytest.raises(SyncFailed, match=r"not kept any more.*no such thing"):
            copy.wait(60)
        assert copy.status().state == "disconnected"
    assert "is not kept any more" in caplog.text


# Commands and examples.


def test_the_example_of_settings_runs(node):
    result = subprocess.run(
        [sys.executable, "examples/embedded_config.py", "--http", node.http, "--workers", "2"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert "limits is now {'rate': 400}" in result.stdout
    assert "without a cluster: {'rate': 400}" in result.stdout


def test_the_commands_do_what_their_help_says(client, node, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TIDELOG_HTTP_BOOTSTRAP", node.http)

    def run(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    run("queue", "create", "cli", "--visibility", "1m")
    run("queue", "publish", "cli", '{"a": 1}')
    (given,) = json.loads(run("queue", "receive", "cli", "--wait", "5s", "--json"))["messages"]
    assert run("queue", "ack", "cli", given["receipt"]) == "1 message done\n"
    assert json.loads(run("queue", "describe", "cli", "--json"))["depth"] == 0
    run("stream", "publish", "cli", "hello")
    assert run("stream", "subscribe", "cli", "--from", "earliest", "--max", "1") == ("0\tmessage\thello\n")
    assert json.loads(run("pubsub", "stats", "--json"))["topics"] == {}

    client.kv("for-cli").create(partitions=2)
    client.kv("for-cli").put("theme", {"dark": True})
    path = tmp_path / "copy.db"
    assert run("replica", "run", "--bucket", "for-cli", "--path", path, "--once", "10s").startswith("in_sync")
    assert run("replica", "get", "theme", "--path", path) == '{"dark": true}\n'
    shown = json.loads(run("replica", "status", "--path", path, "--json"))
    assert [one["lag_entries"] for one in shown["partitions"]] == [0, 0]
