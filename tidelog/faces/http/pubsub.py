"""Pub/sub over HTTP: messages to whoever listens now, by topic or by pattern."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec

from tidelog.faces.http.api import EVENTS, Call, Operation, Param, tagged
from tidelog.faces.http.edge.messages import Request, Send
from tidelog.faces.http.permissions import DESCRIBE_CLUSTER, PUBLISHES, SUBSCRIBES, require_listening
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.push import Event, EventStream, Feed, push_to_socket
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_of
from tidelog.services.pubsub import name_problem

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
        require_listening(call.access, one)
    return list(dict.fromkeys(patterns))


@contextmanager
def _listening(call: Call, patterns: list[str], feed: Feed) -> Iterator[None]:
    """Inside, what is told goes into the feed: from before the client hears that it listens."""
    pubsub, access = call.node.services.pubsub, call.access

    def hear(topic: str, data: bytes) -> bool:
        if not SUBSCRIBES.is_met(access, topic):
            return True  # it is not for this client, and others may be
        return feed.offer(Event(b'{"topic":%s,"data":%s}' % (msgspec.json.encode(topic), data), CURSOR))

    for one in patterns:
        pubsub.subscribe(one, hear)
    try:
        yield
    finally:
        for one in patterns:
            pubsub.unsubscribe(one, hear)


class _Events(EventStream):
    """What is heard while the answer is sent."""

    def __init__(self, call: Call, patterns: list[str]) -> None:
        feed = Feed(CURSOR)
        super().__init__(call.node, feed, Feed.over)
        self._listening = partial(_listening, call, patterns, feed)

    async def write(self, request: Request, send: Send) -> None:
        with self._listening():
            await super().write(request, send)


async def subscribe_events(call: Call) -> EventStream:
    return _Events(call, _patterns(call))


async def subscribe_socket(call: Call) -> None:
    patterns, feed = _patterns(call), Feed(CURSOR)
    with _listening(call, patterns, feed):
        await push_to_socket(call.node, socket_of(call), feed, Feed.over)


PARAMS: Final = (
    Param(
        name="topics",
        doc="Topics or patterns between commas: `*` is one word between dots, `#` all that follow.",
    ),
)

OPERATIONS: Final = tagged(
    "pub/sub",
    Operation(
        "GET", "/v1/pubsub/stats", stats, "Count the subscribers at all nodes.", needs=DESCRIBE_CLUSTER
    ),
    Operation(
        "POST",
        "/v1/pubsub/{topic}",
        publish,
        "Publish a message to all present subscribers; nothing is kept.",
        body=Told,
        needs=(PUBLISHES,),
    ),
    Operation(
        "GET",
        "/v1/pubsub",
        subscribe_events,
        "Subscribe to topics or patterns, by server-sent events.",
        params=PARAMS,
        answer=Said,
        media_type=EVENTS,
        needs=(SUBSCRIBES,),
    ),
    Operation(
        WEB_SOCKET,
        "/v1/pubsub",
        subscribe_socket,
        "Subscribe to topics or patterns, over a WebSocket.",
        params=PARAMS,
        answer=Said,
        needs=(SUBSCRIBES,),
    ),
)
