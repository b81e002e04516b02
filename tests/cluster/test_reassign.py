"""Replicas that move from node to node, with real processes, under producers that never stop."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPartition

from tests.cluster.clients import create_topic
from tests.cluster.load import Load, check_account
from tests.support.nodes import Nodes

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
