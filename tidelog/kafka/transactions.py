"""The APIs of transactions.

Rule: nothing here decides; a handler turns a request into an event and a result into an answer.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final, cast

from tidelog.broker.broker import Broker
from tidelog.broker.topics import partition_exists
from tidelog.coordinators.transactions import TransactionCoordinator
from tidelog.errors import (
    BrokerError,
    InvalidProducerEpoch,
    InvalidRequest,
    OperationNotAttempted,
    ProducerFenced,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from tidelog.kafka.context import Request
from tidelog.kafka.producer_ids import ProducerIds
from tidelog.model import NO_EPOCH, NO_PRODUCER, OFFSETS_TOPIC, ProducerId, TopicPartition
from tidelog.security.permissions import Kind, Operation
from tidelog.security.refusals import ClusterAuthorizationFailed
from tidelog.txn.events import Ended, EndTransaction, Initialised, InitProducer, TransactionView, Verdicts
from tidelog.txn.placement import coordinator_key
from tidelog.txn.shard import Shard

_AT_ONCE: Final = 100
_EXPIRE_SECONDS: Final = 3600.0
_FENCED_FROM: Final = {"init": 4, "add": 2, "offsets": 2, "end": 2}
"""Older clients do not know ProducerFenced, and are told that their epoch is not valid."""
_BUMPS_FROM: Final = 5
"""EndTxn from this version on gives each transaction an epoch of its own (KIP-890, part 2)."""


class TransactionApis:
    """The handlers, bound to this node's coordinator."""

    def __init__(self, transactions: TransactionCoordinator, ids: ProducerIds) -> None:
        self._transactions = transactions
        self._ids = ids

    # A producer's life.

    async def init_producer_id(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        name = request.transactional_id
        if name is None:
            if not (context.may(Kind.CLUSTER) or context.access.may_some(Operation.WRITE, Kind.TOPIC)):
                context.require(Kind.CLUSTER)
            return await self._ids.init_producer_id(broker, request, context)
        if name == "":
            raise InvalidRequest("a transactional id has at least one character")
        producer_id = getattr(request, "producer_id", NO_PRODUCER)
        epoch = getattr(request, "producer_epoch", NO_EPOCH)
        if (producer_id == NO_PRODUCER) != (epoch == NO_EPOCH):
            raise InvalidRequest("a producer that goes on says both its id and its epoch")
        timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
        try:
            context.require(Kind.TRANSACTIONAL_ID, name)
            done = await self.initialise(name, timeout_ms, producer_id, epoch)
        except BrokerError as error:
            return {
                "error_code": _code(error, context, "init"),
                "producer_id": NO_PRODUCER,
                "producer_epoch": NO_EPOCH,
            }
        return {"producer_id": done.producer_id, "producer_epoch": done.epoch}

    async def initialise(
        self, name: str, timeout_ms: int, producer_id: ProducerId = NO_PRODUCER, epoch: int = NO_EPOCH
    ) -> Initialised:
        """Begin a producer's life; whoever had the id before is fenced, and what it has open aborted."""

        def call(shard: Shard, reply: object, at: Any, fresh_id: ProducerId) -> Iterable[Any]:
            event = InitProducer(
                reply=reply, timeout_ms=timeout_ms, fresh_id=fresh_id, producer_id=producer_id, epoch=epoch
            )
            return shard.init_producer(name, event, at)

        return cast(Initialised, await self._ask(name, call, begins=True))

    async def _ask(self, transactional_id: str, call: Any, *, begins: bool = False) -> Any:
        """Ask, with a fresh producer id at hand if one may be needed; `begins`: to initialise."""
        key = coordinator_key(transactional_id)
        fresh_id = NO_PRODUCER
        shard = self._transactions.driver(key).shard
        if shard.needs_fresh_id(transactional_id, begins=begins):
            fresh_id = await self._ids.take()
        return await self._transactions.ask(key, lambda shard, reply, at: call(shard, reply, at, fresh_id))

    async def write_txn_markers(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        """Aborts, where an operator has found that nobody will. Commits are the coordinators'."""
        is_refused = not (context.may(Kind.CLUSTER) or context.access.may(Operation.ALTER, Kind.CLUSTER))
        markers = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                partitions = [
                    {
                        "partition_index": number,
                        "error_code": ClusterAuthorizationFailed.code
                        if is_refused
                        else await self._abort(marker, TopicPartition(topic.name, number)),
                    }
                    for number in topic.partition_indexes
                ]
                topics.append({"name": topic.name, "partitions": partitions})
            markers.append({"producer_id": marker.producer_id, "topics": topics})
        return {"markers": markers}

    async def _abort(self, marker: Any, place: TopicPartition) -> int:
        if marker.transaction_result:
            return InvalidRequest.code
        try:
            await self._transactions.orphans.abort(
                place, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch
            )
        except BrokerError as error:
            return error.code
        return 0

    async def add_partitions_to_txn(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        places = _places(request.v3_and_below_topics)
        name = request.v3_and_below_transactional_id
        hidden = {place for place in places if not context.may(Kind.TOPIC, place.topic)}
        unknown = {place for place in places if not partition_exists(broker, place)}
        verdicts: Verdicts
        if not context.may(Kind.TRANSACTIONAL_ID, name):
            error = context.refusal(Kind.TRANSACTIONAL_ID, name)
            verdicts = dict.fromkeys(places, error)
        elif hidden or unknown:
            verdicts = {
                place: context.refusal(Kind.TOPIC, place.topic)
                if place in hidden
                else UnknownTopicOrPartition(place)
                if place in unknown
                else OperationNotAttempted("another partition was refused")
                for place in places
            }
        else:
            try:
                verdicts = await self._transactions.add(
                    name,
                    {
                        "producer_id": request.v3_and_below_producer_id,
                        "epoch": request.v3_and_below_producer_epoch,
                        "places": frozenset(places),
                    },
                )
            except BrokerError as error:
                verdicts = dict.fromkeys(places, error)
        return {
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {
                            "partition_index": number,
                            "partition_error_code": _code(
                                verdicts[TopicPartition(topic.name, number)], context, "add"
                            ),
                        }
                        for number in topic.partitions
                    ],
                }
                for topic in request.v3_and_below_topics
            ]
        }

    async def add_offsets_to_txn(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        """The group's partition of `__consumer_offsets` joins, as any other would."""
        context.require(Kind.TRANSACTIONAL_ID, request.transactional_id)
        context.require(Kind.GROUP, request.group_id)
        groups = self._transactions.groups
        await groups.ready()
        place = TopicPartition(OFFSETS_TOPIC, groups.number_of(request.group_id))
        wanted = {
            "producer_id": request.producer_id,
            "epoch": request.producer_epoch,
            "places": frozenset({place}),
        }
        try:
            verdicts = await self._transactions.add(request.transactional_id, wanted)
        except BrokerError as error:
            return {"error_code": _code(error, context, "offsets")}
        return {"error_code": _code(verdicts[place], context, "offsets")}

    async def end_txn(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        name = request.transactional_id
        bumps = context.version >= _BUMPS_FROM

        def call(shard: Shard, reply: object, at: Any, fresh_id: ProducerId) -> Iterable[Any]:
            event = EndTransaction(
                reply=reply,
                producer_id=request.producer_id,
                epoch=request.producer_epoch,
                commits=request.committed,
                bumps_epoch=bumps,
                fresh_id=fresh_id,
            )
            return shard.end(name, event, at)

        try:
            context.require(Kind.TRANSACTIONAL_ID, name)
            ended = cast(Ended, await self._ask(name, call))
        except BrokerError as error:
            return {
                "error_code": _code(error, context, "end"),
                "producer_id": NO_PRODUCER,
                "producer_epoch": NO_EPOCH,
            }
        return {"producer_id": ended.producer_id, "producer_epoch": ended.epoch}

    # Looking.

    async def list_transactions(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        states, producers = set(request.state_filters), set(request.producer_id_filters)
        duration_ms = getattr(request, "duration_filter", -1)
        now_ms = broker.host.clock.wall_ms()
        found = []
        known = [view for driver in self._transactions.drivers() for view in driver.shard.transactions()]
        for count, view in enumerate(known, 1):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)  # others get their turn
            if states and view.state not in states:
                continue
            if not context.may(Kind.TRANSACTIONAL_ID, view.transactional_id):
                continue
            if producers and view.producer_id not in producers:
                continue
            if duration_ms >= 0 and not 0 <= view.started_ms <= now_ms - duration_ms:
                continue
            found.append(
                {
                    "transactional_id": view.transactional_id,
                    "producer_id": view.producer_id,
                    "transaction_state": view.state,
                }
            )
        unknown = sorted(states - STATES)
        return {"unknown_state_filters": unknown, "transaction_states": found}

    def describe_transactions(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        return {"transaction_states": [self._describe(name, context) for name in request.transactional_ids]}

    def _describe(self, name: str, context: Request) -> dict[str, Any]:
        answer: dict[str, Any] = {"transactional_id": name}
        try:
            context.require(Kind.TRANSACTIONAL_ID, name)
            view = self._transactions.driver(coordinator_key(name)).shard.describe(name)
            if view is None:
                raise TransactionalIdNotFound(f"there is no transactional id {name!r}")
        except BrokerError as error:
            return answer | {"error_code": error.code}
        return answer | {
            "transaction_state": view.state,
            "transaction_timeout": view.timeout_ms,
            "transaction_start_time": view.started_ms,
            "producer_id": view.producer_id,
            "producer_epoch": view.epoch,
            "topics": [one for one in _topics(view) if context.may(Kind.TOPIC, one["topic"])],
        }


STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "PrepareEpochFence",
        "Dead",
    }
)


def _topics(view: TransactionView) -> list[dict[str, Any]]:
    by_topic: dict[str, list[int]] = {}
    for place in sorted(view.places):
        by_topic.setdefault(place.topic, []).append(place.partition)
    return [{"topic": name, "partitions": numbers} for name, numbers in by_topic.items()]


def _places(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _code(error: BrokerError | None, context: Request | None = None, what: str = "") -> int:
    """The error as a client of that version knows it; as it is between nodes."""
    if error is None:
        return 0
    is_old = context is not None and context.version < _FENCED_FROM[what]
    return InvalidProducerEpoch.code if is_old and isinstance(error, ProducerFenced) else error.code
