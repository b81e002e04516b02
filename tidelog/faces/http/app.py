"""The application of a node: its operations as routes, and what holds for every request.

Rule 1: every answer carries `x-request-id`: the client's own, if it sent one that is fit to be
        printed, or one of ours.
Rule 2: a body longer than the limit is refused before it is in memory.
Rule 3: what the face offers is in the tables of its modules (`api.Operation`), and nowhere else.
Rule 4: a page of another origin reads nothing here, unless `http.cors.origins` names it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tidelog.config.setting import split_list
from tidelog.errors import BrokerError, ConfigError
from tidelog.faces.compatibility import pointer_queues
from tidelog.faces.compatibility import replication_health as seed_health
from tidelog.faces.compatibility import replication_storage as seed_storage
from tidelog.faces.http import (
    cluster,
    docs,
    kv,
    openapi,
    probes,
    pubsub,
    queues,
    records,
    replicate,
    replication,
    rooms,
    streams,
    topics,
    verbs,
    watching,
)
from tidelog.faces.http.api import Operation, endpoint
from tidelog.faces.http.cors import Cors
from tidelog.faces.http.edge.bodies import NoRoom
from tidelog.faces.http.edge.messages import (
    REQUEST_ID,
    BodyTooLong,
    ClientDisconnect,
    Head,
    Request,
    Response,
)
from tidelog.faces.http.edge.routes import Table
from tidelog.faces.http.edge.sockets import WebSocket, WebSocketDisconnect
from tidelog.faces.http.guard import Guard
from tidelog.faces.http.problems import Problem, problem, problem_of
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_endpoint

if TYPE_CHECKING:
    from tidelog.faces.node import Node

_log = logging.getLogger(__name__)

REQUEST_ID_MAX: Final = 128
_DIGITS_MAX: Final = 20
"""Of a length; more could be zeros only, and Python refuses to read very many."""

Serve: TypeAlias = Callable[[Request], Awaitable[Response]]
Open: TypeAlias = Callable[[WebSocket], Awaitable[None]]


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
        *verbs.OPERATIONS,
        *openapi.OPERATIONS,
        *docs.OPERATIONS,
    )


class App:
    """Serves requests and sockets of one node."""

    takes_sockets = True

    def __init__(self, node: "Node") -> None:
        broker = node.broker
        self._broker = broker
        self._name = broker.host.new_id().hex[:16]
        """How the ids of its requests begin: of one that is random their number makes 32 digits."""
        self._requests = 0
        self._guard = Guard(node)
        self._cors = Cors.of(split_list(broker.config.http_cors_origins))
        kept: dict[Any, Any] = {}
        known = all_operations()
        sockets = [one for one in known if one.method == WEB_SOCKET]
        self._table: Table[Serve] = Table(
            [
                *((one.method, one.path, endpoint(node, one, kept)) for one in known if one not in sockets),
                # behind those that read by GET what a socket tells
                *(("GET", one.path, _ask_for_a_socket) for one in sockets),
            ]
        )
        self._sockets: Table[Open] = Table(
            (WEB_SOCKET, one.path, socket_endpoint(node, one, kept)) for one in sockets
        )

    async def serve(self, request: Request) -> Response:
        """The answer to a request; whatever goes wrong is one, too."""
        request_id = request.request_id = self._id_of(request)
        cors = self._cors
        preflight = None if cors is None else cors.preflight(request)
        if preflight is not None:
            response = preflight
        else:
            try:
                await self._guard.let_in(request)
                bytes_max = request.bytes_max = self._broker.config.http_max_body_bytes
                length = request.headers.first.get(b"content-length")
                if length is not None and not _is_at_most(length, bytes_max):
                    raise BodyTooLong(bytes_max)
                method = request.method
                found = self._table.find("GET" if method == "HEAD" else method, request.path)
                if found is None:
                    raise self._nothing_there(request)
                serve, request.path_params = found
                response = await serve(request)
            except Exception as error:
                response = explain(request, error)
            if cors is not None:
                cors.sign(request, response)
        response.request_id = request_id
        return response

    async def open(self, socket: WebSocket) -> Response | None:
        """Serve a socket to its end; the answer that refuses it, if it was not accepted."""
        socket.request_id = self._id_of(socket)
        try:
            await self._guard.let_in(socket)
            found = self._sockets.find(WEB_SOCKET, socket.path)
            if found is None:
                raise self._nothing_there(socket)
            serve, socket.path_params = found
            await serve(socket)
        except WebSocketDisconnect:
            pass
        except Exception as error:
            refusal = explain(socket, error)
            refusal.request_id = socket.request_id
            return refusal
        return None

    def _id_of(self, request: Head) -> str:
        if REQUEST_ID in request.headers:
            given: str = request.headers.get(REQUEST_ID)
            if 0 < len(given) <= REQUEST_ID_MAX and given.isascii() and given.isprintable():
                return given
        self._requests += 1
        return f"{self._name}{self._requests:016x}"

    def _nothing_there(self, request: Head) -> Problem:
        methods = () if request.method == WEB_SOCKET else self._table.methods(request.path)
        if not methods:
            return Problem(404, f"there is nothing at {request.path}; /docs lists all that there is")
        allowed = [*methods, "HEAD"] if "GET" in methods else methods
        detail = f"{request.path} does not take {request.method}"
        return Problem(405, detail, headers={"allow": ", ".join(allowed)})


def _is_at_most(length: bytes, bytes_max: int) -> bool:
    return len(length) < _DIGITS_MAX and length.strip().isdigit() and int(length) <= bytes_max


def make_app(node: "Node") -> App:
    return App(node)


async def _ask_for_a_socket(request: Request) -> Response:
    raise Problem(426, "this is spoken over a WebSocket", headers={"upgrade": "websocket"})


# What goes wrong.


def _problem_of_length(error: BodyTooLong) -> Problem:
    return Problem(413, f"{error} (http.max.body.bytes)", headers={"connection": "close"})


def _problem_of_room(error: NoRoom) -> Problem:
    detail = "large bodies of other requests fill the memory for them (queued.max.bytes); try again"
    return Problem(503, detail, headers={"retry-after": "1", "connection": "close"})


_PROBLEMS: Final[Mapping[type[Exception], Callable[[Any], Problem]]] = {
    Problem: lambda error: error,
    BrokerError: problem_of,
    ConfigError: lambda error: Problem(400, str(error)),
    BodyTooLong: _problem_of_length,
    NoRoom: _problem_of_room,
    # The client has gone before it said all; nobody reads this.
    ClientDisconnect: lambda error: Problem(400, "the request has no end"),
}


def explain(request: Head, error: Exception) -> Response:
    """The answer that says what went wrong."""
    for kind in type(error).__mro__:
        if (found := _PROBLEMS.get(kind)) is not None:
            told = found(error)
            return problem(
                told.status,
                told.detail,
                request_id=request.request_id,
                headers=told.headers,
                facts=told.facts,
            )
    _log.error("request %s failed: %s", request.request_id, request.path, exc_info=error)
    detail = "a bug in tidelog; the node's log has more under this request's id"
    return problem(500, detail, request_id=request.request_id)
