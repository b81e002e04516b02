"""`tidelog elect`: Kafka's own elections, preferred and unclean."""

import sys
from typing import Annotated

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    perform,
    print_json,
    print_table,
)

app = typer.Typer(
    help="Elect leaders: preferred ones, or any for partitions without a leader.", no_args_is_help=True
)

Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="T", help="Only this topic (default: all that need an election)."),
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition; repeatable.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.command("preferred")
def preferred(
    topic: Topic = None,
    partition: Partitions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Make the preferred replica of each partition the leader, if it is in sync.

    The cluster does this by itself every few seconds, except with
    failover.mode manual. Nothing is lost. Exits with 1 if some election
    failed.

    \b
    Examples:
      tidelog elect preferred
      tidelog elect preferred --topic orders --partition 0
    """
    _elect("preferred", topic, partition, bootstrap, as_json=as_json)


@app.command("unclean")
def unclean(
    topic: Topic = None,
    partition: Partitions = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Elect leaders for partitions without one, even if acknowledged records are lost.

    Of the available replicas, the one with the longest log becomes leader.
    Records that only others have are lost, even if those come back.
    `tidelog promote --force` does the same and first shows how many these
    may be.

    \b
    Examples:
      tidelog elect unclean --topic orders --partition 0
      tidelog elect unclean --yes
    """
    if not yes:
        where = "all partitions without a leader" if topic is None else f"topic {topic!r}"
        if not sys.stdin.isatty():
            raise UserError(
                f"an unclean election in {where} may lose acknowledged records, and cannot be "
                "undone; add --yes if you mean it"
            )
        if not typer.confirm(f"May records of {where} be lost?", err=True):
            raise UserError("no leader was elected")
    _elect("unclean", topic, partition, bootstrap, as_json=as_json)


def _elect(kind: str, topic: str | None, numbers: list[int] | None, bootstrap: str, *, as_json: bool) -> None:
    if numbers and topic is None:
        raise UsageError("--partition needs --topic T")
    rows = perform(bootstrap, "elections.hold", type=kind, topic=topic, partitions=numbers or None)[
        "partitions"
    ]
    if as_json:
        print_json({"partitions": rows})
    elif not rows:
        print("no partition needs an election")
    else:
        print_table(
            ["topic", "partition#", "leader#", "outcome", "why"],
            [
                (
                    row["topic"],
                    row["partition"],
                    "-" if row["leader"] is None else row["leader"],
                    row["outcome"],
                    row["error"] or "",
                )
                for row in rows
            ],
        )
    if any(row["outcome"] == "refused" for row in rows):
        raise typer.Exit(1)
