"""What reaches a transaction, what it wants done, and what those who asked are told.

Rule 1: a request carries a `reply`, which means nothing here. Exactly one `Answer` goes out for
        it, now or after other events; a refusal is the `BrokerError` that the client gets.
Rule 2: everything is a value; nothing here acts.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tidelog.errors import BrokerError
from tidelog.model import NO_EPOCH, NO_PRODUCER, ProducerId, TopicPartition
from tidelog.shards.effects import Answer, Append, Token, Writer
from tidelog.txn.records import TransactionRecord
from tidelog.wire.batches_decided import Counting

# Requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """A producer begins with a transactional id; whoever had it before is fenced."""

    reply: Token
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER
    epoch: int = NO_EPOCH
    """What the producer has been until now, if it only wants to go on after an error (KIP-360)."""
    fresh_id: ProducerId = NO_PRODUCER
    """An id that nobody has; it is used where `Shard.needs_fresh_id` says so."""

    @property
    def expected(self) -> Writer | None:
        """As whom the producer knows itself, if it says so."""
        known = self.producer_id != NO_PRODUCER
        return Writer(self.producer_id, self.epoch) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Records will be written to these partitions in the transaction; the first begins it."""

    reply: Token
    producer_id: ProducerId
    epoch: int
    places: frozenset[TopicPartition]
    verify_only: bool = False
    """Only ask whether they are in it already, for the leader of a partition (KIP-890)."""
    implicit: bool = False
    """The leader of a partition adds it with the first batch (KIP-890, part 2)."""

    @property
    def is_from_leader(self) -> bool:
        return self.verify_only or self.implicit


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """The producer decides."""

    reply: Token
    producer_id: ProducerId
    epoch: int
    commits: bool
    bumps_epoch: bool
    """From version 5 (KIP-890, part 2): each transaction has an epoch of its own."""
    fresh_id: ProducerId = NO_PRODUCER


class GroupMember(NamedTuple):
    """A producer that has written its share of a batch, and whose transaction is open."""

    transactional_id: str
    producer_id: ProducerId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroup:
    """Commit all members' transactions as batch `batch_id` of the group, or none."""

    reply: Token
    group: str
    batch_id: int
    after: int
    """The newest decision when the batch was begun: it follows that one, or nothing is done."""
    counting: Counting
    members: tuple[GroupMember, ...]
    proof: bytes | None = None
    """What the batch is, kept with the decision for whoever asks for the same batch again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDecision:
    """Forget that the only batch of a group was decided: nobody will ask for it again."""

    reply: Token
    group: str
    batch_id: int
    is_reset: bool = False
    """An operator wants it, of whatever group: what comes again is committed again."""


# Answers.


class Initialised(NamedTuple):
    """The producer may begin, as this."""

    producer_id: ProducerId
    epoch: int


class Ended(NamedTuple):
    """It is decided; the next transaction is written as this."""

    producer_id: ProducerId
    epoch: int


class Decided(NamedTuple):
    """The group has come to this batch, by this request or before it."""

    batch_id: int
    is_new: bool
    proof: bytes | None = None
    """Of the batch that was decided before, if this one is not new."""


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """Write the end of the transaction to its partitions, until each has it or is gone.

    `Shard.marked` takes what was reached. To send them twice changes nothing.
    """

    transactional_id: str
    producer_id: ProducerId
    epoch: int
    commits: bool
    is_bumped: bool
    """`epoch` is the one after that in which the transaction was written. A marker that finds a
    transaction of its own epoch is then a late repeat, and must not end it."""
    places: tuple[TopicPartition, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Change:
    """One write of a transactional id, compared by identity: it is stored or fails once."""

    record: TransactionRecord | None
    """None: the id is forgotten."""
    timeout_at: float | None = None
    """When the transaction is aborted if it is still open."""
    answers: list[Answer] = field(default_factory=list)
    """What is said when it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Write the change's record to the log; `stored` or `store_failed` comes back with it."""

    change: Change


Effect: TypeAlias = Answer | Store | SendMarkers
"""What a transaction wants done, in order."""

ShardEffect: TypeAlias = Answer | Append | SendMarkers
"""What a shard wants done, in order."""

Verdicts: TypeAlias = dict[TopicPartition, BrokerError | None]
"""What was said of each partition."""


# Views.


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    """A transactional id as an operator sees it, as far as the log has it."""

    transactional_id: str
    state: str
    producer_id: ProducerId
    epoch: int
    timeout_ms: int
    started_ms: int
    updated_ms: int
    places: tuple[TopicPartition, ...]
    unmarked: tuple[TopicPartition, ...]
    """Where the marker of a decided transaction is still awaited."""
