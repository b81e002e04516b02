"""What an operator asks of a cluster about transactions, and how one is ended from outside.

Rule 1: a transaction is asked of its coordinator, and of the leaders of its partitions: the first
        knows what was decided, the others what they still hold open.
Rule 2: an abort fences the producer. The transaction may have ended a moment before; whoever holds
        the id must begin anew all the same.
Rule 3: what no coordinator knows of is ended where it is open, by the partition's leader.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kio.schema.describe_transactions.v0 import response as describe_v0
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.primitive import i64

from tidelog.client.cluster import check
from tidelog.client.kafka import KafkaClient
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.model import NO_EPOCH, NO_NODE, Endpoint, NodeId, Offset, ProducerId, TopicPartition
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

T = TypeVar("T")

TRANSACTION_KEY: Final = 1
"""What FindCoordinator is asked for."""
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which some partition may still be waiting for the transaction's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    state: str
    producer_id: ProducerId
    coordinator: NodeId

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """A transactional id, and the transaction that it is in."""

    transactional_id: str
    state: str
    producer_id: ProducerId
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """None where none has begun."""
    places: tuple[TopicPartition, ...]
    coordinator: NodeId

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction as the leader of one partition holds it open."""

    place: TopicPartition
    producer_id: ProducerId
    producer_epoch: int
    first_offset: Offset
    last_timestamp_ms: int
    coordinator_epoch: int = NO_EPOCH
    """Of the producer's last marker there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """As whom the id goes on, now that its producer is fenced."""

    producer_id: ProducerId
    producer_epoch: int


class TransactionsClient(KafkaClient):
    """A cluster that can be asked about its transactions."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._coordinators: dict[str, tuple[NodeId, Endpoint]] = {}

    async def list_transactions(self, states: Iterable[str] = ()) -> list[ListedTransaction]:
        """The transactional ids of every coordinator, by name; of all states unless some are
        given."""
        wanted = list(states)

        async def ask(node: NodeId, at: Endpoint) -> list[ListedTransaction]:
            connection = await self._connect(at)
            response = await connection.call(
                Api.LIST_TRANSACTIONS,
                state_filters=wanted,
                producer_id_filters=[],
                duration_filter=-1,
                transactional_id_pattern=None,
            )
            check(response.error_code, f"transactions of broker {node}")
            return [
                ListedTransaction(
                    transactional_id=one.transactional_id,
                    state=one.transaction_state,
                    producer_id=one.producer_id,
                    coordinator=node,
                )
                for one in response.transaction_states
            ]

        async def attempt() -> list[list[ListedTransaction]]:
            await self._ask_metadata([], create=False)
            brokers = self._cluster.brokers.items()
            return await asyncio.gather(*(ask(node, at) for node, at in brokers))

        found = [one for some in await self.retry(attempt) for one in some]
        return sorted(found, key=lambda one: one.transactional_id)

    async def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        """State, producer and partitions; Refused if there is no such id."""

        async def ask(node: NodeId, connection: Connection) -> TransactionInfo:
            (answer,) = await _describe(connection, [transactional_id])
            code = answer.error_code
            check(code, _title(transactional_id), _missing(code))
            return _transaction_info(answer, node)

        return await self.ask_coordinator(transactional_id, ask)

    async def open_transactions(
        self, places: Iterable[TopicPartition] | None = None
    ) -> list[OpenTransaction]:
        """What the leaders of these partitions, or of all, hold open. A partition that has no
        leader, or is gone, is passed over."""
        wanted = None if places is None else set(places)

        async def attempt() -> list[list[OpenTransaction]]:
            by_leader: dict[NodeId, dict[str, list[int]]] = {}
            for topic in await self._ask_metadata(None, create=False):
                for one in topic.partitions:
                    if wanted is None or TopicPartition(topic.name, one.partition) in wanted:
                        asked = by_leader.setdefault(one.leader, {})
                        asked.setdefault(topic.name, []).append(one.partition)
            led = [
                (await self._connect(endpoint), asked)
                for leader, asked in by_leader.items()
                if (endpoint := self._cluster.brokers.get(leader)) is not None
            ]
            return await asyncio.gather(*(_open_on(at, asked) for at, asked in led))

        found = [one for some in await self.retry(attempt) for one in some]
        return sorted(found, key=lambda one: (one.place, one.producer_id))

    async def abort_transaction(self, transactional_id: str, *, timeout_ms: int) -> Fenced:
        """Fence the id's producer, which aborts its open transaction; returns once that is done.

        `timeout_ms` is that of later transactions, until a producer says its own.
        """

        async def ask(node: NodeId, connection: Connection) -> Fenced:
            response = await connection.call(
                Api.INIT_PRODUCER_ID,
                transactional_id=transactional_id,
                transaction_timeout=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
                enable2_pc=False,
                keep_prepared_txn=False,
            )
            # ConcurrentTransactions, and so asked again, until every marker stands.
            check(response.error_code, _title(transactional_id))
            return Fenced(producer_id=response.producer_id, producer_epoch=response.producer_epoch)

        return await self.ask_coordinator(transactional_id, ask)

    async def abort_orphan(self, orphan: OpenTransaction) -> None:
        """End a transaction in the one partition; only for what no coordinator knows of."""
        place = orphan.place

        async def attempt() -> None:
            connection = await self.leader(place.topic, place.partition)
            response: Any = await connection.call(
                Api.WRITE_TXN_MARKERS,
                markers=[
                    {
                        "producer_id": orphan.producer_id,
                        "producer_epoch": orphan.producer_epoch,
                        "transaction_result": False,
                        "coordinator_epoch": orphan.coordinator_epoch,
                        "topics": [{"name": place.topic, "partition_indexes": [place.partition]}],
                    }
                ],
            )
            check(
                response.markers[0].topics[0].partitions[0].error_code,
                f"producer {orphan.producer_id} in {place}",
            )

        await self.retry(attempt)

    async def idempotent_producer(self) -> Fenced:
        """A producer of no transaction, whose batches are told from repeated ones."""

        async def attempt() -> Fenced:
            connection = await self.any_connection()
            response = await connection.call(
                Api.INIT_PRODUCER_ID,
                transactional_id=None,
                transaction_timeout=0,
                producer_id=-1,
                producer_epoch=-1,
                enable2_pc=False,
                keep_prepared_txn=False,
            )
            check(response.error_code, "a producer id")
            return Fenced(producer_id=response.producer_id, producer_epoch=response.producer_epoch)

        return await self.retry(attempt)

    async def ask_coordinator(
        self, transactional_id: str, ask: Callable[[NodeId, Connection], Awaitable[T]]
    ) -> T:
        """Ask whoever coordinates the id, and whoever does instead if that one has moved."""

        async def attempt() -> T:
            known = self._coordinators.pop(transactional_id, None)
            node, endpoint = known or await self._find_coordinator(transactional_id)
            result = await ask(node, await self._connect(endpoint))
            self._coordinators[transactional_id] = node, endpoint  # it has answered
            return result

        return await self.retry(attempt)

    async def _find_coordinator(self, transactional_id: str) -> tuple[NodeId, Endpoint]:
        connection = await self.any_connection()
        response = await connection.call(
            Api.FIND_COORDINATOR,
            key=transactional_id,
            coordinator_keys=[transactional_id],
            key_type=TRANSACTION_KEY,
        )
        (found,) = getattr(response, "coordinators", (response,))
        check(found.error_code, _title(transactional_id), getattr(found, "error_message", None))
        assert found.node_id != NO_NODE, "a coordinator without an error is somewhere"
        return found.node_id, Endpoint(host=found.host, port=found.port)


async def _open_on(connection: Connection, asked: dict[str, list[int]]) -> list[OpenTransaction]:
    response = await connection.call(
        Api.DESCRIBE_PRODUCERS,
        topics=[{"name": name, "partition_indexes": some} for name, some in asked.items()],
    )
    found = []
    for topic in response.topics:
        for one in topic.partitions:
            place = TopicPartition(topic.name, one.partition_index)
            if one.error_code == ErrorCode.unknown_topic_or_partition:
                continue
            check(one.error_code, str(place), one.error_message)
            found += [
                OpenTransaction(
                    place=place,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    first_offset=producer.current_txn_start_offset,
                    last_timestamp_ms=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                )
                for producer in one.active_producers
                if producer.current_txn_start_offset >= 0
            ]
    return found


# kio takes the start for a date and refuses -1, by which Kafka says that nothing has begun. These
# read it as the number that it is; the layout is theirs.


@dataclass(frozen=True, slots=True, kw_only=True)
class _State(describe_v0.TransactionState):
    transaction_start_time: i64 = field(metadata={"kafka_type": "int64"})  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described(describe_v0.DescribeTransactionsResponse):
    transaction_states: tuple[_State, ...]


async def _describe(connection: Connection, names: list[str]) -> tuple[_State, ...]:
    version = connection.version(Api.DESCRIBE_TRANSACTIONS)
    assert version == 0, "there is no other"
    request = request_entity(Api.DESCRIBE_TRANSACTIONS, version, {"transactional_ids": names})
    view = memoryview(await connection.exchange(request)).toreadonly()
    try:
        _, at = entity_reader(_Described.__header_schema__)(view, 0)
        response, _ = entity_reader(_Described)(view, at)
    except (SerialError, ValueError, IndexError) as error:
        what = f"its answer is no describe transactions of version {version}: {error}"
        raise ConnectionFailed(connection.endpoint, what) from error
    return response.transaction_states


def _transaction_info(answer: _State, node: NodeId) -> TransactionInfo:
    return TransactionInfo(
        transactional_id=answer.transactional_id,
        state=answer.transaction_state,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        timeout_ms=round(answer.transaction_timeout.total_seconds() * 1000),
        started_ms=None if answer.transaction_start_time < 0 else answer.transaction_start_time,
        places=tuple(
            sorted(
                TopicPartition(topic.topic, number) for topic in answer.topics for number in topic.partitions
            )
        ),
        coordinator=node,
    )


def _title(transactional_id: str) -> str:
    return f"transactional id {transactional_id!r}"


def _missing(code: int) -> str | None:
    if code != ErrorCode.transactional_id_not_found:
        return None
    return "there is none of that name; `tidelog transactions list` shows those there are"
