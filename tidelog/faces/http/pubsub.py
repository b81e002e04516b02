"""Pub/sub over HTTP: messages to whoever listens now, by topic or by pattern."""

from typing import Any, Final

import msgspec

from tidelog.broker.pubsub import name_problem
from tidelog.faces.http.api import EVENTS, Call, Operation, Param
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.push import Event, EventStream, Feed, Source, push_to_socket
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_of

PATTERNS_MAX: Final = 100
CURSOR: Final = "0"
"""There is no history: nobody can go on from anywhere."""


class Told(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is to be told."""

    data: msgspec.Raw


class Heard(msgspec.Struct, kw_only=True):
    topic: str
    receivers: int


class Said(msgspec.Struct, kw_only=True):
    """A message, as a subscriber hears it."""

    topic: str
    data: Any


class Subscribers(msgspec.Struct, kw_only=True):
    subscribers: int
    topics: dict[str, int]


async def publish(call: Call) -> Heard:
    name: str = call.path["topic"]
    if (problem := name_problem(name)) is not None:
        raise Problem(400, f"{name!r} cannot be a topic's name: {problem}")
    receivers = await call.node.services.pubsub.publish(name, bytes(call.body.data))
    return Heard(topic=name, receivers=receivers)


async def stats(call: Call) -> Subscribers:
    counts = await call.node.services.pubsub.all_counts()
    return Subscribers(subscribers=sum(counts.values()), topics=counts)


def _patterns(call: Call) -> list[str]:
    patterns = [one for one in (call["topics"] or "").split(",") if one]
    if not 0 < len(patterns) <= PATTERNS_MAX:
        raise Problem(400, f"topics names 1 to {PATTERNS_MAX} topics or patterns between commas")
    for one in patterns:
        if (problem := name_problem(one, is_pattern=True)) is not None:
            raise Problem(400, f"{one!r} is no topic and no pattern: {problem}")
    return list(dict.fromkeys(patterns))


def _source(call: Call, patterns: list[str], feed: Feed) -> Source:
    pubsub = call.node.services.pubsub

    def hear(topic: str, data: bytes) -> bool:
        return feed.offer(
            Event(b'{"topic":%s,"data":%s}' % (msgspec.json.encode(topic), data), CURSOR)
        )

    for one in patterns:
        pubsub.subscribe(one, hear)

    async def listen(_: Feed) -> None:
        try:
            await feed.over()
        finally:
            for one in patterns:
                pubsub.unsubscribe(one, hear)

    return listen


async def subscribe_events(call: Call) -> EventStream:
    feed = Feed(CURSOR)
    return EventStream(call.node, feed, _source(call, _patterns(call), feed))


async def subscribe_socket(call: Call) -> None:
    patterns, feed = _patterns(call), Feed(CURSOR)
    await push_to_socket(call.node, socket_of(call), feed, _source(call, patterns, feed))


PARAMS: Final = (
    Param(
        name="topics",
        doc="Topics or patterns between commas: `*` is one word between dots, `#` all that follow.",
    ),
)

OPERATIONS: Final = (
    Operation(
        method="GET", path="/v1/pubsub/stats", handler=stats, tag="pub/sub", answer=Subscribers,
        summary="How many listen, at all nodes.",
    ),
    Operation(
        method="POST", path="/v1/pubsub/{topic}", handler=publish, tag="pub/sub", body=Told,
        answer=Heard, summary="Tell everybody who listens now; nothing is kept.",
    ),
    Operation(
        method="GET", path="/v1/pubsub", handler=subscribe_events, tag="pub/sub", params=PARAMS,
        answer=Said, media_type=EVENTS, summary="Listen, by server-sent events.",
    ),
    Operation(
        method=WEB_SOCKET, path="/v1/pubsub", handler=subscribe_socket, tag="pub/sub",
        params=PARAMS, answer=Said, summary="Listen, over a WebSocket.",
    ),
)  # fmt: skip
