"""What of a topic's verbs is more than a row: its partitions are told, and where a new one is.

Rule: what is asked for passes the desk, as every verb does; a description is sent in slices, for
there may be very many partitions.
"""

import asyncio
from typing import Final
from urllib.parse import quote

import msgspec

from tidelog.controller.image import TopicImage
from tidelog.faces.http.api import JSON, Call, Operation, tagged
from tidelog.faces.http.edge.messages import Response
from tidelog.faces.http.verbs import perform
from tidelog.model import NO_NODE
from tidelog.operators.topics import (
    PATH,
    UNKNOWN,
    ChangeTopic,
    OneTopic,
    TopicChange,
    TopicListed,
    TopicWanted,
)

SLICE: Final = 500
"""Partitions between two breaths: a third of a millisecond."""

_encode: Final = msgspec.json.Encoder().encode


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


async def make_topic(call: Call) -> Response:
    found: TopicListed = await perform(call, "topics.create", call.body)
    location = {"location": f"/v1/topics/{quote(found.name)}"}
    return Response(await _described(call, found), 201, headers=location, media_type=JSON)


async def describe_topic(call: Call) -> Response:
    found: TopicListed = await perform(call, "topics.describe", OneTopic(topic=call.path["topic"]))
    return Response(await _described(call, found), media_type=JSON)


async def change_topic(call: Call) -> Response:
    wanted: TopicChange = call.body
    asked = ChangeTopic(topic=call.path["topic"], partitions=wanted.partitions, config=wanted.config)
    found: TopicListed = await perform(call, "topics.change", asked)
    return Response(await _described(call, found), media_type=JSON)


async def _described(call: Call, found: TopicListed) -> bytes:
    """A `TopicDescribed`, encoded in slices."""
    topic = await call.node.services.records.topic(found.name)
    facts = msgspec.structs.asdict(found)
    parts = [_encode(TopicDescribed(**facts, partitions=[]))[: -len("]}")]]
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


OPERATIONS: Final = tagged(
    "topics",
    Operation(
        "POST",
        "/v1/topics",
        make_topic,
        "Create a topic.",
        body=TopicWanted,
        answer=TopicDescribed,
        status=201,
        errors={409: "There is a topic of that name."},
        verb="topics.create",
    ),
    Operation(
        "GET",
        PATH,
        describe_topic,
        "Describe a topic and its partitions.",
        answer=TopicDescribed,
        errors=UNKNOWN,
        verb="topics.describe",
    ),
    Operation(
        "PATCH",
        PATH,
        change_topic,
        "Add partitions to a topic, or change its settings.",
        body=TopicChange,
        answer=TopicDescribed,
        errors=UNKNOWN,
        verb="topics.change",
    ),
)
