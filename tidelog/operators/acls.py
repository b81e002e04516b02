"""Permissions: who is allowed and denied what, and why.

Rule 1: they can be seen and changed while `authorizer.enabled` is off: so they are there when it is
        turned on.
Rule 2: an explanation is the node's own judgement of the question, with the bindings that decide it.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tidelog.errors import InvalidRequest
from tidelog.kafka.acls import CHANGES_MAX, change_acls, forget_acls
from tidelog.operators.values import LIMIT, LISTED_MAX, Limit, page
from tidelog.operators.verbs import ALTER_CLUSTER, DESCRIBE_CLUSTER, Http, Verb
from tidelog.security.acls import ANYTHING, Acls, Binding, BindingFilter, Effect, Pattern
from tidelog.security.authorizer import changes
from tidelog.security.permissions import CLUSTER_NAME, Kind, Operation
from tidelog.security.principals import Principal

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

_AT_ONCE: Final = 100
KindName: TypeAlias = Literal["Topic", "Group", "Cluster", "TransactionalId", "User"]
PatternName: TypeAlias = Literal["Literal", "Prefixed"]
EffectName: TypeAlias = Literal["Allow", "Deny"]
OperationName: TypeAlias = Literal[
    "All",
    "Read",
    "Write",
    "Create",
    "Delete",
    "Alter",
    "Describe",
    "ClusterAction",
    "DescribeConfigs",
    "AlterConfigs",
    "IdempotentWrite",
    "CreateTokens",
    "DescribeTokens",
]
Who: TypeAlias = Annotated[str, Meta(description="As User:NAME; User:* is everybody.")]


class Acl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A permission or a denial."""

    principal: Who
    operation: OperationName
    kind: KindName
    name: str = CLUSTER_NAME
    """Of the resource, or how the names begin; * is all of the kind."""
    pattern: PatternName = "Literal"
    effect: EffectName = "Allow"
    host: str = ANYTHING
    """The address that the client connects from; * is any."""


class ListAcls(msgspec.Struct, frozen=True, kw_only=True):
    principal: Who | None = None
    operation: OperationName | None = None
    kind: KindName | None = None
    name: str | None = None
    pattern: PatternName | None = None
    effect: EffectName | None = None
    covering: Annotated[bool, Meta(description="All that cover the name, not only those that say it.")] = (
        False
    )
    limit: Limit = LIMIT
    after: Annotated[str | None, Meta(description="The `next` of the page before.")] = None


class AclList(msgspec.Struct, frozen=True, kw_only=True):
    acls: list[Acl]
    next: str | None


class AddAcls(msgspec.Struct, frozen=True, kw_only=True):
    acls: Annotated[list[Acl], Meta(min_length=1, max_length=CHANGES_MAX)]


class AclsAdded(msgspec.Struct, frozen=True, kw_only=True):
    added: int
    """Those that were not there before."""


class RemoveAcls(msgspec.Struct, frozen=True, kw_only=True):
    """What is not said may be anything; something must be."""

    principal: Who | None = None
    operation: OperationName | None = None
    kind: KindName | None = None
    name: str | None = None
    pattern: PatternName | None = None
    effect: EffectName | None = None
    host: str | None = None
    dry_run: Annotated[bool, Meta(description="Tell what would be removed; remove nothing.")] = False


class AclsRemoved(msgspec.Struct, frozen=True, kw_only=True):
    removed: int
    acls: list[Acl]
    """Up to 1,000 of them."""
    dry_run: bool


class ExplainAcl(msgspec.Struct, frozen=True, kw_only=True):
    principal: Who
    operation: OperationName
    kind: KindName
    name: str = CLUSTER_NAME
    host: str = ""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    allowed: bool
    reason: str
    acls: list[Acl]
    """Those that decide it: denials, or else permissions."""


def _principal(text: str) -> Principal:
    try:
        return Principal.parse(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _binding(acl: Acl) -> Binding:
    return Binding(
        principal=_principal(acl.principal),
        host=acl.host,
        operation=Operation(acl.operation),
        effect=Effect(acl.effect),
        kind=Kind(acl.kind),
        name=acl.name,
        pattern=Pattern(acl.pattern),
    )


def _shown(one: Binding) -> Acl:
    return Acl(
        principal=str(one.principal),
        operation=one.operation.value,
        kind=one.kind.value,
        name=one.name,
        pattern=one.pattern.value,
        effect=one.effect.value,
        host=one.host,
    )


def _filter(asked: ListAcls | RemoveAcls) -> BindingFilter:
    return BindingFilter(
        principal=None if asked.principal is None else _principal(asked.principal),
        host=getattr(asked, "host", None),
        operation=None if asked.operation is None else Operation(asked.operation),
        effect=None if asked.effect is None else Effect(asked.effect),
        kind=None if asked.kind is None else Kind(asked.kind),
        name=asked.name,
        pattern=None if asked.pattern is None else Pattern(asked.pattern),
        covering=getattr(asked, "covering", False),
    )


def _known(desk: "Desk") -> Acls:
    return desk.broker.image.acls


async def list_acls(desk: "Desk", asked: ListAcls) -> AclList:
    wanted = _filter(asked)
    found: dict[str, Binding] = {}
    for count, one in enumerate(_known(desk).candidates(wanted), 1):
        if wanted.takes(one):
            found[msgspec.json.encode(_shown(one)).decode()] = one
        if count % _AT_ONCE == 0:
            await asyncio.sleep(0)  # others get their turn
    names, following = page(found, limit=asked.limit, after=asked.after)
    return AclList(acls=[_shown(found[name]) for name in names], next=following)


async def add_acls(desk: "Desk", asked: AddAcls) -> AclsAdded:
    bindings = dict.fromkeys(map(_binding, asked.acls))
    fresh = [one for one in bindings if one not in _known(desk)]
    await change_acls(desk.broker, bindings)
    return AclsAdded(added=len(fresh))


async def remove_acls(desk: "Desk", asked: RemoveAcls) -> AclsRemoved:
    wanted = _filter(asked)
    if wanted == BindingFilter():
        raise InvalidRequest("say which: a principal, a kind, a name, an operation, an effect or a host")
    if asked.dry_run:
        removed = [one for one in _known(desk).candidates(wanted) if wanted.takes(one)]
    else:
        removed = await forget_acls(desk.broker, [wanted])
    return AclsRemoved(
        removed=len(removed), acls=list(map(_shown, removed[:LISTED_MAX])), dry_run=asked.dry_run
    )


async def explain_acl(desk: "Desk", asked: ExplainAcl) -> Explained:
    principal, authorizer = _principal(asked.principal), desk.broker.authorizer
    question = (principal, asked.host, Operation(asked.operation), Kind(asked.kind), asked.name)
    deciding = _known(desk).explain(*question)
    allowed = authorizer.allows(*question)
    if authorizer.is_read_only and not allowed and changes(*question[2:]):
        reason = "read.only is on: nobody but super users may change anything"
    elif not authorizer.is_on or (allowed and not desk.broker.config.authorizer_enabled):
        reason = "authorizer.enabled is off: everybody may do everything"
    elif principal in authorizer.super_users:
        reason = "it is one of super.users"
    elif deciding:
        reason = "an ACL denies it" if not allowed else "an ACL allows it, and none denies it"
    elif allowed:
        reason = "no ACL covers the resource, and allow.everyone.if.no.acl.found is on"
    else:
        reason = "no ACL allows it"
    return Explained(allowed=allowed, reason=reason, acls=list(map(_shown, deciding[:LISTED_MAX])))


_ACLS: Final = "/v1/acls"

VERBS: Final = (
    Verb(
        name="acls.list",
        do=list_acls,
        permission=DESCRIBE_CLUSTER,
        summary="List who is allowed and denied what.",
        http=Http("GET", _ACLS),
    ),
    Verb(
        name="acls.add",
        do=add_acls,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Allow or deny operations; what is there already stays.",
        http=Http("POST", _ACLS),
    ),
    Verb(
        name="acls.remove",
        do=remove_acls,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Remove permissions and denials: all that say what the request says.",
        http=Http("DELETE", _ACLS),
    ),
    Verb(
        name="acls.explain",
        do=explain_acl,
        permission=DESCRIBE_CLUSTER,
        summary="Tell whether somebody may do something, and which permissions or denials decide it.",
        http=Http("GET", _ACLS + "/explain"),
    ),
)
