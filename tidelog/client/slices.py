"""A range of one partition's offsets, as it was fetched: whole batches, nothing unpacked.

Rule 1: the range is ended by an offset, not by a count: markers and compaction leave gaps.
Rule 2: while one answer is worked on, the next is on its way; not more, so memory is bounded.
Rule 3: who names a rack is sent to a follower there. A follower that cannot go on (it is gone, or
        behind) is left for the leader, which knows best.
Rule 4: offsets that are no longer there are never passed over in silence: `Missing` says which.
Rule 5: who names the topic's id reads that topic and none of the same name that was made since:
        `Remade` says so. A broker that knows no ids in a fetch is asked by name.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import ANSWER_SECONDS, Refused, check
from tidelog.client.kafka import EARLIEST, LATEST, Fetched, KafkaClient, fetched_from
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.errors import TidelogError
from tidelog.model import NO_NODE, NodeId, Offset
from tidelog.records import iterate_batches
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

MIB: Final = 1024 * 1024
FETCH_BYTES: Final = 8 * MIB
WAIT_MS: Final = 500
FETCH_BY_ID: Final = 13
"""The version of Fetch that names topics by their ids alone."""


class Missing(TidelogError):
    """Offsets of the range are not in the log: deleted by retention, or the topic was made anew."""

    def __init__(self, what: str, wanted: Offset, first: Offset, end: Offset) -> None:
        super().__init__(f"{what}: offset {wanted} is gone; the log holds {first} to {end - 1}")
        self.wanted = wanted
        self.first = first
        self.end = end


class Remade(TidelogError):
    """The topic with this id was deleted; another one may have its name."""

    def __init__(self, what: str, topic_id: UUID) -> None:
        super().__init__(f"{what}: the topic with id {topic_id} was deleted, and perhaps created again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Some whole batches (and perhaps a part of one more), read from `start` on."""

    start: Offset
    next_offset: Offset
    """After the last whole batch."""
    fetched: Fetched


@dataclass(slots=True, kw_only=True)
class SliceReader:
    """Reads [position, end) of one partition. Owned by one task."""

    client: KafkaClient
    topic: str
    partition: int
    position: Offset
    end: Offset
    topic_id: UUID | None = None
    read_committed: bool = True
    rack: str = ""
    fetch_bytes: int = FETCH_BYTES
    idle_seconds_max: float = 120.0
    """For how long nothing new may come before the reader gives up."""
    _replica: NodeId = NO_NODE

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    async def slices(self) -> AsyncGenerator[Slice, None]:
        """All of the range, in order; the next one is fetched while the caller has this one."""
        ahead: asyncio.Task[Slice] | None = None
        try:
            while self.position < self.end:
                ahead = ahead or asyncio.create_task(self._next(self.position))
                found = await ahead
                ahead = None
                self.position = found.next_offset
                if self.position < self.end:
                    ahead = asyncio.create_task(self._next(self.position))
                yield found
        finally:
            if ahead is not None:
                ahead.cancel()
                with suppress(asyncio.CancelledError, TidelogError):
                    await ahead

    async def _next(self, position: Offset) -> Slice:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.idle_seconds_max
        while True:
            fetched = await self._fetch(position)
            after = position
            for header, _ in iterate_batches(fetched.records):
                after = header.next_offset
            if after > position:
                return Slice(start=position, next_offset=after, fetched=fetched)
            if fetched.records:
                what = "came cut off; a broker must send a first batch whole, so report this"
                raise TidelogError(f"{self}: the batch at {position} {what}")
            if loop.time() > give_up:
                raise TidelogError(
                    f"{self}: nothing came after offset {position} for {self.idle_seconds_max:g} s,"
                    f" though the range ends at {self.end}; the log is readable to "
                    f"{fetched.last_stable if self.read_committed else fetched.high_watermark}. "
                    "Is a transaction left open? See `tidelog transactions list`"
                )

    async def _fetch(self, position: Offset) -> Fetched:
        async def attempt() -> Fetched:
            replica, self._replica = self._replica, NO_NODE
            if replica != NO_NODE:
                with suppress(ConnectionFailed, Refused):
                    connection = await self.client.broker(replica)
                    fetched, _ = await self._ask(connection, position, self.rack)
                    if fetched.records:  # else the leader knows whether it is still good
                        self._replica = replica
                    return fetched
            leader = await self.client.leader(self.topic, self.partition)
            rack = self.rack if replica == NO_NODE else ""  # it would be sent there again
            fetched, self._replica = await self._ask(leader, position, rack)
            return fetched

        try:
            return await self.client.retry(attempt)
        except Refused as error:
            if error.code == ErrorCode.unknown_topic_id and self.topic_id is not None:
                raise Remade(str(self), self.topic_id) from error
            if error.code != ErrorCode.offset_out_of_range:
                raise
            raise await self._missing(position) from error

    async def _ask(self, connection: Connection, position: Offset, rack: str) -> tuple[Fetched, NodeId]:
        """What the broker has, and which one is nearer to the rack, if it knows one."""
        partition = {
            "partition": self.partition,
            "fetch_offset": position,
            "partition_max_bytes": self.fetch_bytes,
        }
        by_id = self.topic_id is not None and connection.speaks(Api.FETCH, FETCH_BY_ID)
        request = request_entity(
            Api.FETCH,
            FETCH_BY_ID if by_id else connection.version(Api.FETCH),
            {
                "replica_id": NO_NODE,
                "max_wait": WAIT_MS,
                "min_bytes": 1,
                "max_bytes": self.fetch_bytes,
                "isolation_level": int(self.read_committed),
                "session_id": 0,
                "session_epoch": -1,
                "topics": [{"topic": self.topic, "topic_id": self.topic_id, "partitions": [partition]}],
                "forgotten_topics_data": [],
                "rack_id": rack,
            },
        )
        answer: Any = await connection.request(request, timeout_seconds=WAIT_MS / 1000 + ANSWER_SECONDS)
        check(answer.error_code, f"fetch from {self}")
        (one,) = answer.responses[0].partitions
        check(one.error_code, str(self))
        return fetched_from(one), getattr(one, "preferred_read_replica", NO_NODE)

    async def _missing(self, position: Offset) -> Missing:
        ends = []
        for time_ms in (EARLIEST, LATEST):
            found = await self.client.list_offsets(
                self.topic, {self.partition: time_ms}, read_committed=self.read_committed
            )
            ends.append(found[self.partition].offset)
        return Missing(str(self), position, *ends)
