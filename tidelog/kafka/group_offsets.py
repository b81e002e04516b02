"""Offsets of groups as requests name them and as answers show them, in every version.

Rule: topics are named until version 9 of OffsetCommit and OffsetFetch, and have ids from then on.
"""

from collections.abc import Iterable
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.errors import BrokerError
from tidelog.groups.records import CommittedOffset
from tidelog.model import NO_EPOCH, NO_OFFSET, TopicPartition


def key_of(topic: Any) -> object:
    """How a request names a topic: by id since version 10."""
    return topic.topic_id if hasattr(topic, "topic_id") else topic.name


def topic_named(broker: Broker, topic: Any) -> tuple[object, str | None]:
    """A topic's key in the request, and its name; None for an id that nobody has."""
    key = key_of(topic)
    if not hasattr(topic, "topic_id"):
        return key, topic.name
    image = broker.image.topics_by_id.get(topic.topic_id)
    return key, None if image is None else image.name


def names_of(topic: Any) -> dict[str, Any]:
    if hasattr(topic, "topic_id"):
        return {"topic_id": topic.topic_id}
    return {"name": topic.name}


def of_topic(
    broker: Broker, place: TopicPartition, value: CommittedOffset | BrokerError | None
) -> CommittedOffset | BrokerError | None:
    """The value, unless it is of an earlier topic of the name: its deletion is on the way."""
    if not isinstance(value, CommittedOffset) or value.topic_id is None:
        return value
    image = broker.image.topics_by_id.get(value.topic_id)
    return value if image is not None and image.name == place.topic else None


def fetched(number: int, value: CommittedOffset | BrokerError | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "partition_index": number,
        "committed_offset": NO_OFFSET,
        "committed_leader_epoch": NO_EPOCH,
        "metadata": "",
    }
    if isinstance(value, BrokerError):
        answer["error_code"] = value.code
    elif value is not None:
        answer |= {
            "committed_offset": value.offset,
            "committed_leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
        }
    return answer


def refused_fetch(topics: Iterable[Any] | None, error: BrokerError) -> list[dict[str, Any]]:
    return [
        {
            **names_of(topic),
            "partitions": [
                {**fetched(number, None), "error_code": error.code} for number in topic.partition_indexes
            ],
        }
        for topic in topics or ()
    ]
