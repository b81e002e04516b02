"""What the coordinator of a group does for the verbs of `groups.py`; only nodes ask for it.

Rule: a group with members is left alone.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from tidelog.broker.broker import Broker
from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    NonEmptyGroup,
    UnknownMemberId,
    UnknownTopicOrPartition,
    error_of,
)
from tidelog.groups.events import Commit, GroupView, OffsetsDone, OffsetToCommit
from tidelog.groups.records import CommittedOffset
from tidelog.kafka.group_offsets import of_topic
from tidelog.model import NO_EPOCH, NO_NODE, OFFSETS_TOPIC, NodeId, Offset, TopicPartition
from tidelog.operators.values import LIMIT, After, Limit, PartitionNumber, page
from tidelog.operators.verbs import DESCRIBE_CLUSTER, Permission, Verb
from tidelog.security.permissions import Kind, Operation
from tidelog.wire.names import partition_for
from tidelog.wire.subscription import CONSUMER, decode_assignment

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

NO_GENERATION: Final = -1
"""Who commits without being a member says so; it is refused while there are members."""


class ListGroups(msgspec.Struct, frozen=True, kw_only=True):
    state: Annotated[
        Literal["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"] | None,
        Meta(description="Only those in this state."),
    ] = None
    limit: Limit = LIMIT
    after: After = None


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: str
    type: str
    """What its members are to each other; `consumer` for Kafka's consumers."""


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[ListedGroup]
    next: str | None


class GroupsHere(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the groups of one coordinator."""

    served: list[int]
    """The partitions of which all groups were looked at."""
    groups: list[ListedGroup]
    next: str | None


class OneGroup(msgspec.Struct, frozen=True, kw_only=True):
    group: str


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: list[int]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    member: str
    instance: str | None
    client: str
    host: str
    assignment: list[Assigned] | None
    """Null where its bytes are not those of Kafka's consumers."""
    assignment_bytes: int


class PlaceOffset(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class GroupFound(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator knows of a group."""

    group: str
    state: str | None
    """None: there is no such group."""
    type: str = ""
    protocol: str = ""
    members: list[Member] = []
    offsets: list[PlaceOffset] = []


class CommitOffsets(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    offsets: list[PlaceOffset]


class GroupDeleted(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    deleted: bool
    offsets: int
    """How many committed offsets went with it."""


class DeleteOffsets(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topic: Annotated[str | None, Meta(description="The offsets of this topic.")] = None
    partition: Annotated[PartitionNumber | None, Meta(description="Only of this partition.")] = None


class OffsetsDeleted(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    offsets: list[PlaceOffset]


def at_coordinator(broker: Broker, asked: Any) -> NodeId:
    """Who coordinates the group; UnknownTopicOrPartition where there has never been one."""
    topic = broker.image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        raise UnknownTopicOrPartition(OFFSETS_TOPIC)
    number = partition_for(asked.group, len(topic.partitions))
    leader = topic.partitions[number].leader
    if leader == NO_NODE:
        raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC}-{number} has no leader now")
    return leader


async def list_here(desk: "Desk", asked: ListGroups) -> GroupsHere:
    served = desk.coordinator.counted_on()
    views = (group.view() for one in served.values() for group in one.shard.groups())
    found = {view.group_id: view for view in views if asked.state in (None, view.state)}
    names, after = page(found, limit=asked.limit, after=asked.after)
    groups = [
        ListedGroup(group=name, state=found[name].state, type=found[name].protocol_type) for name in names
    ]
    return GroupsHere(served=list(served), groups=groups, next=after)


async def look(desk: "Desk", asked: OneGroup) -> GroupFound:
    shard = desk.coordinator.driver(asked.group).shard
    view = shard.describe(asked.group)
    if view is None:
        return GroupFound(group=asked.group, state=None)
    committed = _committed(desk.broker, shard.fetch_offsets(asked.group, None, require_stable=False))
    return GroupFound(
        group=view.group_id,
        state=view.state,
        type=view.protocol_type,
        protocol=view.protocol,
        members=_members(view),
        offsets=[
            PlaceOffset(topic=name.topic, partition=name.partition, offset=offset)
            for name, offset in sorted(committed.items())
        ],
    )


def _committed(
    broker: Broker, found: Mapping[TopicPartition, CommittedOffset | BrokerError | None]
) -> dict[TopicPartition, Offset]:
    """The offsets that are of the topics that have these names now."""
    known = {}
    for name, value in found.items():
        if isinstance(value, BrokerError):
            raise value
        if isinstance(shown := of_topic(broker, name, value), CommittedOffset):
            known[name] = shown.offset
    return known


def _members(view: GroupView) -> list[Member]:
    found = []
    for one in sorted(view.members, key=lambda one: one.member_id):
        given = decode_assignment(bytes(one.assignment)) if view.protocol_type == CONSUMER else None
        by_topic: dict[str, list[int]] = {}
        for name in given or ():
            by_topic.setdefault(name.topic, []).append(name.partition)
        found.append(
            Member(
                member=one.member_id,
                instance=one.instance_id,
                client=one.client_id,
                host=one.client_host,
                assignment=None
                if given is None
                else [Assigned(topic=topic, partitions=some) for topic, some in by_topic.items()],
                assignment_bytes=len(one.assignment),
            )
        )
    return found


async def commit(desk: "Desk", asked: CommitOffsets) -> OneGroup:
    """Commit for a group without members, which comes to be by it if need be."""
    topics = desk.broker.image.topics
    wanted = {}
    for one in asked.offsets:
        if (topic := topics.get(one.topic)) is None:
            raise UnknownTopicOrPartition(one.name)
        wanted[one.name] = OffsetToCommit(
            offset=one.offset, leader_epoch=NO_EPOCH, metadata="", topic_id=topic.id
        )

    def call(shard: Any, reply: object, at: Any) -> Any:
        event = Commit(
            reply=reply,
            member_id="",
            instance_id=None,
            generation=NO_GENERATION,
            offsets=wanted,
            retention_ms=None,
            knows_group_not_found=True,
        )
        return shard.commit(asked.group, event, at)

    try:
        _raise_refused(await desk.coordinator.ask(asked.group, call))
    except UnknownMemberId:
        raise not_empty(asked.group, "a consumer has joined it meanwhile; stop its consumers first") from None
    return OneGroup(group=asked.group)


def _raise_refused(done: object) -> None:
    for name, error in cast(OffsetsDone, done).refused.items():
        raise error_of(error.code, f"{name}: {' '.join((error.__doc__ or str(error)).split())}")


async def delete_here(desk: "Desk", asked: OneGroup) -> GroupDeleted:
    found = there(await look(desk, asked))
    require_stopped(found)
    await desk.coordinator.ask(
        asked.group, lambda shard, reply, at: shard.delete_group(asked.group, reply, at)
    )
    return GroupDeleted(group=asked.group, deleted=True, offsets=len(found.offsets))


async def forget_here(desk: "Desk", asked: DeleteOffsets) -> OffsetsDeleted:
    found = there(await look(desk, OneGroup(group=asked.group)))
    gone = [
        one for one in found.offsets if one.topic == asked.topic and asked.partition in (None, one.partition)
    ]
    if not gone:
        raise error_of(GroupIdNotFound.code, f"group {asked.group!r} has no such offsets in {asked.topic!r}")
    names = [one.name for one in gone]
    done = await desk.coordinator.ask(
        asked.group, lambda shard, reply, at: shard.delete_offsets(asked.group, names, reply, at)
    )
    _raise_refused(done)
    return OffsetsDeleted(group=asked.group, offsets=gone)


def there(found: GroupFound) -> GroupFound:
    if found.state is None:
        raise error_of(
            GroupIdNotFound.code,
            f"group {found.group!r}: it does not exist; `tidelog groups list` shows those that do",
        )
    return found


def require_stopped(found: GroupFound) -> None:
    """Refuse what must not happen to a group that consumes."""
    if count := len(found.members):
        raise not_empty(
            found.group,
            f"it has {count} member{'s' * (count != 1)} ({found.state}); stop its consumers first",
        )


def not_empty(group: str, why: str) -> BrokerError:
    return error_of(NonEmptyGroup.code, f"group {group!r}: {why}")


_DELETE: Final = Permission(Operation.DELETE, Kind.GROUP, "group")

VERBS: Final = (
    Verb(
        name="groups.list_here",
        is_internal=True,
        do=list_here,
        permission=DESCRIBE_CLUSTER,
        summary="The groups that this node coordinates.",
    ),
    Verb(
        name="groups.commit",
        is_internal=True,
        do=commit,
        where=at_coordinator,
        permission=Permission(Operation.READ, Kind.GROUP, "group"),
        is_dangerous=True,
        summary="Commit offsets for a group without members.",
    ),
    Verb(
        name="groups.forget_here",
        is_internal=True,
        do=forget_here,
        where=at_coordinator,
        permission=_DELETE,
        is_dangerous=True,
        summary="Forget offsets of a group, at its coordinator.",
    ),
    Verb(
        name="groups.look",
        is_internal=True,
        do=look,
        where=at_coordinator,
        permission=Permission(Operation.DESCRIBE, Kind.GROUP, "group"),
        summary="What the coordinator of a group knows of it.",
    ),
    Verb(
        name="groups.delete_here",
        is_internal=True,
        do=delete_here,
        where=at_coordinator,
        permission=_DELETE,
        is_dangerous=True,
        summary="Forget a group, at its coordinator.",
    ),
)
