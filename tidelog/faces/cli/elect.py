"""`tidelog elect`: Kafka's own elections, preferred and unclean."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    print_json,
    print_table,
    run,
)

if TYPE_CHECKING:
    from tidelog.client.admin import Election
    from tidelog.client.elections import Outcome

app = typer.Typer(
    help="Elect leaders: those that are preferred, or any where nobody leads.",
    no_args_is_help=True,
)

Topic = Annotated[
    str | None, typer.Option("--topic", metavar="T", help="Only this topic; else all in need.")
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", min=0, help="Only this one; repeatable."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask whether you mean it.")]


@app.command("preferred")
def preferred(
    topic: Topic = None,
    partition: Partitions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let the first replica of each partition lead, where it is in sync.

    The cluster does so by itself every few seconds; not where failover.mode is
    manual. Nothing is lost. Exits with 1 if some could not be elected.

    \b
    Examples:
      tidelog elect preferred
      tidelog elect preferred --topic orders --partition 0
    """
    from tidelog.client.admin import Election

    _elect(Election.PREFERRED, topic, partition, bootstrap, as_json=as_json)


@app.command("unclean")
def unclean(
    topic: Topic = None,
    partition: Partitions = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let somebody lead where nobody does, though acknowledged records may be lost.

    Of the replicas that are there, the one with the longest log leads. What
    only others have is lost, also when they come back. `tidelog promote
    --force` does the same and tells first how much that may be.

    \b
    Examples:
      tidelog elect unclean --topic orders --partition 0
      tidelog elect unclean --yes
    """
    from tidelog.client.admin import Election

    if not yes:
        where = "all partitions that nobody leads" if topic is None else f"topic {topic!r}"
        if not sys.stdin.isatty():
            raise UserError(
                f"an unclean election in {where} may lose acknowledged records, and cannot be "
                "undone; add --yes if you mean it"
            )
        if not typer.confirm(f"May records of {where} be lost?", err=True):
            raise UserError("nobody was elected")
    _elect(Election.UNCLEAN, topic, partition, bootstrap, as_json=as_json)


def _elect(
    kind: "Election",
    topic: str | None,
    numbers: list[int] | None,
    bootstrap: str,
    *,
    as_json: bool,
) -> None:
    if numbers and topic is None:
        raise UsageError("--partition needs --topic T")

    async def work() -> "list[Outcome]":
        from tidelog.client.admin import AdminClient
        from tidelog.client.elections import elect

        async with AdminClient(bootstrap) as client:
            return await elect(client, kind, topic, numbers)

    rows = [asdict(one) for one in run(work())]
    if as_json:
        print_json({"partitions": rows})
    elif not rows:
        print("no partition needs an election")
    else:
        print_table(
            ["topic", "partition#", "leader#", "outcome", "why"],
            [
                (row["topic"], row["partition"], "-" if row["leader"] is None else row["leader"],
                 row["outcome"], row["error"] or "")
                for row in rows
            ],
        )  # fmt: skip
    if any(row["outcome"] == "refused" for row in rows):
        raise typer.Exit(1)
