"""What an operator tells a node over HTTP: who shall lead a partition, and to stop.

Rule 1: what changes something takes a body of `application/json` and nothing else, which a page in
        somebody's browser cannot send without asking us first.
Rule 2: what only the active controller decides is answered with 307 and where that is.
"""

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelog.broker.broker import Broker
from tidelog.broker.promotion import Promotion, promote
from tidelog.errors import (
    BrokerError,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    NotController,
    UnknownTopicOrPartition,
)
from tidelog.faces.http.problems import problem
from tidelog.model import NO_NODE, NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.faces.node import Node

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

JSON: Final = "application/json"
STATUS: Final[dict[type[BrokerError], int]] = {
    UnknownTopicOrPartition: 404,
    InvalidReplicaAssignment: 400,
    EligibleLeadersNotAvailable: 409,
}
"""Any other failure is one that may pass: 503."""


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


class WrongBody(Exception):
    """The body is not what the route takes; the status and the message say what is."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def promote_partition(node: "Node", request: Request) -> Response:
    """`POST /v1/topics/{topic}/partitions/{partition}/promote`."""
    request_id = request.scope["request_id"]
    name = TopicPartition(request.path_params["topic"], request.path_params["partition"])
    try:
        wanted = await read_body(request, PromoteWanted)
        found = await promote(
            node.broker, name, wanted.node, force=wanted.force, dry_run=wanted.dry_run
        )
    except WrongBody as error:
        return problem(error.status, str(error), request_id=request_id)
    except NotController:
        return elsewhere(node.broker, request)
    except BrokerError as error:
        return problem(STATUS.get(type(error), 503), str(error), request_id=request_id)
    document = describe_promotion(found) | {"dry_run": wanted.dry_run}
    return Response(msgspec.json.encode(document), media_type=JSON)


def describe_promotion(found: Promotion) -> dict[str, Any]:
    longest = found.longest
    mine = found.known.get(found.leader)
    before, after = found.before, found.after
    return {
        "topic": found.name.topic, "partition": found.name.partition,
        "leader": found.leader, "previous_leader": _node(before.leader), "epoch": after.epoch,
        "replicas": after.replicas, "in_sync": sorted(after.in_sync),
        "changed": found.has_changed, "clean": found.is_clean,
        "end": None if mine is None else mine.end,
        "last_epoch": None if mine is None else mine.last_epoch,
        "longest": None if longest is None else {
            "node": longest, "end": found.known[longest].end,
            "last_epoch": found.known[longest].last_epoch,
        },
        "high_watermark": max((one.watermark for one in found.known.values()), default=None),
        "records_lost_max": found.records_lost_max,
        "unknown": [node for node in after.replicas if node not in found.known],
    }  # fmt: skip


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
            "it one, or name the node that shall lead"
        )
        return problem(503, detail, request_id=request_id)
    location = f"http://{known.http}{quote(request.url.path)}"
    detail = f"the active controller, node {controller}, decides this"
    return problem(307, detail, request_id=request_id, headers={"location": location})


async def stop_node(node: "Node", request: Request) -> Response:
    """`POST /v1/broker/stop`: as SIGTERM does."""
    me = node.broker.node_id
    try:
        wanted = await read_body(request, StopWanted)
        if wanted.node not in (None, me):
            raise WrongBody(409, f"this is node {me}, not {wanted.node}; nothing was stopped")
    except WrongBody as error:
        return problem(error.status, str(error), request_id=request.scope["request_id"])
    _log.info("request %s asks this node to stop", request.scope["request_id"])
    node.want_stop()
    return Response(msgspec.json.encode({"node": me, "stopping": True}), 202, media_type=JSON)


async def read_body(request: Request, kind: type[T]) -> T:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise WrongBody(415, f"send a body of content-type {JSON}; {{}} will do")
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        fields = ", ".join(field.name for field in msgspec.structs.fields(kind))
        raise WrongBody(
            400, f"the body must be a JSON object that may have {fields}: {error}"
        ) from None
