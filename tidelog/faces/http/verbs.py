"""The operations of the HTTP face that are verbs, made of the table of verbs.

Rule: a verb's path, parameters, body, answer and errors are those of its row. What is in the path
is named there; of a GET or a DELETE the rest is the query, of others the body.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from tidelog.errors import BrokerError
from tidelog.faces.http.api import UNREADY_RETRY_SECONDS, Call, Operation, Param
from tidelog.faces.http.health import why_not_ready
from tidelog.faces.http.openapi import PLACE
from tidelog.faces.http.problems import Problem, problem_of
from tidelog.operators.table import VERBS
from tidelog.operators.verbs import Http, Verb


async def perform(call: Call, name: str, asked: msgspec.Struct) -> Any:
    """What the verb answers; it passes the desk, which checks who asks."""
    node = call.node
    if VERBS[name].needs_cluster and not node.is_serving:
        reason = why_not_ready(node) or "the node is starting"
        raise Problem(503, reason, headers={"retry-after": UNREADY_RETRY_SECONDS})
    return await node.desk.perform(name, asked, access=call.access)


async def _perform(call: Call, *, verb: Verb, http: Http, in_path: dict[str, Any]) -> Any:
    asked = dict(call.params)
    for name, kind in in_path.items():
        asked[name] = _in_path(call, name, kind)
    if http.body is not None:
        asked[http.body] = call.body
    elif call.body is not None:
        asked |= msgspec.structs.asdict(call.body)
    for one in call.operation.params:
        if one.is_required and asked[one.name] is None:
            raise Problem(400, f"{call.operation.path} needs the parameter {one.name!r}")
    try:
        return await perform(call, verb.name, verb.asks(**asked))
    except BrokerError as error:
        problem = problem_of(error)
        problem.status = http.statuses.get(error.code, problem.status)
        raise problem from error


def _in_path(call: Call, name: str, kind: Any) -> Any:
    """What the path names; Problem if nothing can have such a name."""
    value = call.path[name]
    if value == "":
        raise Problem(404, f"the path names no {name}; the operation without it lists those that there are")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Problem(404, f"there is nothing with the {name} {value}: {error}") from None


def operation_of(verb: Verb) -> Operation:
    """The operation that a row describes."""
    http = verb.http
    assert http is not None
    in_path = {name for name, _ in PLACE.findall(http.path)}
    fields = msgspec.structs.fields(verb.asks)
    has_body = http.method in ("POST", "PUT", "PATCH")
    in_query = [
        one
        for one in fields
        if one.name not in in_path and one.name != http.body and (not has_body or one.name in http.query)
    ]
    body: Any = None
    if http.body is not None:
        body = next(one.type for one in fields if one.name == http.body)
    elif has_body:
        body = _body(verb, [one for one in fields if one.name not in in_path and one not in in_query])
    kinds = {one.name: one.type for one in fields if one.name in in_path}
    handler: Callable[[Call], Awaitable[Any]] = partial(_perform, verb=verb, http=http, in_path=kinds)
    return Operation(
        method=http.method,
        path=http.path,
        handler=handler,
        name=http.id or f"{verb.family}_{verb.do.__name__}",
        verb=verb.name,
        tag=verb.family,
        params=tuple(map(_param, in_query)),
        body=body,
        answer=verb.answers,
        status=http.status,
        summary=verb.summary,
        errors=http.errors,
        needs_cluster=verb.needs_cluster,
    )


def _body(verb: Verb, fields: Sequence[FieldInfo]) -> Any:
    """The type of a body that says what the path does not."""
    if (
        len(fields) == len(msgspec.structs.fields(verb.asks))
        and verb.asks.__struct_config__.forbid_unknown_fields
    ):
        return verb.asks
    return msgspec.defstruct(
        verb.asks.__name__,
        [_field(one) for one in fields],
        namespace={"__doc__": verb.asks.__doc__},
        forbid_unknown_fields=True,
        kw_only=True,
        frozen=True,
    )


def _field(field: FieldInfo) -> Any:
    if field.required:
        return field.name, field.type
    default = field.default
    if default is msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type, default


def _param(field: FieldInfo) -> Param:
    """A parameter of the query."""
    metas: list[Meta] = []
    kind, choices = _plain(field.type, metas)

    def said(name: str) -> Any:
        return next((value for meta in metas if (value := getattr(meta, name)) is not None), None)

    return Param(
        name=field.encode_name,
        doc=said("description") or "",
        kind=kind,
        default=None if field.default is msgspec.NODEFAULT else field.default,
        is_required=field.required,
        least=said("ge"),
        most=said("le"),
        choices=choices,
    )


def _plain(kind: Any, metas: list[Meta]) -> tuple[Any, tuple[str, ...]]:
    """The type without what is said of it, which is added to `metas`; and what it may be."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *notes = get_args(kind)
        metas += [note for note in notes if isinstance(note, Meta)]
        return _plain(inner, metas)
    if origin in (Union, UnionType):
        (inner,) = [one for one in get_args(kind) if one is not type(None)]
        return _plain(inner, metas)
    if origin is Literal:
        return str, get_args(kind)
    return kind, ()


OPERATIONS: Final = tuple(operation_of(verb) for verb in VERBS.values() if verb.http is not None)
