"""The ASGI application of a node: its routes, and what holds for every request.

| route               | answers                                                                  |
|---------------------|--------------------------------------------------------------------------|
| GET /health/live    | 200: the process runs                                                    |
| GET /health/ready   | 200: the node can serve; 503 says why it cannot                          |
| GET /v1/cluster     | brokers, quorum, partitions; `?topics=a,b` for some topics, `?topics=`   |
|                     | for none                                                                 |
| GET /v1/replication | how followers stand, and who catches up; `?topics=a,b` lists these whole |
| GET /metrics        | the same in numbers, for Prometheus                                      |
| POST /v1/topics/{topic}/partitions/{partition}/promote, POST /v1/broker/stop: `operations`     |

Rule 1: every answer carries `x-request-id`: the client's own, if it sent one that is fit to be
        printed, or one of ours.
Rule 2: a body longer than the limit is refused before it is in memory.
"""

import logging
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog.faces.http.cluster import ClusterView
from tidelog.faces.http.health import why_not_ready
from tidelog.faces.http.operations import promote_partition, stop_node
from tidelog.faces.http.problems import problem
from tidelog.faces.http.replication import metrics_text, replication_document

if TYPE_CHECKING:
    from tidelog.faces.node import Node

_log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 1024 * 1024
REQUEST_ID: Final = "x-request-id"
REQUEST_ID_MAX: Final = 128
METRICS_TYPE: Final = "text/plain; version=0.0.4"


def make_app(node: "Node") -> ASGIApp:
    view = ClusterView(node.broker)

    async def live(request: Request) -> Response:
        return json_response({"status": "live"})

    async def ready(request: Request) -> Response:
        reason = why_not_ready(node)
        if reason is None:
            return json_response({"status": "ready", "node": node.broker.node_id})
        raise HTTPException(503, reason, headers={"retry-after": "1"})

    def refuse_early() -> None:
        if node.broker.quorum is None:
            raise HTTPException(503, why_not_ready(node), headers={"retry-after": "1"})

    async def cluster(request: Request) -> Response:
        refuse_early()
        return Response(await view.get(_topics(request)), media_type="application/json")

    async def replication(request: Request) -> Response:
        refuse_early()
        return json_response(await replication_document(node.broker, _topics(request)))

    async def metrics(request: Request) -> Response:
        refuse_early()
        return Response(await metrics_text(node.broker), media_type=METRICS_TYPE)

    async def promote(request: Request) -> Response:
        refuse_early()
        return await promote_partition(node, request)

    async def stop(request: Request) -> Response:
        return await stop_node(node, request)

    app = Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/v1/cluster", cluster),
            Route("/v1/replication", replication),
            Route("/metrics", metrics),
            Route(
                "/v1/topics/{topic}/partitions/{partition:int}/promote", promote, methods=["POST"]
            ),
            Route("/v1/broker/stop", stop, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
    )
    app.router.redirect_slashes = False
    return Limits(app, node)


def _topics(request: Request) -> frozenset[str] | None:
    named = request.query_params.get("topics")
    return None if named is None else frozenset(filter(None, named.split(",")))


def json_response(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


_DETAILS: Final = {
    404: "there is nothing at {path}; see GET /v1/cluster and GET /health/ready",
    405: "{path} does not take {method}",
}


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code in _DETAILS:
        detail = _DETAILS[error.status_code].format(path=request.url.path, method=request.method)
    return problem(
        error.status_code, detail, request_id=request.scope["request_id"], headers=error.headers
    )


async def _fail(request: Request, error: Exception) -> Response:
    """A bug of ours; uvicorn logs where."""
    request_id = request.scope["request_id"]
    _log.error("request %s failed: %s", request_id, request.url.path)
    detail = "a bug in tidelog; the node's log has more under this request's id"
    return problem(500, detail, request_id=request_id)


class Limits:
    """Gives every request its id, and stops those that are too long."""

    def __init__(self, app: ASGIApp, node: "Node") -> None:
        self._app = app
        self._new_id = node.broker.host.new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        is_fit = 0 < len(given) <= REQUEST_ID_MAX and given.isascii() and given.isprintable()
        request_id = scope["request_id"] = given if is_fit else self._new_id().hex
        received = 0
        is_answered = False

        async def send_signed(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                signed = MutableHeaders(scope=message)
                signed[REQUEST_ID] = request_id
                signed["date"] = formatdate(usegmt=True)
            await send(message)

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > BODY_BYTES_MAX:
                raise TooLong
            return message

        try:
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
                raise TooLong
            await self._app(scope, receive_limited, send_signed)
        except TooLong:
            if is_answered:
                raise
            refusal = problem(
                413, f"a request has at most {BODY_BYTES_MAX} bytes here", request_id=request_id,
                headers={"connection": "close"},
            )  # fmt: skip
            await refusal(scope, receive, send_signed)


class TooLong(Exception):
    """The body is longer than the limit."""
