"""`tidelog quorum`: the nodes that keep the cluster's metadata, and how far each is."""

import time
from typing import Annotated, Any

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    number,
    perform,
    print_json,
    print_table,
)

app = typer.Typer(help="Show and change the nodes that keep the cluster's metadata.")


@app.callback(invoke_without_command=True)
def quorum(context: typer.Context, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show the metadata quorum: its leader, its voters and how far each of them is.

    The leader is the cluster's active controller. Any node may be asked; the
    answer is the leader's own. Without a further command this is `describe`.

    \b
    Examples:
      tidelog quorum
      tidelog quorum describe --bootstrap 127.0.0.1:9093 --json
    """
    if context.invoked_subcommand is None:
        describe(bootstrap, as_json)


@app.command("describe")
def describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show leader, epoch, high watermark, voters and observers with their ends and lags.

    A voter counts for a majority; an observer follows and counts for nothing.
    Lag is in records of the metadata log.
    """

    found = perform(bootstrap, "quorum.describe")
    if as_json:
        print_json(found)
        return
    print(
        f"leader {found['leader']}  epoch {found['epoch']}  "
        f"high watermark {number(found['high_watermark'])}  voters {len(found['voters'])}"
    )
    now_ms = time.time() * 1000
    rows = [
        (
            copy["node"],
            role,
            copy["peer"] or "-",
            number(copy["end"]),
            number(copy["lag"]),
            "-" if copy["fetched_ms"] is None else ago(now_ms - copy["fetched_ms"]),
        )
        for copy, role in _with_roles(found)
    ]
    print_table(["node#", "role", "peer address", "end#", "lag#", "last fetch"], rows)


@app.command("add")
def add(
    node: Annotated[int, typer.Argument(help="Id of a broker that is not a voter.", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Make a broker a voter, once it has caught up with the others.

    One voter changes at a time. An odd number of voters is best: 4 survive no
    more failures than 3. A node whose disk was replaced votes again after its
    old disk was removed and it was added anew.

    \b
    Examples:
      tidelog quorum add 4
      tidelog quorum remove 2 && tidelog quorum add 2     # its disk was replaced
    """
    _tell(perform(bootstrap, "quorum.add", id=node), as_json=as_json)


@app.command("remove")
def remove(
    node: Annotated[int, typer.Argument(help="Id of a voter.", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Remove a voter; it continues as a broker that only follows the metadata.

    The leader may be removed, too: another one is elected. The last voter
    cannot.
    """
    _tell(perform(bootstrap, "quorum.remove", id=node), as_json=as_json)


def _tell(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print(f"node {found['node']} votes {'now' if found['votes'] else 'no longer'}")


def _with_roles(found: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    voters = [(copy, "leader" if copy["node"] == found["leader"] else "voter") for copy in found["voters"]]
    observers = [(copy, "observer") for copy in found["observers"]]
    return sorted(voters + observers, key=lambda pair: pair[0]["node"])


def ago(milliseconds: float) -> str:
    """A span of time for people; another machine's clock may be a little ahead."""
    seconds = max(milliseconds, 0.0) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s ago"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"
