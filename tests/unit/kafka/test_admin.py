"""Elections and partitions, as operators ask for them."""

import pytest

from tests.unit.broker.node import on_a_node
from tidelog.controller.image import Place
from tidelog.controller.leases import Heartbeat
from tidelog.controller.records import BrokerRegistered, BrokerUnfenced, PartitionChanged
from tidelog.controller.reports import ReplicaReport
from tidelog.kafka.admin import PREFERRED, UNCLEAN
from tidelog.model import NO_NODE, Endpoint
from tidelog.raft.voters import ReplicaKey
from tidelog.wire.apis import Api

UNKNOWN, NOT_CONTROLLER, NOT_AVAILABLE, NO_ELIGIBLE, NOT_NEEDED = 3, 41, 80, 83, 84


async def with_partition(node, name="t", **changes):
    """A topic whose one partition is as `changes` say."""
    await node.create(name)

    def decide(image):
        place = Place(image.topics[name], 0)
        after = place.partition.changed(**changes)
        return PartitionChanged(topic=str(place.topic.id), partition=0, state=after.state)

    await node.broker.metadata.change(decide)
    await node.broker.acted()


async def with_broker(node, number):
    """Another broker, that is there as far as anybody knows."""
    at = Endpoint(host="127.0.0.1", port=1)
    await node.broker.metadata.change(
        lambda image: [
            BrokerRegistered(
                node=number, incarnation="i", broker_epoch=1000, directory="d", kafka=at, peer=at
            ),
            BrokerUnfenced(node=number, broker_epoch=1000),
        ]
    )
    overhear(node, number)


def overhear(node, number):
    """The broker has told the controller of all that it holds."""
    epoch = node.broker.image.brokers[number].broker_epoch
    heartbeat = Heartbeat(node=number, broker_epoch=epoch, metadata_offset=0)
    node.broker.controller.controller.overheard(heartbeat, now=0.0)


async def elected(node, kind, *partitions, version=2):
    """The errors by (topic, partition); of all partitions if none are given."""
    topics = [{"topic": topic, "partitions": [number]} for topic, number in partitions]
    answer = await node.ask(
        Api.ELECT_LEADERS, version, election_type=kind, topic_partitions=topics or None, timeout_ms=1000
    )
    if version > 0:
        assert answer.error_code == 0, answer
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in answer.replica_election_results
        for result in topic.partition_result
    }


def partition(node, name="t"):
    return node.broker.image.topics[name].partitions[0]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_first_replica_leads_when_an_operator_asks_for_it(version):
    async def story(node):
        await with_broker(node, 2)
        await with_partition(node, replicas=(1, 2), in_sync=frozenset({1, 2}), leader=2)

        assert await elected(node, PREFERRED, ("t", 0), version=version) == {("t", 0): 0}

        assert partition(node).leader == 1

    on_a_node(story)


def test_an_election_that_cannot_be_says_why_as_kafka_does():
    async def story(node):
        await with_partition(node, "led", replicas=(1, 2), leader=1)
        await with_partition(node, "away", replicas=(2, 1), in_sync=frozenset({1, 2}), leader=1)
        await with_partition(node, "lost", replicas=(2,), in_sync=frozenset({2}), leader=NO_NODE)
        asked = [("led", 0), ("away", 0), ("led", 1), ("none", 0)]

        assert await elected(node, PREFERRED, *asked) == {
            ("led", 0): NOT_NEEDED,
            ("away", 0): NOT_AVAILABLE,
            ("led", 1): UNKNOWN,
            ("none", 0): UNKNOWN,
        }
        assert await elected(node, UNCLEAN, ("led", 0), ("lost", 0)) == {
            ("led", 0): NOT_NEEDED,
            ("lost", 0): NO_ELIGIBLE,
        }

    on_a_node(story)


def test_of_all_partitions_only_those_that_need_an_election_are_named():
    async def story(node):
        await with_broker(node, 2)
        await with_partition(node, "led", replicas=(1, 2), leader=1)
        await with_partition(node, "t", replicas=(1, 2), in_sync=frozenset({1, 2}), leader=2)
        await with_partition(node, "away", replicas=(3, 1), in_sync=frozenset({1}), leader=1)

        assert await elected(node, PREFERRED) == {("t", 0): 0, ("away", 0): NOT_AVAILABLE}
        assert await elected(node, UNCLEAN) == {}

    on_a_node(story)


def test_somebody_leads_though_records_may_be_lost_when_an_operator_asks_for_it():
    async def story(node):
        await with_partition(
            node, replicas=(3, 1), in_sync=frozenset({3}), leader=NO_NODE, eligible=frozenset()
        )

        assert await elected(node, UNCLEAN) == {("t", 0): 0}

        assert (partition(node).leader, partition(node).in_sync) == (1, {1})

    on_a_node(story)


def test_what_may_lose_records_is_asked_of_the_active_controller_alone(monkeypatch):
    async def story(node):
        await with_partition(node, replicas=(3, 1), in_sync=frozenset({3}), leader=NO_NODE)
        with monkeypatch.context() as patch:
            patch.setattr(type(node.broker.member.quorum), "leads", False)
            answer = await node.ask(Api.ELECT_LEADERS, 2, election_type=UNCLEAN, topic_partitions=None)

        assert (answer.error_code, answer.replica_election_results) == (NOT_CONTROLLER, ())
        assert partition(node).leader == NO_NODE

    on_a_node(story)


def test_a_first_replica_that_is_damaged_is_not_elected():
    async def story(node):
        await with_broker(node, 2)
        await with_partition(node, replicas=(2, 1), in_sync=frozenset({1, 2}), leader=1)
        report = ReplicaReport(partition(node).cluster_id, 0, 0, 0, True)
        node.broker.controller.controller.reports.take(2, 1000, [report], 0.0)

        assert await elected(node, PREFERRED, ("t", 0)) == {("t", 0): NOT_AVAILABLE}

    on_a_node(story)


def test_there_are_two_kinds_of_elections():
    async def story(node):
        answer = await node.ask(Api.ELECT_LEADERS, 2, election_type=2, topic_partitions=None)

        assert answer.error_code == 42

    on_a_node(story)


def test_who_may_lead_beside_those_in_sync_is_described():
    async def story(node):
        await with_partition(
            node, replicas=(1, 2, 3), leader=1, in_sync=frozenset({1}), eligible=frozenset({3, 2})
        )
        await with_partition(
            node, "lost", replicas=(2, 3), leader=NO_NODE, in_sync=frozenset(), lost=(ReplicaKey(2, "gone"),)
        )

        answer = await node.ask(Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[])

        lost, led = (topic.partitions[0] for topic in answer.topics)
        assert (led.eligible_leader_replicas, led.last_known_elr) == ((2, 3), ())
        assert (lost.eligible_leader_replicas, lost.last_known_elr) == ((), (2,))

    on_a_node(story)
