"""How far a group has come in each partition, and how it goes on from somewhere else.

Rule 1: what nobody knows is None: a partition without an offset, an offset without a partition.
Rule 2: nobody's place is moved while somebody reads from it: a group with members is left alone.
Rule 3: a place outside of what a log holds becomes the nearest one inside.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidelog.client.admin import AdminClient, Committed, GroupInfo
from tidelog.client.cluster import Refused
from tidelog.client.kafka import EARLIEST, LATEST
from tidelog.model import Offset, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a group has come in one partition; None for what nobody knows."""

    topic: str
    partition: int
    committed: Offset | None
    end: Offset | None
    owner: str | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a reset goes to; exactly one is set."""

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: Offset | None = None
    time_ms: int | None = None
    shift: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition of a reset."""

    place: TopicPartition
    before: Offset | None
    after: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """What a reset changes, or would."""

    moves: list[Move]
    is_new: bool
    """Whether there was no such group: it comes to be by this."""


# Looking.


async def progress_of(
    client: AdminClient, info: GroupInfo, offsets: Mapping[TopicPartition, Committed]
) -> list[Progress]:
    """Every partition that has an offset or an owner."""
    owners = {place: member.member for member in info.members for place in member.assignment or ()}
    places = sorted({*offsets, *owners})
    ends = await log_ends(client, places)
    return [
        Progress(
            topic=place.topic,
            partition=place.partition,
            committed=offsets[place].offset if place in offsets else None,
            end=ends.get(place),
            owner=owners.get(place),
        )
        for place in places
    ]


async def log_ends(
    client: AdminClient, places: Iterable[TopicPartition]
) -> dict[TopicPartition, Offset]:
    """The ends of those partitions that exist: offsets outlive their topics."""
    there = {topic.name: len(topic.partitions) for topic in await client.topics()}
    asked: dict[str, dict[int, int]] = {}
    for place in places:
        if 0 <= place.partition < there.get(place.topic, 0):
            asked.setdefault(place.topic, {})[place.partition] = LATEST
    answers = await asyncio.gather(
        *(client.list_offsets(topic, times) for topic, times in asked.items())
    )
    return {
        TopicPartition(topic, partition): found.offset
        for topic, answer in zip(asked, answers, strict=True)
        for partition, found in answer.items()
    }


# Moving.


async def reset(
    client: AdminClient,
    group: str,
    topic: str,
    chosen: Sequence[int] | None,
    target: Target,
    *,
    dry_run: bool,
) -> Reset:
    """Let a group go on from somewhere else in a topic, or in some of its partitions."""
    info = await client.find_group(group)
    require_stopped(group, info)
    moves = await plan_reset(client, group, topic, chosen, target)
    if not dry_run:
        try:
            await client.commit_offsets(group, {move.place: move.after for move in moves})
        except Refused as error:
            if error.code != ErrorCode.unknown_member_id:
                raise
            raise Refused(
                ErrorCode.non_empty_group,
                f"group {group!r}",
                "a consumer has joined it meanwhile; stop its consumers first",
            ) from None
    return Reset(moves=moves, is_new=info is None)


async def plan_reset(
    client: AdminClient, group: str, topic: str, chosen: Sequence[int] | None, target: Target
) -> list[Move]:
    """Where each partition goes, inside of what its log holds."""
    partitions = await _chosen(client, topic, chosen)
    offsets = await client.group_offsets(group)
    earliest = await client.list_offsets(topic, dict.fromkeys(partitions, EARLIEST))
    latest = await client.list_offsets(topic, dict.fromkeys(partitions, LATEST))
    at_time = {}
    if target.time_ms is not None:
        at_time = await client.list_offsets(topic, dict.fromkeys(partitions, target.time_ms))
    moves = []
    for partition in partitions:
        place = TopicPartition(topic, partition)
        before = offsets[place].offset if place in offsets else None
        start, end = earliest[partition].offset, latest[partition].offset
        if target.earliest:
            after = start
        elif target.offset is not None:
            after = target.offset
        elif target.shift is not None:
            if before is None:
                raise Refused(
                    ErrorCode.invalid_request,
                    f"group {group!r}",
                    f"it has no offset in {place} that could be shifted; name a place, such as "
                    "the earliest (--to-earliest)",
                )
            after = before + target.shift
        elif target.current and before is not None:
            after = before
        elif target.time_ms is not None and at_time[partition].offset >= 0:
            after = at_time[partition].offset
        else:
            after = end  # also for a time after the last record, and for no current offset
        moves.append(Move(place=place, before=before, after=min(max(after, start), end)))
    return moves


async def _chosen(client: AdminClient, topic: str, chosen: Sequence[int] | None) -> list[int]:
    there = [partition.partition for partition in (await client.topic(topic)).partitions]
    for partition in chosen or ():
        if partition not in there:
            raise Refused(
                ErrorCode.unknown_topic_or_partition,
                f"{topic}-{partition}",
                f"topic {topic!r} has partitions 0 to {len(there) - 1}",
            )
    return sorted(set(chosen)) if chosen else there


def require_stopped(group: str, info: GroupInfo | None) -> None:
    """Refuse what must not happen to a group that consumes."""
    if info is not None and info.members:
        count = len(info.members)
        raise Refused(
            ErrorCode.non_empty_group,
            f"group {group!r}",
            f"it has {count} member{'s' * (count != 1)} ({info.state}); stop its consumers first",
        )
