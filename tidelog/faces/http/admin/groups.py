"""Consumer groups: how far they are, where they go on, and which are forgotten.

Rule: nothing is done to a group that has members; whoever consumes is stopped first.
"""

from typing import Annotated, Final, Literal

import msgspec

from tidelog.client import group_offsets
from tidelog.client.admin import MemberInfo
from tidelog.client.group_offsets import Target, progress_of, require_stopped
from tidelog.faces.http.admin.asking import (
    AFTER_PLACE,
    Natural,
    PartitionNumber,
    operator,
    page_places,
)
from tidelog.faces.http.api import Call, Operation, Param
from tidelog.faces.http.paging import AFTER, LIMIT, page
from tidelog.faces.http.problems import Problem
from tidelog.model import TopicPartition

STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
TAG: Final = "groups"


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: str
    type: str
    """What its members are to each other; `consumer` for Kafka's consumers."""


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[ListedGroup]
    next: str | None


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


class ResetWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a group shall go on; exactly one of `to`, `offset`, `time_ms` and `shift`."""

    topic: str
    partitions: Annotated[list[PartitionNumber], msgspec.Meta(min_length=1)] | None = None
    to: Literal["earliest", "latest", "current"] | None = None
    offset: Natural | None = None
    time_ms: Natural | None = None
    shift: int | None = None
    dry_run: bool = False


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


class GroupDeleted(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    deleted: bool
    offsets: int
    """How many committed offsets went with it."""


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int


class OffsetsDeleted(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    offsets: list[Forgotten]


# Looking.


async def list_groups(call: Call) -> Groups:
    states = () if call["state"] is None else (call["state"],)
    found = {group.group: group for group in await operator(call).list_groups(states)}
    names, after = page(found, limit=call["limit"], after=call["after"])
    return Groups(
        groups=[
            ListedGroup(group=name, state=found[name].state, type=found[name].protocol_type)
            for name in names
        ],
        next=after,
    )


async def describe_group(call: Call) -> Group:
    client, group = operator(call), _group(call)
    info = await client.describe_group(group)
    progress = {
        TopicPartition(one.topic, one.partition): one
        for one in await progress_of(client, info, await client.group_offsets(group))
    }
    places, after = page_places(progress, call)
    return Group(
        group=info.group, state=info.state, type=info.protocol_type, protocol=info.protocol,
        members=[_member(member) for member in info.members],
        lag=sum(one.lag or 0 for one in progress.values()),
        partitions=[
            Progress(
                topic=one.topic, partition=one.partition, committed=one.committed, end=one.end,
                lag=one.lag, owner=one.owner,
            )
            for one in map(progress.__getitem__, places)
        ],
        next=after,
    )  # fmt: skip


def _group(call: Call) -> str:
    """The group that the path names. Kafka would take an empty one, for clients without any."""
    group: str = call.path["group"]
    if not group:
        raise Problem(404, "the path names no group; /v1/groups lists those that there are")
    return group


def _member(member: MemberInfo) -> Member:
    assignment: dict[str, list[int]] = {}
    for place in member.assignment or ():
        assignment.setdefault(place.topic, []).append(place.partition)
    return Member(
        member=member.member, instance=member.instance, client=member.client, host=member.host,
        assignment=None if member.assignment is None else [
            Assigned(topic=topic, partitions=some) for topic, some in assignment.items()
        ],
    )  # fmt: skip


# Moving.


async def reset_group(call: Call) -> Reset:
    group, wanted = _group(call), call.body
    assert isinstance(wanted, ResetWanted)
    found = await group_offsets.reset(
        operator(call), group, wanted.topic, wanted.partitions, _target(wanted),
        dry_run=wanted.dry_run,
    )  # fmt: skip
    return Reset(
        group=group, topic=wanted.topic,
        partitions=[
            Moved(partition=move.place.partition, before=move.before, after=move.after)
            for move in found.moves
        ],
        new_group=found.is_new, dry_run=wanted.dry_run,
    )  # fmt: skip


def _target(wanted: ResetWanted) -> Target:
    places = (wanted.to, wanted.offset, wanted.time_ms, wanted.shift)
    if sum(place is not None for place in places) != 1:
        raise Problem(400, "say where to, once: to, offset, time_ms or shift")
    return Target(
        earliest=wanted.to == "earliest", latest=wanted.to == "latest",
        current=wanted.to == "current", offset=wanted.offset, time_ms=wanted.time_ms,
        shift=wanted.shift,
    )  # fmt: skip


# Forgetting.


async def delete_group(call: Call) -> GroupDeleted:
    client, group = operator(call), _group(call)
    require_stopped(group, await client.describe_group(group))
    offsets = await client.group_offsets(group)
    await client.delete_group(group)
    return GroupDeleted(group=group, deleted=True, offsets=len(offsets))


async def delete_offsets(call: Call) -> OffsetsDeleted:
    client, group, topic = operator(call), _group(call), call["topic"]
    if topic is None:
        raise Problem(400, "say of which topic: ?topic=T, and &partition=N for one of it")
    await client.describe_group(group)
    offsets = {
        place: committed
        for place, committed in (await client.group_offsets(group)).items()
        if place.topic == topic and call["partition"] in (None, place.partition)
    }
    if not offsets:
        raise Problem(404, f"group {group!r} has no such offsets in {topic!r}")
    await client.delete_offsets(group, offsets)
    return OffsetsDeleted(
        group=group,
        offsets=[
            Forgotten(topic=place.topic, partition=place.partition, offset=committed.offset)
            for place, committed in offsets.items()
        ],
    )


_GONE: Final = "There is no such group."
_BUSY: Final = "The group has members; stop them first."

OPERATIONS: Final = (
    Operation(
        method="GET", path="/v1/groups", handler=list_groups, tag=TAG, answer=Groups,
        params=(Param(name="state", doc="Only those in this state.", choices=STATES), LIMIT, AFTER),
        summary="The consumer groups of the cluster.",
    ),
    Operation(
        method="POST", path="/v1/groups/{group:path}/reset", handler=reset_group, tag=TAG,
        body=ResetWanted, answer=Reset,
        summary="Let a group go on from somewhere else in a topic.",
        errors={404: "There is no such topic or partition.", 409: _BUSY},
    ),
    Operation(
        method="DELETE", path="/v1/groups/{group:path}/offsets", handler=delete_offsets, tag=TAG,
        params=(
            Param(name="topic", doc="The offsets of this topic."),
            Param(name="partition", kind=int, least=0, doc="Only of this partition."),
        ),
        answer=OffsetsDeleted,
        summary="Let a group forget how far it is in a topic that it does not consume now.",
        errors={404: "There is no such group, or it has no such offsets.", 409: _BUSY},
    ),
    Operation(
        method="GET", path="/v1/groups/{group:path}", handler=describe_group, tag=TAG,
        params=(LIMIT, AFTER_PLACE), answer=Group,
        summary="A group: its state, its members, and how far it is in each partition.",
        errors={404: _GONE},
    ),
    Operation(
        method="DELETE", path="/v1/groups/{group:path}", handler=delete_group, tag=TAG,
        answer=GroupDeleted,
        summary="Forget a group without members, and its offsets.",
        errors={404: _GONE, 409: _BUSY},
    ),
)  # fmt: skip
