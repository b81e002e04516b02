"""A transactional producer as its process knows itself, in either generation of the protocol.

Rule 1: a batch is sent again, under the same sequence, until somebody knows what became of it; who
        cannot find out ends the transaction, and begins under another epoch.
Rule 2: what a producer says of its transaction is what it can know: `ok` is committed, `fail` was
        never and will never be, and anything else is `info`.

The older generation (KIP-98) names each partition to the coordinator before it writes, and keeps
its epoch; the newer one (KIP-890, part 2) writes, and has another epoch after every transaction.
"""

# value := kind: "r" | "d" | "b", label, ordinal, rest                   (text, apart by one space)
#          `label` names a transaction, or a batch of a group; `ordinal` is unique in it. A record
#          of kind "d" was made of another, and `rest` is its label/ordinal; one of kind "b" is a
#          row of a group's batch, and `rest` begins with group/batch/row. `rest` may be padded.

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client.admin import NAMED_MOST
from tidelog.client.cluster import ANSWER_SECONDS, Refused, check
from tidelog.client.transactions import TRANSACTION_KEY
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.errors import TidelogError
from tidelog.model import NO_EPOCH, NO_PRODUCER, Endpoint, Offset, TopicPartition
from tidelog.records import TRANSACTIONAL, Record, encode_batch
from tidelog.simulation.replicated import EpochClient
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

T = TypeVar("T")

GROUP_KEY: Final = 0
_PAUSE_SECONDS: Final = 0.1
NOT_DONE: Final = (ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress)
"""Who hears these knows that what it asked for was not begun."""

Outcome: TypeAlias = Literal["ok", "fail", "info"]


class Value(NamedTuple):
    """A record of the story, taken apart."""

    kind: str
    label: str
    ordinal: int
    rest: str

    @property
    def id(self) -> str:
        return f"{self.label}/{self.ordinal}"

    def encode(self, padding: int = 0) -> bytes:
        text = f"{self.kind} {self.label} {self.ordinal} {self.rest} {'.' * padding}"
        return text.encode()

    @classmethod
    def decode(cls, data: bytes) -> "Value":
        kind, label, ordinal, rest, _ = data.decode().split(" ")
        return cls(kind, label, int(ordinal), rest)


class OnceClient(EpochClient):
    """Asks once, of whom it is told to ask; after a failure it looks anew who that is."""

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await attempt()
        except (ConnectionFailed, Refused):
            self._topics.clear()
            self._stale = True
            raise

    async def of(self, key: str, kind: int, api: Api, version: int, fields: dict[str, Any]) -> Any:
        """Ask the coordinator of a transactional id, or of a group."""
        asked = request_entity(api, version, fields)

        async def attempt() -> Any:
            connection = await self.any_connection()
            response = await connection.call(
                Api.FIND_COORDINATOR, key=key, coordinator_keys=[key], key_type=kind
            )
            (found,) = getattr(response, "coordinators", (response,))
            check(found.error_code, f"coordinator of {key!r}")
            coordinator = await self._connect(Endpoint(host=found.host, port=found.port))
            return await coordinator.request(asked)

        return await self.retry(attempt)

    async def write(
        self, transactional_id: str, place: TopicPartition, batch: bytes, *, version: int
    ) -> Offset:
        """Append one batch of a transaction."""

        async def attempt() -> Offset:
            connection: Connection = await self.leader(place.topic, place.partition)
            asked = request_entity(
                Api.PRODUCE,
                version,
                {
                    "transactional_id": transactional_id,
                    "acks": -1,
                    "timeout": int(self._timeout_seconds * 1000),
                    "topic_data": [
                        {
                            "name": place.topic,
                            "partition_data": [{"index": place.partition, "records": batch}],
                        }
                    ],
                },
            )
            response = await connection.request(
                asked, timeout_seconds=self._timeout_seconds + ANSWER_SECONDS / 10
            )
            (answer,) = response.responses[0].partition_responses
            check(answer.error_code, str(place), answer.error_message)
            return int(answer.base_offset)

        return await self.retry(attempt)

    async def committed(self, group: str, place: TopicPartition) -> Offset:
        """Where a group is, as one that takes over asks: not while a commit is under way."""
        fields = {
            "groups": [
                {
                    "group_id": group,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": [{"name": place.topic, "partition_indexes": [place.partition]}],
                }
            ],
            "require_stable": True,
        }
        response = await self.of(group, GROUP_KEY, Api.OFFSET_FETCH, NAMED_MOST, fields)
        (answer,) = response.groups
        check(answer.error_code, group)
        (one,) = answer.topics[0].partitions
        check(one.error_code, f"{group} {place}")
        return int(one.committed_offset)


class Producer:
    """One process that writes under a transactional id; others may have the same."""

    def __init__(
        self,
        name: str,
        transactional_id: str,
        client: OnceClient,
        generator: random.Random,
        *,
        bumps: bool,
        timeout_ms: int,
        patience_seconds: float,
        wall_ms: Callable[[], int],
    ) -> None:
        """`bumps`: it speaks the newer generation of the protocol."""
        self.name = name
        self.id = transactional_id
        self.bumps = bumps
        self.producer_id = NO_PRODUCER
        self.epoch = NO_EPOCH
        self.client = client
        self.generator = generator
        self._timeout_ms = timeout_ms
        self._patience_seconds = patience_seconds
        self._wall_ms = wall_ms
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition | str] = set()
        self._labels = 0
        self.is_unsure = False
        """Something that it sent is on its way, or may be."""

    # What it draws.

    def rolls(self, chance: float) -> bool:
        return self.generator.random() < chance

    def draw(self, low: int, high: int) -> int:
        return self.generator.randint(low, high)

    def choose(self, some: Sequence[T]) -> T:
        return self.generator.choice(some)

    async def pause(self, seconds_max: float) -> None:
        await asyncio.sleep(seconds_max * self.generator.random())

    def next_label(self) -> str:
        """The name of its next transaction."""
        self._labels += 1
        return f"{self.name}/{self._labels}"

    # How it asks.

    async def insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again while it may yet be done, for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_seconds
        while True:
            try:
                return await attempt()
            except TidelogError as error:
                if loop.time() > until or not getattr(error, "retriable", False):
                    raise
                await asyncio.sleep(_PAUSE_SECONDS * self.generator.random())

    async def _ask(self, api: Api, version: int, **fields: Any) -> Any:
        return await self.client.of(self.id, TRANSACTION_KEY, api, version, fields)

    # Its life.

    async def init(self, *, goes_on: bool = False) -> None:
        """Begin; who had the id before is fenced. `goes_on`: it is the same as before."""
        goes_on = goes_on and self.producer_id != NO_PRODUCER
        known = (self.producer_id, self.epoch) if goes_on else (NO_PRODUCER, NO_EPOCH)

        async def attempt() -> Any:
            answer = await self._ask(
                Api.INIT_PRODUCER_ID,
                4,
                transactional_id=self.id,
                transaction_timeout=self._timeout_ms,
                producer_id=known[0],
                producer_epoch=known[1],
            )
            check(answer.error_code, f"{self.name} begins")
            return answer

        answer = await self.insist(attempt)
        self._become(answer.producer_id, answer.producer_epoch)

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
            self.is_unsure = False  # what comes late is of another epoch
        self.producer_id, self.epoch = producer_id, epoch
        self._added.clear()

    async def send(self, place: TopicPartition, values: Sequence[bytes]) -> Offset:
        """Write in the open transaction, or begin one."""
        if not self.bumps and place not in self._added:
            await self.insist(lambda: self._add(place))
        batch = self.batch(place, values)
        was_unsure, self.is_unsure = self.is_unsure, True
        offset = await self.insist(lambda: self.post(self.client, place, batch))
        self.is_unsure = was_unsure
        self._sequences[place] = self._sequences.get(place, 0) + len(values)
        self._added.add(place)
        return offset

    def batch(self, place: TopicPartition, values: Sequence[bytes]) -> bytes:
        """The next batch for a partition."""
        now_ms = self._wall_ms()
        records = [Record(value=value, timestamp_ms=now_ms) for value in values]
        return bytes(
            encode_batch(
                records,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self._sequences.get(place, 0),
                attributes=TRANSACTIONAL,
            )
        )

    async def post(self, client: OnceClient, place: TopicPartition, batch: bytes) -> Offset:
        return await client.write(self.id, place, batch, version=12 if self.bumps else 11)

    async def _add(self, place: TopicPartition) -> None:
        answer = await self._ask(
            Api.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": place.topic, "partitions": [place.partition]}],
        )
        (topic,) = answer.results_by_topic_v3_and_below
        check(topic.results_by_partition[0].partition_error_code, f"{self.name} adds {place}")

    async def send_offsets(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Commit how far a group has read, with the transaction."""
        if not self.bumps and group not in self._added:

            async def add() -> None:
                answer = await self._ask(
                    Api.ADD_OFFSETS_TO_TXN,
                    3,
                    transactional_id=self.id,
                    group_id=group,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                )
                check(answer.error_code, f"{self.name} adds {group}")

            await self.insist(add)
            self._added.add(group)
        fields = {
            "transactional_id": self.id,
            "group_id": group,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [
                {
                    "name": place.topic,
                    "partitions": [
                        {
                            "partition_index": place.partition,
                            "committed_offset": offset,
                            "committed_leader_epoch": NO_EPOCH,
                            "committed_metadata": "",
                        }
                    ],
                }
                for place, offset in offsets.items()
            ],
        }
        version = 5 if self.bumps else 3

        async def attempt() -> None:
            try:
                answer = await self.client.of(group, GROUP_KEY, Api.TXN_OFFSET_COMMIT, version, fields)
            except ConnectionFailed:
                self.is_unsure = True
                raise
            for topic in answer.topics:
                check(topic.partitions[0].error_code, f"{self.name} commits for {group}")

        await self.insist(attempt)

    async def end(self, *, commits: bool) -> Outcome:
        """Decide; what became of it. If it `is_unsure` then, `init` must follow."""
        may_be_done = False

        async def attempt() -> Any:
            nonlocal may_be_done
            try:
                answer = await self._ask(
                    Api.END_TXN,
                    5 if self.bumps else 3,
                    transactional_id=self.id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    committed=commits,
                )
            except ConnectionFailed:
                may_be_done = self.is_unsure = True
                raise
            if answer.error_code not in NOT_DONE and ErrorCode(answer.error_code).retriable:
                may_be_done = True
            check(answer.error_code, f"{self.name} ends")
            return answer

        try:
            answer = await self.insist(attempt)
        except Refused:
            self.is_unsure = True
            return "info" if commits and may_be_done else "fail"
        except TidelogError:
            return "info" if commits else "fail"
        if self.bumps:
            self._become(answer.producer_id, answer.producer_epoch)
            self.is_unsure = False  # it relies upon the epoch being another
        self._added.clear()
        return "ok" if commits else "fail"
