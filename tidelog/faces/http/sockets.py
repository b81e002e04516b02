"""WebSockets in the table of operations: `method="WS"`, a handler that takes `socket_of(call)`.

Rule 1: what is wrong with a request is said before the socket is accepted, as a problem document
        with its status; afterwards by a close frame with a code and a reason.
Rule 2: a browser lets any page open a socket to anybody, and tells us only whose page it is. So
        a socket counts as what changes something, and `guard` refuses those of pages elsewhere.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from tidelog.errors import BrokerError
from tidelog.faces.http.api import Call, Operation, require_cluster
from tidelog.faces.http.edge.messages import Request
from tidelog.faces.http.edge.sockets import WebSocket, WebSocketDisconnect
from tidelog.faces.http.problems import Problem, problem_of

if TYPE_CHECKING:
    from tidelog.faces.node import Node

_log = logging.getLogger(__name__)

METHOD: Final = "WS"
NORMAL: Final = 1000
REFUSED: Final = 1008
FAILED: Final = 1011
TRY_AGAIN: Final = 1013
_REASON_BYTES_MAX: Final = 123


def socket_of(call: Call) -> WebSocket:
    """The socket of a call to an operation of method WS; the handler accepts it."""
    return cast(WebSocket, call.request)


def socket_endpoint(
    node: "Node", operation: Operation, kept: dict[Any, Any]
) -> Callable[[WebSocket], Awaitable[None]]:
    """What serves this operation."""

    takes = operation.takes

    async def serve(socket: WebSocket) -> None:
        require_cluster(node, operation)
        if node.is_stopping:
            raise Problem(503, "the node is stopping; go to another")
        call = Call(node, operation, cast(Request, socket), takes, kept)
        call.judge()
        try:
            await operation.handler(call)
        except WebSocketDisconnect:
            return
        except Exception as error:
            if not socket.is_accepted:
                raise  # it is told by an answer with a status
            await _close(socket, *_farewell(call, error))
        else:
            await _close(socket, NORMAL, "")

    return serve


def _farewell(call: Call, error: Exception) -> tuple[int, str]:
    if isinstance(error, BrokerError):
        error = problem_of(error)
    if isinstance(error, Problem):
        return (TRY_AGAIN if error.status == 503 else REFUSED), error.detail
    _log.error("socket %s failed: %s", call.request_id, call.operation.path, exc_info=error)
    return FAILED, f"a bug in tidelog; the node's log has more under {call.request_id}"


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if socket.is_over:
        return
    fits = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
    try:
        await socket.close(code, fits)
    except WebSocketDisconnect:
        pass  # it has gone by itself meanwhile
