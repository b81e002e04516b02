"""Topics made and deleted, whoever asks for it: a client of Kafka's, an HTTP client, the node itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from tidelog.broker.broker import Broker
from tidelog.broker.topic_deletion import gone_everywhere, missing_everywhere
from tidelog.config.topic import BY_REPLICAS
from tidelog.controller import decisions
from tidelog.controller.decisions import Defaults, NewTopic
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.records import TopicCreated, TopicDeleted
from tidelog.errors import InvalidTopic, RequestTimedOut, UnknownTopicId, UnknownTopicOrPartition
from tidelog.model import INTERNAL_TOPICS, TopicPartition

MIN_IN_SYNC: Final = "min.insync.replicas"


def partition_exists(broker: Broker, place: TopicPartition) -> bool:
    """Whether there is such a partition in the cluster, on this node or not."""
    topic = broker.image.topics.get(place.topic)
    return topic is not None and 0 <= place.partition < len(topic.partitions)


def defaults_of(broker: Broker) -> Defaults:
    config = broker.config
    return Defaults(
        partitions=config.num_partitions,
        replication=config.default_replication_factor,
        topic=config.topic_defaults,
    )


def name_of(broker: "Broker", topic: str | UUID) -> str:
    """The name of a topic that is known by its name or its id; UnknownTopicId if none has the id."""
    if isinstance(topic, str):
        return topic
    found = broker.image.topics_by_id.get(topic)
    if found is None:
        raise UnknownTopicId(topic)
    return found.name


async def create_topic(broker: Broker, wanted: NewTopic) -> TopicCreated:
    """Create a topic; return once its partitions are served."""
    topic_id = broker.host.new_id()
    wanted = _with_own_minimum(broker, wanted)

    created: list[TopicCreated] = []

    def decide(image: ClusterImage) -> list[TopicCreated]:
        if topic_id in image.topics_by_id:
            return []  # it is this one; only the answer was lost
        created[:] = [decisions.create_topic(image, wanted, topic_id, defaults_of(broker))]
        return created

    await broker.metadata.change(decide)
    await broker.acted()
    return created[0]


def _with_own_minimum(broker: Broker, wanted: NewTopic) -> NewTopic:
    """The topic with the minimum of in-sync replicas that this node's settings give it.

    It goes into the metadata, for all nodes: were their files to differ, a leader could commit what
    a controller does not count.
    """
    minimum = broker.started_with.topic_defaults.min_insync_replicas
    if minimum == BY_REPLICAS or wanted.internal or MIN_IN_SYNC in wanted.config:
        return wanted
    return replace(wanted, config={**wanted.config, MIN_IN_SYNC: str(minimum)})


async def delete_topic(
    broker: Broker, name: str | None, topic_id: UUID | None, judge: Callable[[str], None] = lambda name: None
) -> TopicImage:
    """Delete a topic by name or by id; return once no leader serves it any more.

    It is refused because there is none only once no leader serves one. `judge` may refuse by the name: whose
    id it is may not have been known here when it was asked for.
    """
    found: list[TopicImage] = []
    lost = 0

    def decide(image: ClusterImage) -> list[TopicDeleted]:
        nonlocal lost
        if found and found[-1].id not in image.topics_by_id:
            if topic_id is not None or found[-1].name not in image.topics:
                return []  # it is done
            # Another has the name. What was decided on old metadata was not done, and is no answer.
            if broker.metadata.replies_lost > lost:
                raise RequestTimedOut(
                    f"{found[-1].name} was deleted, perhaps by this request, and created again since"
                )
        lost = broker.metadata.replies_lost
        record = decisions.delete_topic(image, name, topic_id)
        judge(record.name)
        if record.name in INTERNAL_TOPICS:
            raise InvalidTopic(f"{record.name} is the cluster's own and cannot be deleted")
        found.append(image.topics[record.name])
        return [record]

    try:
        await broker.metadata.change(decide)
    except (UnknownTopicOrPartition, UnknownTopicId):
        await missing_everywhere(broker, name if topic_id is None else topic_id)
        raise
    offset = broker.metadata.applied
    await broker.acted()
    await gone_everywhere(broker, found[-1], offset)
    return found[-1]
