"""What a node asks of whoever keeps a queue, and what comes back: values that cross between nodes.

Rule: a request with an Idempotency-Key is known again by that key, and by what it asks for: whoever
      uses the key for another thing is refused.
"""

from hashlib import blake2b
from typing import Any, ClassVar, Final, Self

import msgspec

from tidelog.broker.serving import Work
from tidelog.model import Offset
from tidelog.queues.events import (
    ANONYMOUS,
    Add,
    Create,
    Declare,
    Delete,
    Drop,
    Event,
    Kind,
    Publish,
    Read,
    Receive,
    Request,
    Settle,
    Sweep,
)
from tidelog.queues.records import About, Settings
from tidelog.shards.effects import Token

_encode: Final = msgspec.msgpack.Encoder().encode


class QueueWork(Work, frozen=True, kw_only=True):
    """Anything that is asked of queues."""

    request: bytes = b""
    """The hash of its Idempotency-Key; empty without one."""

    def wanted(self) -> tuple[object, ...]:
        """What it asks for, however often it comes."""
        return ()

    def known_by(self) -> Request:
        """What it is known by when it comes again."""
        if not self.request:
            return ANONYMOUS
        body = _encode((type(self).__name__, *self.wanted()))
        return Request(self.request, blake2b(body, digest_size=8).digest())


class ShardWork(QueueWork, frozen=True, kw_only=True):
    """What a shard decides."""

    def event(self, reply: Token) -> Event:
        """What is asked of the shard."""
        raise NotImplementedError


class CreateWork(ShardWork, frozen=True, kw_only=True):
    """Make a queue with pointers."""

    def event(self, reply: Token) -> Event:
        return Create(reply=reply, request=self.known_by())


class DeleteWork(ShardWork, frozen=True, kw_only=True):
    """Delete a queue with pointers."""

    queue_id: int

    def wanted(self) -> tuple[object, ...]:
        return (self.queue_id,)

    def event(self, reply: Token) -> Event:
        return Delete(reply=reply, request=self.known_by(), queue_id=self.queue_id)


class AppendWork(ShardWork, frozen=True, kw_only=True):
    queue_id: int
    value: bytes

    def wanted(self) -> tuple[object, ...]:
        return self.queue_id, self.value

    def event(self, reply: Token) -> Event:
        return Add(reply=reply, request=self.known_by(), queue_id=self.queue_id, value=self.value)


class ReadNextWork(ShardWork, frozen=True, kw_only=True):
    queue_id: int
    client: str
    is_repeat: bool = False
    """Whether an earlier copy of it may be on its way, or have been done."""

    def wanted(self) -> tuple[object, ...]:
        return self.queue_id, self.client

    def repeated(self) -> Self:
        return msgspec.structs.replace(self, is_repeat=True)

    def event(self, reply: Token) -> Event:
        return Read(
            reply=reply,
            request=self.known_by(),
            queue_id=self.queue_id,
            client=self.client,
            is_repeat=self.is_repeat,
        )


class DeclareWork(ShardWork, frozen=True, kw_only=True):
    name: str
    settings: Settings

    def wanted(self) -> tuple[object, ...]:
        # When it came is no part of what it asks for.
        return self.name, msgspec.structs.replace(self.settings, made_ms=0)

    def event(self, reply: Token) -> Event:
        return Declare(reply=reply, request=self.known_by(), name=self.name, settings=self.settings)


class DropWork(ShardWork, frozen=True, kw_only=True):
    name: str

    def wanted(self) -> tuple[object, ...]:
        return (self.name,)

    def event(self, reply: Token) -> Event:
        return Drop(reply=reply, request=self.known_by(), name=self.name)


class PublishWork(ShardWork, frozen=True, kw_only=True):
    name: str
    messages: tuple[tuple[bytes, About], ...]

    def wanted(self) -> tuple[object, ...]:
        return self.name, self.messages

    def event(self, reply: Token) -> Event:
        return Publish(reply=reply, request=self.known_by(), name=self.name, messages=self.messages)


class ReceiveWork(ShardWork, frozen=True, kw_only=True):
    name: str
    lane: int
    count_max: int
    wait_seconds: float
    visibility_ms: int | None
    waiter: str = ""
    """By which it can be taken back while it waits."""

    def wanted(self) -> tuple[object, ...]:
        return self.name, self.lane, self.count_max, self.visibility_ms

    def event(self, reply: Token) -> Event:
        return Receive(
            reply=reply,
            request=self.known_by(),
            name=self.name,
            lane=self.lane,
            count_max=self.count_max,
            wait_seconds=self.wait_seconds,
            visibility_ms=self.visibility_ms,
        )


class ForgetWork(QueueWork, frozen=True, kw_only=True):
    """Whoever waited for messages has gone."""

    waiter: str


class SettleWork(ShardWork, frozen=True, kw_only=True):
    name: str
    receipts: tuple[str, ...]
    kind: Kind
    ms: int

    def wanted(self) -> tuple[object, ...]:
        return self.name, self.receipts, self.kind, self.ms

    def event(self, reply: Token) -> Event:
        return Settle(
            reply=reply,
            request=self.known_by(),
            name=self.name,
            receipts=self.receipts,
            kind=self.kind,
            ms=self.ms,
        )


class MoveWork(ShardWork, frozen=True, kw_only=True):
    """Bring messages of a lane into the other, or with `purges` delete them."""

    name: str
    lane: int
    count_max: int = 1000
    """What a node of the first format takes of it at a time."""
    purges: bool = False

    def wanted(self) -> tuple[object, ...]:
        return self.name, self.lane, self.purges

    def event(self, reply: Token) -> Event:
        return Sweep(
            reply=reply, request=self.known_by(), name=self.name, lane=self.lane, deletes=self.purges
        )


WORK_QUEUES: Final = "work"
POINTER_QUEUES: Final = "pointer"
POINTERS: Final = "pointers"
NAMES: Final = "names"
"""A page of the names of work queues; a node of an earlier version answers with all of them."""


class LookWork(QueueWork, frozen=True, kw_only=True):
    """What there is: one work queue, messages of a queue with pointers, or a list."""

    is_read: ClassVar[bool] = True
    name: str = ""
    queue_id: int = -1
    after: Offset = -1
    limit: int = 1000
    """Messages of the queue `queue_id`, so many beyond `after`."""
    what: str = ""
    """Names of work queues, ids of queues with pointers, or pointers: so many of these, beyond
    `after` (a queue's id) and `client` (or a queue's name)."""
    client: str = ""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message, as somebody gets it."""

    offset: Offset
    value: bytes
    count: int = 0
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    key: str | None = None
    made_ms: int = 0


class QueueAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it; the fields that it does not concern stay empty."""

    number: int | None = None
    offsets: tuple[Offset, ...] = ()
    messages: tuple[Message, ...] = ()
    outcomes: tuple[str, ...] = ()
    document: Any = None


SHARD_WORKS: Final[tuple[type[ShardWork], ...]] = (
    CreateWork,
    DeleteWork,
    AppendWork,
    ReadNextWork,
    DeclareWork,
    DropWork,
    PublishWork,
    ReceiveWork,
    SettleWork,
    MoveWork,
)
