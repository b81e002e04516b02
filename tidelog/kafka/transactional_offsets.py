"""TxnOffsetCommit: how far a transaction has read, told to the coordinator of the consumers' group.

Rule 1: nothing is written before the transaction's own coordinator has the group's partition of
        `__consumer_offsets` in it: the marker would never come there, and the offsets would hang.
Rule 2: nothing here decides; a request becomes an event, and a result an answer.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, cast

from tidelog.broker.broker import Broker
from tidelog.broker.topics import partition_exists
from tidelog.coordinators.groups import GroupCoordinator
from tidelog.coordinators.shard_drivers import result_of
from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTransactionState,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from tidelog.groups.events import (
    NO_GENERATION,
    NO_MEMBER_ID,
    OffsetsDone,
    OffsetToCommit,
    TransactionalCommit,
)
from tidelog.groups.shard import Shard
from tidelog.kafka.context import Request
from tidelog.model import NO_EPOCH, OFFSETS_TOPIC, ProducerId, TopicPartition
from tidelog.security.permissions import Kind
from tidelog.shards.effects import Moment, Token, Writer

LOADING_FROM: Final = 2
"""Clients of older versions do not expect to hear that groups are being read."""
ABORTABLE_FROM: Final = 4
"""From this version on, clients know that a transaction may have to be aborted (KIP-890)."""
IMPLICIT_FROM: Final = 5
"""From this version on, no AddOffsetsToTxn comes before: this request is one (KIP-890, part 2)."""


class Verify(Protocol):
    """Asks a transaction's coordinator whether `place` is in it; raises unless it is.

    With `implicit` the partition is added if it is not, and the transaction begins if need be.
    `then` is called before a marker can end the transaction, and what it returns is returned.
    """

    async def __call__(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: int,
        place: TopicPartition,
        *,
        implicit: bool,
        then: Callable[[], "asyncio.Future[Any]"],
    ) -> "asyncio.Future[Any]": ...


class TransactionalOffsetApis:
    """The handler, bound to this node's coordinator of groups."""

    def __init__(self, coordinator: GroupCoordinator, verify: Verify) -> None:
        self._coordinator = coordinator
        self._verify = verify

    async def txn_offset_commit(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        offsets: dict[TopicPartition, OffsetToCommit] = {}
        refused: dict[TopicPartition, BrokerError] = {}
        for topic in request.topics:
            is_refused = not context.may(Kind.TOPIC, topic.name)
            for asked in topic.partitions:
                place = TopicPartition(topic.name, asked.partition_index)
                if is_refused:
                    refused[place] = context.refusal(Kind.TOPIC, topic.name)
                    continue
                if not partition_exists(broker, place):
                    refused[place] = UnknownTopicOrPartition(place)
                    continue
                offsets[place] = OffsetToCommit(
                    offset=asked.committed_offset,
                    leader_epoch=getattr(asked, "committed_leader_epoch", NO_EPOCH),
                    metadata=asked.committed_metadata or "",
                )
        if offsets:
            try:
                context.require(Kind.TRANSACTIONAL_ID, request.transactional_id)
                context.require(Kind.GROUP, request.group_id)
                done = await self._commit(broker, request, context.version, offsets)
                refused.update(done.refused)
            except BrokerError as error:
                refused.update(dict.fromkeys(offsets, error))
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": asked.partition_index,
                            "error_code": _code(
                                refused.get(TopicPartition(topic.name, asked.partition_index)),
                                context.version,
                            ),
                        }
                        for asked in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    async def _commit(
        self, broker: Broker, request: Any, version: int, offsets: Mapping[TopicPartition, OffsetToCommit]
    ) -> OffsetsDone:
        group_id, groups = request.group_id, self._coordinator
        asked = groups.driver(group_id)  # raises if another node coordinates the group
        writer = Writer(request.producer_id, request.producer_epoch)

        def call(shard: Shard, reply: Token, at: Moment) -> Iterable[Any]:
            event = TransactionalCommit(
                reply=reply,
                writer=writer,
                member_id=getattr(request, "member_id", NO_MEMBER_ID),
                instance_id=getattr(request, "group_instance_id", None),
                generation=getattr(request, "generation_id", NO_GENERATION),
                offsets=_with_ids(broker, offsets),
            )
            return shard.commit_in_transaction(group_id, event, at)

        def then() -> "asyncio.Future[Any]":
            if groups.driver(group_id) is not asked:
                raise NotCoordinator("another node has coordinated the group, and may have ended it")
            return groups.begin(group_id, call)

        reply = await self._verify(
            request.transactional_id,
            writer.producer_id,
            writer.epoch,
            TopicPartition(OFFSETS_TOPIC, groups.number_of(group_id)),
            implicit=version >= IMPLICIT_FROM,
            then=then,
        )
        return cast(OffsetsDone, result_of(await reply))


def _with_ids(
    broker: Broker, offsets: Mapping[TopicPartition, OffsetToCommit]
) -> dict[TopicPartition, OffsetToCommit]:
    """The offsets with the ids that topics have now, in the turn in which they are written."""
    topics = broker.image.topics
    missing = next((place for place in offsets if place.topic not in topics), None)
    if missing is not None:
        raise UnknownTopicOrPartition(missing)
    return {place: replace(offset, topic_id=topics[place.topic].id) for place, offset in offsets.items()}


def _code(error: BrokerError | None, version: int) -> int:
    """The error as clients of this version know it."""
    match error:
        case None:
            return 0
        case CoordinatorLoadInProgress() if version < LOADING_FROM:
            return CoordinatorNotAvailable.code
        case NotEnoughReplicas():  # to producers the transaction's coordinator is so called
            return CoordinatorNotAvailable.code
        case TransactionAbortable() if version < ABORTABLE_FROM:
            return InvalidTransactionState.code
        case ProducerFenced():
            return InvalidProducerEpoch.code  # by that name the log would refuse it, too
        case _:
            return error.code
