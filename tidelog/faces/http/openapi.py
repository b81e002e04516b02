"""The description of the HTTP face, OpenAPI 3.1, made of its table of operations.

Rule 1: nothing is described by hand: paths, parameters, bodies and answers are those of the table,
        so the description cannot tell of something else than is served.
Rule 2: every status that an operation may answer with stands in it. Those that any may have are
        added here; what it has beyond them, it names itself.
Rule 3: OpenAPI knows no WebSockets: they stand beside the methods of their path, as `x-websocket`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from tidelog import __version__
from tidelog.faces.http.api import JSON, Call, Operation, Param, tagged
from tidelog.faces.http.edge.messages import Response
from tidelog.faces.http.permissions import FREE
from tidelog.faces.http.problems import MEDIA_TYPE
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET

VERSION: Final = "3.1.0"
X_WEB_SOCKET: Final = "x-websocket"
SWITCHING: Final = 101
INT64_MAX: Final = 2**63 - 1

_REF: Final = "#/components/schemas/{name}"
PLACE: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_KINDS: Final = {str: "string", int: "integer", bool: "boolean"}
_PLACES: Final[dict[str | None, dict[str, Any]]] = {
    None: {"type": "string", "minLength": 1},
    "int": {"type": "integer", "minimum": 0, "maximum": INT64_MAX},
    "path": {"type": "string", "minLength": 1},
}
"""What may stand in a path, by the kind of the parameter."""

_ANYBODY: Final = {400: "A parameter or the body is wrong; `detail` says which."}
_WITH_BODY: Final = {
    413: "The body is longer than `http.max.body.bytes`.",
    415: "The body is of another content type than those here.",
}
_WITH_CLUSTER: Final = {
    503: "The node or the leader is not ready. Try again soon.",
    504: "It took too long. Where something was to be written, `outcome` says what is known of it.",
}

PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "What went wrong, and what to do (RFC 9457); facts may stand beside it.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 300, "maximum": 599},
        "detail": {"type": "string"},
        "request_id": {"type": "string"},
        "code": {"type": "integer", "description": "Kafka's code of the error, if it has one."},
        "outcome": {
            "enum": ["unknown", "committed"],
            "description": "Of a write that took too long: whether it is known to be there.",
        },
    },
    "required": ["type", "title", "status", "detail"],
}

_ABOUT: Final = """\
Any node answers for the whole cluster: work is done by whoever leads.

Errors are `application/problem+json`. Every answer has an `x-request-id`: the client's own, if it \
sent one, or a new one. A parameter that an operation does not take is refused, not ignored. What \
changes something takes `application/json`, `{}` at least.
"""


async def get_description(call: Call) -> Response:
    """It takes some milliseconds to make, and is made once, elsewhere than on the loop."""
    return Response(await call.broker.host.offload.run(description), media_type=JSON)


async def go_to_the_page(call: Call) -> Response:
    return Response(status_code=307, headers={"location": "/docs"})


@lru_cache(maxsize=1)
def description() -> bytes:
    """Everything that the face offers, as it goes over the wire."""
    from tidelog.faces.http.app import all_operations  # whose table has this module's part

    return msgspec.json.encode(describe(all_operations()))


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """The document for these operations; what is hidden is left out."""
    shown = [operation for operation in operations if not operation.is_hidden]
    schemas, components = _schemas(shown)
    paths: dict[str, dict[str, Any]] = {}
    for operation in shown:
        is_socket = operation.method == WEB_SOCKET
        method = X_WEB_SOCKET if is_socket else operation.method.lower()
        path = paths.setdefault(PLACE.sub(r"{\1}", operation.path), {})
        assert method not in path, f"{operation.method} {operation.path} is there twice"
        path[method] = _operation(operation, schemas)
    return {
        "openapi": VERSION,
        "info": {
            "title": "Tidelog",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in shown)],
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM, **components}},
    }


Schemas = Mapping[int, Mapping[str, Any]]
"""The schema of a type, by its identity: not every type can be hashed."""


def _schemas(operations: Sequence[Operation]) -> tuple[Schemas, dict[str, Any]]:
    kinds = [kind for one in operations for kind in (one.body, one.answer) if kind is not None]
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    return {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}, components


def name_of(operation: Operation) -> str:
    """Of one operation alone: what its module is called, and its handler."""
    if operation.name:
        return operation.name
    handler = operation.handler
    return f"{handler.__module__.rpartition('.')[2]}_{handler.__name__}"


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": name_of(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_places(operation.path), *map(_parameter, operation.params)],
    }
    if body := _body(operation, schemas):
        found["requestBody"] = {"required": True, "content": body}
    found["responses"] = _answers(operation, schemas)
    return found


def _places(path: str) -> Iterable[dict[str, Any]]:
    for name, kind in PLACE.findall(path):
        schema = _PLACES[kind or None]
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(param: Param) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _KINDS[param.kind]}
    if param.kind is int:
        schema["minimum"] = -INT64_MAX if param.least is None else param.least
        schema["maximum"] = INT64_MAX if param.most is None else param.most
    if param.choices:
        schema["enum"] = param.choices
    if param.default is not None:
        schema["default"] = param.default
    place = "header" if param.is_header else "query"
    found = {"name": param.name, "in": place, "description": param.doc, "schema": schema}
    return found | {"required": True} if param.is_required else found


def _body(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.body is not None:
        content[JSON] = {"schema": schemas[id(operation.body)]}
    return content | {kind: {} for kind in operation.raw_body}


def _answers(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    said: dict[int, str] = dict(_ANYBODY)
    if operation.body is not None or operation.raw_body:
        said |= _WITH_BODY
    if operation.needs_cluster:
        said |= _WITH_CLUSTER
    good = SWITCHING if operation.method == WEB_SOCKET else operation.status
    said[good] = HTTPStatus(good).phrase + "."
    said |= operation.errors
    return {str(status): _answer(operation, schemas, status, words) for status, words in sorted(said.items())}


def _answer(operation: Operation, schemas: Schemas, status: int, words: str) -> dict[str, Any]:
    kind, schema = MEDIA_TYPE, {"$ref": _REF.format(name="Problem")}
    if status < 300:
        kind = operation.media_type  # of events and messages, each by itself
        schema = {"type": "object" if kind == JSON else "string"}
        if operation.answer is not None:
            schema = dict(schemas[id(operation.answer)])
    return {"description": words, "content": {kind: {"schema": schema}}}


OPERATIONS: Final = tagged(
    "description",
    Operation(
        "GET",
        "/openapi.json",
        get_description,
        "This description, in OpenAPI 3.1.",
        needs_cluster=False,
        needs=FREE,
    ),
    Operation(
        "GET",
        "/",
        go_to_the_page,
        "Redirect to /docs.",
        needs_cluster=False,
        status=307,
        is_hidden=True,
        needs=FREE,
    ),
)
