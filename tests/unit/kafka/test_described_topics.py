import asyncio
from uuid import UUID

import pytest

from tests.unit.wire.messages import read_response
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    TopicCreated,
)
from tidelog.kafka import described_topics
from tidelog.kafka.described_topics import DescribedTopics
from tidelog.model import Endpoint
from tidelog.wire.apis import APIS, Api
from tidelog.wire.slices import ITEMS_AT_ONCE, response_in_slices

TOPIC = UUID(int=7)
AT = Endpoint(host="there", port=9)
MANY = 4 * ITEMS_AT_ONCE + 3


def state(number: int, leader: int = 1, epoch: int = 0) -> PartitionState:
    return PartitionState(number, (1, 2, 3), (1, 2, 3), leader, epoch)


def image_of(count: int) -> ClusterImage:
    image = ClusterImage()
    for node in (1, 2, 3):
        image.apply(
            BrokerRegistered(
                node=node,
                incarnation="i",
                broker_epoch=node,
                directory=f"d{node}",
                kafka=AT,
                peer=AT,
                http=None,
                rack=None,
            )
        )
        image.apply(BrokerUnfenced(node=node, broker_epoch=node))
    states = [state(number) for number in range(count)]
    image.apply(TopicCreated(name="t", id=str(TOPIC), replicas=[[1, 2, 3]] * count, partitions=states))
    return image


def topic_of(image: ClusterImage) -> TopicImage:
    return image.topics["t"]


def describe(described: DescribedTopics, image: ClusterImage, version: int = 12):
    """The topic, as a client reads it."""
    encoded = asyncio.run(described.describe(image, topic_of(image), version))
    return read(encoded, version)


def read(encoded, version: int = 12):
    slices = response_in_slices(Api.METADATA, version, {"topics": [encoded]})
    while True:
        try:
            next(slices)
        except StopIteration as ended:
            (topic,) = read_response(Api.METADATA, version, ended.value).topics
            return topic


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """The numbers of the partitions that were described."""
    found: list[int] = []
    real = described_topics.describe_partition

    def describe_partition(partition, number, alive):
        found.append(number)
        return real(partition, number, alive)

    monkeypatch.setattr(described_topics, "describe_partition", describe_partition)
    return found


@pytest.mark.parametrize("count", [1, ITEMS_AT_ONCE, ITEMS_AT_ONCE + 1, MANY])
@pytest.mark.parametrize("version", range(APIS[Api.METADATA].taken_from, APIS[Api.METADATA].most + 1))
def test_a_topic_is_described_as_the_image_has_it(version, count):
    image = image_of(count)

    topic = describe(DescribedTopics(), image, version)

    assert topic.name == "t"
    assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [
        (number, 1, (1, 2, 3), (1, 2, 3)) for number in range(count)
    ]


@pytest.mark.parametrize("count", [5, MANY])
def test_what_has_not_changed_is_described_once_for_all_who_ask(made, count):
    image, described = image_of(count), DescribedTopics()

    async def ask_at_once():
        return await asyncio.gather(*(described.describe(image, topic_of(image), 12) for _ in range(7)))

    answers = asyncio.run(ask_at_once())
    again = describe(described, image)

    assert sorted(made) == list(range(count))
    assert {answer.data for answer in answers} == {answers[0].data}
    assert again == read(answers[0])


def test_a_change_costs_the_partitions_beside_it(made):
    image, described = image_of(MANY), DescribedTopics()
    describe(described, image)
    made.clear()

    changed = ITEMS_AT_ONCE + 1
    image.apply(PartitionChanged(topic=str(TOPIC), partition=changed, state=state(changed, 2, 1)))
    topic = describe(described, image)

    assert made == list(range(ITEMS_AT_ONCE, 2 * ITEMS_AT_ONCE))
    assert [p.partition_index for p in topic.partitions if p.leader_id == 2] == [changed]


def test_partitions_that_are_added_are_described():
    image, described = image_of(ITEMS_AT_ONCE), DescribedTopics()
    describe(described, image)

    more = [state(number) for number in range(ITEMS_AT_ONCE, MANY)]
    image.apply(PartitionsAdded(topic="t", replicas=[[1, 2, 3]] * len(more), partitions=more))

    assert [p.partition_index for p in describe(described, image).partitions] == list(range(MANY))


@pytest.mark.parametrize("count", [5, MANY])
def test_a_node_that_goes_or_comes_is_seen_in_the_next_answer(count):
    image, described = image_of(count), DescribedTopics()
    describe(described, image)

    image.apply(BrokerFenced(node=3, broker_epoch=3))
    gone = describe(described, image)
    image.apply(BrokerUnfenced(node=3, broker_epoch=3))
    back = describe(described, image)

    assert {p.offline_replicas for p in gone.partitions} == {(3,)}
    assert {p.offline_replicas for p in back.partitions} == {()}


def test_versions_do_not_mix_and_few_are_kept(made):
    image, described = image_of(3), DescribedTopics()
    versions = range(8, 13)

    for version in versions:
        assert len(describe(described, image, version).partitions) == 3
    made.clear()
    describe(described, image, 12)
    assert made == []
    describe(described, image, 8)

    assert made == [0, 1, 2]
    assert len(described._kept[TOPIC]) == described_topics.VERSIONS_KEPT


def test_nothing_is_kept_of_topics_that_are_gone():
    image, described = image_of(3), DescribedTopics()
    describe(described, image)

    described.forget_gone(ClusterImage())

    assert described._kept == {}


def test_no_turn_describes_more_than_one_slice(made):
    image, described = image_of(MANY), DescribedTopics()
    describing = described.describe(image, topic_of(image), 12)
    most = 0
    try:
        while True:
            before = len(made)
            describing.send(None)
            most = max(most, len(made) - before)
    except StopIteration:
        assert len(made) == MANY

    assert most == ITEMS_AT_ONCE
