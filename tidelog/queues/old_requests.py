"""Requests as the first format remembers them: by a header of what they did.

Of these, what would be done twice is known again: messages that were published or added, queues
that were made, pointers that were moved. It matters for as long as requests are known again, after
the first node of the new version leads.
"""

from collections.abc import Mapping
from typing import Final

from tidelog.queues.events import Added, Created, Declared, Outcome, Published, Reached, Remembered
from tidelog.queues.records import (
    About,
    JobWritten,
    MessageWritten,
    PointerWritten,
    QueueWritten,
    WorkQueueWritten,
    decode,
)
from tidelog.records import Record

REQUEST_HEADER: Final = "r"


def old_request(record: Record, known: Mapping[bytes, Remembered]) -> tuple[bytes, Remembered] | None:
    """The request that a record was written for, and what is known of it then."""
    key = next((value for name, value in record.headers if name == REQUEST_HEADER), None)
    if not key:
        return None
    before = known.get(key)
    outcome = _outcome(record, None if before is None else before.outcome)
    if outcome is None:
        return None
    return key, Remembered(b"", outcome)


def _outcome(record: Record, before: Outcome | None) -> Outcome | None:
    match decode(record):
        case QueueWritten(queue_id=queue_id, is_alive=True):
            return Created(queue_id)
        case MessageWritten(is_alive=True):
            return Added(record.offset)
        case PointerWritten(value=moved) if moved is not None:
            return Reached(moved.to)
        case WorkQueueWritten(value=settings) if settings is not None:
            return Declared(True)
        case JobWritten(about=About()):
            if isinstance(before, Published) and before.first + before.count == record.offset:
                return Published(before.first, before.count + 1)
            return Published(record.offset, 1)
        case _:
            return None
