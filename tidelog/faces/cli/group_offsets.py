"""The offsets of a consumer group: `tidelog groups reset` and `delete-offsets`."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    note,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.consume import parse_time

if TYPE_CHECKING:
    from tidelog.client.admin import Committed
    from tidelog.client.group_offsets import Reset
    from tidelog.model import TopicPartition

NOTHING: Final = "-"
TIME_MS_MAX: Final = 2**63 - 1

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
Topic = Annotated[str, typer.Option("--topic", metavar="T", help="The offsets of this topic.")]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", min=0, help="Only this one; repeatable."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# Moving.


def reset(
    group: Group,
    topic: Topic,
    partition: Partitions = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the oldest record.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the log's end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="To an offset.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="MS|ISO",
            help="To a time: milliseconds since 1970, or 2025-01-31T12:00 (UTC unless it names "
            "a zone).",
        ),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option("--shift", metavar="N", help="By N records; back if it is negative."),
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To where it is: commit the same once more.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; otherwise it is only shown.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let a group go on from somewhere else; shows what would change unless told --execute.

    The group's consumers must be stopped. A place outside of what a log holds
    becomes the nearest one inside.

    \b
    Examples:
      tidelog groups reset billing --topic orders --to-earliest
      tidelog groups reset billing --topic orders --to-time 2025-01-31T12:00
      tidelog groups reset billing --topic orders --shift -100 --execute
    """
    if not group:  # Kafka would take it, for clients that never named their group
        raise UserError("GROUP is empty; give the group's id")
    given = [to_earliest, to_latest, to_current]
    given += [value is not None for value in (to_offset, to_time, shift)]
    if sum(given) != 1:
        raise UserError(
            "say where to, once: --to-earliest, --to-latest, --to-offset, --to-time, --shift "
            "or --to-current"
        )
    time_ms = None if to_time is None else _time_ms(to_time)

    async def work() -> "Reset":
        from tidelog.client import group_offsets
        from tidelog.client.admin import AdminClient

        target = group_offsets.Target(
            earliest=to_earliest, latest=to_latest, current=to_current, offset=to_offset,
            time_ms=time_ms, shift=shift,
        )  # fmt: skip
        async with AdminClient(bootstrap) as client:
            return await group_offsets.reset(
                client, group, topic, partition, target, dry_run=not execute
            )

    found = run(work())
    if as_json:
        print_json(
            {
                "group": group,
                "topic": topic,
                "partitions": [
                    {"partition": move.place.partition, "from": move.before, "to": move.after}
                    for move in found.moves
                ],
                "new_group": found.is_new,
                "executed": execute,
            }
        )
        return
    print_table(
        ["topic", "partition#", "from#", "", "to#"],
        [
            (
                move.place.topic,
                move.place.partition,
                cell(move.before),
                "=" if move.before == move.after else "->",
                move.after,
            )
            for move in found.moves
        ],
    )
    if found.is_new:
        made = "was made" if execute else "would be made"
        note(f"there was no group {group!r}: it {made}, check the name")
    if not execute:
        note("a dry run: nothing was changed; add --execute to change it")


def _time_ms(text: str) -> int:
    try:
        time_ms = parse_time(text)
    except (UserError, ValueError, OverflowError):
        raise UsageError(
            f"--to-time {text!r} is neither milliseconds nor a time such as 2025-01-31T12:00"
        ) from None
    # Below zero are Kafka's words for the ends of a log.
    return min(max(time_ms, 0), TIME_MS_MAX)


# Forgetting.


def delete_offsets(
    group: Group,
    topic: Topic,
    partition: Partitions = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let a group forget how far it has come in a topic that it does not consume now.

    \b
    Examples:
      tidelog groups delete-offsets billing --topic orders
      tidelog groups delete-offsets billing --topic orders --partition 3 --yes
    """

    async def look() -> "dict[TopicPartition, Committed]":
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            await client.describe_group(group)
            found = await client.group_offsets(group)
            return {
                place: committed
                for place, committed in found.items()
                if place.topic == topic and (not partition or place.partition in partition)
            }

    offsets = run(look())
    if not offsets:
        raise UserError(
            f"group {group!r} has no such offsets in {topic!r}; see `tidelog groups describe`"
        )
    if not yes:
        confirm(f"offsets of group {group!r}", offsets)

    async def work() -> None:
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            await client.delete_offsets(group, offsets)

    run(work())
    if as_json:
        print_json({"group": group, "deleted": True, "offsets": documents(offsets)})
    else:
        print(f"{counted(offsets)} of {plain(group)} deleted")


# What all that changes groups has in common.


def confirm(what: str, offsets: "Mapping[TopicPartition, Committed]") -> None:
    """Show what would be lost, and ask."""
    lost = counted(offsets)
    if not sys.stdin.isatty():
        raise UserError(
            f"deleting {what} loses {lost} and cannot be undone; add --yes if you mean it"
        )
    for place, committed in offsets.items():
        note(f"  {place}  {committed.offset}")
    if not typer.confirm(f"Delete {plain(what)} and lose {lost}?", err=True):
        raise UserError("nothing was deleted")


def counted(offsets: "Mapping[TopicPartition, Committed]") -> str:
    count = len(offsets)
    return f"{count} committed offset{'s' * (count != 1)}"


def documents(offsets: "Mapping[TopicPartition, Committed]") -> list[dict[str, Any]]:
    return [
        {"topic": place.topic, "partition": place.partition, "offset": committed.offset}
        for place, committed in offsets.items()
    ]


def cell(value: int | None) -> str:
    return NOTHING if value is None else str(value)
