"""The ASGI application of a node: its operations as routes, and what holds for every request.

Rule 1: every answer carries `x-request-id`: the client's own, if it sent one that is fit to be
        printed, or one of ours.
Rule 2: a body longer than the limit is refused before it is in memory.
Rule 3: what the face offers is in the tables of its modules (`api.Operation`), and nowhere else.
"""

import logging
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog.client.cluster import Refused
from tidelog.errors import BrokerError, ConfigError
from tidelog.faces.http import cluster, operations, probes, replication
from tidelog.faces.http.api import Operation, endpoint
from tidelog.faces.http.problems import Problem, problem, problem_of, status_of

if TYPE_CHECKING:
    from tidelog.faces.node import Node

_log = logging.getLogger(__name__)

REQUEST_ID: Final = "x-request-id"
REQUEST_ID_MAX: Final = 128


def all_operations() -> tuple[Operation, ...]:
    """Everything that the face offers; what is asked for most comes first."""
    return (
        *probes.OPERATIONS,
        *cluster.OPERATIONS,
        *replication.OPERATIONS,
        *operations.OPERATIONS,
    )


def make_app(node: "Node") -> ASGIApp:
    kept: dict[Any, Any] = {}
    app = Starlette(
        routes=[
            Route(operation.path, endpoint(node, operation, kept), methods=[operation.method])
            for operation in all_operations()
        ],
        exception_handlers={
            HTTPException: _refuse,
            Problem: _explain,
            BrokerError: _explain_broker,
            Refused: _explain_refused,
            ConfigError: _explain_config,
            Exception: _fail,
        },
    )
    app.router.redirect_slashes = False
    return Limits(app, node)


_DETAILS: Final = {
    404: "there is nothing at {path}; /docs lists all that there is",
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


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return problem(
        error.status, error.detail, request_id=request.scope["request_id"],
        headers=error.headers, facts=error.facts,
    )  # fmt: skip


async def _explain_broker(request: Request, error: Exception) -> Response:
    assert isinstance(error, BrokerError)
    return await _explain(request, problem_of(error))


async def _explain_refused(request: Request, error: Exception) -> Response:
    """Another node, or this one, refused what the face asked of it as a Kafka client."""
    assert isinstance(error, Refused)
    status = status_of(error.code, retriable=error.retriable)
    return await _explain(request, Problem(status, str(error), code=error.code))


async def _explain_config(request: Request, error: Exception) -> Response:
    return await _explain(request, Problem(400, str(error)))


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
        self._broker = node.broker
        self._new_id = node.broker.host.new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        is_fit = 0 < len(given) <= REQUEST_ID_MAX and given.isascii() and given.isprintable()
        request_id = scope["request_id"] = given if is_fit else self._new_id().hex
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0
        is_answered = False
        bytes_max = self._broker.config.http_max_body_bytes

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
            message: Any = await receive()
            received += len(message.get("body", b""))
            if received > bytes_max:
                raise TooLong
            return message  # type: ignore[no-any-return]

        try:
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > bytes_max:
                raise TooLong
            await self._app(scope, receive_limited, send_signed)
        except TooLong:
            if is_answered:
                raise
            refusal = problem(
                413, f"a request has at most {bytes_max} bytes here (http.max.body.bytes)",
                request_id=request_id, headers={"connection": "close"},
            )  # fmt: skip
            await refusal(scope, receive, send_signed)


class TooLong(Exception):
    """The body is longer than the limit."""
