"""Topics over HTTP: listed, made, described, changed and deleted.

Rule 1: what is decided is decided on the newest metadata, whichever node is asked.
Rule 2: a change of several things is one decision: all of it is done, or nothing.
"""

import asyncio
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from tidelog.broker.broker import Broker
from tidelog.broker.topics import create_topic, delete_topic
from tidelog.config import TOPIC_SETTINGS, TopicConfig, topic_config
from tidelog.controller import decisions
from tidelog.controller.decisions import NewTopic
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.records import MetadataRecord
from tidelog.errors import ConfigError, InvalidConfig
from tidelog.faces.http.api import JSON, Call, Operation, tagged
from tidelog.faces.http.edge.messages import Response
from tidelog.faces.http.paging import AFTER, LIMIT, page
from tidelog.log.directory import encode_id
from tidelog.model import INTERNAL_TOPICS, NO_NODE

SLICE: Final = 500
"""Partitions between two breaths: a third of a millisecond."""

_encode: Final = msgspec.json.Encoder().encode

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Setting: TypeAlias = str | bool | int | float
"""A value as JSON has it, or as its text."""


class TopicWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic to be made; what it does not say, the cluster's settings do."""

    name: str
    partitions: Count | None = None
    replication: Count | None = None
    config: dict[str, Setting] = msgspec.field(default_factory=dict)


class TopicChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What shall be different."""

    partitions: Count | None = None
    """How many there shall be; never fewer than there are."""
    config: dict[str, Setting | None] = msgspec.field(default_factory=dict)
    """Settings; null takes one back to the cluster's default."""


class TopicListed(msgspec.Struct, kw_only=True):
    """A topic in a list."""

    name: str
    id: str
    """As Kafka writes it."""
    partition_count: int
    replication: int
    internal: bool
    """Whether it is the cluster's own."""
    config: dict[str, str]
    """The settings that it has of its own."""


class TopicList(msgspec.Struct, kw_only=True):
    topics: list[TopicListed]
    next: str | None
    """Give this as `after` for those that follow; null if there are none."""


class PartitionDescribed(msgspec.Struct, kw_only=True):
    """Who has a partition."""

    partition: int
    leader: int | None
    epoch: int
    replicas: list[int]
    in_sync: list[int]


class TopicDescribed(TopicListed, kw_only=True):
    """A topic and all of its partitions."""

    partitions: list[PartitionDescribed]


class TopicDropped(msgspec.Struct, kw_only=True):
    name: str
    deleted: bool = True


async def list_topics(call: Call) -> TopicList:
    topics = call.broker.image.topics
    names, following = page(topics, limit=call["limit"], after=call["after"])
    return TopicList(topics=[_listed(topics[name]) for name in names], next=following)


async def make_topic(call: Call) -> Response:
    wanted: TopicWanted = call.body
    new = NewTopic(
        name=wanted.name,
        partitions=wanted.partitions or -1,
        replication=wanted.replication or -1,
        config={name: _text(value) for name, value in wanted.config.items()},
    )
    await create_topic(call.broker, new)
    location = {"location": f"/v1/topics/{quote(wanted.name)}"}
    return Response(await _described(call, wanted.name), 201, headers=location, media_type=JSON)


async def describe_topic(call: Call) -> Response:
    return Response(await _described(call, call.path["topic"]), media_type=JSON)


async def change_topic(call: Call) -> Response:
    wanted: TopicChange = call.body
    broker, name = call.broker, call.path["topic"]
    await broker.metadata.change(lambda image: _change(broker, image, name, wanted))
    await broker.acted()
    return Response(await _described(call, name), media_type=JSON)


async def drop_topic(call: Call) -> TopicDropped:
    topic = await delete_topic(call.broker, call.path["topic"], None)
    return TopicDropped(name=topic.name)


def _change(broker: Broker, image: ClusterImage, name: str, wanted: TopicChange) -> list[MetadataRecord]:
    topic = decisions.find_topic(image, name)
    records: list[MetadataRecord] = []
    if wanted.partitions not in (None, len(topic.partitions)):
        assert wanted.partitions is not None
        records.append(decisions.add_partitions(image, name, wanted.partitions, None))
    if wanted.config:
        defaults = broker.config.topic_defaults
        changed = decisions.change_topic_config(
            image, name=name, config=_merged(topic.config, wanted.config), defaults=defaults
        )
        records += [changed, *decisions.eligible_after(image, changed, defaults)]
    return records


def _merged(before: dict[str, str], changes: dict[str, Setting | None]) -> dict[str, str]:
    after = dict(before)
    for name, value in changes.items():
        if value is not None:
            after[name] = _text(value)
        elif after.pop(name, None) is None and name not in TOPIC_SETTINGS:
            try:
                topic_config({name: ""}, TopicConfig())  # it knows which name was meant
            except ConfigError as error:
                raise InvalidConfig(str(error)) from None
    return after


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(topic: TopicImage) -> TopicListed:
    return TopicListed(**_facts(topic))


def _facts(topic: TopicImage) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": encode_id(topic.id),
        "partition_count": len(topic.partitions),
        "replication": topic.partitions[0].replication,
        "internal": topic.name in INTERNAL_TOPICS,
        "config": topic.config,
    }


async def _described(call: Call, name: str) -> bytes:
    """A `TopicDescribed`, encoded in slices: there may be very many partitions."""
    topic = await call.node.services.records.topic(name)
    parts = [_encode(TopicDescribed(**_facts(topic), partitions=[]))[: -len("]}")]]
    count = len(topic.partitions)
    for first in range(0, count, SLICE):
        some = [_partition(topic, n) for n in range(first, min(first + SLICE, count))]
        parts += [b"," if first else b"", _encode(some)[1:-1]]
        if first + SLICE < count:
            await asyncio.sleep(0)
    return b"".join([*parts, b"]}"])


def _partition(topic: TopicImage, number: int) -> PartitionDescribed:
    partition = topic.partitions[number]
    return PartitionDescribed(
        partition=number,
        leader=None if partition.leader == NO_NODE else partition.leader,
        epoch=partition.epoch,
        replicas=list(partition.replicas),
        in_sync=sorted(partition.in_sync),
    )


_UNKNOWN: Final = {404: "There is no such topic."}

OPERATIONS: Final = tagged(
    "topics",
    Operation(
        "GET", "/v1/topics", list_topics, "List the topics by name, a page at a time.", params=(LIMIT, AFTER)
    ),
    Operation(
        "POST",
        "/v1/topics",
        make_topic,
        "Create a topic.",
        body=TopicWanted,
        answer=TopicDescribed,
        status=201,
        errors={409: "There is a topic of that name."},
    ),
    Operation(
        "GET",
        "/v1/topics/{topic}",
        describe_topic,
        "Describe a topic and its partitions.",
        answer=TopicDescribed,
        errors=_UNKNOWN,
    ),
    Operation(
        "PATCH",
        "/v1/topics/{topic}",
        change_topic,
        "Add partitions to a topic, or change its settings.",
        body=TopicChange,
        answer=TopicDescribed,
        errors=_UNKNOWN,
    ),
    Operation(
        "DELETE", "/v1/topics/{topic}", drop_topic, "Delete a topic and all of its records.", errors=_UNKNOWN
    ),
)
