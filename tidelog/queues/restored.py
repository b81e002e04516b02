"""Records of a backup that are to go into `__queues`: whether a fold of them can be served.

Rule: what is refused here was never written by a shard. Whoever made it can make the log one that
no node can read; once it is in there, every start would meet it again.
"""

from typing import Final

import msgspec

from tidelog.errors import CorruptMessage, InvalidRecord
from tidelog.queues.events import Remembered, Swept
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import (
    PLAIN_HEADERS,
    DeliveryWritten,
    JobWritten,
    MessageWritten,
    NumberWritten,
    PointerWritten,
    QueueWritten,
    RequestWritten,
    SequenceWritten,
    WorkQueueWritten,
    about_of,
    decode,
    delivery_key,
    job_key,
    message_key,
)
from tidelog.records import Record

_NUMBERS_MAX: Final = 2**47
"""Numbers of queues and messages are below it: the next, times the partitions, has room in keys."""


def check_record(record: Record) -> None:
    """InvalidRecord if no shard can have written this."""
    try:
        written = decode(record)
        about_of(record)
    except CorruptMessage as error:
        raise InvalidRecord(str(error)) from None
    except msgspec.MsgspecError as error:
        raise _no_queue_s(record, str(error)) from None
    if record.headers == PLAIN_HEADERS and not isinstance(written, JobWritten):
        raise _no_queue_s(record, "it is no message, though its headers are a message's")
    key: bytes | None = record.key
    numbers: tuple[int, ...] = ()
    match written:
        case QueueWritten(queue_id=one) | PointerWritten(queue_id=one) | NumberWritten(number=one):
            numbers = (one,)
        case SequenceWritten(sequence=sequence):
            numbers = (sequence,)
        case RequestWritten(value=Remembered(outcome=Swept(is_finished=False, until=until))):
            numbers = (until,)
        case MessageWritten(queue_id=queue_id, sequence=sequence):
            key, numbers = message_key(queue_id, sequence), (queue_id, sequence)
        case JobWritten(place=place):
            key, numbers = job_key(place), (place.sequence,)
        case DeliveryWritten(place=place, value=given):
            since = 0 if given is None else given.since
            key, numbers = delivery_key(place), (place.sequence, since)
            if given is not None and given.lane not in (MAIN, DEAD):
                raise _no_queue_s(record, f"there is no lane {given.lane}")
        case WorkQueueWritten(value=settings) if settings is not None:
            numbers = (settings.first_sequence,)
        case _:
            pass
    if key != record.key:
        raise _no_queue_s(record, "something follows its key")
    if not all(0 <= one < _NUMBERS_MAX for one in numbers):
        raise _no_queue_s(record, f"{max(numbers, key=abs)} is no number of a queue or message")


def _no_queue_s(record: Record, why: str) -> InvalidRecord:
    return InvalidRecord(f"the record at {record.offset} is no queue's: {why}")
