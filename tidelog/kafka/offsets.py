"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where a log begins, ends and changes."""

import asyncio
from typing import Any, Final

from tidelog.broker.broker import Broker
from tidelog.broker.offset_search import find_offset
from tidelog.errors import BrokerError, InvalidRequest, InvalidTopic, PolicyViolation
from tidelog.kafka.context import Request
from tidelog.log.search import Found
from tidelog.model import INTERNAL_TOPICS, NO_EPOCH, NO_OFFSET
from tidelog.security.permissions import Kind

READ_COMMITTED: Final = 1


async def list_offsets(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Offsets by position or by time, for each partition asked for."""
    if request.replica_id >= 0:
        raise InvalidRequest("replicas ask on the peers' listener, not on this one")
    committed_only = getattr(request, "isolation_level", 0) == READ_COMMITTED
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer: dict[str, Any] = {"partition_index": asked.partition_index}
            try:
                context.require(Kind.TOPIC, topic.name)
                found = await _find(broker, topic.name, asked, committed_only)
                answer |= {
                    "offset": found.offset,
                    "timestamp": found.timestamp_ms,
                    "leader_epoch": found.epoch,
                }
            except BrokerError as error:
                answer |= {"error_code": error.code, "offset": NO_OFFSET, "timestamp": -1}
            answers.append(answer)
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}


async def _find(broker: Broker, topic: str, asked: Any, committed_only: bool) -> Found:
    partition = broker.partition(topic, asked.partition_index)
    epoch = getattr(asked, "current_leader_epoch", NO_EPOCH)
    return await find_offset(broker, partition, asked.timestamp, committed_only, epoch)


def offset_for_leader_epoch(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Where an epoch ended, so that a client can tell whether its log was cut behind it."""
    if getattr(request, "replica_id", -1) >= 0:
        raise InvalidRequest("replicas ask on the peers' listener, not on this one")
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer: dict[str, Any] = {"partition": asked.partition}
            try:
                context.require(Kind.TOPIC, topic.topic)
                partition = broker.partition(topic.topic, asked.partition)
                leader = partition.leading(asked.current_leader_epoch)
                end = partition.log.end
                epochs = partition.log.epochs
                if asked.leader_epoch == leader.epoch:
                    epoch = leader.epoch  # it may have no record yet
                elif epochs.latest < asked.leader_epoch < leader.epoch:
                    epoch = epochs.latest  # what was written in it is lost: this leads by force
                else:
                    epoch, end = epochs.end_of(asked.leader_epoch, end)
                answer |= {"leader_epoch": epoch, "end_offset": end}
            except BrokerError as error:
                answer |= {"error_code": error.code, "leader_epoch": NO_EPOCH, "end_offset": -1}
            answers.append(answer)
        topics.append({"topic": topic.topic, "partitions": answers})
    return {"topics": topics}


async def delete_records(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Move the start of logs up; what lies before is deleted.

    Answered once every in-sync replica has noted it, so that no later leader has it again.
    """
    deadline = broker.host.clock.monotonic() + max(request.timeout.total_seconds(), 0)
    asked = [(topic.name, each) for topic in request.topics for each in topic.partitions]
    found = await asyncio.gather(
        *(_delete_before(broker, context, name, each, deadline) for name, each in asked)
    )
    answers = iter(found)
    return {
        "topics": [
            {"name": topic.name, "partitions": [next(answers) for _ in topic.partitions]}
            for topic in request.topics
        ]
    }


async def _delete_before(
    broker: Broker, context: Request, topic: str, asked: Any, deadline: float
) -> dict[str, Any]:
    answer: dict[str, Any] = {"partition_index": asked.partition_index}
    try:
        context.require(Kind.TOPIC, topic)
        partition = broker.partition(topic, asked.partition_index)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"{topic} is the cluster's own; nothing of it may be deleted")
        if not partition.config.deletes:
            raise PolicyViolation(f"{topic} is compacted and deletes nothing: see cleanup.policy")
        await broker.advance_start(partition, asked.offset, deadline)
        answer["low_watermark"] = partition.log.start
    except BrokerError as error:
        answer |= {"error_code": error.code, "low_watermark": NO_OFFSET}
    return answer
