"""Metadata, and topics made, grown and deleted."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from tidelog.broker.broker import Broker
from tidelog.broker.context import Request
from tidelog.broker.deleting import gone_everywhere, missing_everywhere
from tidelog.config import TOPIC_SETTINGS, topic_config
from tidelog.config.topic import BY_REPLICAS, shown_min_in_sync
from tidelog.controller import decisions
from tidelog.controller.decisions import Defaults, NewTopic
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.records import TopicCreated, TopicDeleted
from tidelog.errors import (
    BrokerError,
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.host import in_turns
from tidelog.model import (
    INTERNAL_TOPICS,
    NO_NODE,
    QUEUES_TOPIC,
    TopicPartition,
    topic_name_problem,
)

NO_AUTHORIZED_OPERATIONS: Final = -(2**31)
DEFAULT_SOURCE: Final = 5
TOPIC_SOURCE: Final = 1
MIN_IN_SYNC: Final = "min.insync.replicas"
MADE_BY_HAND: Final = frozenset({QUEUES_TOPIC})
"""Of the cluster's own topics, those that somebody may make before their first use: a backup is
restored into as many partitions as it is of, since a queue's id tells which one has it."""


def _brokers(broker: Broker, id_name: str, *, fenced_too: bool = False) -> list[dict[str, Any]]:
    """The brokers that clients can connect to, or all that the cluster knows."""
    return [
        {
            id_name: known.node,
            "host": known.kafka.host,
            "port": known.kafka.port,
            "rack": known.rack,
            "is_fenced": known.fenced,
        }
        for known in broker.image.brokers.values()
        if fenced_too or not known.fenced
    ]


def describe_cluster(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The nodes, and which of them decides."""
    return {
        "error_message": None,
        "endpoint_type": getattr(request, "endpoint_type", 1),
        "cluster_id": broker.identity.cluster_id,
        "controller_id": broker.active_controller,
        "brokers": _brokers(
            broker, "broker_id", fenced_too=getattr(request, "include_fenced_brokers", False)
        ),
        "cluster_authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }


async def metadata(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The nodes, and the topics asked for; those that are missing are made, if that is allowed."""
    # "All" is null; in version 0, which has no null, it is an empty list.
    if request.topics is None or (context.version == 0 and not request.topics):
        topics = [await _describe(broker, topic) for topic in list(broker.image.topics.values())]
    else:
        create = broker.config.auto_create_topics_enable and getattr(
            request, "allow_auto_topic_creation", True
        )
        topics = [
            await _describe_asked(broker, asked.name, getattr(asked, "topic_id", None), create)
            for asked in request.topics
        ]
    return {
        "brokers": _brokers(broker, "node_id"),
        "cluster_id": broker.identity.cluster_id,
        "controller_id": broker.active_controller,
        "topics": topics,
        "cluster_authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }


async def _describe_asked(
    broker: Broker, name: str | None, topic_id: UUID | None, create: bool
) -> dict[str, Any]:
    try:
        if name is None:
            topic = broker.image.topics_by_id.get(topic_id) if topic_id is not None else None
            if topic is None:
                raise UnknownTopicId(topic_id)
        else:
            topic = broker.image.topics.get(name)
            if topic is None:
                if problem := topic_name_problem(name):
                    raise InvalidTopic(problem)
                if not create or name in INTERNAL_TOPICS:
                    raise UnknownTopicOrPartition(name)
                topic = await _create_missing(broker, name)
        return await _describe(broker, topic)
    except BrokerError as error:
        return {"error_code": error.code, "name": name or "", "topic_id": topic_id}


async def _create_missing(broker: Broker, name: str) -> TopicImage:
    try:
        await create_topic(broker, NewTopic(name=name, config={}))
    except TopicAlreadyExists:
        pass  # another client was quicker
    topic = broker.image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(name)  # and yet another has deleted it meanwhile
    return topic


async def _describe(broker: Broker, topic: TopicImage) -> dict[str, Any]:
    partitions: list[dict[str, Any]] = []
    await in_turns(
        range(len(topic.partitions)),
        lambda number: partitions.append(describe_partition(broker.image, topic, number)),
    )
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "topic_authorized_operations": NO_AUTHORIZED_OPERATIONS,
        "partitions": partitions,
    }


def describe_partition(image: ClusterImage, topic: TopicImage, number: int) -> dict[str, Any]:
    partition = topic.partitions[number]
    alive = image.is_alive
    return {
        "error_code": LeaderNotAvailable.code if partition.leader == NO_NODE else 0,
        "partition_index": number,
        "leader_id": partition.leader,
        "leader_epoch": partition.epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": sorted(partition.in_sync),
        "offline_replicas": [node for node in partition.replicas if not alive(node)],
    }


def partition_exists(broker: Broker, place: TopicPartition) -> bool:
    """Whether there is such a partition in the cluster, on this node or not."""
    topic = broker.image.topics.get(place.topic)
    return topic is not None and 0 <= place.partition < len(topic.partitions)


def defaults_of(broker: Broker) -> Defaults:
    config = broker.config
    return Defaults(
        partitions=config.num_partitions, replication=config.default_replication_factor,
        topic=config.topic_defaults,
    )  # fmt: skip


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


async def create_topics(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    answers = []
    times_named = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        answer: dict[str, Any] = {"name": topic.name, "error_message": None}
        try:
            if times_named[topic.name] > 1:
                raise InvalidRequest(f"{topic.name!r} is named twice in this request")
            if topic.name in MADE_BY_HAND and topic.configs:
                raise InvalidRequest(f"the settings of {topic.name} are the cluster's own")
            wanted = NewTopic(
                name=topic.name, partitions=topic.num_partitions,
                replication=topic.replication_factor,
                assignment={a.partition_index: a.broker_ids for a in topic.assignments} or None,
                config={config.name: config.value for config in topic.configs},
                internal=topic.name in MADE_BY_HAND,
            )  # fmt: skip
            if request.validate_only:
                created = decisions.create_topic(
                    broker.image, wanted, broker.host.new_id(), defaults_of(broker)
                )
            else:
                created = await create_topic(broker, wanted)
            answer |= _describe_created(broker, created, validate_only=request.validate_only)
        except BrokerError as error:
            answer |= {"error_code": error.code, "error_message": str(error)}
            answer |= {"num_partitions": -1, "replication_factor": -1, "configs": None}
        answers.append(answer)
    return {"topics": answers}


def _describe_created(
    broker: Broker, created: TopicCreated, *, validate_only: bool
) -> dict[str, Any]:
    config = topic_config(created.config, broker.config.topic_defaults)
    minimum = shown_min_in_sync(config.min_insync_replicas, len(created.replicas[0]))
    config = replace(config, min_insync_replicas=minimum)
    return {
        "topic_id": None if validate_only else UUID(created.id),
        "num_partitions": len(created.replicas),
        "replication_factor": len(created.replicas[0]),
        "configs": [
            {
                "name": name,
                "value": setting.text(getattr(config, name.replace(".", "_"))),
                "read_only": False,
                "config_source": TOPIC_SOURCE if name in created.config else DEFAULT_SOURCE,
                "is_sensitive": False,
            }
            for name, setting in TOPIC_SETTINGS.items()
        ],
    }


async def delete_topics(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    asked: list[tuple[str | None, UUID | None]] = (
        [(topic.name, topic.topic_id) for topic in request.topics]
        if hasattr(request, "topics")  # since version 6, by name or by id
        else [(name, None) for name in request.topic_names]
    )
    answers = []
    for name, topic_id in asked:
        answer: dict[str, Any] = {"name": name, "topic_id": topic_id, "error_message": None}
        try:
            deleted = await delete_topic(broker, name, topic_id)
            answer |= {"name": deleted.name, "topic_id": deleted.id}
        except BrokerError as error:
            answer |= {"error_code": error.code, "error_message": str(error)}
        answers.append(answer)
    return {"responses": answers}


async def delete_topic(broker: Broker, name: str | None, topic_id: UUID | None) -> TopicImage:
    """Delete a topic by name or by id; return once no leader serves it any more.

    It is refused because there is none only once no leader serves one.
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
                    f"{found[-1].name} was deleted, perhaps by this request, and made anew since"
                )
        lost = broker.metadata.replies_lost
        record = decisions.delete_topic(image, name, topic_id)
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


async def create_partitions(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    answers = []
    for topic in request.topics:
        answer: dict[str, Any] = {"name": topic.name, "error_message": None}
        assignment = (
            None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
        )
        name, count = topic.name, topic.count
        try:
            if request.validate_only:
                decisions.add_partitions(broker.image, name, count, assignment)
            else:
                await broker.metadata.change(
                    partial(decisions.add_partitions, name=name, count=count, assignment=assignment)
                )
                await broker.acted()
        except BrokerError as error:
            answer |= {"error_code": error.code, "error_message": str(error)}
        answers.append(answer)
    return {"results": answers}
