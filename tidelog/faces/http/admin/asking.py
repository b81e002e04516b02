"""The node as a client of its own cluster, and what the families of operations share.

Rule 1: whom to ask is the client's business: it finds coordinators, leaders and the controller, and
        asks again while they change.
Rule 2: a node that does not serve yet asks nobody: it would wait for itself.
"""

from collections.abc import Iterable
from dataclasses import replace
from heapq import nsmallest
from typing import Annotated, Final, TypeAlias

import msgspec

from tidelog.broker.broker import Broker
from tidelog.client.operator import OperatorClient
from tidelog.faces.http.api import UNREADY_RETRY_SECONDS, Call, Param
from tidelog.faces.http.health import why_not_ready
from tidelog.faces.http.problems import Problem
from tidelog.model import TopicPartition

CLIENT_ID: Final = "tidelog-http"
PATIENCE_SECONDS: Final = 10.0
"""An election takes a second or two; what has no leader for longer will not get one soon."""
LISTED_MAX: Final = 1000
"""What an answer lists beside its subject; all are counted."""
_HERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a node finds itself that listens everywhere."""

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
NodeNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
PartitionNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

AFTER_PLACE: Final = Param(
    name="after",
    doc="Begin after this partition, such as `orders-3`: the `next` of the page before.",
)
DRY_RUN: Final = Param(
    name="dry_run", kind=bool, default=False, doc="Check and tell the change; do not make it."
)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A partition."""

    topic: str
    partition: int


class RefusedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A partition for which it was refused, and why."""

    topic: str
    partition: int
    error: str


def operator(call: Call) -> OperatorClient:
    """Who asks the cluster for this node's HTTP clients."""
    if not call.node.is_serving:
        reason = why_not_ready(call.node) or "the node is starting"
        raise Problem(503, reason, headers={"retry-after": UNREADY_RETRY_SECONDS})
    return call.keep(_make_operator)


def _make_operator(broker: Broker) -> OperatorClient:
    at = broker.endpoint
    client = OperatorClient(
        str(replace(at, host=_HERE.get(at.host, at.host))), network=broker.host.network,
        client_id=CLIENT_ID, timeout_seconds=PATIENCE_SECONDS,
    )  # fmt: skip
    broker.on_stop(client.close)
    return client


def page_places(
    places: Iterable[TopicPartition], call: Call
) -> tuple[list[TopicPartition], str | None]:
    """The next page of partitions, in order; and what to give as `after`, if there are more."""
    limit, after = call["limit"], parse_place(call["after"])
    wanted = places if after is None else (place for place in places if place > after)
    found = nsmallest(limit + 1, wanted)
    if len(found) <= limit:
        return found, None
    return found[:limit], str(found[limit - 1])


def parse_place(text: str | None) -> TopicPartition | None:
    """The partition that `orders-3` names."""
    if text is None:
        return None
    topic, _, number = text.rpartition("-")
    if not (topic and number.isascii() and number.isdecimal() and len(number) < 10):
        raise Problem(400, f"after is {text!r}; it must be TOPIC-PARTITION, such as orders-3")
    return TopicPartition(topic, int(number))
