"""Orphans: what a producer has open in a partition, and no coordinator will end.

An operator ends them with WriteTxnMarkers, which any client can send. So:

Rule 1: nothing is ended that a coordinator has open, or is about to end. All of them are asked, and
        all have to answer.
Rule 2: epochs are those that the partition's own log has. One that nobody gave out would fence the
        producer, or every coordinator after it, for good.
Rule 3: the marker is written only if the producer has written nothing since the coordinators were
        asked: it may have begun another transaction, which they know of by now.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.cluster.messages import FindOpenTransaction, OpenTransactionAnswer
from tidelog.coordinators.markers import MarkerWriter
from tidelog.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTransactionState,
    TransactionCoordinatorFenced,
)
from tidelog.model import NO_NODE, TRANSACTIONS_TOPIC, Epoch, NodeId, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.txn.shard import Shard

_ASK_SECONDS_MAX: Final = 5.0


class Orphans:
    """Aborts that operators ask this node's partitions for."""

    def __init__(
        self, broker: Broker, writer: MarkerWriter, serving: Callable[[], Iterable[tuple[int, Shard]]]
    ) -> None:
        """`serving` are the shards of transactions that this node answers for, by number."""
        self._broker = broker
        self._writer = writer
        self._serving = serving
        broker.on_find_open = self._on_find_open

    async def abort(
        self, place: TopicPartition, producer_id: ProducerId, epoch: int, coordinator_epoch: Epoch
    ) -> None:
        """End what a producer has open in `place`; returns once that is committed."""
        partition = self._broker.partition(place.topic, place.partition)
        before = _written(partition, producer_id)
        _check_epochs(partition, producer_id, epoch, coordinator_epoch)
        await self._check_unknown(producer_id)
        if self._broker.partition(place.topic, place.partition) is not partition or (
            _written(partition, producer_id) != before
        ):
            raise InvalidTransactionState(f"producer {producer_id} has gone on in {place}")
        await self._writer.abort(partition, producer_id, epoch, coordinator_epoch)

    async def _check_unknown(self, producer_id: ProducerId) -> None:
        """Refuse if a coordinator has a transaction of the producer open, or none can tell."""
        topic = self._broker.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return
        nodes = sorted({partition.leader for partition in topic.partitions} - {NO_NODE})
        answers = await asyncio.gather(*(self._ask(node, producer_id) for node in nodes))
        if any(answer.is_open for answer in answers):
            raise InvalidTransactionState(
                f"a coordinator has a transaction of producer {producer_id} open; abort that by "
                "its transactional id"
            )
        missing = set(range(len(topic.partitions))).difference(*(one.served for one in answers))
        if missing:
            raise CoordinatorNotAvailable(
                f"partition {min(missing)} of {TRANSACTIONS_TOPIC} cannot be asked now"
            )

    async def _ask(self, node: NodeId, producer_id: ProducerId) -> OpenTransactionAnswer:
        try:
            return await self._broker.member.hub.ask(
                node,
                FindOpenTransaction(producer_id=producer_id),
                OpenTransactionAnswer,
                seconds_max=_ASK_SECONDS_MAX,
            )
        except (PeerUnreachable, PeerRefused):
            return OpenTransactionAnswer(is_open=False, served=())

    def _on_find_open(self, source: NodeId, asked: FindOpenTransaction, answer: Answer | None) -> None:
        assert answer is not None
        served, is_open = [], False
        for number, shard in self._serving():
            served.append(number)
            is_open = is_open or shard.has_open(asked.producer_id)
        answer.send(OpenTransactionAnswer(is_open=is_open, served=tuple(served)))


def _written(partition: Partition, producer_id: ProducerId) -> tuple[object, ...]:
    """In whose epoch this is led, and what the producer has open here and wrote last."""
    leader = partition.leading()
    producers = partition.log.producers
    state = producers.get(producer_id)
    if state is None or not producers.is_in_transaction(producer_id):
        raise InvalidTransactionState(f"producer {producer_id} has nothing open here")
    return leader.epoch, state.epoch, state.transaction_start, tuple(state.batches)


def _check_epochs(
    partition: Partition, producer_id: ProducerId, epoch: int, coordinator_epoch: Epoch
) -> None:
    state = partition.log.producers.get(producer_id)
    assert state is not None, "it has a transaction open"
    if epoch != state.epoch:
        raise InvalidProducerEpoch(producer_id=producer_id, epoch=epoch, current=state.epoch)
    if coordinator_epoch > max(state.coordinator_epoch, 0):
        raise TransactionCoordinatorFenced(
            f"no coordinator of epoch {coordinator_epoch} has ended anything of producer "
            f"{producer_id} here; the newest was of {state.coordinator_epoch}"
        )
