"""Which offsets are read, of which topics; all, or an even sample.

Rule 1: a sample is of stretches, evenly spread over each partition, since reading less than a
        batch saves nothing. Every partition that has records gets at least one.
Rule 2: times are found through the log's own index: from the first record that is not older.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin import AdminClient
from tidelog.client.cluster import TopicInfo
from tidelog.client.kafka import EARLIEST, LATEST
from tidelog.errors import TidelogError
from tidelog.model import NO_OFFSET, Offset, TopicPartition
from tidelog.spark.ranges import OffsetRange, split

OFFSETS_TOPIC: Final = "__consumer_offsets"
STRETCH_OFFSETS: Final = 10_000
"""Of a sample: some batches of most producers."""
TASK_OFFSETS: Final = 2_000_000


class CannotAnalyze(TidelogError):
    """There is nothing to look at; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asked for; times in milliseconds."""

    topics: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    sample: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one task reads: some ranges of one partition."""

    ranges: tuple[OffsetRange, ...]
    is_commits: bool = False
    """Whether they hold what groups have committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisPlan:
    """What is looked at, as it was when the analysis began."""

    cluster_id: str
    wanted: Wanted
    bounds: tuple[OffsetRange, ...]
    """Of every partition: what the numbers stand for."""
    commits: tuple[OffsetRange, ...] = ()

    def tasks(self) -> list[Task]:
        """The work, in parts of about the same size."""
        parts = [
            Task(ranges=tuple(chosen))
            for one in split(self.bounds, rows_max=TASK_OFFSETS)
            if (chosen := sampled(one, self.wanted.sample))
        ]
        return parts + [Task(ranges=(one,), is_commits=True) for one in self.commits if one.count]

    def factors(self) -> dict[TopicPartition, float]:
        """By what a partition's sums are to be multiplied, since only a sample was read."""
        read: dict[TopicPartition, int] = {}
        for task in self.tasks():
            for one in task.ranges:
                if not task.is_commits:
                    read[one.place] = read.get(one.place, 0) + one.count
        return {one.place: one.count / read[one.place] for one in self.bounds if one.count}


def sampled(one: OffsetRange, fraction: float) -> list[OffsetRange]:
    """Stretches of a range, evenly spread, that are about `fraction` of it."""
    if fraction >= 1 or one.count <= STRETCH_OFFSETS:
        return [one] if one.count else []
    count = max(1, round(one.count * fraction / STRETCH_OFFSETS))
    step = one.count / count
    size = min(STRETCH_OFFSETS, int(step))
    starts = [one.start + int(step * (n + 0.5) - size / 2) for n in range(count)]
    return [OffsetRange(one.topic, one.partition, at, at + size) for at in starts]


async def make_plan(client: AdminClient, wanted: Wanted) -> AnalysisPlan:
    """Ask the cluster; CannotAnalyze if there is nothing to look at."""
    cluster = await client.cluster()
    every = await client.topics()
    found = [topic for topic in every if not topic.internal]
    if wanted.topics:
        for name in wanted.topics:
            client.forget(name)
        found = [await client.topic(name) for name in dict.fromkeys(wanted.topics)]
    bounds = [
        one
        for bounds in await asyncio.gather(*(_bounds(client, topic, wanted) for topic in found))
        for one in bounds
    ]
    if not any(one.count for one in bounds):
        times = " between these times" if wanted.from_ms or wanted.to_ms else ""
        what = ", ".join(wanted.topics) or "any topic"
        raise CannotAnalyze(f"there are no records in {what}{times}")
    commits: list[OffsetRange] = []
    for topic in every:
        if topic.name == OFFSETS_TOPIC:
            commits = await _bounds(client, topic, Wanted(to_ms=wanted.to_ms), is_committed=True)
    return AnalysisPlan(
        cluster_id=cluster.cluster_id or "", wanted=wanted, bounds=tuple(bounds), commits=tuple(commits)
    )


async def _bounds(
    client: AdminClient, topic: TopicInfo, wanted: Wanted, *, is_committed: bool = False
) -> list[OffsetRange]:
    """What of each partition lies between the times."""
    numbers = [one.partition for one in topic.partitions]

    async def at(time_ms: int) -> dict[int, Offset]:
        times = dict.fromkeys(numbers, time_ms)
        found = await client.list_offsets(topic.name, times, read_committed=is_committed)
        return {number: found[number].offset for number in numbers}

    ends = await at(LATEST)
    starts = await at(EARLIEST if wanted.from_ms is None else wanted.from_ms)
    lasts = ends if wanted.to_ms is None else await at(wanted.to_ms)
    return [
        OffsetRange(topic.name, number, *_span(starts[number], lasts[number], ends[number]))
        for number in numbers
    ]


def _span(start: Offset, last: Offset, end: Offset) -> Sequence[Offset]:
    """From where to where; no record is that young where the log says -1."""
    start = end if start == NO_OFFSET else min(start, end)
    return start, max(start, end if last == NO_OFFSET else min(last, end))
