"""`tidelog transactions`: list, describe, abort; what is open, since when, and where."""

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    note,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.group_offsets import NOTHING, Yes

if TYPE_CHECKING:
    from tidelog.client.transactions import (
        Hanging,
        ListedTransaction,
        OpenTransaction,
        TransactionInfo,
    )
    from tidelog.model import TopicPartition

app = typer.Typer(help="List, describe and abort transactions.", no_args_is_help=True)

TransactionalId = Annotated[
    str, typer.Argument(metavar="ID", help="The transactional.id of the producer.")
]


class State(StrEnum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"


# Looking.


@app.command("list")
def list_transactions(
    state: Annotated[
        list[State] | None,
        typer.Option("--state", case_sensitive=False, help="Only those in this state; repeatable."),
    ] = None,
    hanging: Annotated[
        bool,
        typer.Option(
            "--hanging",
            help="Only those open for longer than their timeout, and what partitions hold open "
            "that no coordinator knows of.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids of the cluster.

    A hanging transaction keeps readers of committed records from going on
    in its partitions. `tidelog transactions abort` ends it.

    \b
    Examples:
      tidelog transactions list
      tidelog transactions list --state Ongoing --json
      tidelog transactions list --hanging
    """
    if hanging and state:
        raise UserError("--hanging looks at all open transactions; leave --state out")
    if hanging:
        _list_hanging(bootstrap, as_json=as_json)
        return

    async def work() -> "list[ListedTransaction]":
        from tidelog.client.transactions import TransactionsClient

        async with TransactionsClient(bootstrap) as client:
            return await client.list_transactions(state or ())

    found = run(work())
    if as_json:
        print_json(
            {
                "transactions": [
                    {
                        "transactional_id": one.transactional_id,
                        "state": one.state,
                        "producer_id": one.producer_id,
                        "coordinator": one.coordinator,
                    }
                    for one in found
                ]
            }
        )
    elif not found:
        note("no transaction is in that state" if state else "there are no transactional ids yet")
    else:
        print_table(
            ["transactional id", "state", "producer#", "coordinator#"],
            [(one.transactional_id, one.state, one.producer_id, one.coordinator) for one in found],
        )


def _list_hanging(bootstrap: str, *, as_json: bool) -> None:
    async def work() -> "Hanging":
        from tidelog.client.transactions import TransactionsClient, find_hanging

        async with TransactionsClient(bootstrap) as client:
            return await find_hanging(client, _now_ms)

    found = run(work())
    overdue, lost = found.overdue, found.orphans
    now_ms = _now_ms()
    if as_json:
        print_json(
            {
                "transactions": [_document(info, now_ms) for info in overdue],
                "orphans": [_orphan(one) for one in lost],
            }
        )
        return
    if not overdue and not lost:
        note("no transaction hangs")
    if overdue:
        print_table(
            ["transactional id", "state", "open for", "timeout", "partitions#"],
            [
                (
                    info.transactional_id,
                    info.state,
                    _span(info.age_ms(now_ms)),
                    _span(info.timeout_ms),
                    len(info.places),
                )
                for info in overdue
            ],
        )
        note("end one with `tidelog transactions abort ID`, which fences its producer")
    if lost:
        print_table(
            ["topic", "partition#", "producer#", "epoch#", "first offset#", "last written"],
            [
                (
                    one.place.topic,
                    one.place.partition,
                    one.producer_id,
                    one.producer_epoch,
                    one.first_offset,
                    f"{_span(now_ms - one.last_timestamp_ms)} ago",
                )
                for one in lost
            ],
        )
        note(
            "these are open in partitions, but no coordinator knows of them: a disk has lost their "
            "ends. `tidelog transactions abort-orphans` aborts them"
        )


@app.command("describe")
def describe(
    transactional_id: TransactionalId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a transactional id: its producer, and the transaction that it is in.

    For each partition of an open transaction, its first offset is where
    readers of committed records wait.

    \b
    Examples:
      tidelog transactions describe billing-1
      tidelog transactions describe billing-1 --json | jq .age_ms
    """

    async def work() -> "tuple[TransactionInfo, dict[TopicPartition, OpenTransaction]]":
        from tidelog.client.transactions import TransactionsClient

        async with TransactionsClient(bootstrap) as client:
            info = await client.describe_transaction(transactional_id)
            opened = await client.open_transactions(info.places) if info.places else []
            return info, {
                one.place: one for one in opened if one.producer_id == info.producer_id
            }  # fmt: skip

    info, opened = run(work())
    now_ms = _now_ms()
    if as_json:
        print_json(
            {
                **_document(info, now_ms),
                "partitions": [
                    {
                        "topic": place.topic,
                        "partition": place.partition,
                        "first_offset": opened[place].first_offset if place in opened else None,
                    }
                    for place in info.places
                ],
            }
        )
        return
    age_ms = info.age_ms(now_ms)
    since = "" if age_ms is None else f", open for {_span(age_ms)}"
    overdue = " (overdue)" if info.is_overdue(now_ms) else ""
    print(
        f"{plain(info.transactional_id)}  {plain(info.state)}{since}{overdue}, "
        f"timeout {_span(info.timeout_ms)}, producer {info.producer_id} "
        f"epoch {info.producer_epoch}, coordinator {info.coordinator}"
    )
    if info.places:
        print_table(
            ["topic", "partition#", "first offset#"],
            [
                (
                    place.topic,
                    place.partition,
                    opened[place].first_offset if place in opened else NOTHING,
                )
                for place in info.places
            ],
        )
    else:
        note("no partition is in it")


# Ending.


@app.command("abort")
def abort(
    transactional_id: TransactionalId,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction. Its producer is fenced: it fails, and must begin anew.

    \b
    Examples:
      tidelog transactions abort billing-1
      tidelog transactions abort billing-1 --yes --json
    """

    async def look() -> "TransactionInfo":
        from tidelog.client.transactions import TransactionsClient, require_abortable

        async with TransactionsClient(bootstrap) as client:
            info = await client.describe_transaction(transactional_id)
            require_abortable(info)
            return info

    info = run(look())
    if not yes:
        _confirm(info)

    async def work() -> Any:
        from tidelog.client.transactions import TransactionsClient

        async with TransactionsClient(bootstrap) as client:
            return await client.abort_transaction(transactional_id, timeout_ms=info.timeout_ms)

    fenced = run(work())
    if as_json:
        print_json(
            {
                "transactional_id": transactional_id,
                "aborted": True,
                "producer_id": fenced.producer_id,
                "producer_epoch": fenced.producer_epoch,
            }
        )
    else:
        print(f"{plain(transactional_id)} aborted in {_counted(info)}, and its producer fenced")


@app.command("abort-orphans")
def abort_orphans(
    yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Abort what is open in partitions and known to no coordinator.

    Such is left when disks lose the end of a transaction that its coordinator
    has told: with durability=replicated by a power cut on all replicas, or by
    an unclean election. Readers of committed records wait there for ever.
    Whether it was committed elsewhere nobody knows here any more.

    \b
    Examples:
      tidelog transactions list --hanging
      tidelog transactions abort-orphans --yes
    """

    async def look() -> "list[OpenTransaction]":
        from tidelog.client.transactions import TransactionsClient, find_hanging

        async with TransactionsClient(bootstrap) as client:
            return (await find_hanging(client, _now_ms)).orphans

    orphans = run(look())
    if orphans and not yes:
        _confirm_orphans(orphans)

    async def work() -> None:
        from tidelog.client.transactions import TransactionsClient

        async with TransactionsClient(bootstrap) as client:
            for orphan in orphans:
                await client.abort_orphan(orphan)

    if orphans:
        run(work())
    if as_json:
        print_json({"aborted": [_orphan(one) for one in orphans]})
    elif not orphans:
        note("there are none")
    for one in [] if as_json else orphans:
        print(f"producer {one.producer_id} aborted in {plain(str(one.place))}")


def _confirm_orphans(orphans: "list[OpenTransaction]") -> None:
    for one in orphans:
        note(f"  producer {one.producer_id} in {one.place}, from offset {one.first_offset} on")
    what = f"{len(orphans)} open transaction{'s' * (len(orphans) != 1)}"
    if not sys.stdin.isatty():
        raise UserError(
            f"this discards what these wrote to their partitions ({what}); add --yes if you mean it"
        )
    if not typer.confirm(f"Abort {what}, and discard what they wrote there?", err=True):
        raise UserError("nothing was aborted")


def _confirm(info: "TransactionInfo") -> None:
    """Show what would be ended, and ask."""
    if not sys.stdin.isatty():
        raise UserError(
            f"aborting {info.transactional_id!r} discards what it wrote to {_counted(info)} and "
            "fences its producer; add --yes if you mean it"
        )
    for place in info.places:
        note(f"  {place}")
    name = plain(info.transactional_id)
    if not typer.confirm(f"Abort {name} in {_counted(info)} and fence its producer?", err=True):
        raise UserError("nothing was aborted")


# Showing.


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _counted(info: "TransactionInfo") -> str:
    count = len(info.places)
    return f"{count} partition{'s' * (count != 1)}"


def _orphan(one: "OpenTransaction") -> dict[str, Any]:
    return {
        "topic": one.place.topic,
        "partition": one.place.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "first_offset": one.first_offset,
        "last_timestamp_ms": one.last_timestamp_ms,
    }


def _document(info: "TransactionInfo", now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": info.transactional_id,
        "state": info.state,
        "producer_id": info.producer_id,
        "producer_epoch": info.producer_epoch,
        "timeout_ms": info.timeout_ms,
        "started_ms": info.started_ms,
        "age_ms": info.age_ms(now_ms),
        "overdue": info.is_overdue(now_ms),
        "coordinator": info.coordinator,
        "partitions": [
            {"topic": place.topic, "partition": place.partition} for place in info.places
        ],
    }


def _span(milliseconds: int | None) -> str:
    """A span of time for people."""
    if milliseconds is None:
        return NOTHING
    seconds = max(milliseconds, 0) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
