"""A transactional producer goes on after the coordinator of its consumer group was killed or stopped.

librdkafka keeps the coordinator that it found, forgets brokers that Metadata does not list, and then
waits for ever for a coordinator that it has forgotten (its issue 5511). It forgets only brokers that it
was not configured with, so the producer begins from another one.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cluster.clients import create_topic
from tests.support.nodes import Nodes
from tidelog.model import NodeId
from tidelog.wire.apis import Api

NODES: Final = (1, 2, 3)
SECONDS_MAX: Final = 30.0
IN, OUT, GROUP = "in", "out", "group"
PARTITIONS: Final = 3
GROUP_KEY: Final = 0


def coordinator(nodes: Nodes, group: str) -> NodeId:
    fields = {"key": group, "key_type": GROUP_KEY}
    return int(nodes.ask(Api.FIND_COORDINATOR, 3, fields).node_id)


@pytest.mark.parametrize("gone", [Nodes.kill, Nodes.stop], ids=["killed", "stopped"])
def test_offsets_are_sent_to_a_transaction_after_the_groups_coordinator_is_gone(
    gone: Callable[[Nodes, NodeId], None], tmp_path: Path
) -> None:
    with Nodes(tmp_path, NODES) as nodes:
        create_topic(nodes.bootstrap, IN, [(1, 2, 3)])
        create_topic(nodes.bootstrap, OUT, [(1, 2, 3), (2, 3, 1), (3, 1, 2)])
        victim = coordinator(nodes, GROUP)
        other = next(node for node in NODES if node != victim)
        consumer = Consumer({"bootstrap.servers": nodes.bootstrap, "group.id": GROUP})
        consumer.subscribe([IN])
        producer = Producer({"bootstrap.servers": nodes[other].bootstrap, "transactional.id": "id"})
        producer.init_transactions(SECONDS_MAX)

        def transact(before: Callable[[], None]) -> None:
            """Write to all partitions after `before`, so that all of their leaders are known, and commit."""
            producer.begin_transaction()
            before()
            for partition in range(PARTITIONS):
                producer.produce(OUT, b"tide", partition=partition)
            assert producer.flush(SECONDS_MAX) == 0
            producer.send_offsets_to_transaction(
                [TopicPartition(IN, 0, 1)], consumer.consumer_group_metadata(), SECONDS_MAX
            )
            producer.commit_transaction(SECONDS_MAX)

        while not consumer.assignment():
            consumer.poll(0.1)
        transact(lambda: None)
        going_on = Thread(target=transact, args=(lambda: gone(nodes, victim),), daemon=True)
        going_on.start()
        going_on.join(2 * SECONDS_MAX)
        assert not going_on.is_alive(), "librdkafka does not always keep to its own timeout"

        (committed,) = consumer.committed([TopicPartition(IN, 0)], SECONDS_MAX)
        assert committed.offset == 1
        consumer.close()
