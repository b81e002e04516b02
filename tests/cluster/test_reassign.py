"""Replicas that move from node to node, with real processes, under producers that never stop."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPartition

from tests.cluster.clients import Reader, create_topic
from tests.cluster.load import Load, check_account
from tests.support.nodes import Nodes
from tidelog.faces.cli import main

pytestmark = pytest.mark.slow

NODES = (1, 2, 3, 4, 5)
SEED = 20261116
STEADY = {"per_second_max": 500, "unacknowledged_max": 200}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    settings = {"offsets.topic.num.partitions": 4}
    with Nodes(tmp_path_factory.mktemp("five"), NODES, settings) as nodes:
        yield nodes
        for node in NODES:
            log = nodes[node].log.read_text()
            assert "Traceback" not in log, log


@pytest.fixture
def nodes(shared: Nodes) -> Nodes:
    shared.mend()
    shared.until_active(*NODES)
    return shared


@pytest.fixture
def admin(nodes: Nodes) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=nodes.bootstrap.split(","))
    yield client
    client.close()


def tidelog(nodes: Nodes, *arguments: object) -> Any:
    """What a command prints with --json, once it has done what it was asked."""
    output = io.StringIO()
    with redirect_stdout(output):
        code = main([*map(str, arguments), "--json", "--bootstrap", nodes.bootstrap])
    assert code == 0, output.getvalue()
    return json.loads(output.getvalue())


def directory(nodes: Nodes, node: int, topic: str) -> Path:
    return nodes[node].data / f"{topic}-0"


def until_held_by(nodes: Nodes, topic: str, *replicas: int) -> None:
    """Wait until all nodes see these replicas, all in sync, and nobody else has files of it."""

    def is_so(via: int) -> bool:
        found = nodes.partition(topic, 0, via)
        return found.replicas == replicas and found.in_sync == set(replicas)

    nodes.until_all_see(is_so, f"{topic} is not held by {replicas}")
    others = [node for node in NODES if node not in replicas]
    nodes.until(
        lambda: not any(directory(nodes, node, topic).exists() for node in others),
        f"others than {replicas} have files of {topic}",
    )


def test_a_partition_moves_under_load_and_nothing_acknowledged_is_lost(
    nodes: Nodes, admin: KafkaAdminClient
) -> None:
    create_topic(nodes.bootstrap, "moving", [(1, 2, 3)])
    nodes.until_all_in_sync("moving")
    place = KafkaPartition("moving", 0)
    load = Load("moving", nodes.bootstrap, "moving", 1, SEED, **STEADY)
    try:
        load.start()
        load.wait_acknowledged(300)
        for target in ((3, 4, 5), (1, 5, 2)):
            assert admin.alter_partition_reassignments({place: list(target)}) == {place: None}
            until_held_by(nodes, "moving", *target)
            assert nodes.partition("moving").leader in target
            assert admin.list_partition_reassignments() == {}
            load.wait_acknowledged(300)
        load.stop()
    finally:
        load.abandon()

    total = check_account([load], nodes.bootstrap, "moving", 1)
    ends = {nodes.log_end(node, "moving") for node in (1, 5, 2)}
    assert ends == {total}


def test_a_move_is_cancelled_half_way_and_the_replicas_are_those_of_before(
    nodes: Nodes, admin: KafkaAdminClient
) -> None:
    # Whoever is cut off from the leader hears of the move from the controller.
    leader, *others = sorted((1, 2, 3), key=lambda node: node == nodes.controller())
    create_topic(nodes.bootstrap, "staying", [(leader, *others)])
    nodes.until_all_in_sync("staying")
    place = KafkaPartition("staying", 0)
    load = Load("staying", nodes.bootstrap, "staying", 1, SEED, **STEADY)
    try:
        load.start()
        load.wait_acknowledged(100)
        # One hears of it, and cannot copy from the leader; the other can.
        cut_off = 4 if nodes.controller() == 5 else 5
        copier = 9 - cut_off
        nodes.network.cut(leader, cut_off)
        target = [leader, copier, cut_off]
        assert admin.alter_partition_reassignments({place: target}) == {place: None}
        nodes.until(
            lambda: (
                copier in nodes.partition("staying").in_sync and directory(nodes, cut_off, "staying").exists()
            ),
            "nobody copies",
        )
        assert admin.list_partition_reassignments()[place] == {
            "replicas": [*target, *others],
            "adding_replicas": target[1:],
            "removing_replicas": others,
        }
        load.wait_acknowledged(100)

        done = tidelog(nodes, "reassign", "cancel", "--topic", "staying")

        assert done["cancelled"] == [{"topic": "staying", "partition": 0}]
        nodes.network.mend()
        until_held_by(nodes, "staying", leader, *others)
        load.wait_acknowledged(100)
        load.stop()
    finally:
        load.abandon()

    check_account([load], nodes.bootstrap, "staying", 1)


def test_a_replica_that_moved_while_its_node_was_away_leaves_nothing_there(nodes: Nodes) -> None:
    create_topic(nodes.bootstrap, "away", [(1, 2, 3)])
    nodes.until_all_in_sync("away")
    victim = next(node for node in (1, 2, 3) if node != nodes.controller())
    stay = tuple(node for node in (1, 2, 3) if node != victim)
    nodes.kill(victim)
    nodes.until_in_sync("away", stay)

    target = (*stay, 4)
    tidelog(nodes, "reassign", "start", "--topic", "away", "--replicas", ",".join(map(str, target)), "--wait")
    assert directory(nodes, victim, "away").exists(), "its files were there when it died"
    nodes.start(victim)

    until_held_by(nodes, "away", *target)
    assert not directory(nodes, victim, "away").exists(), "removed before it serves"


def test_a_broker_is_drained_under_load_and_removed(nodes: Nodes) -> None:
    """The last test: there are four nodes afterwards."""
    create_topic(nodes.bootstrap, "drained", [(5, 1, 2), (4, 5, 3), (3, 4, 1)])
    nodes.until_all_in_sync("drained")
    load = Load("drained", nodes.bootstrap, "drained", 3, SEED, **STEADY)
    reader = Reader(nodes.bootstrap, "drainers", "drained")
    try:
        load.start()
        reader.start()
        reader.wait_read(100)
        plan = tidelog(nodes, "brokers", "drain", 5, "--dry-run")
        done = tidelog(nodes, "brokers", "drain", 5, "--wait")
        assert done["partitions"] == plan["partitions"] != []
        assert all(5 not in one["replicas"] for one in done["partitions"])
        load.wait_acknowledged(100)
        assert tidelog(nodes, "reassign", "status")["partitions"] == []
        tidelog(nodes, "topics", "create", "later", "--partitions", 8, "--replication", 3)
        nodes.until(
            lambda: [path.name for path in nodes[5].data.glob("*-[0-9]*")] == ["__cluster_metadata-0"],
            "the drained node holds something",
        )

        assert main(["brokers", "remove", "5", "--bootstrap", nodes.bootstrap]) == 1, "it runs"
        tidelog(nodes, "quorum", "remove", 5)
        nodes.stop(5)
        nodes.until_all_see(lambda via: nodes.active(via) == {1, 2, 3, 4}, "5 is not fenced")
        assert tidelog(nodes, "brokers", "remove", 5) == {"node": 5, "removed": True}

        known = {broker["id"] for broker in tidelog(nodes, "brokers", "list")["brokers"]}
        assert known == {1, 2, 3, 4}
        load.wait_acknowledged(100)
        load.stop()
        reader.wait_read(load.count_acknowledged)
    finally:
        load.abandon()
        reader.stop()

    assert reader.failure is None
    check_account([load], nodes.bootstrap, "drained", 3)
