"""Consumer groups: how far they are, where they go on, and which are forgotten.

Rule 1: what nobody knows is null: a partition without an offset, an offset without a partition.
Rule 2: nobody's place is moved while somebody reads from it: a group with members is left alone.
Rule 3: a place outside of what a log holds becomes the nearest one inside.
Rule 4: a group is looked at and changed by its coordinator; what needs the ends of logs is put
        together by the node that was asked.
"""

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tidelog.broker.broker import Broker
from tidelog.errors import InvalidRequest, UnknownTopicOrPartition, error_of
from tidelog.model import OFFSETS_TOPIC, Offset, TopicPartition
from tidelog.operators import offsets
from tidelog.operators.group_coordinators import (
    CommitOffsets,
    DeleteOffsets,
    GroupDeleted,
    GroupFound,
    Groups,
    ListedGroup,
    ListGroups,
    Member,
    OffsetsDeleted,
    OneGroup,
    PlaceOffset,
    require_stopped,
    there,
)
from tidelog.operators.values import LIMIT, AfterPlace, DryRun, Limit, Natural, Partitions, page, page_places
from tidelog.operators.verbs import DESCRIBE_GROUPS, DESCRIBE_TOPICS, Http, Permission, Verb
from tidelog.security.permissions import Kind, Operation

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk


class DescribeGroup(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    limit: Limit = LIMIT
    after: AfterPlace = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in one partition; null for what nobody knows."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    owner: str | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: str
    type: str
    protocol: str
    members: list[Member]
    lag: int
    """Of all its partitions, whether they are on this page or not."""
    partitions: list[Progress]
    next: str | None


class ResetWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group shall go on; exactly one of `to`, `offset`, `time_ms` and `shift`."""

    group: str
    topic: str
    partitions: Partitions | None = None
    to: Literal["earliest", "latest", "current"] | None = None
    offset: Natural | None = None
    time_ms: Natural | None = None
    shift: int | None = None
    dry_run: DryRun = False


class Moved(msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    partition: int
    before: int | None
    after: int


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    partitions: list[Moved]
    new_group: bool
    """Whether there was no such group: check its name."""
    dry_run: bool


# Looking.


async def list_groups(desk: "Desk", asked: ListGroups) -> Groups:
    shown: list[ListedGroup] = []
    after = asked.after
    while True:
        wanted = msgspec.structs.replace(asked, after=after)
        answers = await desk.ask_all("groups.list_here", wanted, of=OFFSETS_TOPIC)
        found = {one.group: one for answer in answers for one in answer.groups}
        names, after = page(found, limit=asked.limit, after=after)
        if names and any(answer.next is not None for answer in answers):
            after = names[-1]
        shown += [found[name] for name in names if desk.shows(DESCRIBE_GROUPS, name)]
        if after is None or len(shown) >= asked.limit:
            break
    if after is not None or len(shown) > asked.limit:
        after = shown[: asked.limit][-1].group
    return Groups(groups=shown[: asked.limit], next=after)


async def find_group(desk: "Desk", group: str) -> GroupFound:
    """What the coordinator knows; nothing where there has never been a group."""
    try:
        found: GroupFound = await desk.ask("groups.look", OneGroup(group=group))
    except UnknownTopicOrPartition:
        return GroupFound(group=group, state=None)
    return found


async def describe_group(desk: "Desk", asked: DescribeGroup) -> Group:
    found = there(await find_group(desk, asked.group))
    committed = {one.name: one.offset for one in found.offsets}
    owners = {
        TopicPartition(one.topic, number): member.member
        for member in found.members
        for one in member.assignment or ()
        for number in one.partitions
    }
    names = sorted(name for name in {*committed, *owners} if desk.shows(DESCRIBE_TOPICS, name.topic))
    topics = desk.broker.image.topics
    # Offsets outlive their topics.
    alive = [name for name in names if name.topic in topics]
    alive = [name for name in alive if 0 <= name.partition < len(topics[name.topic].partitions)]
    ends = await offsets.latest(desk, alive)
    progress = {
        name: progress_of(name, committed.get(name), ends.get(name), owners.get(name)) for name in names
    }
    shown, after = page_places(progress, limit=asked.limit, after=asked.after)
    return Group(
        group=found.group,
        state=found.state or "",
        type=found.type,
        protocol=found.protocol,
        members=found.members,
        lag=sum(one.lag or 0 for one in progress.values()),
        partitions=[progress[name] for name in shown],
        next=after,
    )


def progress_of(
    name: TopicPartition, committed: Offset | None, end: Offset | None, owner: str | None
) -> Progress:
    lag = None if committed is None or end is None else max(end - committed, 0)
    return Progress(
        topic=name.topic, partition=name.partition, committed=committed, end=end, lag=lag, owner=owner
    )


# Moving.


async def reset_group(desk: "Desk", asked: ResetWanted) -> Reset:
    if sum(place is not None for place in (asked.to, asked.offset, asked.time_ms, asked.shift)) != 1:
        raise InvalidRequest("say where to, once: to, offset, time_ms or shift")
    found = await find_group(desk, asked.group)
    require_stopped(found)
    names = _chosen(desk.broker, asked)
    starts = await offsets.earliest(desk, names)
    ends = await offsets.latest(desk, names)
    at_time = {} if asked.time_ms is None else await offsets.find(desk, names, asked.time_ms)
    before = {one.name: one.offset for one in found.offsets}
    moves = {}
    for name in names:
        after = target(asked, name, before.get(name), ends[name], at_time.get(name))
        moves[name] = min(max(after, starts[name]), ends[name])
    if not asked.dry_run:
        await desk.coordinator.ready()
        wanted = [
            PlaceOffset(topic=name.topic, partition=name.partition, offset=after)
            for name, after in moves.items()
        ]
        await desk.ask("groups.commit", CommitOffsets(group=asked.group, offsets=wanted))
    return Reset(
        group=asked.group,
        topic=asked.topic,
        partitions=[
            Moved(partition=name.partition, before=before.get(name), after=after)
            for name, after in moves.items()
        ],
        new_group=found.state is None,
        dry_run=asked.dry_run,
    )


def target(
    asked: ResetWanted, name: TopicPartition, before: Offset | None, end: Offset, at_time: Offset | None
) -> Offset:
    """Where a partition goes on, perhaps outside of its log."""
    if asked.to == "earliest":
        return 0
    if asked.offset is not None:
        return asked.offset
    if asked.shift is not None:
        if before is None:
            raise InvalidRequest(
                f"group {asked.group!r}: it has no offset in {name} that could be shifted; name a place, "
                "such as the earliest (--to-earliest)"
            )
        return before + asked.shift
    if asked.to == "current" and before is not None:
        return before
    # The end also for a time after the last record, and for no current offset.
    return at_time if at_time is not None and at_time >= 0 else end


def _chosen(broker: Broker, asked: ResetWanted) -> list[TopicPartition]:
    topic = broker.image.topics.get(asked.topic)
    if topic is None:
        raise error_of(
            UnknownTopicOrPartition.code,
            f"topic {asked.topic!r}: it does not exist; see `tidelog topics list`",
        )
    count = len(topic.partitions)
    for number in asked.partitions or ():
        if number >= count:
            raise error_of(
                UnknownTopicOrPartition.code,
                f"{asked.topic}-{number}: topic {asked.topic!r} has partitions 0 to {count - 1}",
            )
    numbers = sorted(set(asked.partitions)) if asked.partitions else range(count)
    return [TopicPartition(asked.topic, number) for number in numbers]


# Forgetting.


async def delete_group(desk: "Desk", asked: OneGroup) -> GroupDeleted:
    there(await find_group(desk, asked.group))
    done: GroupDeleted = await desk.ask("groups.delete_here", asked)
    return done


async def delete_offsets(desk: "Desk", asked: DeleteOffsets) -> OffsetsDeleted:
    if asked.topic is None:
        raise InvalidRequest("say of which topic: ?topic=T, and &partition=N for one of it")
    there(await find_group(desk, asked.group))
    done: OffsetsDeleted = await desk.ask("groups.forget_here", asked)
    return done


_GONE: Final = "There is no such group."
_BUSY: Final = "The group has members; stop them first."
_PATH: Final = "/v1/groups/{group:path}"
_DESCRIBE: Final = Permission(Operation.DESCRIBE, Kind.GROUP, "group")
_READ: Final = Permission(Operation.READ, Kind.GROUP, "group")
_READ_TOPIC: Final = Permission(Operation.READ, Kind.TOPIC, "topic")
_DELETE: Final = Permission(Operation.DELETE, Kind.GROUP, "group")

VERBS: Final = (
    Verb(
        name="groups.list",
        do=list_groups,
        permission=DESCRIBE_GROUPS,
        summary="List the consumer groups of the cluster.",
        http=Http("GET", "/v1/groups"),
    ),
    Verb(
        name="groups.reset",
        do=reset_group,
        permission=_READ,
        also=_READ_TOPIC,
        is_dangerous=True,
        summary="Change the committed offsets of a group in a topic.",
        http=Http("POST", f"{_PATH}/reset", errors={404: "There is no such topic or partition.", 409: _BUSY}),
    ),
    Verb(
        name="groups.delete_offsets",
        do=delete_offsets,
        permission=_DELETE,
        also=_READ_TOPIC,
        is_dangerous=True,
        summary="Delete a group's offsets in a topic that it does not consume.",
        http=Http(
            "DELETE",
            f"{_PATH}/offsets",
            errors={404: "There is no such group, or it has no such offsets.", 409: _BUSY},
        ),
    ),
    Verb(
        name="groups.describe",
        do=describe_group,
        permission=_DESCRIBE,
        summary="Describe a group: state, members, and offset and lag in each partition.",
        http=Http("GET", _PATH, errors={404: _GONE}),
    ),
    Verb(
        name="groups.delete",
        do=delete_group,
        permission=_DELETE,
        is_dangerous=True,
        summary="Delete a group without members, and its offsets.",
        http=Http("DELETE", _PATH, errors={404: _GONE, 409: _BUSY}),
    ),
)
