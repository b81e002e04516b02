"""`/health/live` and `/health/ready`: what load balancers and supervisors ask."""

from typing import Any, Final

from tidelog.faces.http.api import Call, Operation
from tidelog.faces.http.health import warning, why_not_ready
from tidelog.faces.http.problems import Problem


async def live(call: Call) -> dict[str, Any]:
    return {"status": "live"}


async def ready(call: Call) -> dict[str, Any]:
    reason = why_not_ready(call.node)
    if reason is not None:
        raise Problem(503, reason, headers={"retry-after": "1"})
    answer = {"status": "ready", "node": call.broker.node_id}
    if (detail := warning(call.node)) is not None:
        answer["detail"] = detail
    return answer


OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/health/live",
        handler=live,
        tag="health",
        needs_cluster=False,
        summary="Whether the process runs and its event loop responds.",
    ),
    Operation(
        method="GET",
        path="/health/ready",
        handler=ready,
        tag="health",
        needs_cluster=False,
        summary="Whether the node can serve; 503 says what is missing. Also reports a full disk, and "
        "partitions that the node leads and cannot read.",
    ),
)
