"""Transactions: what is open, since when and where, and how one is ended from outside.

Rule: a DELETE aborts and fences the producer. What is committed already, or not open, is refused:
the producer would be fenced for nothing.
"""

from typing import Final

import msgspec

from tidelog.client.transactions import TransactionInfo, find_hanging, require_abortable
from tidelog.faces.http.admin.asking import LISTED_MAX, operator
from tidelog.faces.http.api import Call, Operation, Param
from tidelog.faces.http.paging import AFTER, LIMIT, page
from tidelog.faces.http.problems import Problem

TAG: Final = "transactions"
STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
    "PrepareEpochFence", "Dead",
)  # fmt: skip


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


async def list_transactions(call: Call) -> Transactions:
    client = operator(call)
    orphans: list[Orphan] = []
    if call["hanging"]:
        if call["state"] is not None:
            raise Problem(400, "hanging looks at all open transactions; leave state out")
        hanging = await find_hanging(client, call.broker.host.clock.wall_ms)
        found = {
            one.transactional_id: ListedTransaction(
                transactional_id=one.transactional_id, state=one.state,
                producer_id=one.producer_id, coordinator=one.coordinator,
            )
            for one in hanging.overdue
        }  # fmt: skip
        orphans = [
            Orphan(
                topic=one.place.topic, partition=one.place.partition,
                producer_id=one.producer_id, producer_epoch=one.producer_epoch,
                first_offset=one.first_offset, last_timestamp_ms=one.last_timestamp_ms,
            )
            for one in hanging.orphans[:LISTED_MAX]
        ]  # fmt: skip
    else:
        states = () if call["state"] is None else (call["state"],)
        found = {
            one.transactional_id: ListedTransaction(
                transactional_id=one.transactional_id, state=one.state,
                producer_id=one.producer_id, coordinator=one.coordinator,
            )
            for one in await client.list_transactions(states)
        }  # fmt: skip
    names, after = page(found, limit=call["limit"], after=call["after"])
    return Transactions(transactions=[found[name] for name in names], orphans=orphans, next=after)


async def describe_transaction(call: Call) -> Transaction:
    client, name = operator(call), _name(call)
    info = await client.describe_transaction(name)
    opened = await client.open_transactions(info.places) if info.places else []
    first = {one.place: one.first_offset for one in opened if one.producer_id == info.producer_id}
    now_ms = call.broker.host.clock.wall_ms()
    return Transaction(
        transactional_id=info.transactional_id, state=info.state, producer_id=info.producer_id,
        producer_epoch=info.producer_epoch, timeout_ms=info.timeout_ms,
        started_ms=info.started_ms, age_ms=info.age_ms(now_ms), overdue=info.is_overdue(now_ms),
        coordinator=info.coordinator,
        partitions=[
            OpenPlace(
                topic=place.topic, partition=place.partition, first_offset=first.get(place)
            )
            for place in info.places
        ],
    )  # fmt: skip


async def abort_transaction(call: Call) -> Aborted:
    client, name = operator(call), _name(call)
    info: TransactionInfo = await client.describe_transaction(name)
    require_abortable(info)
    fenced = await client.abort_transaction(name, timeout_ms=info.timeout_ms)
    return Aborted(
        transactional_id=name, aborted=True, producer_id=fenced.producer_id,
        producer_epoch=fenced.producer_epoch,
    )  # fmt: skip


def _name(call: Call) -> str:
    name: str = call.path["id"]
    if not name:
        raise Problem(404, "the path names no transactional id; /v1/transactions lists them")
    return name


_GONE: Final = "There is no such transactional id."
_PATH: Final = "/v1/transactions/{id:path}"

OPERATIONS: Final = (
    Operation(
        method="GET", path="/v1/transactions", handler=list_transactions, tag=TAG,
        params=(
            Param(name="state", doc="Only those in this state.", choices=STATES),
            Param(
                name="hanging", kind=bool, default=False,
                doc="Only those open for longer than their timeout, and orphans.",
            ),
            LIMIT, AFTER,
        ),
        answer=Transactions, summary="The transactional ids of the cluster.",
    ),
    Operation(
        method="GET", path=_PATH, handler=describe_transaction, tag=TAG, answer=Transaction,
        summary="A transactional id: its producer, and the transaction that it is in.",
        errors={404: _GONE},
    ),
    Operation(
        method="DELETE", path=_PATH, handler=abort_transaction, tag=TAG, answer=Aborted,
        summary="Abort an open transaction; its producer is fenced, and must begin anew.",
        errors={404: _GONE, 409: "It has no open transaction, or it is committed."},
    ),
)  # fmt: skip
