"""The transaction coordinator of this node: the shards of `__transaction_state` that it leads.

Rule 1: nothing here decides; `txn/` does.
Rule 2: what is decided is carried out, also after a crash: a shard that is loaded sends the markers
        of all that it finds prepared.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Final, cast

from tidelog.broker.broker import Broker
from tidelog.broker.topics import partition_exists
from tidelog.cluster.answering import answered
from tidelog.cluster.messages import AddToTransactions, AddToTransactionsAnswer, PlacesToAdd
from tidelog.coordinators.groups import GroupCoordinator
from tidelog.coordinators.markers import Ending, MarkerSender, MarkerWriter
from tidelog.coordinators.orphans import Orphans
from tidelog.coordinators.shard_drivers import ShardDriver, ShardKeeper
from tidelog.coordinators.verification import Verification
from tidelog.errors import BrokerError, CoordinatorNotAvailable
from tidelog.model import TRANSACTIONS_TOPIC, NodeId, Offset, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.records import BatchHeader, decode_batch
from tidelog.txn.events import AddPartitions, SendMarkers, Verdicts
from tidelog.txn.limits import Limits
from tidelog.txn.placement import coordinator_key
from tidelog.txn.shard import Shard

_EXPIRE_SECONDS: Final = 3600.0


class TransactionsDriver(ShardDriver[Shard]):
    """One partition of `__transaction_state`, and the transactional ids in it."""

    def __init__(self, broker: Broker, partition: Partition, limits: Limits, sender: MarkerSender) -> None:
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
            transactional_id=name,
            producer_id=producer_id,
            epoch=epoch,
            commits=effect.commits,
            is_bumped=effect.is_bumped,
            coordinator_epoch=leader.epoch,
            number=self._ends,
            is_wanted=lambda: self.shard is shard,
            marked=marked,
        )
        self._sender.send(ending, effect.places)


class TransactionCoordinator(ShardKeeper[TransactionsDriver]):
    """The transactional ids that this node coordinates."""

    topic = TRANSACTIONS_TOPIC
    what = "transactions"

    def __init__(self, broker: Broker, groups: GroupCoordinator) -> None:
        super().__init__(broker)
        config = broker.config
        self._limits = Limits(
            timeout_max_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
        )
        self.groups = groups
        self._sender = MarkerSender(broker)
        self.verification = Verification(broker, self._coordinator_of)
        self._writer = MarkerWriter(broker, on_end=self.verification.spoil, on_offsets=self._on_offsets)
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
        """The shards that this node coordinates at the moment."""
        for number, driver in self.counted_on().items():
            if driver.shard.is_loaded:
                yield number, driver.shard

    def _on_offsets(self, number: int, producer_id: ProducerId, commits: bool, offset: Offset) -> None:
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

    def _on_places_to_add(self, source: NodeId, asked: AddToTransactions, answer: Answer | None) -> None:
        assert answer is not None
        self._broker.spawn(answered(answer, self._answer_leader, asked, answer))

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
                    "producer_id": wanted.producer_id,
                    "epoch": wanted.epoch,
                    "places": frozenset(places),
                    "verify_only": not wanted.adds,
                    "implicit": wanted.adds,
                },
            )
        except BrokerError as error:
            return (error.code,) * len(places)
        return tuple(_code(verdicts[place]) for place in places)


def _code(error: BrokerError | None) -> int:
    """The error as nodes know it; clients of some versions are told another."""
    return 0 if error is None else error.code
