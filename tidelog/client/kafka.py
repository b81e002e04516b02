"""What a Kafka client can ask of a cluster: one method per request.

Rule 1: a method returns when the cluster has answered yes; anything else is raised.
Rule 2: a Produce may be repeated after its answer was lost. Batches without a producer id are then
        stored twice, so delivery is at least once.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tidelog.client.cluster import ANSWER_SECONDS, Cluster, TopicInfo, check
from tidelog.client.wire import Connection
from tidelog.model import NO_EPOCH, NO_NODE, NO_OFFSET, Epoch, Offset
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

EARLIEST: Final = -2
LATEST: Final = -1
LATEST_SURE: Final = -100
"""As LATEST, of a leader that nobody can have replaced; brokers that do not know it answer -1."""
MAX_TIMESTAMP: Final = -3
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFound:
    """The answer to a search by time; offset -1 when no record is that young."""

    offset: Offset
    timestamp_ms: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one partition answered to a fetch. `records` may end in a partial batch."""

    partition: int
    high_watermark: Offset
    last_stable: Offset
    log_start: Offset
    aborted: tuple[tuple[int, Offset], ...]
    """(producer id, first offset) of transactions that a committed read must not show."""
    records: bytes


class KafkaClient(Cluster):
    """A cluster that can be asked."""

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Create a topic; -1 leaves a number to the cluster's default."""
        response = await self.ask_controller(
            Api.CREATE_TOPICS,
            lambda response: [
                (topic.error_code, f"topic {topic.name!r}", topic.error_message) for topic in response.topics
            ],
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": replication,
                    "assignments": [],
                    "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
                }
            ],
            validate_only=False,
        )
        assert response.topics, "one result per topic"
        self.forget(name)
        return await self.topic(name)

    async def delete_topic(self, name: str) -> None:
        await self.ask_controller(
            Api.DELETE_TOPICS,
            lambda response: [
                (topic.error_code, f"topic {name!r}", getattr(topic, "error_message", None))
                for topic in response.responses
            ],
            topic_names=[name],
            topics=[{"name": name, "topic_id": None}],
        )
        self.forget(name)

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> None:
        """Let the topic have `total` partitions; it can only grow."""
        await self.ask_controller(
            Api.CREATE_PARTITIONS,
            lambda response: [
                (topic.error_code, f"topic {topic.name!r}", topic.error_message) for topic in response.results
            ],
            topics=[{"name": name, "count": total, "assignments": None}],
            validate_only=validate_only,
        )
        self.forget(name)

    async def produce(
        self, topic: str, partition: int, batch: bytes | bytearray, *, acks: int = -1
    ) -> Offset | None:
        """Append one batch; return the offset of its first record, None with acks=0."""

        async def attempt() -> Offset | None:
            connection = await self.leader(topic, partition)
            request = request_entity(
                Api.PRODUCE,
                connection.version(Api.PRODUCE),
                {
                    "transactional_id": None,
                    "acks": acks,
                    "timeout": int(self._timeout_seconds * 1000),
                    "topic_data": [
                        {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
                    ],
                },
            )
            if acks == 0:
                await connection.post(request)
                return None
            response = await connection.request(
                request, timeout_seconds=self._timeout_seconds + ANSWER_SECONDS
            )
            (answer,) = response.responses[0].partition_responses
            message = getattr(answer, "error_message", None)
            check(answer.error_code, f"{topic}-{partition}", message)
            return int(answer.base_offset)

        return await self.retry(attempt)

    async def fetch(
        self,
        topic: str,
        offsets: Mapping[int, Offset],
        *,
        wait_ms_max: int = 500,
        bytes_max: int = 50 * MIB,
        partition_bytes_max: int = 4 * MIB,
        read_committed: bool = False,
    ) -> list[Fetched]:
        """What follows `offsets`, by partition; waits for a byte of any until `wait_ms_max`.

        An error of one partition fails all: repeat without it, or with another offset.
        """

        async def ask(connection: Connection, partitions: list[int]) -> Any:
            return await connection.call(
                Api.FETCH,
                timeout_seconds=wait_ms_max / 1000 + ANSWER_SECONDS,
                replica_id=NO_NODE,
                max_wait=wait_ms_max,
                min_bytes=1,
                max_bytes=bytes_max,
                isolation_level=int(read_committed),
                session_id=0,
                session_epoch=-1,
                topics=[
                    {
                        "topic": topic,
                        "partitions": [
                            {
                                "partition": partition,
                                "fetch_offset": offsets[partition],
                                "partition_max_bytes": partition_bytes_max,
                            }
                            for partition in partitions
                        ],
                    }
                ],
                forgotten_topics_data=[],
            )

        fetched: list[Fetched] = []
        for response in await self.ask_leaders(Api.FETCH, topic, offsets, ask):
            check(getattr(response, "error_code", 0), f"fetch from {topic}")
            for answered in response.responses:
                fetched.extend(fetched_from(answer) for answer in answered.partitions)
        return fetched

    async def list_offsets(
        self, topic: str, times_ms: Mapping[int, int], *, read_committed: bool = False
    ) -> dict[int, OffsetFound]:
        """The first offset at or after each time; or EARLIEST, LATEST, LATEST_SURE,
        MAX_TIMESTAMP."""

        async def ask(connection: Connection, partitions: list[int]) -> Any:
            return await connection.call(
                Api.LIST_OFFSETS,
                replica_id=NO_NODE,
                isolation_level=int(read_committed),
                timeout=int(self._timeout_seconds * 1000),
                topics=[
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": partition, "timestamp": times_ms[partition]}
                            for partition in partitions
                        ],
                    }
                ],
            )

        found = {}
        for response in await self.ask_leaders(Api.LIST_OFFSETS, topic, times_ms, ask):
            for answer in response.topics[0].partitions:
                found[answer.partition_index] = OffsetFound(
                    offset=answer.offset,
                    timestamp_ms=answer.timestamp,
                    epoch=getattr(answer, "leader_epoch", NO_EPOCH),
                )
        return found

    async def epoch_ends(self, topic: str, epochs: Mapping[int, Epoch]) -> dict[int, Offset]:
        """Where the given epoch of each log has ended by now.

        Logs that know nothing of it are left out, and so is NO_EPOCH.
        """

        async def attempt(partition: int) -> Offset:
            connection = await self.leader(topic, partition)
            asked = {
                "partition": partition,
                "current_leader_epoch": NO_EPOCH,
                "leader_epoch": epochs[partition],
            }
            answer: Any = await connection.call(
                Api.OFFSET_FOR_LEADER_EPOCH,
                replica_id=NO_NODE,
                topics=[{"topic": topic, "partitions": [asked]}],
            )
            (found,) = answer.topics[0].partitions
            check(found.error_code, f"{topic}-{partition}")
            return int(found.end_offset)

        asked = [one for one, epoch in epochs.items() if epoch != NO_EPOCH]
        ends = await asyncio.gather(*(self.retry(partial(attempt, one)) for one in asked))
        return {one: end for one, end in zip(asked, ends, strict=True) if end >= 0}

    async def perform(self, verb: str, **asked: Any) -> Any:
        """What any node answers to an operator's verb (docs/verbs.md), as JSON is read.

        A refusal is raised at once: the node has tried for as long as it may help.
        """
        wanted = json.dumps(asked).encode()

        async def attempt() -> Any:
            connection = await self.any_connection()
            seconds = self._timeout_seconds + ANSWER_SECONDS
            return await connection.call(Api.PERFORM, verb=verb, asked=wanted, timeout_seconds=seconds)

        if asked.get("shift") is None:
            response = await self.retry(attempt)
        else:  # relative to what is there: done twice, it is another change
            await self.retry(self.any_connection)
            response = await attempt()
        check(response.error_code, "", response.error_message)
        return json.loads(response.answer)

    async def delete_records(self, topic: str, before: Mapping[int, Offset]) -> dict[int, Offset]:
        """Delete what lies before an offset (-1: everything committed); return the new starts."""

        async def ask(connection: Connection, partitions: list[int]) -> Any:
            return await connection.call(
                Api.DELETE_RECORDS,
                timeout=int(self._timeout_seconds * 1000),
                topics=[
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": partition, "offset": before[partition]}
                            for partition in partitions
                        ],
                    }
                ],
            )

        return {
            answer.partition_index: answer.low_watermark
            for response in await self.ask_leaders(Api.DELETE_RECORDS, topic, before, ask)
            for answer in response.topics[0].partitions
        }


def fetched_from(answer: Any) -> Fetched:
    """One partition's part of an answer."""
    aborted = tuple(
        (transaction.producer_id, transaction.first_offset)
        for transaction in answer.aborted_transactions or ()
    )
    return Fetched(
        partition=answer.partition_index,
        high_watermark=answer.high_watermark,
        last_stable=answer.last_stable_offset,
        log_start=getattr(answer, "log_start_offset", NO_OFFSET),
        aborted=aborted,
        records=answer.records or b"",
    )
