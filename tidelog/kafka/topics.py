"""Metadata, CreateTopics, DeleteTopics, CreatePartitions: topics as Kafka clients see them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from tidelog.broker.broker import Broker
from tidelog.broker.topics import create_topic, defaults_of, delete_topic
from tidelog.config import TOPIC_SETTINGS, topic_config
from tidelog.config.topic import shown_min_in_sync
from tidelog.controller import decisions
from tidelog.controller.decisions import NewTopic
from tidelog.controller.image import BrokerImage, ClusterImage, TopicImage
from tidelog.controller.records import TopicCreated
from tidelog.errors import (
    BrokerError,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.kafka.context import Request
from tidelog.kafka.described_topics import DescribedTopics
from tidelog.kafka.permissions import NO_OPERATIONS
from tidelog.model import INTERNAL_TOPICS, QUEUES_TOPIC, NodeId, topic_name_problem
from tidelog.security.authorizer import require_create
from tidelog.security.permissions import Kind, Operation
from tidelog.security.refusals import TopicAuthorizationFailed
from tidelog.wire.slices import Encoded

_AT_ONCE: Final = 20
"""Topics that are described in one turn of the loop."""
DEFAULT_SOURCE: Final = 5
TOPIC_SOURCE: Final = 1
MIN_IN_SYNC: Final = "min.insync.replicas"
MADE_BY_HAND: Final = frozenset({QUEUES_TOPIC})
"""Of the cluster's own topics, those that somebody may make before their first use: a backup is
restored into as many partitions as it is of, since a queue's id tells which one has it."""


def _brokers(known: Iterable[BrokerImage], id_name: str, listener: str) -> list[dict[str, Any]]:
    """Where to reach them, as those are told who came to this listener."""
    return [
        {
            id_name: one.node,
            "host": one.at(listener).host,
            "port": one.at(listener).port,
            "rack": one.rack,
            "is_fenced": one.fenced,
        }
        for one in known
        if not listener or listener in one.listeners
    ]


def describe_cluster(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The nodes, and which of them decides."""
    fenced_too = getattr(request, "include_fenced_brokers", False)
    known = [one for one in broker.image.brokers.values() if fenced_too or not one.fenced]
    return {
        "error_message": None,
        "endpoint_type": getattr(request, "endpoint_type", 1),
        "cluster_id": broker.identity.cluster_id,
        "controller_id": broker.active_controller,
        "brokers": _brokers(known, "broker_id", context.client.listener),
        "cluster_authorized_operations": _cluster_operations(request, context),
    }


def _cluster_operations(request: Any, context: Request) -> int:
    wanted = getattr(request, "include_cluster_authorized_operations", False)
    return context.operations(Kind.CLUSTER) if wanted else NO_OPERATIONS


async def metadata(
    described: DescribedTopics, broker: Broker, request: Any, context: Request
) -> dict[str, Any]:
    """The nodes, and the topics asked for; those that are missing are made, if that is allowed."""
    # "All" is null; in version 0, which has no null, it is an empty list.
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    asked_of = None if wants_all else request.topics
    await broker.leader_doubts.settled(lambda node: _names(broker.image, asked_of, node))
    described.forget_gone(broker.image)
    topics: list[Encoded | dict[str, Any]] = []
    create = broker.config.auto_create_topics_enable and getattr(request, "allow_auto_topic_creation", True)
    tells_operations = getattr(request, "include_topic_authorized_operations", False)
    for count, asked in enumerate(list(broker.image.topics.values()) if wants_all else request.topics, 1):
        if count % _AT_ONCE == 0:
            await asyncio.sleep(0)  # others get their turn
        if wants_all and not context.may(Kind.TOPIC, asked.name):
            continue
        try:
            topic = asked if wants_all else await _asked(broker, context, asked, create)
            operations = context.operations(Kind.TOPIC, topic.name) if tells_operations else NO_OPERATIONS
            topics.append(await described.describe(broker.image, topic, context.version, operations))
        except BrokerError as error:
            topic_id = getattr(asked, "topic_id", None)
            topics.append({"error_code": error.code, "name": asked.name or "", "topic_id": topic_id})
    now, told = broker.host.clock.monotonic(), broker.fenced_brokers
    tells_fenced = told.are_for(context.client.software, names_topics=bool(request.topics))
    known = [
        one
        for one in broker.image.brokers.values()
        if not one.fenced or (tells_fenced and told.is_told(one.node, now))
    ]
    return {
        "brokers": _brokers(known, "node_id", context.client.listener),
        "cluster_id": broker.identity.cluster_id,
        "controller_id": broker.active_controller,
        "topics": topics,
        "cluster_authorized_operations": _cluster_operations(request, context),
    }


def _names(image: ClusterImage, asked_of: Sequence[Any] | None, node: NodeId) -> bool:
    """Whether a node leads any partition of the topics asked of; None is all topics."""
    if asked_of is None or not image.led.get(node):
        return bool(image.led.get(node))
    found = (_find(image, asked.name, getattr(asked, "topic_id", None)) for asked in asked_of)
    return any(one.leader == node for topic in found if topic is not None for one in topic.partitions)


def _find(image: ClusterImage, name: str | None, topic_id: UUID | None) -> TopicImage | None:
    if name is not None:
        return image.topics.get(name)
    return image.topics_by_id.get(topic_id) if topic_id is not None else None


async def _asked(broker: Broker, context: Request, asked: Any, create: bool) -> TopicImage:
    name: str | None = asked.name
    topic_id: UUID | None = getattr(asked, "topic_id", None)
    topic = _find(broker.image, name, topic_id)
    if name is not None:
        context.require(Kind.TOPIC, name)
    elif topic is not None and not context.may(Kind.TOPIC, topic.name):
        raise UnknownTopicId(topic_id)  # its name is not the client's to know
    if topic is not None:
        return topic
    if name is None:
        raise UnknownTopicId(topic_id)
    if problem := topic_name_problem(name):
        raise InvalidTopic(problem)
    if not create or name in INTERNAL_TOPICS:
        raise UnknownTopicOrPartition(name)
    require_create(context.access, name)
    return await _create_missing(broker, name)


async def _create_missing(broker: Broker, name: str) -> TopicImage:
    try:
        await create_topic(broker, NewTopic(name=name, config={}))
    except TopicAlreadyExists:
        pass  # another client was quicker
    topic = broker.image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(name)  # and yet another has deleted it meanwhile
    return topic


async def create_topics(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    answers = []
    times_named = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        answer: dict[str, Any] = {"name": topic.name, "error_message": None}
        try:
            require_create(context.access, topic.name)
            if times_named[topic.name] > 1:
                raise InvalidRequest(f"{topic.name!r} is named twice in this request")
            if topic.name in MADE_BY_HAND and topic.configs:
                raise InvalidRequest(f"the settings of {topic.name} are the cluster's own")
            wanted = NewTopic(
                name=topic.name,
                partitions=topic.num_partitions,
                replication=topic.replication_factor,
                assignment={a.partition_index: a.broker_ids for a in topic.assignments} or None,
                config={config.name: config.value for config in topic.configs},
                internal=topic.name in MADE_BY_HAND,
            )
            if request.validate_only:
                created = decisions.create_topic(
                    broker.image, wanted, broker.host.new_id(), defaults_of(broker)
                )
            else:
                created = await create_topic(broker, wanted)
            if context.access.may(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, topic.name):
                answer |= _describe_created(broker, created, validate_only=request.validate_only)
            else:
                answer |= {
                    "topic_id": None if request.validate_only else UUID(created.id),
                    "topic_config_error_code": TopicAuthorizationFailed.code,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "configs": (),
                }
        except BrokerError as error:
            answer |= {"error_code": error.code, "error_message": str(error)}
            answer |= {"num_partitions": -1, "replication_factor": -1, "configs": None}
        answers.append(answer)
    return {"topics": answers}


def _describe_created(broker: Broker, created: TopicCreated, *, validate_only: bool) -> dict[str, Any]:
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
            if name is not None:
                context.require(Kind.TOPIC, name)
            elif (known := _find(broker.image, None, topic_id)) is not None:
                _judge_delete(context, topic_id, known.name)
            judge = partial(_judge_delete, context, topic_id)
            deleted = await delete_topic(broker, name, topic_id, judge)
            answer |= {"name": deleted.name, "topic_id": deleted.id}
        except BrokerError as error:
            answer |= {"error_code": error.code, "error_message": str(error)}
        answers.append(answer)
    return {"responses": answers}


def _judge_delete(context: Request, topic_id: UUID | None, name: str) -> None:
    """Let the client delete the topic, or raise the error that it gets; of an id it is told no name."""
    if not context.may(Kind.TOPIC, name):
        raise TopicAuthorizationFailed(
            f"{context.access.principal} may not delete the topic {topic_id or name}"
        )


async def create_partitions(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    answers = []
    for topic in request.topics:
        answer: dict[str, Any] = {"name": topic.name, "error_message": None}
        assignment = None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
        name, count = topic.name, topic.count
        try:
            context.require(Kind.TOPIC, name)
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
