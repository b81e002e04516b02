"""What the log is told of messages that are given out, and what of it becomes true."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import assert_never

from tidelog.queues.events import Settle
from tidelog.queues.message import DEAD, NO_KEY, Message
from tidelog.queues.records import Delivery, deletion, delivery_key, delivery_record, job_key
from tidelog.queues.work import WorkQueue
from tidelog.records import Record
from tidelog.shards.effects import Moment


def key_number(key: str | None) -> int:
    """What a key is known by; two that have the same by chance are given out in turn, no worse."""
    if key is None:
        return NO_KEY
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") or 1


def settling(queue: WorkQueue, message: Message, event: Settle, since: int, at: Moment) -> Delivery | None:
    """What the log is to say of a message that its owner settles; None: it is done.

    `since` is the next sequence of the log.
    """
    match event.kind:
        case "ack":
            return None
        case "nack":
            if queue.is_dead(message):
                return queue.to_lane(message, DEAD, since)
            return Delivery(
                message.offset,
                message.count,
                message.lane,
                not_before_ms=at.wall_ms + event.ms,
                count_before=message.count_before,
                delay_ms=event.ms,
                since=message.since,
            )
        case "extend":
            return Delivery(
                message.offset,
                message.count,
                message.lane,
                event.ms,
                count_before=message.count_before,
                since=message.since,
            )
        case _:
            assert_never(event.kind)


def records_of(
    queue: WorkQueue, values: Sequence[tuple[Message, Delivery | None]], at: Moment
) -> list[Record]:
    """What the log is told of messages; those without a value are deleted."""
    records: list[Record] = []
    for message, value in values:
        place = queue.place(message.sequence)
        if value is not None:
            records.append(delivery_record(place, value, now_ms=at.wall_ms))
            continue
        records.append(deletion(job_key(place), at.wall_ms))
        if message.has_delivery:
            records.append(deletion(delivery_key(place), at.wall_ms))
    return records


def apply_all(queue: WorkQueue, values: Sequence[tuple[Message, Delivery | None]], at: Moment) -> None:
    """The log says this of messages."""
    for message, value in values:
        if value is None:
            queue.delete(message)
        elif value.visibility_ms >= 0:
            queue.gave(message, value, at)
        else:
            queue.put_back(message, value, at)


def keys_of(queue: WorkQueue) -> Iterator[bytes]:
    """What the log has of a queue that is deleted, but for the record that it was there."""
    for sequence, has_delivery in queue.places():
        yield job_key(queue.place(sequence))
        if has_delivery:
            yield delivery_key(queue.place(sequence))
