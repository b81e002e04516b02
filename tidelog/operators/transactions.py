"""Transactions: what is open, since when and where, and how one is ended from outside.

Rule 1: an abort fences the producer. What is committed already, or not open, is refused: the
        producer would be fenced for nothing.
Rule 2: an orphan is open in a partition and known to no coordinator. Partitions are asked before
        coordinators: what begins and ends in between is known to its coordinator.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tidelog.broker.broker import Broker
from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    InvalidRequest,
    InvalidTransactionState,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
    error_of,
)
from tidelog.model import NO_NODE, TRANSACTIONS_TOPIC, NodeId, TopicPartition
from tidelog.operators import offsets
from tidelog.operators.values import LIMIT, LISTED_MAX, After, Limit, Place, page_shown
from tidelog.operators.verbs import (
    ALTER_CLUSTER,
    DESCRIBE_CLUSTER,
    DESCRIBE_IDS,
    DESCRIBE_TOPICS,
    Http,
    Permission,
    Verb,
)
from tidelog.partition.driver import Partition
from tidelog.security.permissions import Kind, Operation
from tidelog.txn.events import TransactionView
from tidelog.txn.placement import coordinator_key
from tidelog.wire.names import partition_for

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

ORPHAN_MS: Final = 15 * 60 * 1000
"""So long do transactions last where nobody asks for more (transaction.max.timeout.ms). A
partition that was written to within this time may belong to one whose coordinator was asked too
early or too late."""
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
COMMITTING: Final = "PrepareCommit"

State = Literal[
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
]


class ListTransactions(msgspec.Struct, frozen=True, kw_only=True):
    state: Annotated[State | None, Meta(description="Only those in this state.")] = None
    hanging: Annotated[
        bool, Meta(description="Only those open for longer than their timeout, and orphans.")
    ] = False
    limit: Limit = LIMIT
    after: After = None


class ListedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """Open in a partition, and known to no coordinator."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int


class Transactions(msgspec.Struct, frozen=True, kw_only=True):
    transactions: list[ListedTransaction]
    orphans: list[Orphan]
    """With `hanging`, up to 1,000; else none are looked for."""
    next: str | None


class OneTransaction(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class OpenPlace(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    first_offset: int | None
    """Where readers of committed records wait; null if its leader holds nothing open."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    age_ms: int | None
    overdue: bool
    coordinator: int
    partitions: list[OpenPlace]


class Aborted(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    aborted: bool
    producer_id: int
    producer_epoch: int


class ListHere(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing more is said."""


class Coordinated(msgspec.Struct, frozen=True, kw_only=True):
    """The transactional ids of one coordinator."""

    served: list[int]
    """The partitions of which all ids were looked at."""
    transactions: list[Transaction]


class FindOpen(msgspec.Struct, frozen=True, kw_only=True):
    places: list[Place] | None = None
    """Null for all that the node leads."""


class OpenFound(msgspec.Struct, frozen=True, kw_only=True):
    open: list[Orphan]
    """As the leaders hold them open, whether a coordinator knows of them or not."""


class AbortOrphan(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


# At the coordinator.


def at_coordinator(broker: Broker, asked: OneTransaction) -> NodeId:
    """Who coordinates the id; UnknownTopicOrPartition where there has never been one."""
    topic = broker.image.topics.get(TRANSACTIONS_TOPIC)
    if topic is None:
        raise UnknownTopicOrPartition(TRANSACTIONS_TOPIC)
    number = partition_for(coordinator_key(asked.id), len(topic.partitions))
    leader = topic.partitions[number].leader
    if leader == NO_NODE:
        raise CoordinatorNotAvailable(f"{TRANSACTIONS_TOPIC}-{number} has no leader now")
    return leader


async def list_here(desk: "Desk", asked: ListHere) -> Coordinated:
    served = desk.transactions.counted_on()
    views = [view for one in served.values() for view in one.shard.transactions()]
    return Coordinated(served=list(served), transactions=[show(desk.broker, view) for view in views])


async def look(desk: "Desk", asked: OneTransaction) -> Transaction:
    view = desk.transactions.driver(coordinator_key(asked.id)).shard.describe(asked.id)
    if view is None:
        raise _missing(asked.id)
    return show(desk.broker, view)


def _missing(name: str) -> BrokerError:
    return error_of(
        TransactionalIdNotFound.code,
        f"transactional id {name!r}: there is none of that name; `tidelog transactions list` shows those "
        "there are",
    )


def show(broker: Broker, view: TransactionView) -> Transaction:
    started_ms = None if view.started_ms < 0 else view.started_ms
    age_ms = None
    if started_ms is not None and view.state in OPEN_STATES:
        age_ms = max(broker.host.clock.wall_ms() - started_ms, 0)
    return Transaction(
        transactional_id=view.transactional_id,
        state=view.state,
        producer_id=view.producer_id,
        producer_epoch=view.epoch,
        timeout_ms=view.timeout_ms,
        started_ms=started_ms,
        age_ms=age_ms,
        overdue=age_ms is not None and age_ms > view.timeout_ms,
        coordinator=broker.node_id,
        partitions=[
            OpenPlace(topic=name.topic, partition=name.partition, first_offset=None)
            for name in sorted(view.places)
        ],
    )


async def abort_here(desk: "Desk", asked: OneTransaction) -> Aborted:
    found = await look(desk, asked)
    require_abortable(found)  # it may have been committed since it was looked at
    # ConcurrentTransactions, and so asked again, until every marker stands.
    fenced = await desk.patiently(lambda deadline: desk.producers.initialise(asked.id, found.timeout_ms))
    return Aborted(
        transactional_id=asked.id, aborted=True, producer_id=fenced.producer_id, producer_epoch=fenced.epoch
    )


def require_abortable(found: Transaction) -> None:
    """Refuse to abort what is not open, or is decided."""
    why = None
    if found.state not in OPEN_STATES:
        why = f"it has no open transaction: it is {found.state}"
    elif found.state == COMMITTING:
        why = (
            "it is committed, and its partitions are being told; `tidelog replication status` "
            "shows who cannot be reached"
        )
    if why is not None:
        raise error_of(InvalidTransactionState.code, f"transactional id {found.transactional_id!r}: {why}")


# At the leaders.


async def find_open_here(desk: "Desk", asked: FindOpen) -> OpenFound:
    """A partition that is led elsewhere by now, or is gone, is passed over."""
    broker = desk.broker
    if asked.places is None:
        led = [one for one in broker.partitions() if one.leader is not None]
    else:
        wanted = {TopicPartition(one.topic, one.partition) for one in asked.places}
        led = [one for one in broker.partitions() if one.leader is not None and one.name in wanted]
    return OpenFound(open=[one for partition in led for one in _open_in(partition)])


def _open_in(partition: Partition) -> Iterable[Orphan]:
    for producer_id, state in partition.log.producers.items():
        if state.transaction_start >= 0:
            yield Orphan(
                topic=partition.name.topic,
                partition=partition.name.partition,
                producer_id=producer_id,
                producer_epoch=state.epoch,
                first_offset=state.transaction_start,
                last_timestamp_ms=state.last_timestamp_ms,
            )


def at_leader(broker: Broker, asked: AbortOrphan) -> NodeId:
    return offsets.leader_of(broker, TopicPartition(asked.topic, asked.partition))


async def abort_orphan(desk: "Desk", asked: AbortOrphan) -> AbortOrphan:
    """End a transaction in one partition, if no coordinator knows of it."""
    name = TopicPartition(asked.topic, asked.partition)
    known = dict(desk.broker.partition(asked.topic, asked.partition).log.producers.items())
    state = known.get(asked.producer_id)
    if state is None:
        raise InvalidTransactionState(f"producer {asked.producer_id} has nothing open in {name}")
    await desk.transactions.orphans.abort(
        name, asked.producer_id, asked.producer_epoch, state.coordinator_epoch
    )
    return asked


# Looking.


async def list_transactions(desk: "Desk", asked: ListTransactions) -> Transactions:
    if asked.hanging and asked.state is not None:
        raise InvalidRequest("hanging looks at all open transactions; leave state out")
    opened = await desk.ask_all("transactions.find_open", FindOpen()) if asked.hanging else []
    answers = await desk.ask_all("transactions.list_here", ListHere(), of=TRANSACTIONS_TOPIC)
    known: dict[str, Transaction] = {
        one.transactional_id: one for answer in answers for one in answer.transactions
    }
    found = known
    if asked.hanging:
        found = {name: one for name, one in known.items() if one.overdue}
    elif asked.state is not None:
        found = {name: one for name, one in known.items() if one.state == asked.state}
    names, after = await page_shown(
        found, limit=asked.limit, after=asked.after, shows=partial(desk.shows, DESCRIBE_IDS)
    )
    orphans = _orphans(desk.broker, [one for some in opened for one in some.open], known.values())
    return Transactions(
        transactions=[_listed(found[name]) for name in names],
        orphans=[one for one in orphans if desk.shows(DESCRIBE_TOPICS, one.topic)],
        next=after,
    )


def _listed(one: Transaction) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=one.transactional_id,
        state=one.state,
        producer_id=one.producer_id,
        coordinator=one.coordinator,
    )


def _orphans(broker: Broker, opened: Iterable[Orphan], known: Iterable[Transaction]) -> list[Orphan]:
    producers = {one.producer_id for one in known if one.state in OPEN_STATES}
    now_ms = broker.host.clock.wall_ms()
    found = [
        one
        for one in opened
        if one.producer_id not in producers and now_ms - one.last_timestamp_ms > ORPHAN_MS
    ]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.producer_id))[:LISTED_MAX]


async def describe_transaction(desk: "Desk", asked: OneTransaction) -> Transaction:
    found = await _find(desk, asked)
    visible = [one for one in found.partitions if desk.shows(DESCRIBE_TOPICS, one.topic)]
    if not visible:
        return msgspec.structs.replace(found, partitions=[])
    places = [Place(topic=one.topic, partition=one.partition) for one in visible]
    answers = await desk.ask_all("transactions.find_open", FindOpen(places=places))
    first = {
        (one.topic, one.partition): one.first_offset
        for answer in answers
        for one in answer.open
        if one.producer_id == found.producer_id
    }
    shown = [
        OpenPlace(
            topic=one.topic, partition=one.partition, first_offset=first.get((one.topic, one.partition))
        )
        for one in visible
    ]
    return msgspec.structs.replace(found, partitions=shown)


async def _find(desk: "Desk", asked: OneTransaction) -> Transaction:
    try:
        found: Transaction = await desk.ask("transactions.look", asked)
    except UnknownTopicOrPartition:
        raise _missing(asked.id) from None
    return found


async def abort_transaction(desk: "Desk", asked: OneTransaction) -> Aborted:
    require_abortable(await _find(desk, asked))
    done: Aborted = await desk.ask("transactions.abort_here", asked)
    return done


_GONE: Final = "There is no such transactional id."
_PATH: Final = "/v1/transactions/{id:path}"
_DESCRIBE: Final = Permission(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, "id")
_WRITE: Final = Permission(Operation.WRITE, Kind.TRANSACTIONAL_ID, "id")

VERBS: Final = (
    Verb(
        name="transactions.list",
        do=list_transactions,
        permission=DESCRIBE_IDS,
        summary="List the transactional ids of the cluster.",
        http=Http("GET", "/v1/transactions"),
    ),
    Verb(
        name="transactions.list_here",
        is_internal=True,
        do=list_here,
        permission=DESCRIBE_CLUSTER,
        summary="The transactional ids that this node coordinates.",
    ),
    Verb(
        name="transactions.find_open",
        is_internal=True,
        do=find_open_here,
        permission=DESCRIBE_CLUSTER,
        summary="What is open in partitions that this node leads.",
    ),
    Verb(
        name="transactions.describe",
        do=describe_transaction,
        permission=_DESCRIBE,
        summary="Describe a transactional id: its producer and its present transaction.",
        http=Http("GET", _PATH, errors={404: _GONE}),
    ),
    Verb(
        name="transactions.look",
        is_internal=True,
        do=look,
        where=at_coordinator,
        permission=_DESCRIBE,
        summary="What the coordinator of a transactional id knows of it.",
    ),
    Verb(
        name="transactions.abort",
        do=abort_transaction,
        permission=_WRITE,
        is_dangerous=True,
        summary="Abort an open transaction; its producer is fenced and fails.",
        http=Http(
            "DELETE", _PATH, errors={404: _GONE, 409: "It has no open transaction, or it is committed."}
        ),
    ),
    Verb(
        name="transactions.abort_here",
        is_internal=True,
        do=abort_here,
        where=at_coordinator,
        permission=_WRITE,
        is_dangerous=True,
        summary="Abort an open transaction, at its coordinator.",
    ),
    Verb(
        name="transactions.abort_orphan",
        do=abort_orphan,
        where=at_leader,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Abort an orphan: a transaction in one partition that no coordinator knows.",
    ),
)
