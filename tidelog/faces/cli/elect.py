"""`tidelog elect`: Kafka's own elections, preferred and unclean."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    print_json,
    print_table,
    run,
)
from tidelog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.client.admin import Election
    from tidelog.client.cluster import PartitionInfo, Refused

NOT_NEEDED: Final = 84

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
        raise UserError("--partition needs --topic T")

    async def work() -> "tuple[dict[TopicPartition, Refused | None], dict[TopicPartition, Any]]":
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            places = None
            if topic is not None:
                found = await client.topic(topic)
                known = [one.partition for one in found.partitions]
                places = [TopicPartition(topic, number) for number in numbers or known]
            fates = await client.elect_leaders(kind, places)
            now = {
                TopicPartition(one.name, part.partition): part
                for one in await client.topics()
                for part in one.partitions
            }
            return fates, now

    fates, now = run(work())
    rows = [outcome(name, fate, now) for name, fate in fates.items()]
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


def outcome(
    name: TopicPartition,
    fate: "Refused | None",
    now: "Mapping[TopicPartition, PartitionInfo]",
) -> dict[str, Any]:
    """What became of one partition."""
    word = "elected"
    if fate is not None:
        word = "not needed" if fate.code == NOT_NEEDED else "refused"
    leader = now[name].leader if name in now else -1
    return {
        "topic": name.topic, "partition": name.partition,
        "leader": None if leader < 0 else leader, "outcome": word,
        "error": str(fate) if word == "refused" else None,
    }  # fmt: skip
