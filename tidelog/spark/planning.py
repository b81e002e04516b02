"""Where reading begins and ends, asked of the cluster.

Rule 1: the first and the last offset are those that the reader may see: the last stable offset for
        committed reads, the high watermark otherwise.
        Lag is counted to the high watermark by both: an open transaction hides records from a
        reader, and they are behind all the same.
Rule 2: partitions that appear while a query runs are read from their beginning.
Rule 3: with an archive, a partition begins where its archive does; what is in the log is read there
        by streams, and by batches where the archive ends.
Rule 4: offsets are told with the ids of their topics, and these are asked for first: a topic that
        is made anew in between has another id than the one that is told.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar, assert_never
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Refused
from tidelog.client.kafka import Fetched, KafkaClient
from tidelog.errors import ConfigError
from tidelog.model import Offset, TopicPartition
from tidelog.records import iterate_batches
from tidelog.spark.client_loop import SparkClient, ask
from tidelog.spark.options import (
    Assigned,
    AtEdge,
    AtOffsets,
    AtTime,
    Bound,
    Matching,
    ReadOptions,
    Subscribed,
)
from tidelog.spark.ranges import EARLIEST, LATEST, OffsetRange, Offsets, split

if TYPE_CHECKING:
    from tidelog.spark.archive.bridge import History, Part

T = TypeVar("T")

SAMPLE_BYTES: Final = 64 * 1024
"""How much of a partition is looked at to guess how large its records are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Offsets of partitions, with the ids of their topics."""

    offsets: Offsets
    topics: Mapping[str, UUID]
    watermarks: Offsets
    """Where the logs end, whatever the reader may see of them."""


class Planner:
    """Answers a reader's questions about its topics. Nothing is remembered between them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._histories: dict[str, History] = {}

    def places(self) -> list[TopicPartition]:
        """Every partition that is read, as the cluster has them now."""
        return self._ask(self._places)

    def starts(self) -> Seen:
        """Where a new query begins."""

        async def question(client: SparkClient) -> Seen:
            places = await self._places(client)
            topics = await _ids(client, places)
            found = await self._resolve(client, places, self._options.starting, "starting")
            return Seen(offsets=found, topics=topics, watermarks={})

        self._look_into_archives()
        return self._ask(question)

    def ends(self) -> Seen:
        """The end of every partition that is read, now."""

        async def question(client: SparkClient) -> Seen:
            places = await self._places(client)
            topics = await _ids(client, places)
            latest = dict.fromkeys(places, LATEST)
            if not self._options.read_committed:
                found = await self._at(client, latest)
                return Seen(offsets=found, topics=topics, watermarks=found)
            found, watermarks = await asyncio.gather(
                self._at(client, latest), self._at_in_logs(client, latest, read_committed=False)
            )
            return Seen(offsets=found, topics=topics, watermarks=watermarks)

        return self._ask(question)

    def sizes(self, starts: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, float]:
        """About how many bytes an offset has, from the first batches after each of `starts`.

        They are counted as they are stored, so compressed if they are. A partition from which
        nothing came is left out.
        """
        topics: dict[str, dict[int, Offset]] = {}
        for place, start in starts.items():
            topics.setdefault(place.topic, {})[place.partition] = start

        async def question(client: SparkClient) -> dict[TopicPartition, float]:
            answers = await asyncio.gather(
                *(self._sample(client, topic, asked) for topic, asked in topics.items())
            )
            return {place: size for answer in answers for place, size in answer.items()}

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

        async def question(client: SparkClient) -> tuple[Mapping[str, UUID], Offsets, Offsets]:
            places = await self._places(client)
            options = self._options
            return (
                await _ids(client, places),
                await self._resolve(client, places, options.starting, "starting"),
                await self._resolve(client, places, options.ending, "ending"),
            )

        self._look_into_archives()
        topics, starts, ends = self._ask(question)
        for place in starts:
            if starts[place] > ends[place] and not _is_edge(self._options.starting):
                raise ConfigError(
                    f"{place}: startingOffsets {starts[place]} lies behind endingOffsets {ends[place]}"
                )
        return [
            OffsetRange(place.topic, place.partition, start, ends[place], topic_id=topics.get(place.topic))
            for place, start in starts.items()
        ]

    def tasks(self, ranges: Iterable[OffsetRange], *, prefer_log: bool) -> "list[Part]":
        """The ranges as Spark's tasks read them: cut as the options say, from log or archive."""
        options = self._options
        wanted = [one for one in ranges if one.count]
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
                [one for one in wanted if one.topic == topic],
                log,
                may_lose=not options.fail_on_data_loss,
                prefer_log=prefer_log,
                tasks_min=options.tasks_min,
                rows_max=options.task_rows_max,
            )
        ids = {one.topic: one.topic_id for one in wanted}
        return [
            replace(part, topic_id=ids[part.topic]) if isinstance(part, OffsetRange) else part
            for part in parts
        ]

    def _look_into_archives(self) -> None:
        """See what each topic's archive has, by now."""
        archive = self._options.archive
        if archive is None:
            return
        from tidelog.spark.archive.bridge import open_history  # likewise

        async def question(client: SparkClient) -> dict[str, UUID | None]:
            places = await self._places(client)
            known = await _ids(client, places)
            return {place.topic: known.get(place.topic) for place in places}

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
                                f"assign names {place}, but {topic!r} has partitions 0 to {len(known) - 1}"
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
        self, client: SparkClient, times: Mapping[TopicPartition, int], side: str, *, or_latest: bool
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
        self, client: KafkaClient, times: Mapping[TopicPartition, int], *, read_committed: bool | None = None
    ) -> Offsets:
        """ListOffsets for any number of topics at once."""
        committed = self._options.read_committed if read_committed is None else read_committed
        topics: dict[str, dict[int, int]] = {}
        for place, time in times.items():
            topics.setdefault(place.topic, {})[place.partition] = time
        answers = await asyncio.gather(
            *(client.list_offsets(topic, asked, read_committed=committed) for topic, asked in topics.items())
        )
        return {
            TopicPartition(topic, partition): found.offset
            for topic, answer in zip(topics, answers, strict=True)
            for partition, found in sorted(answer.items())
        }

    async def _sample(
        self, client: KafkaClient, topic: str, starts: Mapping[int, Offset]
    ) -> dict[TopicPartition, float]:
        try:
            fetched = await self._fetch_some(client, topic, starts)
        except Refused as refused:
            if refused.code != ErrorCode.offset_out_of_range:
                raise
            # Some of it is gone, or in the archive only: whoever reads it will know what to do.
            wanted = {TopicPartition(topic, partition): EARLIEST for partition in starts}
            firsts = await self._at_in_logs(client, wanted)
            starts = {place.partition: max(starts[place.partition], first) for place, first in firsts.items()}
            fetched = await self._fetch_some(client, topic, starts)
        sizes = {}
        for one in fetched:
            batches = [(header, len(batch)) for header, batch in iterate_batches(one.records)]
            if batches:
                first = min(starts[one.partition], batches[0][0].base_offset)
                offsets = batches[-1][0].next_offset - first
                size = sum(length for _, length in batches) / offsets
                sizes[TopicPartition(topic, one.partition)] = size
        return sizes

    async def _fetch_some(
        self, client: KafkaClient, topic: str, starts: Mapping[int, Offset]
    ) -> list[Fetched]:
        return await client.fetch(
            topic,
            starts,
            wait_ms_max=0,
            partition_bytes_max=SAMPLE_BYTES,
            read_committed=self._options.read_committed,
        )


def _is_edge(bound: Bound) -> bool:
    return isinstance(bound, AtEdge)


def _check_all_named(option: str, places: list[TopicPartition], named: Mapping[TopicPartition, int]) -> None:
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


async def _ids(client: KafkaClient, places: Iterable[TopicPartition]) -> dict[str, UUID]:
    """The ids of topics, as the metadata has them that told of these partitions."""
    infos = [await client.topic(topic) for topic in sorted({place.topic for place in places})]
    return {info.name: info.id for info in infos if info.id is not None}
