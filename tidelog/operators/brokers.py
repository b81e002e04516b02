"""Brokers: listed, drained, stopped and removed, whichever node is asked.

Rule 1: what the cluster knows of its brokers every node knows; so a list asks nobody.
Rule 2: a stop is told to the node that is meant over the link between nodes, and it says itself
        that it stops.
"""

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from tidelog.broker.broker import Broker
from tidelog.cluster.messages import StopAnswer, StopNode
from tidelog.controller import moves as planning
from tidelog.errors import (
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    InvalidRequest,
    LeaderNotAvailable,
    error_of,
)
from tidelog.kafka import reassignments
from tidelog.model import NodeId
from tidelog.operators.moves import Planned, cordon, start
from tidelog.operators.values import LIMIT, LISTED_MAX, Limit, Natural, NodeNumber, Place
from tidelog.operators.verbs import ALTER_CLUSTER, DESCRIBE_CLUSTER, Http, Verb, at_controller
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

_log = logging.getLogger(__name__)

STOP_SECONDS_MAX: Final = 5.0


class BrokerShown(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as the cluster knows it."""

    id: int
    kafka: str
    http: str | None
    peer: str | None
    listeners: dict[str, str]
    """Where clients of further listeners connect, by the listener's name."""
    rack: str | None
    fenced: bool
    shutting_down: bool
    cordoned: bool
    broker_epoch: int
    disk_full: bool | None
    """Whether its disk is full, as far as this node knows."""
    out_of_files: bool | None
    """Whether it can open no more files, likewise."""
    leads: int
    holds: int


class ListBrokers(msgspec.Struct, frozen=True, kw_only=True):
    limit: Limit = LIMIT
    after: Annotated[Natural | None, Meta(description="Begin after this id: the `next` before.")] = None


class Brokers(msgspec.Struct, frozen=True, kw_only=True):
    controller: int | None
    brokers: list[BrokerShown]
    next: int | None


class OneBroker(msgspec.Struct, frozen=True, kw_only=True):
    id: NodeNumber


class DrainWanted(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker is drained; `undo` lets it get replicas again, and stops no move."""

    id: NodeNumber
    dry_run: bool = False
    undo: bool = False
    throttle_bytes_per_second: Natural | None = None


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    cordoned: bool
    plan: Planned | None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    removed: bool


class StopWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a stop: nothing."""

    id: NodeNumber


class StopHere(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a stop."""

    node: int | None = None
    """Whom the sender means; another node does not stop."""


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    stopping: bool
    unavailable: list[Place]
    """Of what no other replica is in sync: away while the broker is. Up to 1,000."""


class StoppingHere(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    stopping: bool


# Looking.


async def list_brokers(desk: "Desk", asked: ListBrokers) -> Brokers:
    after, limit = asked.after, asked.limit
    found = [one for one in brokers_of(desk.broker) if after is None or one.id > after]
    return Brokers(
        controller=desk.broker.member.quorum.raft.leader,
        brokers=found[:limit],
        next=found[limit - 1].id if len(found) > limit else None,
    )


async def describe_broker(desk: "Desk", asked: OneBroker) -> BrokerShown:
    node = _known(desk.broker, asked.id)
    return next(one for one in brokers_of(desk.broker) if one.id == node)


def _known(broker: Broker, node: NodeId) -> NodeId:
    """The broker that is meant, if there is one."""
    if node not in broker.image.brokers:
        raise error_of(
            BrokerIdNotRegistered.code, f"there is no broker {node}; /v1/brokers lists those that there are"
        )
    return node


def brokers_of(broker: Broker) -> list[BrokerShown]:
    """Every broker that the cluster knows, fenced ones too, by id."""
    image = broker.image
    return [
        BrokerShown(
            id=node,
            kafka=str(known.kafka),
            http=None if known.http is None else str(known.http),
            peer=str(known.peer) if known.peer.port else None,
            listeners={name: str(at) for name, at in known.listeners.items()},
            rack=known.rack,
            fenced=known.fenced,
            shutting_down=known.shutting_down,
            cordoned=image.is_cordoned(node),
            broker_epoch=known.broker_epoch,
            disk_full=is_full,
            out_of_files=lacks_files,
            leads=len(image.led.get(node, ())),
            holds=len(image.held.get(node, ())),
        )
        for node, known in sorted(image.brokers.items())
        for is_full, lacks_files in (_shortages(broker, node),)
    ]


def _shortages(broker: Broker, node: NodeId) -> tuple[bool | None, bool | None]:
    """Whether its disk is full, and whether it can open no more files; None if nobody said."""
    if node == broker.node_id:
        return broker.room.is_full, broker.room.lacks_files
    reports = broker.controller.controller.reports
    if reports.age(node, broker.host.clock.monotonic()) is None:
        return None, None
    lacks_files = reports.lacks_files(node)
    return reports.is_full(node) and not lacks_files, lacks_files


# Draining.


async def drain(desk: "Desk", asked: DrainWanted) -> Drained:
    node = _known(desk.broker, asked.id)
    if asked.undo:
        if asked.dry_run or asked.throttle_bytes_per_second is not None:
            raise InvalidRequest("undo goes with neither dry_run nor throttle_bytes_per_second")
        if not await cordon(desk, node, is_cordoned=False):
            raise BrokerNotAvailable(f"broker {node} does not run, and cannot be told; start it first")
        return Drained(node=node, cordoned=False, plan=None)
    plan = await start(
        desk,
        partial(planning.drain, nodes=[node]),
        drain=[node],
        dry_run=asked.dry_run,
        throttle=asked.throttle_bytes_per_second,
    )
    is_cordoned = node not in plan.uncordoned
    if asked.dry_run:
        is_cordoned = desk.broker.image.is_cordoned(node)
    return Drained(node=node, cordoned=is_cordoned, plan=plan)


# Going.


async def stop(desk: "Desk", asked: StopWanted) -> Stopping:
    broker = desk.broker
    node = _known(broker, asked.id)
    if broker.image.brokers[node].fenced and node != broker.node_id:
        raise BrokerNotAvailable(f"broker {node} is down or unreachable (fenced)")
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
        told = await broker.member.hub.ask(node, StopNode(), StopAnswer, seconds_max=STOP_SECONDS_MAX)
    except (PeerUnreachable, PeerRefused) as error:
        raise LeaderNotAvailable(
            f"broker {node} does not answer: {error}. Send SIGTERM to it on its machine"
        ) from error
    return Stopping(node=told.node, stopping=True, unavailable=unavailable)


async def stop_node(desk: "Desk", asked: StopHere) -> StoppingHere:
    """As SIGTERM does."""
    me = desk.broker.node_id
    if asked.node not in (None, me):
        raise InvalidRequest(f"this is node {me}, not {asked.node}; nothing was stopped")
    _log.info("an operator asks this node to stop")
    desk.broker.on_stop_asked()
    return StoppingHere(node=me, stopping=True)


async def remove(desk: "Desk", asked: OneBroker) -> Removed:
    node = _known(desk.broker, asked.id)
    await reassignments.unregister(desk.broker, node)
    return Removed(node=node, removed=True)


_GONE: Final = "There is no such broker."
_PATH: Final = "/v1/brokers/{id:int}"

VERBS: Final = (
    Verb(
        name="brokers.list",
        do=list_brokers,
        permission=DESCRIBE_CLUSTER,
        summary="List all brokers of the cluster, fenced ones too.",
        http=Http("GET", "/v1/brokers"),
    ),
    Verb(
        name="brokers.describe",
        do=describe_broker,
        permission=DESCRIBE_CLUSTER,
        summary="Describe a broker.",
        http=Http("GET", _PATH, errors={404: _GONE}),
    ),
    Verb(
        name="brokers.drain",
        do=drain,
        where=at_controller,
        permission=ALTER_CLUSTER,
        summary="Move all replicas off a broker, and place no new ones there.",
        http=Http(
            "POST",
            f"{_PATH}/drain",
            errors={404: _GONE, 409: "It does not run, and cannot be told that it is drained no more."},
            statuses={BrokerNotAvailable.code: 409},
        ),
    ),
    Verb(
        name="brokers.stop",
        do=stop,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Stop a broker cleanly, as SIGTERM does; any node takes the request.",
        http=Http(
            "POST",
            f"{_PATH}/stop",
            status=202,
            errors={404: _GONE, 409: "It is down or unreachable (fenced)."},
            statuses={BrokerNotAvailable.code: 409},
        ),
    ),
    Verb(
        name="brokers.stop_here",
        do=stop_node,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        needs_cluster=False,
        summary="Stop this node cleanly, as SIGTERM does.",
        http=Http(
            "POST",
            "/v1/broker/stop",
            id="operations_stop_node",
            status=202,
            errors={409: "Another node is meant."},
            statuses={InvalidRequest.code: 409},
        ),
    ),
    Verb(
        name="brokers.remove",
        do=remove,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Remove a drained and stopped broker from the cluster.",
        http=Http(
            "DELETE",
            _PATH,
            errors={404: _GONE, 409: "It runs, holds replicas or votes in the quorum."},
            statuses={InvalidRequest.code: 409},
        ),
    ),
)
