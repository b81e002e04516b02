"""DescribeAcls, CreateAcls and DeleteAcls: who is allowed and denied what.

Rule 1: what one creation or filter says wrong spoils its own result alone.
Rule 2: all good creations of a request are one decision, and so are all filters.
Rule 3: permissions can be seen and changed while the authorizer is off: so they are there when it is
        turned on.
"""

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from tidelog.broker.broker import Broker
from tidelog.controller.acls import add_acls, binding_of, remove_acls, taken
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import AclRemoved
from tidelog.errors import BrokerError, InvalidRequest
from tidelog.kafka.context import Request
from tidelog.kafka.permissions import OPERATION_CODES
from tidelog.security.acls import Acls, Binding, BindingFilter, Effect, Pattern, binding_problem
from tidelog.security.permissions import Kind
from tidelog.security.principals import Principal

E = TypeVar("E", bound=Enum)

ANY: Final = 1
MATCH: Final = 2
CHANGES_MAX: Final = 1000
"""Creations or filters in one request."""
_AT_ONCE: Final = 200

_KINDS: Final = {Kind.TOPIC: 2, Kind.GROUP: 3, Kind.CLUSTER: 4, Kind.TRANSACTIONAL_ID: 5, Kind.USER: 7}
_PATTERNS: Final = {Pattern.LITERAL: 3, Pattern.PREFIXED: 4}
_EFFECTS: Final = {Effect.DENY: 2, Effect.ALLOW: 3}


def _read(codes: Mapping[E, int], code: int, what: str) -> E:
    for value, known in codes.items():
        if known == code:
            return value
    raise InvalidRequest(f"{code} is no {what} that can be allowed or denied here")


def _read_any(codes: Mapping[E, int], code: int, what: str) -> E | None:
    return None if code == ANY else _read(codes, code, what)


def _principal(text: str) -> Principal:
    try:
        return Principal.parse(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _filter(asked: Any) -> BindingFilter:
    pattern = asked.pattern_type_filter
    who = asked.principal_filter
    return BindingFilter(
        principal=None if who is None else _principal(who),
        host=asked.host_filter,
        operation=_read_any(OPERATION_CODES, asked.operation, "operation"),
        effect=_read_any(_EFFECTS, asked.permission_type, "permission"),
        kind=_read_any(_KINDS, asked.resource_type_filter, "kind of resource"),
        name=asked.resource_name_filter,
        pattern=None if pattern == MATCH else _read_any(_PATTERNS, pattern, "pattern"),
        covering=pattern == MATCH,
    )


def _binding(asked: Any) -> Binding:
    binding = Binding(
        principal=_principal(asked.principal),
        host=asked.host,
        operation=_read(OPERATION_CODES, asked.operation, "operation"),
        effect=_read(_EFFECTS, asked.permission_type, "permission"),
        kind=_read(_KINDS, asked.resource_type, "kind of resource"),
        name=asked.resource_name,
        pattern=_read(_PATTERNS, asked.resource_pattern_type, "pattern"),
    )
    if problem := binding_problem(binding):
        raise InvalidRequest(problem)
    return binding


def _check_count(count: int) -> None:
    if count > CHANGES_MAX:
        raise InvalidRequest(f"a request changes at most {CHANGES_MAX} permissions, not {count}")


def _entry(one: Binding) -> dict[str, Any]:
    return {
        "principal": str(one.principal),
        "host": one.host,
        "operation": OPERATION_CODES[one.operation],
        "permission_type": _EFFECTS[one.effect],
    }


async def describe_acls(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The bindings that a filter takes, by what they are for."""
    context.require(Kind.CLUSTER)
    wanted = _filter(request)
    found: dict[tuple[Kind, str, Pattern], list[dict[str, Any]]] = {}
    for count, one in enumerate(broker.image.acls.candidates(wanted), 1):
        if wanted.takes(one):
            found.setdefault((one.kind, one.name, one.pattern), []).append(_entry(one))
        if count % _AT_ONCE == 0:
            await asyncio.sleep(0)  # others get their turn
    return {
        "error_message": None,
        "resources": [
            {
                "resource_type": _KINDS[kind],
                "resource_name": name,
                "pattern_type": _PATTERNS[pattern],
                "acls": acls,
            }
            for (kind, name, pattern), acls in found.items()
        ],
    }


async def create_acls(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Add bindings; those that are there already are as good as added."""
    results: list[dict[str, Any]] = [{"error_message": None} for _ in request.creations]
    bindings: dict[Binding, None] = {}
    good: list[dict[str, Any]] = []
    try:
        context.require(Kind.CLUSTER)
        _check_count(len(results))
        for result, asked in zip(results, request.creations, strict=True):
            try:
                bindings[_binding(asked)] = None
                good.append(result)
            except BrokerError as error:
                _refuse([result], error)
        if bindings:
            await change_acls(broker, bindings)
    except BrokerError as error:
        _refuse(good or results, error)
    return {"results": results}


def _refuse(results: Iterable[dict[str, Any]], error: BrokerError) -> None:
    for result in results:
        result |= {"error_code": error.code, "error_message": str(error)}


async def change_acls(broker: Broker, bindings: Iterable[Binding]) -> None:
    """Add bindings, in one decision."""
    await broker.metadata.change(lambda image: add_acls(image, bindings))
    await broker.acted()


async def delete_acls(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Remove all that the filters take."""
    results: list[dict[str, Any]] = [{"error_message": None, "matching_acls": ()} for _ in request.filters]
    filters: list[tuple[dict[str, Any], BindingFilter]] = []
    try:
        context.require(Kind.CLUSTER)
        _check_count(len(results))
        for result, asked in zip(results, request.filters, strict=True):
            try:
                filters.append((result, _filter(asked)))
            except BrokerError as error:
                _refuse([result], error)
        removed = await forget_acls(broker, [wanted for _, wanted in filters])
    except BrokerError as error:
        _refuse([result for result, _ in filters] or results, error)
        return {"filter_results": results}
    gone = Acls()
    for one in removed:
        gone.add(one)
    for (result, _), those in zip(filters, taken(gone, [wanted for _, wanted in filters]), strict=True):
        result["matching_acls"] = [_matching(one) for one in those]
    return {"filter_results": results}


async def forget_acls(broker: Broker, filters: list[BindingFilter]) -> list[Binding]:
    """Remove all that any filter takes, in one decision; what that was."""
    removed: dict[Binding, None] = {}
    lost_before = broker.metadata.replies_lost

    def decide(image: ClusterImage) -> list[AclRemoved]:
        if broker.metadata.replies_lost == lost_before:
            removed.clear()  # an earlier attempt has changed nothing
        records = remove_acls(image, filters)
        removed.update((binding_of(record), None) for record in records)
        return records

    await broker.metadata.change(decide)
    await broker.acted()
    return list(removed)


def _matching(one: Binding) -> dict[str, Any]:
    return {
        "error_message": None,
        "resource_type": _KINDS[one.kind],
        "resource_name": one.name,
        "pattern_type": _PATTERNS[one.pattern],
        **_entry(one),
    }
