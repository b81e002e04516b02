"""What the cluster has of a topic: its id, and the offsets that are safe to take."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.client.kafka import EARLIEST, LATEST
from tidelog.model import Epoch, Offset
from tidelog.spark.archive.spans import Span, Spans, check_kept
from tidelog.spark.archive.tables import ArchiveError
from tidelog.spark.client_loop import SparkClient, ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A topic as it is now."""

    topic: str
    id: uuid.UUID
    spans: Spans
    """From the first offset to the last stable one: below it nothing can change any more."""
    epochs: Mapping[int, Epoch] = field(default_factory=dict)
    """Of the leaders that told where their logs end; NO_EPOCH, where they do not tell it."""


def look_at(bootstrap: str, topic: str) -> Log:
    """Ask the cluster for a topic."""

    async def question(client: SparkClient) -> Log:
        client.forget(topic)
        info = await client.topic(topic)
        if info.internal:
            raise ArchiveError(f"topic {topic!r} is the cluster's own; it cannot be archived")
        if info.id is None:
            raise ArchiveError(f"the brokers of {topic!r} do not tell its id; they are too old")
        partitions = [one.partition for one in info.partitions]
        firsts, ends = [
            await client.list_offsets(topic, dict.fromkeys(partitions, edge), read_committed=True)
            for edge in (EARLIEST, LATEST)
        ]
        return Log(
            topic=topic,
            id=info.id,
            spans={one: Span(firsts[one].offset, ends[one].offset) for one in partitions},
            epochs={one: ends[one].epoch for one in partitions},
        )

    return ask(bootstrap, question)


def check_not_cut(
    bootstrap: str, topic: str, archived: Mapping[int, Span], epochs: Mapping[int, Epoch]
) -> None:
    """ArchiveAhead, if a log was cut below what is archived; an unclean election may do that."""
    if epochs:
        check_kept(topic, archived, epoch_ends(bootstrap, topic, epochs))


def epoch_ends(bootstrap: str, topic: str, epochs: Mapping[int, Epoch]) -> dict[int, Offset]:
    """Where the given epoch of each log has ended by now, of those that know of it."""
    return ask(bootstrap, lambda client: client.epoch_ends(topic, epochs))


def look_at_or_make(bootstrap: str, topic: str, partitions: int) -> Log:
    """The same, of a topic that is made if it is not there."""

    async def make(client: SparkClient) -> None:
        if topic not in {one.name for one in await client.topics()}:
            await client.create_topic(topic, partitions=partitions)

    ask(bootstrap, make)
    return look_at(bootstrap, topic)


def offsets_at(log: Log, bootstrap: str, time_ms: int) -> dict[int, Offset]:
    """The first offset of that time or later, of every partition; the end where there is none."""

    async def question(client: SparkClient) -> dict[int, Offset]:
        found = await client.list_offsets(log.topic, dict.fromkeys(log.spans, time_ms), read_committed=True)
        return {
            partition: found[partition].offset if found[partition].offset >= 0 else span.end
            for partition, span in log.spans.items()
        }

    return ask(bootstrap, question)


def topic_names(bootstrap: str) -> list[str]:
    """Every topic that users have made."""

    async def question(client: SparkClient) -> list[str]:
        return [topic.name for topic in await client.topics() if not topic.internal]

    return sorted(ask(bootstrap, question))
