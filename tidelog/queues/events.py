"""What is asked of queues, and what those who asked are told.

Rule 1: a request carries a `reply`, which means nothing here. Exactly one `Answer` goes out for
        it, now or after other events; a refusal is the `BrokerError` that the client gets.
Rule 2: everything is a value; nothing here acts.
Rule 3: an answer that is remembered of a request stands in the log as it is here.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from tidelog.model import Offset
from tidelog.shards.effects import Token

if TYPE_CHECKING:
    from tidelog.queues.records import About, Settings


class Request(NamedTuple):
    """What a request is known by when it comes again."""

    key: bytes = b""
    """The hash of its Idempotency-Key, and of what it was sent to; empty without a key."""
    body: bytes = b""
    """The hash of what it asks for: equal keys of other bodies are a mistake."""


ANONYMOUS: Final = Request()


def request_hash(key: str | None) -> bytes:
    """What an Idempotency-Key is known by; empty without one."""
    return b"" if key is None else blake2b(key.encode("utf-8", "replace"), digest_size=16).digest()


# Requests of queues with pointers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make a queue with pointers; answered by `Created`."""

    reply: Token
    request: Request = ANONYMOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a queue with pointers; answered by `Dropped`."""

    reply: Token
    request: Request = ANONYMOUS
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Add a message to a queue with pointers; answered by `Added`."""

    reply: Token
    request: Request = ANONYMOUS
    queue_id: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Move a client on to the next message; answered by `Reached`."""

    reply: Token
    request: Request = ANONYMOUS
    queue_id: int
    client: str
    is_repeat: bool = False
    """Whether another copy of the request may be on its way."""


# Requests of work queues.


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare:
    """Make a work queue, or change its settings; answered by `Declared`."""

    reply: Token
    request: Request = ANONYMOUS
    name: str
    settings: "Settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Delete a work queue and all that is in it; answered by `Dropped`."""

    reply: Token
    request: Request = ANONYMOUS
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Add messages, all or none; answered by `Published`."""

    reply: Token
    request: Request = ANONYMOUS
    name: str
    messages: "tuple[tuple[bytes, About], ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """Give out messages, now or when there are any; answered by `Received`."""

    reply: Token
    request: Request = ANONYMOUS
    name: str
    lane: int
    count_max: int
    wait_seconds: float = 0.0
    visibility_ms: int | None = None


Kind: TypeAlias = Literal["ack", "nack", "extend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Owners say what becomes of messages; answered by `Settled`.

    `ack`: they are done; `nack`: others get them, not before `ms` have passed; `extend`: they are
    kept for `ms` from now.
    """

    reply: Token
    request: Request = ANONYMOUS
    name: str
    receipts: tuple[str, ...]
    kind: Kind
    ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Delete all messages of a lane that nobody has, or bring them into the other.

    Answered by `Swept` once all that were there when it began are gone.
    """

    reply: Token
    request: Request = ANONYMOUS
    name: str
    lane: int
    deletes: bool


WorkEvent: TypeAlias = Declare | Drop | Publish | Receive | Settle | Sweep
PointerEvent: TypeAlias = Create | Delete | Add | Read
Event: TypeAlias = WorkEvent | PointerEvent


# Answers.


class Given(msgspec.Struct, frozen=True, array_like=True):
    """A message that was given out."""

    offset: Offset
    count: int


class Created(msgspec.Struct, frozen=True, array_like=True, tag=0):
    queue_id: int


class Added(msgspec.Struct, frozen=True, array_like=True, tag=1):
    offset: Offset


class Reached(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Where the pointer is; None if there is nothing to read."""

    offset: Offset | None


FOUND_NOTHING: Final = Reached(None)
"""Also what is remembered of other requests that found nothing to be done to."""


class Declared(msgspec.Struct, frozen=True, array_like=True, tag=3):
    is_new: bool


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag=4):
    pass


class Published(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """So many messages, one after the other from `first` on."""

    first: Offset
    count: int

    @property
    def offsets(self) -> range:
        return range(self.first, self.first + self.count)


class Received(msgspec.Struct, frozen=True, array_like=True, tag=6):
    given: tuple[Given, ...] = ()


DONE: Final = "d"
UNKNOWN: Final = "u"
EXPIRED: Final = "e"
BUSY: Final = "b"
FATES: Final = {DONE: "done", UNKNOWN: "unknown", EXPIRED: "expired", BUSY: "busy"}
"""What became of a receipt, in a letter: a request may have a thousand of them."""


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=7):
    fates: str

    @property
    def outcomes(self) -> tuple[str, ...]:
        return tuple([FATES[fate] for fate in self.fates])


class Swept(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """So many messages; while it is not finished, up to which sequence it goes."""

    count: int
    until: int = -1

    @property
    def is_finished(self) -> bool:
        return self.until < 0


Outcome: TypeAlias = Created | Added | Reached | Declared | Dropped | Published | Received | Settled | Swept


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """What the log knows of a request that was done."""

    body: bytes
    outcome: Outcome
    """Offsets in it count from the record's own: they are not known before it is written."""


def placed(outcome: Outcome, offset: Offset) -> Outcome:
    """The outcome whose record stands at `offset`, with true offsets."""
    match outcome:
        case Added():
            return Added(outcome.offset + offset)
        case Published():
            return Published(outcome.first + offset, outcome.count)
        case _:
            return outcome
