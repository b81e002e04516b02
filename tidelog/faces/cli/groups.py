"""`tidelog groups`: list, describe, delete; how far consumers have come."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli import group_offsets
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    note,
    number,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.group_offsets import (
    NOTHING,
    Group,
    Yes,
    cell,
    confirm,
    counted,
    documents,
)

if TYPE_CHECKING:
    from tidelog.client.admin import Committed, GroupInfo, ListedGroup, MemberInfo
    from tidelog.client.group_offsets import Progress
    from tidelog.model import TopicPartition

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)


class State(StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# Looking.


@app.command("list")
def list_groups(
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state", case_sensitive=False, help="Only groups in this state; repeatable."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the consumer groups of the cluster.

    \b
    Examples:
      tidelog groups list
      tidelog groups list --state Empty --json
    """

    async def work() -> "list[ListedGroup]":
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            return await client.list_groups(state or ())

    groups = run(work())
    if as_json:
        print_json(
            {
                "groups": [
                    {"group": group.group, "state": group.state, "type": group.protocol_type}
                    for group in groups
                ]
            }
        )
    elif not groups:
        note("no group is in that state" if state else "there are no groups yet")
    else:
        print_table(
            ["group", "state", "type"],
            [(group.group, group.state, group.protocol_type or NOTHING) for group in groups],
        )


@app.command("describe")
def describe(
    group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show a group's state, its members, and how far it has come in each partition.

    The lag is what lies between the committed offset and the log's end.

    \b
    Examples:
      tidelog groups describe billing
      tidelog groups describe billing --json | jq .lag
    """

    async def work() -> "tuple[GroupInfo, list[Progress]]":
        from tidelog.client.admin import AdminClient
        from tidelog.client.group_offsets import progress_of

        async with AdminClient(bootstrap) as client:
            info = await client.describe_group(group)
            return info, await progress_of(client, info, await client.group_offsets(group))

    info, progress = run(work())
    lag = sum(one.lag or 0 for one in progress)
    if as_json:
        print_json(
            {
                "group": info.group,
                "state": info.state,
                "type": info.protocol_type,
                "protocol": info.protocol,
                "members": [_member_document(member) for member in info.members],
                "partitions": [
                    {
                        "topic": one.topic,
                        "partition": one.partition,
                        "committed": one.committed,
                        "end": one.end,
                        "lag": one.lag,
                        "owner": one.owner,
                    }
                    for one in progress
                ],
                "lag": lag,
            }
        )
        return
    count = len(info.members)
    protocol = f", {plain(info.protocol)}" if info.protocol else ""
    print(
        f"{plain(info.group)}  {plain(info.state)}{protocol}, "
        f"{count} member{'s' * (count != 1)}, lag {number(lag)}"
    )
    if info.members:
        print_table(
            ["member", "client", "host", "assignment"],
            [
                (member.instance or member.member, member.client, member.host, _assigned(member))
                for member in info.members
            ],
        )
    if progress:
        owners = {member.member: member.instance or member.member for member in info.members}
        print_table(
            ["topic", "partition#", "committed#", "end#", "lag#", "owner"],
            [
                (
                    one.topic,
                    one.partition,
                    cell(one.committed),
                    cell(one.end),
                    cell(one.lag),
                    owners.get(one.owner or "", NOTHING),
                )
                for one in progress
            ],
        )
    else:
        note("the group has committed no offsets")


app.command("reset")(group_offsets.reset)


# Deleting.


@app.command("delete")
def delete(
    group: Group,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete a group without members, and its committed offsets.

    \b
    Examples:
      tidelog groups delete billing
      tidelog groups delete billing --yes --json
    """

    async def look() -> "dict[TopicPartition, Committed]":
        from tidelog.client.admin import AdminClient
        from tidelog.client.group_offsets import require_stopped

        async with AdminClient(bootstrap) as client:
            require_stopped(group, await client.describe_group(group))
            return await client.group_offsets(group)

    offsets = run(look())
    if not yes:
        confirm(f"group {group!r}", offsets)

    async def work() -> None:
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            await client.delete_group(group)

    run(work())
    if as_json:
        print_json({"group": group, "deleted": True, "offsets": documents(offsets)})
    else:
        print(f"{plain(group)} deleted, with {counted(offsets)}")


app.command("delete-offsets")(group_offsets.delete_offsets)


# Showing.


def _member_document(member: "MemberInfo") -> dict[str, Any]:
    assignment: list[dict[str, Any]] | None = None
    if member.assignment is not None:
        assignment = [
            {"topic": topic, "partitions": partitions}
            for topic, partitions in _by_topic(member.assignment).items()
        ]
    return {
        "member": member.member,
        "instance": member.instance,
        "client": member.client,
        "host": member.host,
        "assignment": assignment,
    }


def _assigned(member: "MemberInfo") -> str:
    if member.assignment is None:
        return f"({member.assignment_bytes} bytes)"
    by_topic = _by_topic(member.assignment)
    return "; ".join(f"{topic}: {' '.join(map(str, some))}" for topic, some in by_topic.items())


def _by_topic(places: "Iterable[TopicPartition]") -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place in places:
        found.setdefault(place.topic, []).append(place.partition)
    return found
