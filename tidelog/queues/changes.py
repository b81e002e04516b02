"""What becomes true with the writes of a shard of queues.

Rule: a change is a value that names what it is about. The shard makes it true when its write is
      stored, and takes back what was taken for it when the write fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog.errors import BrokerError
from tidelog.queues.events import (
    Add,
    Create,
    Declare,
    Delete,
    Drop,
    Event,
    Publish,
    Read,
    Receive,
    Remembered,
    Settle,
    Sweep,
)
from tidelog.queues.message import Message
from tidelog.queues.pointers import PointerQueue
from tidelog.queues.records import Delivery, Moved, Settings
from tidelog.queues.work import Candidates, WorkQueue


class Arriving(NamedTuple):
    """A message on its way to the log; its offset is not known yet."""

    sequence: int
    size: int
    key: int
    not_before_ms: int
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A change that somebody asked for."""

    event: Event
    remembered: Remembered | None
    """What is remembered of the request, by the last record of the write."""
    records: int
    """How many records the write has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestRefused(Asked):
    """There is no queue to do it to; nor is it done to one that is made since, by its key."""

    error: BrokerError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueCreated(Asked):
    event: Create
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueDeleted(Asked):
    event: Delete
    queue: PointerQueue


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageAdded(Asked):
    event: Add
    queue: PointerQueue
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointerMoved(Asked):
    event: Read
    queue: PointerQueue
    way: Moved
    moved_ms: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NothingToRead(Asked):
    """The client had read everything; no copy of this read moves its pointer."""

    event: Read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueDeclared(Asked):
    event: Declare
    settings: Settings
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueDropped(Asked):
    event: Drop
    queue: WorkQueue


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagesPublished(Asked):
    event: Publish
    queue: WorkQueue
    messages: Sequence[Arriving]
    made_ms: int
    told: int
    """Up to which sequence the log is told that messages may be, then."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagesGiven(Asked):
    event: Receive
    queue: WorkQueue
    given: Sequence[tuple[Message, Delivery]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagesSettled(Asked):
    event: Settle
    queue: WorkQueue
    settled: Sequence[tuple[Message, Delivery | None]]
    """None: it is done."""
    fates: str


@dataclass(slots=True, kw_only=True, eq=False)
class SweepUnderWay:
    """A purge or a redrive, from its first write to its last."""

    event: Sweep
    queue: WorkQueue
    until: int
    rest: Candidates
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagesSwept(Asked):
    """A piece of a sweep."""

    event: Sweep
    sweep: SweepUnderWay
    swept: Sequence[tuple[Message, Delivery | None]]
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagesDied:
    """Messages were given out too often."""

    queue: WorkQueue
    died: Sequence[tuple[Message, Delivery]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointersForgotten:
    """Clients have read nothing for too long."""

    queue: PointerQueue
    clients: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestsForgotten:
    """Requests are not known again any more."""

    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GarbageDeleted:
    """What is left of queues that were deleted is deleted as well."""

    keys: Sequence[bytes]


Change: TypeAlias = (
    RequestRefused
    | QueueCreated
    | QueueDeleted
    | MessageAdded
    | PointerMoved
    | NothingToRead
    | QueueDeclared
    | QueueDropped
    | MessagesPublished
    | MessagesGiven
    | MessagesSettled
    | MessagesSwept
    | MessagesDied
    | PointersForgotten
    | RequestsForgotten
    | GarbageDeleted
)
