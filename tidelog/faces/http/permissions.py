"""What an operation needs, as a part of its row.

Rule 1: an operation says what it needs, or why it needs nothing (`FREE`), or it is a verb, whose row
        says it. It is judged before its body is read.
Rule 2: what is kept in a topic is that topic: a bucket, and a room as `room.NAME`. What is kept in no
        topic of its own has a name that no topic can have.
Rule 3: what only a body or a message names is judged by the handler, which calls `Need.of`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.copies.stream.protocol import Source
from tidelog.model import QUEUES_TOPIC
from tidelog.security.authorizer import Access
from tidelog.security.permissions import (
    CHANNEL_PREFIX,
    CLUSTER_NAME,
    POINTERS_PREFIX,
    QUEUE_PREFIX,
    Kind,
    Operation,
)
from tidelog.services.copies import ROOM_PREFIX
from tidelog.services.queues import DEAD_SUFFIX


def _same(name: str) -> str:
    return name


def queue_resource(name: str) -> str:
    """The topic that stands for a work queue, and for what is dead of it."""
    is_dead = name.endswith(DEAD_SUFFIX) and len(name) > len(DEAD_SUFFIX)
    return QUEUE_PREFIX + (name.removesuffix(DEAD_SUFFIX) if is_dead else name)


def room_resource(name: str) -> str:
    return ROOM_PREFIX + name


def channel_resource(name: str) -> str:
    return CHANNEL_PREFIX + name


def pointers_resource(queue_id: object) -> str:
    """The topic that stands for a pointer queue; "" for one that gets its id when it is made."""
    return f"{POINTERS_PREFIX}{queue_id}"


@dataclass(frozen=True, slots=True)
class Need:
    """An operation on a resource."""

    operation: Operation
    kind: Kind = Kind.TOPIC
    parameter: str | None = None
    """Of the path, which names the resource; None: the cluster, or what the handler finds."""
    resource: Callable[[str], str] = _same
    note: str = ""
    """Where the handler judges: which resources."""
    or_cluster: bool = False
    """Whether the operation on the cluster is enough."""

    def require(self, access: Access, path: Mapping[str, Any]) -> None:
        """Let the request pass, or raise the error that its sender gets."""
        if not self.note:
            self.of(access, CLUSTER_NAME if self.parameter is None else path[self.parameter])

    def of(self, access: Access, name: str) -> None:
        """Let it do this to the resource of that name, or raise the error that it gets."""
        if not (self.or_cluster and access.may(self.operation, Kind.CLUSTER)):
            access.require(self.operation, self.kind, self.resource(name))

    def is_met(self, access: Access, name: str) -> bool:
        if self.or_cluster and access.may(self.operation, Kind.CLUSTER):
            return True
        return access.may(self.operation, self.kind, self.resource(name))

    def __str__(self) -> str:
        what = self.note
        if not what and self.parameter is not None:
            what = f"`{self.resource('{' + self.parameter + '}')}`"
        or_cluster = " or Cluster" if self.or_cluster else ""
        return f"{self.operation.value} on {self.kind.value} {what}".rstrip() + or_cluster


FREE: Final[tuple[Need, ...]] = ()
DESCRIBE_CLUSTER: Final = (Need(Operation.DESCRIBE, Kind.CLUSTER),)
ACT_FOR_CLUSTER: Final = (Need(Operation.CLUSTER_ACTION, Kind.CLUSTER),)


def on_topic(operation: Operation, parameter: str = "topic") -> tuple[Need, ...]:
    is_create = operation is Operation.CREATE
    return (Need(operation, parameter=parameter, or_cluster=is_create),)


def on_bucket(operation: Operation) -> tuple[Need, ...]:
    return on_topic(operation, "bucket")


def on_queue(*operations: Operation) -> tuple[Need, ...]:
    return tuple(Need(one, parameter="queue", resource=queue_resource) for one in operations)


def on_room(operation: Operation) -> tuple[Need, ...]:
    is_create = operation is Operation.CREATE
    return (Need(operation, parameter="room", resource=room_resource, or_cluster=is_create),)


DESCRIBES_EACH: Final = Need(Operation.DESCRIBE, note="of each that is shown")
DESCRIBES_EACH_ROOM: Final = Need(Operation.DESCRIBE, resource=room_resource, note="of each that is shown")
DESCRIBES_EACH_QUEUE: Final = Need(Operation.DESCRIBE, resource=queue_resource, note="of each that is shown")
PUBLISHES: Final = Need(Operation.WRITE, parameter="topic", resource=channel_resource)
SUBSCRIBES: Final = Need(
    Operation.READ,
    resource=channel_resource,
    note="of each channel that is named, as `pubsub:NAME`; what a pattern hears is judged by its channel",
)
COPIES: Final = Need(Operation.READ, note="that the source is kept in; `__queues` for a queue")


def require_some(access: Access, need: Need) -> None:
    """Let it pass if there can be a resource of the kind to which it may do this."""
    if not access.may_some(need.operation, need.kind):
        access.require(need.operation, need.kind, "*")


def require_listening(access: Access, pattern: str) -> None:
    """Let it listen to a channel; to a pattern, if there can be a channel that it may listen to."""
    if "*" not in pattern and "#" not in pattern:
        SUBSCRIBES.of(access, pattern)
    else:
        require_some(access, SUBSCRIBES)


def require_copying(access: Access, source: Source) -> None:
    """Let it copy a source, or raise the error that it gets; `source` names one thing.

    A queue is copied with the partition of `__queues` that it is in, and so with others.
    """
    if source.pubsub:
        require_listening(access, source.pubsub)
    elif source.queue:
        COPIES.of(access, QUEUES_TOPIC)
    elif source.room:
        COPIES.of(access, room_resource(source.room))
    else:
        COPIES.of(access, source.bucket or source.topic or "")


def on_pointers(operation: Operation, note: str = "`pointers:ID`", *, or_cluster: bool = False) -> Need:
    return Need(operation, resource=pointers_resource, note=note, or_cluster=or_cluster)
