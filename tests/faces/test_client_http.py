"""The Python client against a real node, and the commands and examples that use it."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from tests.support.node import NodeProcess
from tidelog.client import (
    ABSENT,
    AsyncClient,
    BadRequest,
    Client,
    Conflict,
    Delete,
    NotFound,
    OutOfRange,
    Put,
    ToProduce,
)
from tidelog.client.partitioner import partition_for

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("client") / "data") as node:
        yield node
        assert " ERROR " not in node.log.read_text()


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with Client(node.http) as client:
        yield client


# Keys and values.


def test_a_key_is_written_read_changed_and_deleted(client):
    kv = client.kv("one")
    kv.create(partitions=3)

    first = kv.put("a/b ü", {"x": [1, None]}, if_version=ABSENT)
    with pytest.raises(Conflict) as caught:
        kv.put("a/b ü", 2, if_version=ABSENT)
    second = kv.compare_and_set("a/b ü", "text", first.version)
    assert second is not None
    found = kv.get("a/b ü")

    assert caught.value.version == first.version < second.version
    assert found is not None
    assert (found.value, found.version) == ("text", second.version)
    assert kv.delete("a/b ü") is True
    assert kv.delete("a/b ü") is False
    assert kv.get("a/b ü") is None


@pytest.mark.parametrize(
    "key", ["..", ".", "?", "#", "%2F", "a//b", "x:watch", "x:batch", " ", "/", "\udcff", "a\udcfe/"]
)
def test_any_text_is_a_key(client, key):
    """Also what is none: bytes that are not UTF-8, as Python says them."""
    kv = client.kv("texts")
    kv.create()

    kv.put(key, ascii(key))

    found = kv.get(key)
    assert found is not None and (found.key, found.value) == (key, ascii(key))
    assert [one.key for one in kv.scan()] == [key]
    assert kv.delete(key) is True


def test_the_same_key_of_idempotency_writes_once(client):
    kv = client.kv("once")
    kv.create()

    first = kv.put("k", 1, idempotency_key="it")
    second = kv.put("k", 1, idempotency_key="it")

    assert first.version == second.version


def test_many_keys_are_written_at_once_and_scanned_in_order(client):
    kv = client.kv("many")
    kv.create(partitions=4)

    results = kv.batch([Put(f"k{number:03}", number) for number in range(250)])
    assert all(result.ok for result in results)
    again = kv.batch([Put("k000", -1, if_version=ABSENT), Delete("k001")])

    assert isinstance(again[0].error, Conflict)
    found = [(entry.key, entry.value) for entry in kv.scan("k", page=40)]
    expected = [(f"k{number:03}", number) for number in range(250)]
    assert found == [one for one in expected if again[1].error or one[0] != "k001"]
    assert [entry.key for entry in kv.scan("k24", limit=2)] == ["k240", "k241"]


def test_a_local_read_sees_what_was_just_written(client):
    kv = client.kv("local", consistency="local")
    kv.create(partitions=2)

    for number in range(20):
        kv.put(f"k{number % 3}", number)
        found = kv.get(f"k{number % 3}")
        assert found is not None and found.value == number


def test_threads_lose_no_step_of_a_counter(client):
    kv = client.kv("counter")
    kv.create()

    def count() -> None:
        for _ in range(10):
            kv.update("n", lambda n: n + 1, default=0)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = kv.get("n")
    assert found is not None and found.value == 40


def test_a_time_to_live_is_kept(client):
    kv = client.kv("ttl")
    kv.create()

    kv.put("k", 1, ttl=600)

    found = kv.get("k")
    assert found is not None and found.expires_at_ms is not None


def test_a_watch_tells_of_changes_and_goes_on_from_a_cursor(client):
    kv = client.kv("watched")
    kv.create()
    kv.put("a", 1)
    with closing(kv.watch(from_="start")) as watch:
        first = next(watch)
        kv.put("b", {"x": 2})
        kv.delete("b")
        second, third = next(watch), next(watch)

    assert (first.key, first.value, first.is_deleted) == ("a", 1, False)
    assert (second.key, second.value) == ("b", {"x": 2})
    assert (third.key, third.is_deleted) == ("b", True)
    assert second.cursor is not None
    with closing(kv.watch("b", from_=second.cursor)) as watch:
        assert next(watch) == third


def test_buckets_come_and_go(client):
    kv = client.kv("gone")
    kv.create()
    assert "gone" in [bucket["name"] for bucket in client.buckets()]

    assert kv.drop() is True
    assert kv.drop() is False
    with pytest.raises(NotFound):
        kv.get("k")


# Topics and records.


def test_records_are_written_read_and_streamed(client):
    client.topics.create("orders", partitions=2, config={"retention.ms": 600_000})
    topic = client.topic("orders")

    placed = topic.produce_many(
        [
            ToProduce(value={"id": 1}, partition=0, headers={"h": "v"}),
            ToProduce(value="text", partition=0, key="k"),
            ToProduce(value=b"\xff\x00", partition=0, key=b"\xfe"),
            ToProduce(value=None, partition=0, key="k"),
        ]
    )
    page = topic.read(0)

    assert [one.offset for one in placed] == [0, 1, 2, 3]
    assert [one.value for one in page.records] == [{"id": 1}, "text", b"\xff\x00", None]
    assert [one.key for one in page.records] == [None, "k", b"\xfe", "k"]
    assert page.records[0].headers == {"h": "v"}
    assert page.next_offset == page.high_watermark == 4
    with closing(topic.stream(from_="earliest", partitions=[0])) as stream:
        streamed = [next(stream) for _ in range(4)]
    assert [one.value for one in streamed] == [one.value for one in page.records]
    with closing(topic.stream(from_=streamed[1].cursor or "")) as stream:
        assert next(stream).offset == 2


def test_a_keyed_record_goes_where_every_kafka_client_sends_it(client):
    client.topics.create("keyed", partitions=5)

    placed = [client.topic("keyed").produce(1, key=f"k{number}") for number in range(10)]

    assert [one.partition for one in placed] == [
        partition_for(f"k{number}".encode(), 5) for number in range(10)
    ]


def test_topics_are_listed_described_altered_and_deleted(client):
    client.topics.create("some", partitions=1)

    assert "some" in [topic["name"] for topic in client.topics.list()]
    assert client.topics.alter("some", partitions=3)["partition_count"] == 3
    assert len(client.topics.describe("some")["partitions"]) == 3
    with pytest.raises(Conflict):
        client.topics.create("some")
    assert client.topics.delete("some") is True
    with pytest.raises(NotFound):
        client.topics.describe("some")


def test_what_is_wrong_is_said_by_its_own_error(client):
    client.topics.create("wrong")

    with pytest.raises(OutOfRange):
        client.topic("wrong").read(0, 99)
    with pytest.raises(NotFound):
        client.topic("nothing").read(0)
    with pytest.raises(BadRequest, match="replicas beside"):
        client.topic("wrong").produce(1, min_replicas_ack=2)
    with pytest.raises(BadRequest, match="offst"):
        client.request("GET", "/v1/topics/wrong/partitions/0/records", query={"offst": 1})


# The cluster.


def test_the_cluster_and_its_health_are_told(node, client):
    assert client.health() == {"status": "ready", "node": 1}
    assert client.cluster()["brokers"][0]["http"] == node.http
    assert client.brokers.list()[0]["id"] == 1
    assert client.groups.list() == []
    status = client.replication.status()
    assert (status["replicas"], status["unreachable"]) == ([], [])


# The other client, and whoever uses one.


def test_the_same_may_be_awaited(node):
    async def story() -> None:
        async with AsyncClient(node.http) as client:
            kv = client.kv("awaited")
            await kv.create()
            async with aclosing(kv.watch(from_="start")) as watch:
                await asyncio.gather(*(kv.put(f"k{number}", number) for number in range(8)))
                seen = [await anext(watch) for _ in range(8)]
            assert sorted(change.value for change in seen) == list(range(8))
            assert [entry.value async for entry in kv.scan()] == list(range(8))
            await client.topics.create("awaited-records")
            topic = client.topic("awaited-records")
            await topic.produce({"a": 1})
            async with aclosing(topic.stream(from_="earliest")) as stream:
                assert (await anext(stream)).value == {"a": 1}

    asyncio.run(story())


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT)


def test_the_examples_run(node):
    counted = run("examples/kv_config.py", "--http", node.http, "--threads", "4", "--steps", "5")
    watched = run("examples/monitor_lag.py", "--http", node.http, "--once")

    assert (counted.returncode, counted.stderr) == (0, "")
    assert counted.stdout.startswith("20 steps of 20, 100 kept\n")
    assert (watched.returncode, watched.stdout, watched.stderr) == (0, "in_sync  no replicas\n", "")


def test_a_watch_on_the_command_line_ends_with_ctrl_c(node, client):
    kv = client.kv("shell")
    kv.create()
    kv.put("k", {"a": 1})
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tidelog.faces.cli",
            "kv",
            "watch",
            "shell",
            "--from",
            "start",
            "--json",
            "--http",
            node.http,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()

    assert json.loads(line)["value"] == {"a": 1}
    assert (process.returncode, out, err) == (130, "", "")
