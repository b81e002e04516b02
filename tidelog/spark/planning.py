"""Where reading begins and ends, asked of the cluster.

Rule 1: the first and the last offset are those that the reader may see: the last stable offset for
        committed reads, the high watermark otherwise.
Rule 2: partitions that appear while a query runs are read from their beginning.
Rule 3: with an archive, a partition begins where its archive does; what is in the log is read there
        by streams, and by batches where the archive ends.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar, assert_never
from uuid import UUID

from tidelog.client.kafka import KafkaClient
from tidelog.errors import ConfigError
from tidelog.model import TopicPartition
from tidelog.spark.asking import SparkClient, ask
from tidelog.spark.options import (
    Assigned,
    AtEdge,
    AtOffsets,
    AtTime,
    Bound,
    Matching,
    ReadOptions,
    Subscribed,
)  # fmt: skip
from tidelog.spark.ranges import EARLIEST, LATEST, OffsetRange, Offsets, split

if TYPE_CHECKING:
    from tidelog.spark.archive.bridge import History, Part

T = TypeVar("T")


class Planner:
    """Answers a reader's questions about its topics. Nothing is remembered between them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._histories: dict[str, History] = {}

    def places(self) -> list[TopicPartition]:
        """Every partition that is read, as the cluster has them now."""
        return self._ask(self._places)

    def starts(self) -> Offsets:
        """Where a new query begins."""

        async def question(client: SparkClient) -> Offsets:
            places = await self._places(client)
            return await self._resolve(client, places, self._options.starting, "starting")

        self._look_into_archives()
        return self._ask(question)

    def ends(self) -> Offsets:
        """The end of every partition that is read, now."""

        async def question(client: SparkClient) -> Offsets:
            return await self._at(client, dict.fromkeys(await self._places(client), LATEST))

        return self._ask(question)

    def earliest(self, places: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each."""
        wanted = dict.fromkeys(places, EARLIEST)
        if not wanted:
            return {}
        self._look_into_archives()
        return self._ask(lambda client: self._at(client, wanted))

    def from_time(self, places: Iterable[TopicPartition], timestamp_ms: int) -> Offsets:
        """The first offset of that time or later; where there is none, the end."""

        async def question(client: SparkClient) -> Offsets:
            return await self._at_times(
                client, dict.fromkeys(places, timestamp_ms), "timestamp", or_latest=True
            )

        return self._ask(question)

    def batch(self) -> list[OffsetRange]:
        """What a batch reads, a range for each partition."""

        async def question(client: SparkClient) -> tuple[Offsets, Offsets]:
            places = await self._places(client)
            options = self._options
            return (
                await self._resolve(client, places, options.starting, "starting"),
                await self._resolve(client, places, options.ending, "ending"),
            )

        self._look_into_archives()
        starts, ends = self._ask(question)
        for place in starts:
            if starts[place] > ends[place] and not _is_edge(self._options.starting):
                raise ConfigError(
                    f"{place}: startingOffsets {starts[place]} lies behind endingOffsets "
                    f"{ends[place]}"
                )
        return [
            OffsetRange(place.topic, place.partition, start, ends[place])
            for place, start in starts.items()
        ]

    def tasks(self, ranges: Iterable[OffsetRange], *, prefer_log: bool) -> "list[Part]":
        """The ranges as Spark's tasks read them: cut as the options say, from log or archive."""
        options = self._options
        wanted = list(ranges)
        if options.archive is None:
            return [*split(wanted, tasks_min=options.tasks_min, rows_max=options.task_rows_max)]
        from tidelog.spark.archive.spans import Span  # archives cost time to load

        places = {one.place for one in wanted}
        # First the logs, then the archives: these have what is trimmed from now on.
        firsts, lasts = self._ask(lambda client: self._log_ends(client, places))
        self._look_into_archives()
        parts: list[Part] = []
        for topic, history in self._histories.items():
            log = {
                place.partition: Span(first, lasts[place])
                for place, first in firsts.items()
                if place.topic == topic
            }
            parts += history.parts(
                [one for one in wanted if one.topic == topic and one.count], log,
                may_lose=not options.fail_on_data_loss, prefer_log=prefer_log,
                tasks_min=options.tasks_min, rows_max=options.task_rows_max,
            )  # fmt: skip
        return parts

    def _look_into_archives(self) -> None:
        """See what each topic's archive has, by now."""
        archive = self._options.archive
        if archive is None:
            return
        from tidelog.spark.archive.bridge import open_history  # likewise

        async def question(client: SparkClient) -> dict[str, UUID | None]:
            topics = {place.topic for place in await self._places(client)}
            return {topic: (await client.topic(topic)).id for topic in topics}

        self._histories = {
            topic: open_history(archive.warehouse, archive.catalog, topic, topic_id)
            for topic, topic_id in sorted(self._ask(question).items())
        }

    def _ask(self, question: Callable[[SparkClient], Awaitable[T]]) -> T:
        options = self._options
        return ask(options.bootstrap, question, timeout_seconds=options.timeout_seconds)

    async def _places(self, client: SparkClient) -> list[TopicPartition]:
        match self._options.subscription:
            case Assigned(places):
                for topic in {place.topic for place in places}:
                    known = await _partitions(client, topic)
                    for place in places:
                        if place.topic == topic and place not in known:
                            raise ConfigError(
                                f"assign names {place}, but {topic!r} has partitions 0 to "
                                f"{len(known) - 1}"
                            )
                return list(places)
            case Subscribed(topics):
                found = await asyncio.gather(*(_partitions(client, topic) for topic in topics))
                return [place for some in found for place in some]
            case Matching(pattern):
                matches = re.compile(pattern).fullmatch
                return [
                    TopicPartition(topic.name, partition.partition)
                    for topic in await client.topics()
                    if not topic.internal and matches(topic.name)
                    for partition in topic.partitions
                ]
            case other:
                assert_never(other)

    async def _resolve(
        self, client: SparkClient, places: list[TopicPartition], bound: Bound, side: str
    ) -> Offsets:
        match bound:
            case AtEdge(edge):
                return await self._at(client, dict.fromkeys(places, edge))
            case AtOffsets(offsets):
                named = dict(offsets)
                _check_all_named(f"{side}Offsets", places, named)
                edges = {place: at for place, at in named.items() if at < 0}
                return {**named, **await self._at(client, edges)}
            case AtTime(None, times):
                named = dict(times)
                _check_all_named(f"{side}OffsetsByTimestamp", places, named)
                return await self._at_times(client, named, side, or_latest=self._or_latest(side))
            case AtTime(time, _):
                assert time is not None
                return await self._at_times(
                    client, dict.fromkeys(places, time), side, or_latest=self._or_latest(side)
                )
            case other:
                assert_never(other)

    def _or_latest(self, side: str) -> bool:
        return side == "ending" or self._options.unmatched_time_is_latest

    async def _at_times(
        self,
        client: SparkClient,
        times: Mapping[TopicPartition, int],
        side: str,
        *,
        or_latest: bool,
    ) -> Offsets:
        found = await self._at(client, times)
        unmatched = [place for place, offset in found.items() if offset < 0]
        if unmatched and not or_latest:
            place = unmatched[0]
            raise ConfigError(
                f"{place} has no record at or after {side} time {times[place]}; set "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        return {**found, **await self._at(client, dict.fromkeys(unmatched, LATEST))}

    async def _at(self, client: KafkaClient, times: Mapping[TopicPartition, int]) -> Offsets:
        """The offsets of edges and times, in the archive or in the log."""
        found = await self._at_in_logs(client, times)
        for place, time in times.items():
            history = self._histories.get(place.topic)
            if history is None:
                continue
            if time == EARLIEST:
                found[place] = history.start(place.partition, found[place])
            elif time >= 0 and (first := history.first_at(place.partition, time)) is not None:
                found[place] = first
        return found

    async def _log_ends(
        self, client: KafkaClient, places: Iterable[TopicPartition]
    ) -> tuple[Offsets, Offsets]:
        wanted = list(places)
        return (
            await self._at_in_logs(client, dict.fromkeys(wanted, EARLIEST)),
            await self._at_in_logs(client, dict.fromkeys(wanted, LATEST)),
        )

    async def _at_in_logs(
        self, client: KafkaClient, times: Mapping[TopicPartition, int]
    ) -> Offsets:
        """ListOffsets for any number of topics at once."""
        topics: dict[str, dict[int, int]] = {}
        for place, time in times.items():
            topics.setdefault(place.topic, {})[place.partition] = time
        answers = await asyncio.gather(
            *(
                client.list_offsets(topic, asked, read_committed=self._options.read_committed)
                for topic, asked in topics.items()
            )
        )
        return {
            TopicPartition(topic, partition): found.offset
            for topic, answer in zip(topics, answers, strict=True)
            for partition, found in sorted(answer.items())
        }


def _is_edge(bound: Bound) -> bool:
    return isinstance(bound, AtEdge)


def _check_all_named(
    option: str, places: list[TopicPartition], named: Mapping[TopicPartition, int]
) -> None:
    """Offsets that name some partitions leave the others to chance."""
    missing, extra = sorted(set(places) - named.keys()), sorted(named.keys() - set(places))
    if missing:
        names = ", ".join(map(str, missing))
        raise ConfigError(f"{option} must name every partition that is read; it lacks {names}")
    if extra:
        names = ", ".join(map(str, extra))
        raise ConfigError(f"{option} names {names}, which the query does not read")


async def _partitions(client: KafkaClient, topic: str) -> list[TopicPartition]:
    client.forget(topic)
    info = await client.topic(topic)
    return [TopicPartition(topic, partition.partition) for partition in info.partitions]
