"""A row of the table of verbs.

Rule 1: a row says all that a face needs: nothing of a verb is written a second time.
Rule 2: the permissions of a row are Kafka's: an operation on a resource. The resource's name is a
        parameter of the verb; without one, the verb concerns the whole cluster. A list leaves out
        what may not be described.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidelog.broker.broker import Broker
from tidelog.model import NodeId
from tidelog.security.authorizer import Access
from tidelog.security.permissions import CLUSTER_NAME, Kind, Operation, Resource

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk


@dataclass(frozen=True, slots=True)
class Permission:
    """What a verb needs: an operation on a resource."""

    operation: Operation
    kind: Kind
    parameter: str | None = None
    """The parameter that names the resource; None for the cluster."""
    is_of_each: bool = False
    """Whether a list needs it for each thing in it, and leaves out the others."""
    or_cluster: bool = False
    """Whether the operation on the cluster is enough."""

    def require(self, access: Access, asked: Any) -> None:
        """Let the request pass, or raise the error that its sender gets."""
        if self.is_of_each or (self.or_cluster and access.may(self.operation, Kind.CLUSTER)):
            return
        resource = self.resource(asked)
        access.require(self.operation, resource.kind, resource.name)

    def resource(self, asked: Any) -> Resource:
        """The resource that a request concerns."""
        name = CLUSTER_NAME if self.parameter is None else getattr(asked, self.parameter)
        return Resource(self.kind, "" if name is None else str(name))

    def __str__(self) -> str:
        if self.is_of_each:
            also = ", or on Cluster" if self.or_cluster else ""
            return f"{self.operation.value} on each {self.kind.value}{also}"
        what = self.kind.value if self.parameter is None else f"{self.kind.value} `{self.parameter}`"
        return f"{self.operation.value} on {what}{' or Cluster' if self.or_cluster else ''}"


DESCRIBE_CLUSTER: Final = Permission(Operation.DESCRIBE, Kind.CLUSTER)
DESCRIBE_TOPICS: Final = Permission(Operation.DESCRIBE, Kind.TOPIC, is_of_each=True)
DESCRIBE_GROUPS: Final = Permission(Operation.DESCRIBE, Kind.GROUP, is_of_each=True, or_cluster=True)
DESCRIBE_IDS: Final = Permission(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, is_of_each=True)
ALTER_CLUSTER: Final = Permission(Operation.ALTER, Kind.CLUSTER)


@dataclass(frozen=True, slots=True)
class Http:
    """How a verb is asked for over HTTP; what is not in the path is in the query or the body."""

    method: str
    path: str
    _: KW_ONLY
    query: tuple[str, ...] = ()
    """Parameters of the query, where there is a body, too."""
    body: str | None = None
    """The parameter that is the whole body; None: an object of all parameters that are left."""
    status: int = 200
    id: str = ""
    """What the operation is called in the description, where the verb had another name before."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Statuses beyond those that any operation may have, and when they are given."""
    statuses: Mapping[int, int] = field(default_factory=dict)
    """Statuses of errors, by their codes, where they are not those that any verb has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One thing that operators can ask for."""

    name: str
    """Family and verb, such as `groups.reset`."""
    do: "Callable[[Desk, Any], Awaitable[Any]]"
    """Does it, on this node; an error of the broker is raised. Its signature says what is asked for
    and what is answered."""
    permission: Permission
    summary: str
    also: Permission | None = None
    """What is needed, too, where one verb does what Kafka has two operations for."""
    where: "Callable[[Broker, Any], NodeId | None] | None" = None
    """The node that can do it; None: any."""
    is_dangerous: bool = False
    """Whether records, offsets or availability may be lost by it."""
    needs_cluster: bool = True
    """Whether it is refused until the node serves."""
    is_internal: bool = False
    """Whether it is a part of other verbs, and only nodes ask each other for it."""
    http: Http | None = None
    """None: it cannot be asked for over HTTP."""

    asks: type[msgspec.Struct] = field(init=False)
    answers: type[msgspec.Struct] = field(init=False)

    def __post_init__(self) -> None:
        types = self.do.__annotations__
        object.__setattr__(self, "asks", types["asked"])
        object.__setattr__(self, "answers", types["return"])

    @property
    def permissions(self) -> tuple[Permission, ...]:
        """All that is needed."""
        return (self.permission,) if self.also is None else (self.permission, self.also)

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]


def at_controller(broker: Broker, asked: Any) -> NodeId | None:
    """The active controller, as this node knows it; this node, where it knows of none."""
    return broker.member.quorum.raft.leader
