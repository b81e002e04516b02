"""`/health/live` and `/health/ready`: what load balancers and supervisors ask."""

from typing import Any, Final

from tidelog.faces.http.api import Call, Operation, tagged
from tidelog.faces.http.health import warning, why_not_ready
from tidelog.faces.http.permissions import FREE
from tidelog.faces.http.problems import Problem
from tidelog.security.permissions import Kind
from tidelog.security.permissions import Operation as Right


async def live(call: Call) -> dict[str, Any]:
    return {"status": "live"}


async def ready(call: Call) -> dict[str, Any]:
    reason = why_not_ready(call.node)
    if reason is not None:
        raise Problem(503, reason, headers={"retry-after": "1"})
    answer = {"status": "ready", "node": call.broker.node_id}
    may_see = call.access.may(Right.DESCRIBE, Kind.CLUSTER)
    if may_see and (detail := warning(call.node)) is not None:
        answer["detail"] = detail
    return answer


OPERATIONS: Final = tagged(
    "health",
    Operation(
        "GET",
        "/health/live",
        live,
        "Whether the process runs and its event loop responds.",
        needs_cluster=False,
        needs=FREE,
    ),
    Operation(
        "GET",
        "/health/ready",
        ready,
        "Whether the node can serve; 503 says what is missing. Also reports a full disk, and "
        "partitions that the node leads and cannot read.",
        needs_cluster=False,
        needs=FREE,
    ),
)
