"""What an operator tells a node over HTTP: who shall lead a partition, and to stop.

Rule 1: what changes something takes a body of `application/json` and nothing else, which a page in
        somebody's browser cannot send without asking us first.
Rule 2: what only the active controller decides is answered with 307 and where that is.
"""

import logging
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelog.broker.broker import Broker
from tidelog.broker.promotion import Promotion, promote
from tidelog.errors import NotController
from tidelog.faces.http.api import Call, Operation
from tidelog.faces.http.problems import Problem, problem
from tidelog.model import NO_NODE, NodeId, TopicPartition

_log = logging.getLogger(__name__)


class PromoteWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a promotion."""

    node: int | None = None
    """Who shall lead; null for whoever has the longest log."""
    force: bool = False
    dry_run: bool = False


class StopWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a stop."""

    node: int | None = None
    """Whom the sender means; another node does not stop."""


class Longest(msgspec.Struct, frozen=True, kw_only=True):
    """Of the replicas that are known, the one with the longest log."""

    node: int
    end: int
    last_epoch: int


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads now, or would."""

    topic: str
    partition: int
    leader: int
    previous_leader: int | None
    epoch: int
    replicas: tuple[int, ...]
    in_sync: list[int]
    changed: bool
    clean: bool
    """It holds all that was committed."""
    end: int | None
    last_epoch: int | None
    longest: Longest | None
    high_watermark: int | None
    records_lost_max: int | None
    unknown: list[int]
    """Replicas of which nothing is known."""
    dry_run: bool


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    stopping: bool


async def promote_partition(call: Call) -> Response | Promoted:
    name = TopicPartition(call.path["topic"], call.path["partition"])
    wanted: PromoteWanted = call.body
    try:
        found = await promote(
            call.broker, name, wanted.node, force=wanted.force, dry_run=wanted.dry_run
        )
    except NotController:
        return elsewhere(call.broker, call.request)
    return describe_promotion(found, dry_run=wanted.dry_run)


def describe_promotion(found: Promotion, *, dry_run: bool) -> Promoted:
    longest = found.longest
    mine = found.known.get(found.leader)
    before, after = found.before, found.after
    return Promoted(
        topic=found.name.topic, partition=found.name.partition, leader=found.leader,
        previous_leader=_node(before.leader), epoch=after.epoch, replicas=after.replicas,
        in_sync=sorted(after.in_sync), changed=found.has_changed, clean=found.is_clean,
        end=None if mine is None else mine.end,
        last_epoch=None if mine is None else mine.last_epoch,
        longest=None if longest is None else Longest(
            node=longest, end=found.known[longest].end,
            last_epoch=found.known[longest].last_epoch,
        ),
        high_watermark=max((one.watermark for one in found.known.values()), default=None),
        records_lost_max=found.records_lost_max,
        unknown=[node for node in after.replicas if node not in found.known], dry_run=dry_run,
    )  # fmt: skip


def _node(node: NodeId) -> NodeId | None:
    return None if node == NO_NODE else node


def elsewhere(broker: Broker, request: Request) -> Response:
    """Where the active controller is to be asked."""
    request_id = request.scope["request_id"]
    controller = broker.member.quorum.raft.leader
    known = None if controller is None else broker.image.brokers.get(controller)
    if known is None or controller == broker.node_id:
        detail = "nobody is the active controller now; more than half of the voters must run"
        return problem(503, detail, request_id=request_id, headers={"retry-after": "1"})
    if known.http is None:
        detail = (
            f"the active controller, node {controller}, decides this, and has no HTTP face; give "
            "it one"
        )
        return problem(503, detail, request_id=request_id)
    location = f"http://{known.http}{quote(request.url.path)}"
    detail = f"the active controller, node {controller}, decides this"
    return problem(307, detail, request_id=request_id, headers={"location": location})


async def stop_node(call: Call) -> Stopping:
    """As SIGTERM does."""
    me, wanted = call.broker.node_id, call.body.node
    if wanted not in (None, me):
        raise Problem(409, f"this is node {me}, not {wanted}; nothing was stopped")
    _log.info("request %s asks this node to stop", call.request_id)
    call.node.want_stop()
    return Stopping(node=me, stopping=True)


OPERATIONS: Final = (
    Operation(
        method="POST", path="/v1/topics/{topic}/partitions/{partition:int}/promote",
        handler=promote_partition, tag="operations", body=PromoteWanted, answer=Promoted,
        summary="Let another replica lead.",
        errors={
            307: "Only the active controller knows; ask it, at `location`.",
            404: "There is no such partition.",
            409: "The node is not in sync, damaged or not there.",
        },
    ),
    Operation(
        method="POST", path="/v1/broker/stop", handler=stop_node, tag="operations",
        body=StopWanted, answer=Stopping, status=202, needs_cluster=False,
        summary="Stop this node in order, as SIGTERM does.",
        errors={409: "Another node is meant."},
    ),
)  # fmt: skip
