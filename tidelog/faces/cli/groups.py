"""`tidelog groups`: list, describe, delete; how far consumers have come."""

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from tidelog.faces.cli import group_offsets
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    note,
    number,
    pages,
    perform,
    plain,
    print_json,
    print_table,
)
from tidelog.faces.cli.group_offsets import (
    NOTHING,
    Group,
    Yes,
    cell,
    committed_of,
    confirm,
    counted,
    describe_group,
)

MEMBER_KEYS: Final = ("member", "instance", "client", "host", "assignment")

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
        typer.Option("--state", case_sensitive=False, help="List only groups in this state; repeatable."),
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

    found = pages(bootstrap, "groups.list", "groups")
    groups = [one for one in found["groups"] if not state or one["state"] in state]
    if as_json:
        print_json({"groups": groups})
    elif not groups:
        note("no group is in that state" if state else "there are no groups yet")
    else:
        print_table(
            ["group", "state", "type"],
            [(one["group"], one["state"], one["type"] or NOTHING) for one in groups],
        )


@app.command("describe")
def describe(group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a group's state, its members, and its offset and lag in each partition.

    The lag is the number of offsets between the committed offset and the log end.

    \b
    Examples:
      tidelog groups describe billing
      tidelog groups describe billing --json | jq .lag
    """

    found = describe_group(bootstrap, group)
    members, progress, lag = found["members"], found["partitions"], found["lag"]
    if as_json:
        print_json(
            {
                **{key: found[key] for key in ("group", "state", "type", "protocol")},
                "members": [{key: one[key] for key in MEMBER_KEYS} for one in members],
                "partitions": progress,
                "lag": lag,
            }
        )
        return
    count = len(members)
    protocol = f", {plain(found['protocol'])}" if found["protocol"] else ""
    print(
        f"{plain(found['group'])}  {plain(found['state'])}{protocol}, "
        f"{count} member{'s' * (count != 1)}, lag {number(lag)}"
    )
    if members:
        print_table(
            ["member", "client", "host", "assignment"],
            [
                (one["instance"] or one["member"], one["client"], one["host"], _assigned(one))
                for one in members
            ],
        )
    if progress:
        owners = {one["member"]: one["instance"] or one["member"] for one in members}
        print_table(
            ["topic", "partition#", "committed#", "end#", "lag#", "owner"],
            [
                (
                    one["topic"],
                    one["partition"],
                    cell(one["committed"]),
                    cell(one["end"]),
                    cell(one["lag"]),
                    owners.get(one["owner"] or "", NOTHING),
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
    group: Group, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Delete a group without members, and its committed offsets.

    \b
    Examples:
      tidelog groups delete billing
      tidelog groups delete billing --yes --json
    """

    offsets = committed_of(describe_group(bootstrap, group))
    if not yes:
        confirm(f"group {group!r}", offsets)
    perform(bootstrap, "groups.delete", group=group)
    if as_json:
        print_json({"group": group, "deleted": True, "offsets": offsets})
    else:
        print(f"{plain(group)} deleted, with {counted(offsets)}")


app.command("delete-offsets")(group_offsets.delete_offsets)


# Showing.


def _assigned(member: dict[str, Any]) -> str:
    if member["assignment"] is None:
        return f"({member['assignment_bytes']} bytes)"
    return "; ".join(
        f"{one['topic']}: {' '.join(map(str, one['partitions']))}" for one in member["assignment"]
    )
