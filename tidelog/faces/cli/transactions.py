"""`tidelog transactions`: list, describe, abort; what is open, since when, and where."""

import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    PAGE,
    AsJson,
    Bootstrap,
    UserError,
    note,
    pages,
    perform,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.group_offsets import NOTHING, Yes, cell

OPEN_STATES: Final = ("Ongoing", "PrepareAbort", "PrepareEpochFence")
"""In which a transaction can be aborted."""

app = typer.Typer(help="List, describe and abort transactions.", no_args_is_help=True)

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="The transactional.id of the producer.")]


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
        typer.Option("--state", case_sensitive=False, help="List only ids in this state; repeatable."),
    ] = None,
    hanging: Annotated[
        bool,
        typer.Option(
            "--hanging",
            help="List only transactions open for longer than their timeout, and orphans, which no "
            "coordinator knows.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids of the cluster.

    A hanging transaction blocks readers of committed records in its
    partitions. `tidelog transactions abort` ends it.

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

    listed = pages(bootstrap, "transactions.list", "transactions")["transactions"]
    found = [one for one in listed if not state or one["state"] in state]
    if as_json:
        print_json({"transactions": found})
    elif not found:
        note("no transaction is in that state" if state else "there are no transactional ids yet")
    else:
        print_table(
            ["transactional id", "state", "producer#", "coordinator#"],
            [
                (one["transactional_id"], one["state"], one["producer_id"], one["coordinator"])
                for one in found
            ],
        )


def _list_hanging(bootstrap: str, *, as_json: bool) -> None:
    overdue, orphans = run(_hanging(bootstrap))
    if as_json:
        places = [[_place(place) for place in one["partitions"]] for one in overdue]
        shown = [{**one, "partitions": some} for one, some in zip(overdue, places, strict=True)]
        print_json({"transactions": shown, "orphans": orphans})
        return
    if not overdue and not orphans:
        note("no transaction hangs")
    if overdue:
        print_table(
            ["transactional id", "state", "open for", "timeout", "partitions#"],
            [
                (
                    one["transactional_id"],
                    one["state"],
                    _span(one["age_ms"]),
                    _span(one["timeout_ms"]),
                    len(one["partitions"]),
                )
                for one in overdue
            ],
        )
        note("end one with `tidelog transactions abort ID`, which fences its producer")
    if orphans:
        now_ms = _now_ms()
        print_table(
            ["topic", "partition#", "producer#", "epoch#", "first offset#", "last written"],
            [
                (
                    one["topic"],
                    one["partition"],
                    one["producer_id"],
                    one["producer_epoch"],
                    one["first_offset"],
                    f"{_span(now_ms - one['last_timestamp_ms'])} ago",
                )
                for one in orphans
            ],
        )
        note(
            "these are open in partitions, but no coordinator knows of them: a disk has lost their "
            "ends. `tidelog transactions abort-orphans` aborts them"
        )


async def _hanging(bootstrap: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is open for longer than its timeout, described; and orphans."""
    from tidelog.client.cluster import Refused
    from tidelog.client.kafka import KafkaClient

    async with KafkaClient(bootstrap) as client:
        found = await client.perform("transactions.list", hanging=True, limit=PAGE)
        overdue = []
        for one in found["transactions"]:
            try:
                overdue.append(await client.perform("transactions.describe", id=one["transactional_id"]))
            except Refused:
                continue  # it has ended since
    return overdue, found["orphans"]


@app.command("describe")
def describe(
    transactional_id: TransactionalId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show a transactional id: its producer and its present transaction.

    Readers of committed records wait at the first offset of the open
    transaction in each partition.

    \b
    Examples:
      tidelog transactions describe billing-1
      tidelog transactions describe billing-1 --json | jq .age_ms
    """

    found = perform(bootstrap, "transactions.describe", id=transactional_id)
    if as_json:
        print_json(found)
        return
    since = "" if found["age_ms"] is None else f", open for {_span(found['age_ms'])}"
    overdue = " (overdue)" if found["overdue"] else ""
    print(
        f"{plain(found['transactional_id'])}  {plain(found['state'])}{since}{overdue}, "
        f"timeout {_span(found['timeout_ms'])}, producer {found['producer_id']} "
        f"epoch {found['producer_epoch']}, coordinator {found['coordinator']}"
    )
    if found["partitions"]:
        print_table(
            ["topic", "partition#", "first offset#"],
            [(one["topic"], one["partition"], cell(one["first_offset"])) for one in found["partitions"]],
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
    """Abort an open transaction. Its producer is fenced and fails.

    \b
    Examples:
      tidelog transactions abort billing-1
      tidelog transactions abort billing-1 --yes --json
    """

    found = perform(bootstrap, "transactions.describe", id=transactional_id)
    if not yes and found["state"] in OPEN_STATES:  # else it is refused, which says why
        _confirm(found)
    done = perform(bootstrap, "transactions.abort", id=transactional_id)
    if as_json:
        print_json(done)
    else:
        print(f"{plain(transactional_id)} aborted in {_counted(found)}, and its producer fenced")


@app.command("abort-orphans")
def abort_orphans(
    yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Abort orphans: open transactions that no coordinator knows.

    Orphans are left when a partition loses the marker that ended a
    transaction: with durability=replicated by a power failure of all
    replicas, or by an unclean election. They block readers of committed
    records. It is not known whether the transaction was committed in other
    partitions.

    \b
    Examples:
      tidelog transactions list --hanging
      tidelog transactions abort-orphans --yes
    """

    orphans = perform(bootstrap, "transactions.list", hanging=True, limit=PAGE)["orphans"]
    if orphans and not yes:
        _confirm_orphans(orphans)
    for one in orphans:
        asked = {key: one[key] for key in ("topic", "partition", "producer_id", "producer_epoch")}
        perform(bootstrap, "transactions.abort_orphan", **asked)
    if as_json:
        print_json({"aborted": orphans})
    elif not orphans:
        note("there are none")
    for one in [] if as_json else orphans:
        print(f"producer {one['producer_id']} aborted in {plain(_name(one))}")


def _confirm_orphans(orphans: Sequence[dict[str, Any]]) -> None:
    for one in orphans:
        note(f"  producer {one['producer_id']} in {_name(one)}, from offset {one['first_offset']} on")
    what = f"{len(orphans)} open transaction{'s' * (len(orphans) != 1)}"
    if not sys.stdin.isatty():
        raise UserError(
            f"this discards what these wrote to their partitions ({what}); add --yes if you mean it"
        )
    if not typer.confirm(f"Abort {what}, and discard what they wrote there?", err=True):
        raise UserError("nothing was aborted")


def _confirm(found: dict[str, Any]) -> None:
    """Show what would be ended, and ask."""
    name = found["transactional_id"]
    if not sys.stdin.isatty():
        raise UserError(
            f"aborting {name!r} discards what it wrote to {_counted(found)} and "
            "fences its producer; add --yes if you mean it"
        )
    for one in found["partitions"]:
        note(f"  {_name(one)}")
    if not typer.confirm(f"Abort {plain(name)} in {_counted(found)} and fence its producer?", err=True):
        raise UserError("nothing was aborted")


# Showing.


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _counted(found: dict[str, Any]) -> str:
    count = len(found["partitions"])
    return f"{count} partition{'s' * (count != 1)}"


def _place(one: dict[str, Any]) -> dict[str, Any]:
    return {"topic": one["topic"], "partition": one["partition"]}


def _name(one: dict[str, Any]) -> str:
    return f"{one['topic']}-{one['partition']}"


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
