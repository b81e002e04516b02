"""Whole clusters in this process: they serve, break and mend, and nothing of them is left."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.client.kafka import LATEST, KafkaClient
from tidelog.client.wire import ConnectionFailed
from tidelog.errors import ConfigError
from tidelog.faces.local.layout import State
from tidelog.log.directory import CLEAN_MARKER
from tidelog.records import Record, decode_batch, encode_batch, iterate_batches
from tidelog.testing import CLIENTS, Cluster, InProcessNode, NotInTime, NotRunning, StartFailed
from tidelog.wire.apis import Api

TOPIC = "orders"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def lone() -> Iterator[Cluster]:
    with Cluster(nodes=1) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def node(lone: Cluster) -> InProcessNode:
    return lone[1]


def write(bootstrap: str, *values: bytes) -> None:
    async def work() -> None:
        async with KafkaClient(bootstrap) as client:
            for value in values:
                await client.produce(TOPIC, 0, encode_batch([Record(value=value)]))

    asyncio.run(work())


def read(bootstrap: str) -> list[bytes | None]:
    """Every record that is committed."""

    async def work() -> list[bytes | None]:
        values: list[bytes | None] = []
        async with KafkaClient(bootstrap) as client:
            end, offset = (await client.list_offsets(TOPIC, {0: LATEST}))[0].offset, 0
            while offset < end:
                (fetched,) = await client.fetch(TOPIC, {0: offset})
                for header, batch in iterate_batches(fetched.records):
                    values += [record.value for record in decode_batch(batch)]
                    offset = header.next_offset
        return values

    return asyncio.run(work())


# They serve.


def test_three_nodes_serve_kafka_and_http(cluster):
    write(cluster.bootstrap, b"1", b"2")

    assert len(cluster) == 3
    for node in cluster:
        assert read(node.kafka) == [b"1", b"2"]
        with urllib.request.urlopen(f"{node.http}/v1/cluster", timeout=10) as response:
            assert len(json.load(response)["brokers"]) == 3
    assert cluster.http == ",".join(node.http for node in cluster)
    assert cluster.bootstrap == ",".join(node.kafka for node in cluster)


def test_a_cluster_tells_who_leads_and_who_is_in_sync(cluster):
    cluster.wait_in_sync(TOPIC)

    (part,) = cluster.partitions(TOPIC)
    status = cluster.status()
    assert part.in_sync == {1, 2, 3}
    assert part.leader == cluster.leader_of(TOPIC).id
    assert status.controller == cluster.controller().id
    assert [node.state for node in status.nodes] == [State.RUNNING] * 3
    assert [node.id for node in status.nodes if node.leads] == [part.leader]
    assert [node.id for node in status.nodes if node.is_controller] == [status.controller]


def test_topics_have_names_of_their_own_partitions_and_settings(cluster):
    one = cluster.new_topic("t", partitions=2, replication=2, config={"retention.ms": "1000"})
    two = cluster.new_topic("t")

    assert one != two
    assert [len(part.replicas) for part in cluster.partitions(one)] == [2, 2]
    cluster.delete_topic(two)
    with pytest.raises(NotInTime, match="nobody leads"):
        cluster.leader_of(two, seconds_max=0.1)


# They break and mend.


def test_when_a_leader_is_killed_another_has_what_was_acknowledged(cluster):
    write(cluster.bootstrap, b"1", b"2")
    killed = cluster.leader_of(TOPIC)

    killed.kill()

    survivors = [node for node in cluster if node is not killed]
    assert cluster.leader_of(TOPIC) in survivors
    write(cluster.bootstrap, b"3")
    assert [value for value in read(cluster.bootstrap) if value] == [b"1", b"2", b"3"]
    cluster.wait_in_sync(TOPIC, survivors)

    killed.start()
    cluster.wait_ready()
    cluster.wait_in_sync(TOPIC)
    assert cluster[killed.id].is_running


def test_a_node_that_was_killed_keeps_its_data_and_its_ports(node):
    write(node.kafka, b"kept")
    kafka, http = node.kafka, node.http

    node.kill()
    assert node.state is State.KILLED
    assert not (node.data / CLEAN_MARKER).exists()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(http, timeout=10)
    node.kill()  # it is dead already
    node.start()

    assert (node.kafka, node.http) == (kafka, http)
    assert read(node.kafka) == [b"kept"]


def test_a_node_that_is_stopped_leaves_a_clean_directory(cluster):
    node = cluster.leader_of(TOPIC)

    node.stop()

    assert node.state is State.STOPPED
    assert (node.data / CLEAN_MARKER).exists()
    node.start()
    cluster.wait_in_sync(TOPIC)


def test_clients_of_a_killed_node_see_their_connections_end(node):
    async def work() -> None:
        async with KafkaClient(node.kafka) as client:
            await client.topics()
            connection = await client.any_connection()
            await asyncio.to_thread(node.kill)
            with pytest.raises(ConnectionFailed):
                await connection.call(Api.METADATA, topics=[])

    asyncio.run(work())


def test_a_node_that_cannot_start_says_why(node):
    node.stop()
    (node.data / "meta.properties").write_text("version=1\nnode.id=2\n")

    with pytest.raises(StartFailed, match=r"node 1 is failed: .*meta\.properties"):
        node.start()

    assert node.status().error is not None


def test_a_node_is_started_once(node):
    with pytest.raises(StartFailed, match="running already"):
        node.start()


# Faults.


def test_a_leader_that_is_cut_off_is_replaced(cluster):
    leader = cluster.leader_of(TOPIC)
    epoch = cluster.partitions(TOPIC)[0].epoch

    with cluster.faults.isolate(leader):
        others = [node for node in cluster if node is not leader]
        cluster.wait_in_sync(TOPIC, others)
        assert cluster.leader_of(TOPIC) in others
        assert cluster.partitions(TOPIC)[0].epoch > epoch
        write(",".join(node.kafka for node in others), b"without it")

    cluster.wait_in_sync(TOPIC)
    assert read(leader.kafka) == [b"without it"]


def test_a_way_that_is_slow_and_one_that_breaks_lose_nothing(cluster):
    with cluster.faults.delay(1, 2, (0.0, 0.02)), cluster.faults.drop(2, 3, 0.05):
        write(cluster.bootstrap, *(b"%d" % number for number in range(10)))

    assert cluster.faults.reset(1, 3) >= 1
    cluster.wait_in_sync(TOPIC)
    assert {*read(cluster.bootstrap)} == {b"%d" % number for number in range(10)}


def test_what_clients_say_can_be_held_back(lone):
    write(lone.bootstrap, b"1")
    writing = threading.Thread(target=write, args=(lone.bootstrap, b"2"))

    with lone.faults.cut(CLIENTS, 1):
        writing.start()
        writing.join(0.2)
        assert writing.is_alive()

    writing.join(30)
    assert read(lone.bootstrap) == [b"1", b"2"]


def test_a_disk_that_fails_ends_its_node_which_recovers(cluster):
    write(cluster.bootstrap, b"1")
    leader = cluster.leader_of(TOPIC)

    with cluster.faults.fail_disk(leader):
        write(cluster.bootstrap, b"2")
        assert cluster.leader_of(TOPIC) is not leader
        assert leader.state is State.FAILED
        assert "as the test wants" in str(leader.status().error)

    leader.start()
    cluster.wait_in_sync(TOPIC)
    assert {*read(cluster.bootstrap)} == {b"1", b"2"}


def test_in_a_storm_what_is_acknowledged_stays(cluster):
    with cluster.faults.storm(["delay", "drop", "cut", "kill"], fault_seconds=(0.05, 0.3)):
        values: list[bytes] = []
        while len(values) < 60 or not cluster.faults.history:
            values.append(b"%d" % len(values))
            write(cluster.bootstrap, values[-1])

    cluster.wait_ready()
    cluster.wait_in_sync(TOPIC)
    assert {*read(cluster.bootstrap)} == {*values}


# Nothing is left.


def left() -> tuple[list[str], int]:
    """The threads of this process, and how many descriptors it has."""
    threads = [thread.name for thread in threading.enumerate()]
    return sorted(threads), len(os.listdir("/proc/self/fd"))


def test_of_many_clusters_one_after_the_other_nothing_is_left():
    with Cluster(nodes=1) as cluster:  # the first one imports, and starts what stays
        cluster.create_topic(TOPIC)
        write(cluster.bootstrap, b"x")
    before = left()

    directories = []
    for nodes in (1, 3, 1, 3, 1):
        with Cluster(nodes) as cluster:
            directories.append(cluster.directory)
            cluster.create_topic(TOPIC)
            write(cluster.bootstrap, b"x")
            urllib.request.urlopen(f"{cluster[1].http}/health/ready", timeout=10).close()
            cluster[1].kill()

    assert left() == before
    assert not any(directory.exists() for directory in directories)
    assert len(set(directories)) == 5


def test_a_directory_that_is_given_stays_and_is_gone_on_with(tmp_path):
    for expected in ([], [b"1"]):
        with Cluster(nodes=1, directory=tmp_path) as cluster:
            if not expected:
                cluster.create_topic(TOPIC)
                write(cluster.bootstrap, b"1")
            else:
                assert read(cluster.bootstrap) == expected

    assert (tmp_path / "node-1").is_dir()


def test_a_cluster_that_cannot_start_leaves_nothing_either():
    before = left()

    with pytest.raises(ConfigError, match="there is no setting"):
        Cluster(nodes=1, settings={"no.such.setting": 1}).start()

    assert left() == before


def test_who_does_not_run_cannot_be_asked():
    cluster = Cluster(nodes=1)

    for ask in (lambda: cluster.bootstrap, cluster.status, lambda: cluster[1]):
        with pytest.raises(NotRunning, match="start it first"):
            ask()
    with cluster:
        with pytest.raises(KeyError, match="there is no node 2"):
            cluster[2]
        with pytest.raises(RuntimeError, match="runs already"):
            cluster.start()
    cluster.stop()  # it is stopped already
    with cluster:  # it can be started anew, and is empty
        assert cluster.partitions(TOPIC) == []


def test_a_cluster_has_nodes():
    with pytest.raises(ValueError, match="1 to 9"):
        Cluster(nodes=0)


@pytest.mark.slow
def test_a_cluster_that_nobody_stops_ends_with_its_process():
    code = (
        "from tidelog.testing import Cluster\n"
        "cluster = Cluster(nodes=3)\n"
        "cluster.start()\n"
        "print(cluster.directory, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert not Path(done.stdout.strip()).exists()
    assert done.stderr == ""
