"""Brokers: listed, drained, stopped and removed, whichever node is asked.

Rule 1: what the cluster knows of its brokers every node knows; so a list asks nobody.
Rule 2: a stop is told to the node that is meant over the link between nodes, and it says itself
        that it stops.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Final

import msgspec
from kio.schema.errors import ErrorCode

from tidelog.client import moves
from tidelog.client.cluster import Refused
from tidelog.client.moves import Make, Plan, Targets
from tidelog.cluster.messages import StopAnswer, StopNode
from tidelog.controller.moves import Layout
from tidelog.faces.http.admin.asking import (
    LISTED_MAX,
    Natural,
    Place,
    RefusedPlace,
    operator,
)
from tidelog.faces.http.api import Call, Operation, Param
from tidelog.faces.http.cluster import BrokerShown, brokers_of
from tidelog.faces.http.paging import LIMIT
from tidelog.faces.http.problems import Problem
from tidelog.model import NodeId
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

TAG: Final = "brokers"
STOP_SECONDS_MAX: Final = 5.0


class Brokers(msgspec.Struct, frozen=True, kw_only=True):
    controller: int | None
    brokers: list[BrokerShown]
    next: int | None


class DrainWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a broker is drained; `undo` lets it get replicas again, and stops no move."""

    dry_run: bool = False
    undo: bool = False
    throttle_bytes_per_second: Natural | None = None


class PlannedPlace(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    replicas: list[int]
    """Who shall hold it, the preferred leader first."""


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Replicas that move, or would; a plan that `POST /v1/reassignments` takes."""

    partitions: list[PlannedPlace]
    copies: int
    """Replicas that must be copied."""
    dry_run: bool
    refused: list[RefusedPlace]
    uncordoned: list[int] = []
    """Brokers that are drained and do not run, so that they cannot be told."""


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    cordoned: bool
    plan: Planned | None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    removed: bool


class StopWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a stop: nothing."""


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    stopping: bool
    unavailable: list[Place]
    """Of what no other replica is in sync: away while the broker is. Up to 1,000."""


# Looking.


async def list_brokers(call: Call) -> Brokers:
    after, limit = call["after"], call["limit"]
    found = [one for one in brokers_of(call.broker) if after is None or one.id > after]
    return Brokers(
        controller=call.broker.member.quorum.raft.leader, brokers=found[:limit],
        next=found[limit - 1].id if len(found) > limit else None,
    )  # fmt: skip


async def describe_broker(call: Call) -> BrokerShown:
    node = _known(call)
    return next(one for one in brokers_of(call.broker) if one.id == node)


def _known(call: Call) -> NodeId:
    """The broker that the path names, if there is one."""
    node: NodeId = call.path["id"]
    if node not in call.broker.image.brokers:
        raise Problem(404, f"there is no broker {node}; /v1/brokers lists those that there are")
    return node


# Draining.


async def drain(call: Call) -> Drained:
    node, wanted = _known(call), call.body
    assert isinstance(wanted, DrainWanted)
    client = operator(call)
    if wanted.undo:
        if wanted.dry_run or wanted.throttle_bytes_per_second is not None:
            raise Problem(400, "undo goes with neither dry_run nor throttle_bytes_per_second")
        if not await moves.cordon(client, node, is_cordoned=False):
            raise Problem(409, f"broker {node} does not run, and cannot be told; start it first")
        return Drained(node=node, cordoned=False, plan=None)
    plan = await moves.start(
        client, partial(moves.best, drain=[node]), drain=[node], dry_run=wanted.dry_run,
        throttle=wanted.throttle_bytes_per_second, think=thinking(call),
    )  # fmt: skip
    is_cordoned = node not in plan.uncordoned
    if wanted.dry_run:
        is_cordoned = call.broker.image.is_cordoned(node)
    return Drained(
        node=node, cordoned=is_cordoned,
        plan=show_plan(plan, dry_run=wanted.dry_run),
    )  # fmt: skip


def thinking(call: Call) -> Callable[[Make, Layout], Awaitable[Targets]]:
    """Makes plans in a thread: with very many partitions that takes longer than others wait."""
    offload = call.broker.host.offload
    return lambda make, layout: offload.run(partial(make, layout))


def show_plan(plan: Plan, *, dry_run: bool) -> Planned:
    return Planned(
        partitions=[
            PlannedPlace(topic=name.topic, partition=name.partition, replicas=list(target))
            for name, target in sorted(plan.targets.items())
        ],
        copies=sum(plan.copies().values()), dry_run=dry_run,
        refused=[
            RefusedPlace(topic=name.topic, partition=name.partition, error=str(error))
            for name, error in plan.refused.items()
        ],
        uncordoned=list(plan.uncordoned),
    )  # fmt: skip


# Going.


async def stop(call: Call) -> Stopping:
    node, broker = _known(call), call.broker
    if broker.image.brokers[node].fenced and node != broker.node_id:
        raise Problem(409, f"broker {node} is fenced: it does not run, or nobody can reach it")
    # Before it is asked: the image changes while it answers.
    unavailable = list(
        islice(
            (
                Place(topic=place.topic.name, partition=place.number)
                for place in broker.image.held.get(node, {}).values()
                if place.partition.in_sync == {node}
            ),
            LISTED_MAX,
        )
    )
    try:
        told = await broker.member.hub.ask(
            node, StopNode(), StopAnswer, seconds_max=STOP_SECONDS_MAX
        )
    except (PeerUnreachable, PeerRefused) as error:
        raise Problem(
            503, f"broker {node} does not answer: {error}. Send SIGTERM to it on its machine",
            headers={"retry-after": "1"},
        ) from error  # fmt: skip
    return Stopping(node=told.node, stopping=True, unavailable=unavailable)


async def remove(call: Call) -> Removed:
    node = _known(call)
    try:
        await operator(call).unregister_broker(node)
    except Refused as error:
        if error.code != ErrorCode.invalid_request:
            raise
        raise Problem(409, str(error), code=error.code) from None
    return Removed(node=node, removed=True)


_GONE: Final = "There is no such broker."
_PATH: Final = "/v1/brokers/{id:int}"

OPERATIONS: Final = (
    Operation(
        method="GET", path="/v1/brokers", handler=list_brokers, tag=TAG, answer=Brokers,
        params=(
            LIMIT,
            Param(name="after", kind=int, least=0, doc="Begin after this id: the `next` before."),
        ),
        summary="Every broker that the cluster knows, fenced ones too.",
    ),
    Operation(
        method="GET", path=_PATH, handler=describe_broker, tag=TAG, answer=BrokerShown,
        summary="One broker.", errors={404: _GONE},
    ),
    Operation(
        method="POST", path=f"{_PATH}/drain", handler=drain, tag=TAG, body=DrainWanted,
        answer=Drained,
        summary="Let other brokers hold all that this one holds, and give it nothing new.",
        errors={404: _GONE, 409: "It does not run, and cannot be told that it is drained no more."},
    ),
    Operation(
        method="POST", path=f"{_PATH}/stop", handler=stop, tag=TAG, body=StopWanted,
        answer=Stopping, status=202,
        summary="Stop a broker in order, wherever it runs, as SIGTERM on its machine does.",
        errors={404: _GONE, 409: "It is fenced: it does not run, or nobody can reach it."},
    ),
    Operation(
        method="DELETE", path=_PATH, handler=remove, tag=TAG, answer=Removed,
        summary="Let the cluster forget a broker that is drained and stopped.",
        errors={404: _GONE, 409: "It runs, holds replicas or votes in the quorum."},
    ),
)  # fmt: skip
