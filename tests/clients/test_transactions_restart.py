"""A node ends amid transactions and comes back: none is lost, half done or left open."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.adapters import EARLIEST, Client, Refused
from tests.clients.transacting import (
    COMMITTED,
    UNCOMMITTED,
    committed,
    eventually,
    open_transactions,
    seen,
    transact,
)
from tests.support.node import NodeProcess

# Clients that find nobody listening leave their sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

ENDS = ["stop", "kill"]


@pytest.fixture(scope="module")
def restarting_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings: dict[str, Any] = {"transaction.state.log.num.partitions": 4}
    with NodeProcess(tmp_path_factory.mktemp("transactions") / "data", settings) as node:
        yield node


@pytest.fixture
def client(library: type[Client], restarting_node: NodeProcess) -> Iterator[Client]:
    with library(restarting_node.bootstrap) as client:
        yield client
    gc.collect()  # here, where its warnings are expected


def restart(node: NodeProcess, end: str) -> None:
    if end == "stop":
        assert node.stop() == 0, node.log.read_text()
    else:
        node.kill()
    node.start()


@pytest.mark.parametrize("end", ENDS)
def test_an_open_transaction_goes_on_over_a_restart_and_commits(client, restarting_node, topic, end):
    client.admin().create(topic)
    producer = client.transactional(topic)
    producer.begin()
    transact(producer, topic, [b"before"])
    producer.send_offsets(topic, {(topic, 0): 1})

    restart(restarting_node, end)

    reader = client.consumer(isolation=COMMITTED).assign(topic, {0: EARLIEST})
    assert reader.latest(topic) == 0
    transact(producer, topic, [b"after"])
    producer.commit()
    assert seen(client, topic, COMMITTED) == [b"before", b"after"]
    eventually(lambda: committed(restarting_node, topic, topic) == 1, "the offset never moved")


@pytest.mark.parametrize("end", ENDS)
def test_what_was_decided_before_a_restart_is_decided_after_it(client, restarting_node, topic, end):
    client.admin().create(topic)
    producer = client.transactional(topic)
    for value, decide in ((b"yes", producer.commit), (b"no", producer.abort)):
        producer.begin()
        transact(producer, topic, [value])
        decide()

    restart(restarting_node, end)

    assert seen(client, topic, COMMITTED) == [b"yes"]
    assert seen(client, topic, UNCOMMITTED) == [b"yes", b"no"]
    producer.begin()
    transact(producer, topic, [b"more"])
    producer.commit()
    assert seen(client, topic, COMMITTED) == [b"yes", b"more"]


def test_a_transaction_whose_producer_is_gone_times_out_after_a_restart(
    client, library, restarting_node, topic
):
    client.admin().create(topic)
    with library(restarting_node.bootstrap) as another:
        producer = another.transactional(topic, timeout_ms=2000)
        producer.begin()
        transact(producer, topic, [b"abandoned"])

        restart(restarting_node, "kill")

        assert seen(client, topic, COMMITTED) == []
        assert seen(client, topic, UNCOMMITTED) == [b"abandoned"]


def test_the_next_producer_of_an_id_aborts_what_was_open_before_a_restart(
    client, library, restarting_node, topic
):
    client.admin().create(topic)
    with library(restarting_node.bootstrap) as another:
        old = another.transactional(topic)
        old.begin()
        transact(old, topic, [b"old"])

        restart(restarting_node, "kill")

        new = client.transactional(topic)
        with pytest.raises(Refused):
            old.commit()
    new.begin()
    transact(new, topic, [b"new"])
    new.commit()
    assert seen(client, topic, COMMITTED) == [b"new"]


def test_a_transaction_is_complete_soon_after_a_kill_at_its_commit(client, restarting_node, topic):
    """Kill at once after the decision: the markers may be missing, and are written at the start."""
    client.admin().create(topic, partitions=4)
    producer = client.transactional(topic)
    producer.begin()
    for partition in range(4):
        transact(producer, topic, [b"value"], partition)
    producer.commit()

    restart(restarting_node, "kill")

    for partition in range(4):
        assert seen(client, topic, COMMITTED, partition) == [b"value"]
    eventually(lambda: topic not in open_transactions(restarting_node), "it is left open")
