"""Topics: listed, described, created, changed and deleted.

Rule 1: what is decided is decided on the newest metadata, whichever node is asked.
Rule 2: a change of several things is one decision: all of it is done, or nothing.
Rule 3: an answer has a topic's facts and not its partitions, which may be very many: the HTTP face
        sends those in slices (`faces/http/topics.py`).
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from tidelog.broker.broker import Broker
from tidelog.broker.topics import create_topic, delete_topic
from tidelog.config import TOPIC_SETTINGS, TopicConfig, topic_config
from tidelog.controller import decisions
from tidelog.controller.decisions import NewTopic
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.records import MetadataRecord
from tidelog.errors import ConfigError, InvalidConfig
from tidelog.log.directory import encode_id
from tidelog.model import INTERNAL_TOPICS
from tidelog.operators.values import LIMIT, After, Limit, page_shown
from tidelog.operators.verbs import DESCRIBE_TOPICS, Http, Permission, Verb
from tidelog.security.permissions import Kind, Operation

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Setting: TypeAlias = str | bool | int | float
"""A value as JSON has it, or as its text."""


class ListTopics(msgspec.Struct, frozen=True, kw_only=True):
    limit: Limit = LIMIT
    after: After = None


class OneTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: str


class TopicWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topic to be made; what it does not say, the cluster's settings do."""

    name: str
    partitions: Count | None = None
    replication: Count | None = None
    config: dict[str, Setting] = msgspec.field(default_factory=dict)


class TopicChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What shall be different."""

    partitions: Count | None = None
    """How many there shall be; never fewer than there are."""
    config: dict[str, Setting | None] = msgspec.field(default_factory=dict)
    """Settings; null takes one back to the cluster's default."""


class ChangeTopic(TopicChange, frozen=True, kw_only=True):
    topic: str


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
    """The settings that it has of its own; none for who may not see them."""


class TopicList(msgspec.Struct, kw_only=True):
    topics: list[TopicListed]
    next: str | None
    """Give this as `after` for those that follow; null if there are none."""


class TopicDropped(msgspec.Struct, kw_only=True):
    name: str
    deleted: bool = True


async def list_topics(desk: "Desk", asked: ListTopics) -> TopicList:
    topics = desk.broker.image.topics
    names, following = await page_shown(
        topics, limit=asked.limit, after=asked.after, shows=partial(desk.shows, DESCRIBE_TOPICS)
    )
    return TopicList(topics=[_listed(desk, topics[name]) for name in names], next=following)


async def describe_topic(desk: "Desk", asked: OneTopic) -> TopicListed:
    return _listed(desk, decisions.find_topic(desk.broker.image, asked.topic))


async def make_topic(desk: "Desk", asked: TopicWanted) -> TopicListed:
    new = NewTopic(
        name=asked.name,
        partitions=asked.partitions or -1,
        replication=asked.replication or -1,
        config={name: _text(value) for name, value in asked.config.items()},
    )
    await create_topic(desk.broker, new)
    return _listed(desk, decisions.find_topic(desk.broker.image, asked.name))


async def change_topic(desk: "Desk", asked: ChangeTopic) -> TopicListed:
    broker = desk.broker
    await broker.metadata.change(lambda image: _change(broker, image, asked))
    await broker.acted()
    return _listed(desk, decisions.find_topic(broker.image, asked.topic))


async def drop_topic(desk: "Desk", asked: OneTopic) -> TopicDropped:
    topic = await delete_topic(desk.broker, asked.topic, None)
    return TopicDropped(name=topic.name)


def _change(broker: Broker, image: ClusterImage, asked: ChangeTopic) -> list[MetadataRecord]:
    topic = decisions.find_topic(image, asked.topic)
    records: list[MetadataRecord] = []
    if asked.partitions is not None and asked.partitions != len(topic.partitions):
        records.append(decisions.add_partitions(image, asked.topic, asked.partitions, None))
    if asked.config:
        defaults = broker.config.topic_defaults
        changed = decisions.change_topic_config(
            image, name=asked.topic, config=_merged(topic.config, asked.config), defaults=defaults
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


def _listed(desk: "Desk", topic: TopicImage) -> TopicListed:
    return TopicListed(
        name=topic.name,
        id=encode_id(topic.id),
        partition_count=len(topic.partitions),
        replication=topic.partitions[0].replication,
        internal=topic.name in INTERNAL_TOPICS,
        config=topic.config if desk.shows(_SEES_SETTINGS, topic.name) else {},
    )


_SEES_SETTINGS: Final = Permission(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, is_of_each=True)
PATH: Final = "/v1/topics/{topic}"
UNKNOWN: Final = {404: "There is no such topic."}

VERBS: Final = (
    Verb(
        name="topics.list",
        do=list_topics,
        permission=DESCRIBE_TOPICS,
        summary="List the topics by name, a page at a time.",
        http=Http("GET", "/v1/topics"),
    ),
    Verb(
        name="topics.describe",
        do=describe_topic,
        permission=Permission(Operation.DESCRIBE, Kind.TOPIC, "topic"),
        summary="Describe a topic.",
    ),
    Verb(
        name="topics.create",
        do=make_topic,
        permission=Permission(Operation.CREATE, Kind.TOPIC, "name", or_cluster=True),
        summary="Create a topic.",
    ),
    Verb(
        name="topics.change",
        do=change_topic,
        permission=Permission(Operation.ALTER, Kind.TOPIC, "topic"),
        also=Permission(Operation.ALTER_CONFIGS, Kind.TOPIC, "topic"),
        is_dangerous=True,
        summary="Add partitions to a topic, or change its settings.",
    ),
    Verb(
        name="topics.delete",
        do=drop_topic,
        permission=Permission(Operation.DELETE, Kind.TOPIC, "topic"),
        is_dangerous=True,
        summary="Delete a topic and all of its records.",
        http=Http("DELETE", PATH, errors=UNKNOWN),
    ),
)
