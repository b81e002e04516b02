"""The offsets of a consumer group: `tidelog groups reset` and `delete-offsets`."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    note,
    pages,
    perform,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.consume import parse_time

Offset: TypeAlias = dict[str, Any]
"""Topic, partition and offset."""

NOTHING: Final = "-"
TIME_MS_MAX: Final = 2**63 - 1

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]
Topic = Annotated[str, typer.Option("--topic", metavar="T", help="Topic of the offsets.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition; repeatable.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


# Moving.


def reset(
    group: Group,
    topic: Topic,
    partition: Partitions = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the log end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="MS|ISO",
            help="To a time: milliseconds since 1970, or 2025-01-31T12:00 (UTC unless it names a zone).",
        ),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="N", help="By N records; negative moves back.")
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the committed offset: commit it once more.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Make the change; without this it is only shown.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change the committed offsets of a group; without --execute only show the change.

    The group's consumers must be stopped. An offset outside of the log
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
            "say where to, once: --to-earliest, --to-latest, --to-offset, --to-time, --shift or --to-current"
        )
    time_ms = None if to_time is None else _time_ms(to_time)

    place = "earliest" if to_earliest else "latest" if to_latest else "current" if to_current else None
    found = perform(
        bootstrap,
        "groups.reset",
        group=group,
        topic=topic,
        partitions=partition or None,
        to=place,
        offset=to_offset,
        time_ms=time_ms,
        shift=shift,
        dry_run=not execute,
    )
    moves = found["partitions"]
    if as_json:
        keys = ("group", "topic", "partitions", "new_group")
        print_json({**{key: found[key] for key in keys}, "executed": execute})
        return
    print_table(
        ["topic", "partition#", "from#", "", "to#"],
        [
            (topic, one["partition"], cell(one["from"]), "=" if one["from"] == one["to"] else "->", one["to"])
            for one in moves
        ],
    )
    if found["new_group"]:
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
    """Delete a group's offsets in a topic that it does not consume.

    \b
    Examples:
      tidelog groups delete-offsets billing --topic orders
      tidelog groups delete-offsets billing --topic orders --partition 3 --yes
    """

    offsets = [
        one
        for one in committed_of(describe_group(bootstrap, group))
        if one["topic"] == topic and (not partition or one["partition"] in partition)
    ]
    if not offsets:
        raise UserError(f"group {group!r} has no such offsets in {topic!r}; see `tidelog groups describe`")
    if not yes:
        confirm(f"offsets of group {group!r}", offsets)
    run(_delete_offsets(bootstrap, group, offsets))
    if as_json:
        print_json({"group": group, "deleted": True, "offsets": offsets})
    else:
        print(f"{counted(offsets)} of {plain(group)} deleted")


async def _delete_offsets(bootstrap: str, group: str, offsets: Sequence[Offset]) -> None:
    from tidelog.client.kafka import KafkaClient

    async with KafkaClient(bootstrap) as client:
        for one in offsets:
            asked = {"topic": one["topic"], "partition": one["partition"]}
            await client.perform("groups.delete_offsets", group=group, **asked)


# What all that changes groups has in common.


def describe_group(bootstrap: str, group: str) -> dict[str, Any]:
    """A group, with all of its partitions."""
    return pages(bootstrap, "groups.describe", "partitions", group=group)


def committed_of(group: dict[str, Any]) -> list[Offset]:
    """Every offset that a group has committed."""
    return [
        {"topic": one["topic"], "partition": one["partition"], "offset": one["committed"]}
        for one in group["partitions"]
        if one["committed"] is not None
    ]


def confirm(what: str, offsets: Sequence[Offset]) -> None:
    """Show what would be lost, and ask."""
    lost = counted(offsets)
    if not sys.stdin.isatty():
        raise UserError(f"deleting {what} loses {lost} and cannot be undone; add --yes if you mean it")
    for one in offsets:
        note(f"  {one['topic']}-{one['partition']}  {one['offset']}")
    if not typer.confirm(f"Delete {plain(what)} and lose {lost}?", err=True):
        raise UserError("nothing was deleted")


def counted(offsets: Sequence[Offset]) -> str:
    count = len(offsets)
    return f"{count} committed offset{'s' * (count != 1)}"


def cell(value: int | None) -> str:
    return NOTHING if value is None else str(value)
