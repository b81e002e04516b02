"""RestoreBatches: what a backup holds, back into a log, at the offsets that it had.

Rule 1: the log must end where the batches begin. So nothing is overwritten, and whoever else
        writes meanwhile makes the restore fail instead of being mixed with it.
Rule 2: of the cluster's own topics only that of the queues is restored: what is in it are users'
        messages, known by their offsets. Groups' offsets are committed anew; metadata and
        transactions are this cluster's.
Rule 3: what is kept in memory of a restored log is read again, before anybody is served from it:
        once the sender says that all is there, or has been silent for long. Queues that have
        written by themselves here are not restored, so nobody ends their service by this.
Rule 4: a record that no queue's shard can have written is refused. In the log it would be met again
        by every node that reads it.
"""

from functools import partial
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.writing import Fate
from tidelog.errors import BrokerError, InvalidTopic, UnknownTopicId
from tidelog.kafka.context import Request
from tidelog.model import INTERNAL_TOPICS, NO_OFFSET, QUEUES_TOPIC
from tidelog.partition.driver import Partition
from tidelog.queues.restored import check_record
from tidelog.records import decode_batch, iterate_batches
from tidelog.security.permissions import Kind


async def restore_batches(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Append batches where they were; answered once they are committed. None: all are there."""
    partition: Partition | None = None
    try:
        context.require(Kind.CLUSTER)
        if request.topic_id is None:
            raise UnknownTopicId(request.topic_id)
        partition = broker.partition(request.topic_id, request.partition)
        topic = partition.name.topic
        if topic in INTERNAL_TOPICS and topic != QUEUES_TOPIC:
            raise InvalidTopic(f"{topic} is this cluster's own and is not restored")
        if not request.records:
            partition.leading()
            broker.tell_restored(partition.name, is_whole=True)
            return {"log_end": partition.log.end}
        brings_queues = False
        if topic == QUEUES_TOPIC:
            check = partial(_check_queues, request.records)
            brings_queues = await broker.host.offload.run(check)
            partition = broker.partition(request.topic_id, request.partition)
        seconds = max(request.timeout.total_seconds(), 0)
        fate = Fate(broker.host.clock.monotonic() + seconds)
        broker.check_restoring(partition.name)
        is_done = partition.appender.restore(bytearray(request.records), fate)
        if brings_queues:  # at once: nothing is decided by what was known before
            broker.tell_restored(partition.name, is_whole=False)
        if not is_done and (refusal := await fate.future) is not None:
            raise refusal
    except BrokerError as error:
        end = NO_OFFSET if partition is None else partition.log.end
        return {"error_code": error.code, "error_message": str(error), "log_end": end}
    return {"log_end": partition.log.end}


def _check_queues(data: bytes) -> bool:
    """Whether there are any records; the sender's error, unless a fold of them can be served.

    For a disk's thread.
    """
    found = False
    for header, batch in iterate_batches(data):
        if not header.is_control:
            for record in decode_batch(batch):
                check_record(record)
                found = True
    return found
