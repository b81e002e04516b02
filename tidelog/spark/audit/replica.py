"""Asks one broker for one replica, its leader or not.

Rule 1: a consumer that says in which rack it stands may read from followers. The audit stands in a
        rack of its own, where no broker is, so nobody sends it elsewhere.
Rule 2: a broker that does not answer, or is not ready to, is asked again for a while; what leads
        may change meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.cluster import ANSWER_SECONDS, Refused
from tidelog.client.kafka import KafkaClient
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.model import NO_NODE, NO_OFFSET, NodeId, Offset, TopicPartition
from tidelog.spark import client_loop
from tidelog.spark.audit.walk import Answer, Row, Stretch, Walk
from tidelog.wire.apis import Api

RACK: Final = "tidelog-audit"
FETCH_BYTES: Final = 8 * 1024 * 1024
PATIENCE_SECONDS: Final = 15.0
"""Longer than a change of leaders, and than mending a segment."""
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 0.5
PLACES_MAX: Final = 1000
"""In one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What a task must know to ask, beyond its stretch."""

    bootstrap: str
    patience_seconds: float = PATIENCE_SECONDS
    fetch_bytes: int = FETCH_BYTES


def read_stretch(asking_: Asking, stretch: Stretch) -> Iterator[list[Row]]:
    """The rows of a stretch, some at a time. This is what a task runs."""
    return client_loop.iterate(_read(asking_, Walk(stretch)))


async def _read(asking_: Asking, walk: Walk) -> AsyncGenerator[list[Row], None]:
    client = client_loop.client(asking_.bootstrap)
    loop = asyncio.get_running_loop()
    last_good, pause = loop.time(), PAUSE_SECONDS
    while not walk.is_done:
        rows = await _ask(client, asking_, walk)
        if rows:
            yield rows
        if not walk.waits_for:
            last_good, pause = loop.time(), PAUSE_SECONDS
        elif not walk.may_mend or loop.time() + pause > last_good + asking_.patience_seconds:
            yield walk.give_up(walk.waits_for)
            last_good = loop.time()
        else:
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


async def _ask(client: KafkaClient, asking_: Asking, walk: Walk) -> list[Row]:
    stretch = walk.stretch
    place = TopicPartition(stretch.topic, stretch.partition)
    try:
        connection = await broker_of(client, stretch.replica)
        answers = await fetch(connection, {place: walk.position}, asking_.fetch_bytes)
    except (ConnectionFailed, Refused) as error:
        walk.waits_for = str(error)
        return []
    return walk.take(answers[place])


async def broker_of(client: KafkaClient, node: NodeId) -> Connection:
    """A connection to one broker; the cluster is asked where it is, if that is not known."""
    try:
        return await client.broker(node)
    except Refused:
        await client.cluster()
        return await client.broker(node)


async def fetch(
    connection: Connection, positions: Mapping[TopicPartition, Offset], bytes_max: int
) -> dict[TopicPartition, Answer]:
    """What this broker has of these partitions, at once and whoever leads them."""
    topics: dict[str, list[dict[str, int]]] = {}
    for place, position in positions.items():
        topics.setdefault(place.topic, []).append(
            {"partition": place.partition, "fetch_offset": position, "partition_max_bytes": bytes_max}
        )
    response: Any = await connection.call(
        Api.FETCH,
        timeout_seconds=ANSWER_SECONDS,
        replica_id=NO_NODE,
        max_wait=0,
        min_bytes=0,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": parts} for topic, parts in topics.items()],
        forgotten_topics_data=[],
        rack_id=RACK,
    )
    return {
        TopicPartition(topic.topic, one.partition_index): Answer(
            error=one.error_code.value,
            high_watermark=one.high_watermark,
            log_start=one.log_start_offset,
            records=one.records or b"",
        )
        for topic in response.responses
        for one in topic.partitions
    }


async def probe(connection: Connection, places: Iterable[TopicPartition]) -> dict[TopicPartition, Answer]:
    """Where replicas on this broker begin, and up to where they may be read.

    No log has a record at -1: all that comes is the refusal, which says both.
    """
    answers: dict[TopicPartition, Answer] = {}
    wanted = sorted(places)
    for at in range(0, len(wanted), PLACES_MAX):
        some = dict.fromkeys(wanted[at : at + PLACES_MAX], NO_OFFSET)
        answers |= await fetch(connection, some, 1)
    return answers
