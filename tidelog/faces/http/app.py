"""The ASGI application of a node: its operations as routes, and what holds for every request.

Rule 1: every answer carries `x-request-id`: the client's own, if it sent one that is fit to be
        printed, or one of ours.
Rule 2: a body longer than the limit is refused before it is in memory.
Rule 3: what the face offers is in the tables of its modules (`api.Operation`), and nowhere else.
Rule 4: a page of another origin reads nothing here, unless `http.cors.origins` names it.
"""

import logging
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog.client.cluster import Refused
from tidelog.client.wire import ConnectionFailed
from tidelog.config.setting import split_list
from tidelog.errors import BrokerError, ConfigError
from tidelog.faces.http import (
    admin,
    cluster,
    docs,
    kv,
    openapi,
    operations,
    pointer_queues,
    probes,
    pubsub,
    queues,
    records,
    replicate,
    replication,
    rooms,
    seed_health,
    seed_storage,
    streams,
    topics,
    watching,
)
from tidelog.faces.http.api import EVENTS, LINES, Operation, endpoint
from tidelog.faces.http.problems import Problem, problem, problem_of, status_of
from tidelog.faces.http.routing import STARTED, Explain, Routing
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_endpoint

if TYPE_CHECKING:
    from tidelog.faces.node import Node

_log = logging.getLogger(__name__)

REQUEST_ID: Final = "x-request-id"
REQUEST_ID_MAX: Final = 128
ENDLESS: Final = "tidelog.endless"
"""In the scope of a request whose answer goes on until somebody has enough."""


def all_operations() -> tuple[Operation, ...]:
    """Everything that the face offers; what is asked for most comes first."""
    return (
        *records.OPERATIONS,
        *watching.OPERATIONS,  # before the buckets, whose names end before a colon
        *kv.OPERATIONS,
        *queues.OPERATIONS,
        *pointer_queues.OPERATIONS,
        *rooms.OPERATIONS,
        *pubsub.OPERATIONS,
        *replicate.OPERATIONS,
        *topics.OPERATIONS,
        *streams.OPERATIONS,
        *probes.OPERATIONS,
        *cluster.OPERATIONS,
        *replication.OPERATIONS,
        *seed_health.OPERATIONS,
        *seed_storage.OPERATIONS,
        *operations.OPERATIONS,
        *admin.OPERATIONS,
        *openapi.OPERATIONS,
        *docs.OPERATIONS,
    )


def make_app(node: "Node") -> ASGIApp:
    routes = [*_routes(node)]
    explains: dict[type[Exception], Explain] = {
        HTTPException: _refuse,
        ClientDisconnect: _give_up,
        Problem: _explain,
        BrokerError: _explain_broker,
        Refused: _explain_refused,
        ConnectionFailed: _explain_silence,
        ConfigError: _explain_config,
        Exception: _fail,
    }
    app = Starlette(routes=routes, exception_handlers={**explains})
    app.router.redirect_slashes = False
    app.router.default = _nothing_there
    return Limits(Routing(routes, explains, app), node)


def _routes(node: "Node") -> Iterator[BaseRoute]:
    kept: dict[Any, Any] = {}
    known = all_operations()
    for one in known:
        if one.method == WEB_SOCKET:
            yield WebSocketRoute(one.path, socket_endpoint(node, one, kept))
        else:
            yield Route(one.path, endpoint(node, one, kept), methods=[one.method])
    for one in known:  # behind those that read by GET what a socket tells
        if one.method == WEB_SOCKET:
            yield Route(one.path, _ask_for_a_socket, methods=["GET"])


async def _ask_for_a_socket(request: Request) -> Response:
    raise Problem(426, "this is spoken over a WebSocket", headers={"upgrade": "websocket"})


async def _nothing_there(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404)


_DETAILS: Final = {
    404: "there is nothing at {path}; /docs lists all that there is",
    405: "{path} does not take {method}",
}


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code in _DETAILS:
        method = request.scope.get("method", WEB_SOCKET)
        detail = _DETAILS[error.status_code].format(path=request.url.path, method=method)
    return problem(
        error.status_code, detail, request_id=request.scope["request_id"], headers=error.headers
    )


async def _give_up(request: Request, error: Exception) -> Response:
    """The client has gone before it said all; nobody reads this."""
    return problem(400, "the request has no end", request_id=request.scope["request_id"])


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


async def _explain_silence(request: Request, error: Exception) -> Response:
    """A node that the face asked as a Kafka client did not answer."""
    return await _explain(request, Problem(503, str(error), headers={"retry-after": "1"}))


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
        self._app = _with_cors(_Bounded(app, node), node)
        self._new_id = node.broker.host.new_id
        self._wall_ms = node.broker.host.clock.wall_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _header(scope, REQUEST_ID.encode())
        is_fit = 0 < len(given) <= REQUEST_ID_MAX and given.isascii() and given.isprintable()
        request_id = scope["request_id"] = given if is_fit else self._new_id().hex

        async def send_signed(message: Message) -> None:
            if message["type"] in _STARTS:
                scope[STARTED] = True
                if _header(message, b"content-type").startswith((EVENTS, LINES)):
                    scope[ENDLESS] = True
                message["headers"] = [
                    *message.get("headers", ()), (REQUEST_ID.encode(), request_id.encode()),
                    (b"date", _date(self._wall_ms() // 1000)),
                ]  # fmt: skip
            await send(message)

        await self._app(scope, receive, send_signed)


def _header(message: Mapping[str, Any], name: bytes) -> str:
    """The first header of that name, of a scope or a message; empty if there is none."""
    for known, value in message.get("headers", ()):
        if known == name:
            found: bytes = value
            return found.decode("latin-1")
    return ""


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


_STARTS: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
"""The messages that have an answer's headers."""


class _Bounded:
    """Stops requests that are too long."""

    def __init__(self, app: ASGIApp, node: "Node") -> None:
        self._app = app
        self._broker = node.broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0
        bytes_max = self._broker.config.http_max_body_bytes

        async def receive_limited() -> Message:
            nonlocal received
            message: Any = await receive()
            received += len(message.get("body", b""))
            if received > bytes_max:
                raise TooLong(bytes_max)
            return message  # type: ignore[no-any-return]

        try:
            length = _header(scope, b"content-length") or "0"
            if not length.isdecimal() or int(length) > bytes_max:
                raise TooLong(bytes_max)
            await self._app(scope, receive_limited, send)
        except TooLong as error:
            if STARTED in scope:
                raise
            refusal = problem(
                error.status, error.detail, request_id=scope["request_id"], headers=error.headers
            )
            await refusal(scope, receive, send)


def _with_cors(app: ASGIApp, node: "Node") -> ASGIApp:
    """Lets pages of these origins read the answers, and send what needs asking first."""
    origins = split_list(node.broker.config.http_cors_origins)
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_headers=["*"],
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        expose_headers=[REQUEST_ID, "location", "retry-after"],
    )  # fmt: skip


class TooLong(Problem):
    """The body is longer than the limit; what is left of it is not read."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            413, f"a request has at most {bytes_max} bytes here (http.max.body.bytes)",
            headers={"connection": "close"},
        )  # fmt: skip
