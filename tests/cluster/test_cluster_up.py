"""`tidelog cluster` with real processes: three nodes, killed, stopped, paused and left alone."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ClusterProcess, is_process, wait_until

TAKEOVER_SECONDS_MAX = 20.0
"""Two or three, on a machine that does nothing else."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ClusterProcess) -> ClusterProcess:
    """All three nodes run and none is fenced, whatever the test before this one did."""
    if not shared.is_up:
        shared.up()
    elif shared.is_whole():
        return shared
    for node in shared.cluster("status")["nodes"]:
        if node["state"] == "paused":
            shared.cluster("resume", node["id"])
        elif not node["alive"]:
            shared.cluster("start", node["id"])
    wait_until(shared.is_whole, "the cluster is not whole")
    return shared


def nodes_of(cluster: ClusterProcess) -> dict[int, dict[str, Any]]:
    return {node["id"]: node for node in cluster.cluster("status")["nodes"]}


def produce(bootstrap: str, cluster: ClusterProcess, topic: str, value: str) -> None:
    ended = cluster.command("produce", topic, "--value", value, "--bootstrap", bootstrap)
    assert ended.returncode == 0, ended.stderr


def consume(bootstrap: str, cluster: ClusterProcess, topic: str) -> list[str]:
    ended = cluster.command("consume", topic, "--from-beginning", "--no-follow", "--bootstrap", bootstrap)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def get(address: str, path: str) -> Any:
    connection = HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_what_is_written_through_one_node_is_read_through_any(cluster):
    first, second, third = cluster.bootstraps
    made = cluster.command(
        "topics", "create", "orders", "--partitions", 3, "--replication", 1, "--bootstrap", second
    )
    assert made.returncode == 0, made.stderr

    for bootstrap in cluster.bootstraps:
        produce(bootstrap, cluster, "orders", f"by-{bootstrap}")

    expected = sorted(f"by-{bootstrap}" for bootstrap in cluster.bootstraps)
    assert sorted(consume(first, cluster, "orders")) == expected
    assert sorted(consume(third, cluster, "orders")) == expected


def test_every_face_tells_the_same_story(cluster):
    status = cluster.cluster("status")
    content = json.loads((cluster.data / "cluster.json").read_text())
    leader = status["controller"]

    assert cluster.ready["nodes"] == "3" and cluster.ready["data"] == str(cluster.data)
    assert [node["kafka"] for node in content["nodes"]] == cluster.bootstraps
    assert sorted(cluster.pids()) == sorted(node["pid"] for node in status["nodes"])
    for bootstrap in cluster.bootstraps:  # whoever is asked, the leader answers
        ended = cluster.command("quorum", "--bootstrap", bootstrap, "--json")
        quorum = json.loads(ended.stdout)
        assert (quorum["leader"], quorum["observers"]) == (leader, [])
        assert sorted(voter["node"] for voter in quorum["voters"]) == [1, 2, 3]
        assert all(voter["peer"] for voter in quorum["voters"])
    ended = cluster.command("brokers", "list", "--bootstrap", cluster.bootstraps[1], "--json")
    brokers = json.loads(ended.stdout)
    assert brokers["controller"] == leader
    assert [broker["kafka"] for broker in brokers["brokers"]] == cluster.bootstraps
    assert all(broker["broker_epoch"] > 0 for broker in brokers["brokers"])
    for address in cluster.ready["http"].split(","):
        assert get(address, "/health/ready")["status"] == "ready"
        found = get(address, "/v1/cluster?topics=")
        assert found["controller"] == found["quorum"]["leader"] == leader
        assert [broker["http"] for broker in found["brokers"]] == cluster.ready["http"].split(",")


def test_when_the_controller_is_killed_another_takes_over_and_it_can_come_back(cluster):
    old = cluster.cluster("status")["controller"]

    killed = cluster.cluster("kill", old)

    def is_taken_over() -> bool:
        found = cluster.cluster("status")
        fenced = next(node["fenced"] for node in found["nodes"] if node["id"] == old)
        return found["controller"] not in (None, old) and fenced is True

    assert (killed["state"], killed["alive"]) == ("killed", False)
    wait_until(is_taken_over, "nobody took over", TAKEOVER_SECONDS_MAX)
    survivors = [b for n, b in enumerate(cluster.bootstraps, 1) if n != old]
    produce(survivors[0], cluster, "after-the-controller", "x")
    assert consume(survivors[1], cluster, "after-the-controller") == ["x"]
    assert cluster.cluster("start", old)["state"] == "running"
    wait_until(cluster.is_whole, "the node that came back is not taken")


def test_a_node_is_stopped_cleanly_and_started_again(cluster):
    before = nodes_of(cluster)[2]

    stopped = cluster.cluster("stop", 2)
    again = cluster.cluster("start", 2)

    assert (stopped["state"], stopped["exit_code"], stopped["pid"]) == ("stopped", 0, None)
    assert not is_process(before["pid"])
    assert again["state"] == "running" and again["pid"] != before["pid"]
    assert again["kafka"] == before["kafka"]
    wait_until(cluster.is_whole, "the node that came back is not taken")


def test_a_paused_node_is_fenced_and_comes_back_when_it_goes_on(cluster):
    number = next(n for n, node in nodes_of(cluster).items() if not node["controller"])

    paused = cluster.cluster("pause", number)

    assert (paused["state"], paused["alive"]) == ("paused", True)
    wait_until(lambda: nodes_of(cluster)[number]["fenced"] is True, "it was not fenced")
    assert cluster.cluster("resume", number)["state"] == "running"
    wait_until(cluster.is_whole, "the node that went on is not taken")


def test_a_node_that_dies_is_reported_and_not_restarted(cluster):
    pid = nodes_of(cluster)[3]["pid"]

    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: nodes_of(cluster)[3]["state"] == "failed", "nobody noticed")
    told = cluster.log.read_text()
    assert "node 3 was ended by SIGKILL" in told and "tidelog cluster start 3" in told


def test_after_a_blackout_nodes_are_started_one_after_the_other(cluster):
    for number in (1, 2, 3):
        cluster.cluster("kill", number)

    alone = cluster.command("cluster", "start", 1, "--data", cluster.data, "--json")

    assert alone.returncode == 0, alone.stderr
    node = json.loads(alone.stdout)
    assert (node["state"], node["waits_for"]) == (
        "starting",
        "waiting for 2 of 3 voters: 2, 3; 1 more must run",
    )
    http = cluster.ready["http"].split(",")[0]
    unready = get(http, "/health/ready")
    assert (unready["status"], unready["detail"]) == (503, node["waits_for"])
    assert cluster.cluster("start", 2)["waits_for"] is None
    assert cluster.cluster("start", 3)["state"] == "running"
    wait_until(cluster.is_whole, "a node that came back is not taken")


def test_what_cannot_be_done_is_refused_in_one_line(cluster):
    refused: list[tuple[list[object], str]] = [
        (["start", 1], "runs already"),
        (["kill", 9], "nodes 1, 2, 3"),
        (["up"], "already"),
    ]
    for arguments, expected in refused:
        ended = cluster.command("cluster", *arguments, "--data", cluster.data)

        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.count("\n") == 1 and expected in ended.stderr


def test_ctrl_c_leaves_no_process_and_the_next_start_has_the_same_ports_and_data(cluster):
    produce(cluster.bootstraps[0], cluster, "kept", "before")
    before = dict(cluster.ready)

    assert cluster.interrupt() == 0  # and asserts that all processes are gone

    status = cluster.cluster("status")
    assert not status["running"]
    assert [node["state"] for node in status["nodes"]] == ["stopped"] * 3
    refused = cluster.command("cluster", "kill", 1, "--data", cluster.data)
    assert refused.returncode == 1 and "tidelog cluster up" in refused.stderr
    cluster.up()
    assert cluster.ready == before
    assert consume(cluster.bootstraps[1], cluster, "kept") == ["before"]


def test_even_when_it_is_killed_no_node_is_left_behind(cluster):
    pids = cluster.pids()
    cluster.cluster("pause", 2)  # it could not hear of anything but SIGKILL

    cluster.kill()  # and asserts that all processes are gone

    assert len(pids) == 3 and not any(map(is_process, pids))


def test_a_node_that_cannot_start_ends_all_and_says_why(tmp_path):
    cluster = ClusterProcess(tmp_path / "data")
    (tmp_path / "data" / "node-2").mkdir(parents=True)
    (tmp_path / "data" / "node-2" / "meta.properties").write_text("version=1\nnode.id=7\n")
    ports = ("--kafka-port", "0", "--http-port", "0", "--peer-port", "0")

    ended = cluster.command("cluster", "up", "--nodes", 3, "--data", cluster.data, *ports)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "node 2 ended with exit code 1" in ended.stderr and "node-2.log" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_one_nodes_directory_is_not_taken_for_a_clusters_nor_the_other_way_round(tmp_path: Path):
    cluster = ClusterProcess(tmp_path / "data")
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "meta.properties").write_text("version=1\n")
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "cluster.json").write_text("{}")

    def refused(*arguments: object) -> str:
        ended: subprocess.CompletedProcess[str] = cluster.command(*arguments)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.count("\n") == 1
        return ended.stderr

    assert "make run NODES=1" in refused("cluster", "up", "--data", tmp_path / "single")
    assert "tidelog cluster up" in refused("start", "--data", tmp_path / "many")
    assert sorted(path.name for path in (tmp_path / "single").iterdir()) == ["meta.properties"]
