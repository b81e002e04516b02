"""The transaction coordinator of this node, and the APIs of transactions.

Rule 1: nothing here decides; a handler turns a request into an event and a result into an answer.
Rule 2: what is decided is carried out, also after a crash: a shard that is loaded sends the markers
        of all that it finds prepared.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from tidelog.broker.broker import Broker
from tidelog.broker.context import Request
from tidelog.broker.coordinator import Coordinator
from tidelog.broker.markers import Ending, MarkerSender, MarkerWriter
from tidelog.broker.orphans import Orphans
from tidelog.broker.producer_ids import ProducerIds
from tidelog.broker.shards import ShardDriver, ShardKeeper
from tidelog.broker.topics import partition_exists
from tidelog.broker.verification import Verification
from tidelog.cluster.messages import (
    AddToTransactions,
    AddToTransactionsAnswer,
    PlacesToAdd,
)
from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidRequest,
    OperationNotAttempted,
    ProducerFenced,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from tidelog.model import (
    NO_EPOCH,
    NO_PRODUCER,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    NodeId,
    Offset,
    ProducerId,
    TopicPartition,
)
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.records import BatchHeader, decode_batch
from tidelog.txn.events import (
    AddPartitions,
    Ended,
    EndTransaction,
    Initialised,
    InitProducer,
    SendMarkers,
    TransactionView,
    Verdicts,
)
from tidelog.txn.limits import Limits
from tidelog.txn.placement import coordinator_key
from tidelog.txn.shard import Shard

_EXPIRE_SECONDS: Final = 3600.0
_FENCED_FROM: Final = {"init": 4, "add": 2, "offsets": 2, "end": 2}
"""Older clients do not know ProducerFenced, and are told that their epoch is not valid."""
_BUMPS_FROM: Final = 5
"""EndTxn from this version on gives each transaction an epoch of its own (KIP-890, part 2)."""


class TransactionsDriver(ShardDriver[Shard]):
    """One partition of `__transaction_state`, and the transactional ids in it."""

    def __init__(
        self, broker: Broker, partition: Partition, limits: Limits, sender: MarkerSender
    ) -> None:
        self._limits = limits
        self._sender = sender
        self._ends = 0
        super().__init__(broker, partition)

    def _new_shard(self) -> Shard:
        return Shard(self._limits)

    def _replay_batch(self, shard: Shard, header: BatchHeader, batch: memoryview) -> None:
        if not header.is_control:
            for record in decode_batch(batch):
                shard.replay(record)

    def _do(self, effect: SendMarkers) -> None:
        leader, shard = self._leader, self.shard
        if leader is None or self._partition.leader is not leader:
            return  # whoever leads next sends them
        self._ends += 1
        name, producer_id, epoch = effect.transactional_id, effect.producer_id, effect.epoch

        def marked(places: tuple[TopicPartition, ...]) -> None:
            self.perform(shard.marked(name, producer_id, epoch, places, self.now()))

        ending = Ending(
            transactional_id=name, producer_id=producer_id, epoch=epoch, commits=effect.commits,
            is_bumped=effect.is_bumped, coordinator_epoch=leader.epoch,
            number=self._ends, is_wanted=lambda: self.shard is shard, marked=marked,
        )  # fmt: skip
        self._sender.send(ending, effect.places)


class Transactions(ShardKeeper[TransactionsDriver]):
    """The transactional ids that this node coordinates."""

    topic = TRANSACTIONS_TOPIC
    what = "transactions"

    def __init__(self, broker: Broker, groups: Coordinator) -> None:
        super().__init__(broker)
        config = broker.config
        self._limits = Limits(
            timeout_max_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
        )
        self.groups = groups
        self._sender = MarkerSender(broker)
        self.verification = Verification(broker, self._coordinator_of)
        self._writer = MarkerWriter(
            broker, on_end=self.verification.spoil, on_offsets=self._on_offsets
        )
        self.orphans = Orphans(broker, self._writer, self._serving)
        broker.on_markers = self._writer.on_write_markers
        broker.on_places_to_add = self._on_places_to_add

    def _make(self, partition: Partition) -> TransactionsDriver:
        return TransactionsDriver(self._broker, partition, self._limits, self._sender)

    def _partitions(self) -> int:
        return self._broker.config.transaction_state_log_num_partitions

    def start(self) -> None:
        super().start()
        self._broker.repeat(_EXPIRE_SECONDS, self._expire)

    async def _expire(self) -> None:
        for driver in self.drivers():
            driver.perform(driver.shard.expire(driver.now()))

    def _coordinator_of(self, transactional_id: str) -> NodeId:
        return self.leader_of(coordinator_key(transactional_id)).node

    def _serving(self) -> Iterator[tuple[int, Shard]]:
        """The shards that this node answers for now."""
        for number, driver in self._drivers.items():
            if driver.shard.is_loaded and driver.is_counted_on:
                yield number, driver.shard

    def _on_offsets(
        self, number: int, producer_id: ProducerId, commits: bool, offset: Offset
    ) -> None:
        if (driver := self.groups.driver_of(number)) is not None:
            driver.completed(producer_id, commits, offset)

    async def add(self, transactional_id: str, wanted: dict[str, Any]) -> Verdicts:
        """Add partitions to a transaction, or look for them in it."""
        verdicts = await self.ask(
            coordinator_key(transactional_id),
            lambda shard, reply, at: shard.add_partitions(
                transactional_id, AddPartitions(reply=reply, **wanted), at
            ),
        )
        return cast(Verdicts, verdicts)

    # For leaders of partitions.

    def _on_places_to_add(
        self, source: NodeId, asked: AddToTransactions, answer: Answer | None
    ) -> None:
        assert answer is not None
        self._broker.spawn(self._answer_leader(asked, answer))

    async def _answer_leader(self, asked: AddToTransactions, answer: Answer) -> None:
        codes = await asyncio.gather(*map(self._codes, asked.transactions))
        answer.send(AddToTransactionsAnswer(codes=tuple(codes)))

    async def _codes(self, wanted: PlacesToAdd) -> tuple[int, ...]:
        places = [TopicPartition(place.topic, place.partition) for place in wanted.places]
        if wanted.adds and not all(partition_exists(self._broker, place) for place in places):
            # Its leader knows more than this node, who would think it gone, and need no marker.
            return (CoordinatorNotAvailable.code,) * len(places)
        try:
            verdicts = await self.add(
                wanted.transactional_id,
                {
                    "producer_id": wanted.producer_id, "epoch": wanted.epoch,
                    "places": frozenset(places), "verify_only": not wanted.adds,
                    "implicit": wanted.adds,
                },
            )  # fmt: skip
        except BrokerError as error:
            return (error.code,) * len(places)
        return tuple(_code(verdicts[place]) for place in places)


class TransactionApis:
    """The handlers, bound to this node's coordinator."""

    def __init__(self, transactions: Transactions, ids: ProducerIds) -> None:
        self._transactions = transactions
        self._ids = ids

    # A producer's life.

    async def init_producer_id(
        self, broker: Broker, request: Any, context: Request
    ) -> dict[str, Any]:
        name = request.transactional_id
        if name is None:
            return await self._ids.init_producer_id(broker, request, context)
        if name == "":
            raise InvalidRequest("a transactional id has at least one character")
        producer_id = getattr(request, "producer_id", NO_PRODUCER)
        epoch = getattr(request, "producer_epoch", NO_EPOCH)
        if (producer_id == NO_PRODUCER) != (epoch == NO_EPOCH):
            raise InvalidRequest("a producer that goes on says both its id and its epoch")
        timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
        try:
            done = cast(
                Initialised,
                await self._ask(
                    name,
                    lambda shard, reply, at, fresh_id: shard.init_producer(
                        name,
                        InitProducer(
                            reply=reply, timeout_ms=timeout_ms, fresh_id=fresh_id,
                            producer_id=producer_id, epoch=epoch,
                        ),
                        at,
                    ),
                    begins=True,
                ),
            )  # fmt: skip
        except BrokerError as error:
            return {
                "error_code": _code(error, context, "init"),
                "producer_id": NO_PRODUCER, "producer_epoch": NO_EPOCH,
            }  # fmt: skip
        return {"producer_id": done.producer_id, "producer_epoch": done.epoch}

    async def _ask(self, transactional_id: str, call: Any, *, begins: bool = False) -> Any:
        """Ask, with a fresh producer id at hand if one may be needed; `begins`: to initialise."""
        key = coordinator_key(transactional_id)
        fresh_id = NO_PRODUCER
        shard = self._transactions.driver(key).shard
        if shard.needs_fresh_id(transactional_id, begins=begins):
            fresh_id = await self._ids.take()
        return await self._transactions.ask(
            key, lambda shard, reply, at: call(shard, reply, at, fresh_id)
        )

    async def write_txn_markers(
        self, broker: Broker, request: Any, context: Request
    ) -> dict[str, Any]:
        """Aborts, where an operator has found that nobody will. Commits are the coordinators'."""
        markers = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                partitions = [
                    {
                        "partition_index": number,
                        "error_code": await self._abort(marker, TopicPartition(topic.name, number)),
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

    async def add_partitions_to_txn(
        self, broker: Broker, request: Any, context: Request
    ) -> dict[str, Any]:
        places = _places(request.v3_and_below_topics)
        unknown = {place for place in places if not partition_exists(broker, place)}
        verdicts: Verdicts
        if unknown:
            verdicts = {
                place: UnknownTopicOrPartition(place)
                if place in unknown
                else OperationNotAttempted("another partition does not exist")
                for place in places
            }
        else:
            try:
                verdicts = await self._transactions.add(
                    request.v3_and_below_transactional_id,
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

    async def add_offsets_to_txn(
        self, broker: Broker, request: Any, context: Request
    ) -> dict[str, Any]:
        """The group's partition of `__consumer_offsets` joins, as any other would."""
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
                reply=reply, producer_id=request.producer_id, epoch=request.producer_epoch,
                commits=request.committed, bumps_epoch=bumps, fresh_id=fresh_id,
            )  # fmt: skip
            return shard.end(name, event, at)

        try:
            ended = cast(Ended, await self._ask(name, call))
        except BrokerError as error:
            return {
                "error_code": _code(error, context, "end"),
                "producer_id": NO_PRODUCER, "producer_epoch": NO_EPOCH,
            }  # fmt: skip
        return {"producer_id": ended.producer_id, "producer_epoch": ended.epoch}

    # Looking.

    def list_transactions(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        states, producers = set(request.state_filters), set(request.producer_id_filters)
        duration_ms = getattr(request, "duration_filter", -1)
        now_ms = broker.host.clock.wall_ms()
        found = []
        for driver in self._transactions.drivers():
            for view in driver.shard.transactions():
                if states and view.state not in states:
                    continue
                if producers and view.producer_id not in producers:
                    continue
                if duration_ms >= 0 and not 0 <= view.started_ms <= now_ms - duration_ms:
                    continue
                found.append(
                    {
                        "transactional_id": view.transactional_id,
                        "producer_id": view.producer_id, "transaction_state": view.state,
                    }
                )  # fmt: skip
        unknown = sorted(states - STATES)
        return {"unknown_state_filters": unknown, "transaction_states": found}

    def describe_transactions(
        self, broker: Broker, request: Any, context: Request
    ) -> dict[str, Any]:
        return {"transaction_states": [self._describe(name) for name in request.transactional_ids]}

    def _describe(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = {"transactional_id": name}
        try:
            view = self._transactions.driver(coordinator_key(name)).shard.describe(name)
            if view is None:
                raise TransactionalIdNotFound(f"there is no transactional id {name!r}")
        except BrokerError as error:
            return answer | {"error_code": error.code}
        return answer | {
            "transaction_state": view.state, "transaction_timeout": view.timeout_ms,
            "transaction_start_time": view.started_ms, "producer_id": view.producer_id,
            "producer_epoch": view.epoch, "topics": _topics(view),
        }  # fmt: skip


STATES: Final = frozenset(
    {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
        "PrepareEpochFence", "Dead",
    }
)  # fmt: skip


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
