"""`tidelog quorum`: the nodes that keep the cluster's metadata, and how far each is."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    number,
    print_json,
    print_table,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidelog.client.members import MembersClient, QuorumInfo, ReplicaInfo

PATIENCE_SECONDS: Final = 8.0
"""An election takes a second or two; a quorum that has no leader for longer will not get one."""

app = typer.Typer(help="Show and change the nodes that keep the cluster's metadata.")


@app.callback(invoke_without_command=True)
def quorum(
    context: typer.Context, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
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

    async def work() -> "QuorumInfo":
        from tidelog.client.members import MembersClient

        async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
            return await client.quorum()

    found = run(work())
    if as_json:
        print_json(
            {
                "leader": found.leader,
                "epoch": found.epoch,
                "high_watermark": found.high_watermark,
                "voters": [_document(copy) for copy in found.voters],
                "observers": [_document(copy) for copy in found.observers],
            }
        )
        return
    print(
        f"leader {found.leader}  epoch {found.epoch}  "
        f"high watermark {number(found.high_watermark)}  voters {len(found.voters)}"
    )
    now_ms = time.time() * 1000
    rows = [
        (
            copy.node, role, copy.peer or "-", number(copy.end), number(copy.lag),
            "-" if copy.fetched_ms is None else ago(now_ms - copy.fetched_ms),
        )
        for copy, role in _with_roles(found)
    ]  # fmt: skip
    print_table(["node#", "role", "peer address", "end#", "lag#", "last fetch"], rows)


@app.command("add")
def add(
    node: Annotated[int, typer.Argument(help="A broker that follows the quorum.", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let a broker vote, once it has caught up with the others.

    One voter changes at a time. An odd number of voters is best: 4 survive no
    more failures than 3. A node whose disk was replaced votes again after its
    old disk was removed and it was added anew.

    \b
    Examples:
      tidelog quorum add 4
      tidelog quorum remove 2 && tidelog quorum add 2     # its disk was replaced
    """
    _change(bootstrap, lambda client: client.add_voter(node))
    _tell(node, votes=True, as_json=as_json)


@app.command("remove")
def remove(
    node: Annotated[int, typer.Argument(help="A voter.", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let a voter be one no longer; it goes on as a broker that follows.

    The leader may be removed, too: another one is elected. The last voter
    cannot.
    """
    _change(bootstrap, lambda client: client.remove_voter(node))
    _tell(node, votes=False, as_json=as_json)


def _tell(node: int, *, votes: bool, as_json: bool) -> None:
    if as_json:
        print_json({"node": node, "votes": votes})
    else:
        print(f"node {node} votes {'now' if votes else 'no longer'}")


def _change(bootstrap: str, change: "Callable[[MembersClient], Awaitable[None]]") -> None:
    async def work() -> None:
        from tidelog.client.members import MembersClient

        async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
            await change(client)

    run(work())


def _with_roles(found: "QuorumInfo") -> "list[tuple[ReplicaInfo, str]]":
    voters = [(copy, "leader" if copy.node == found.leader else "voter") for copy in found.voters]
    return sorted(voters + [(copy, "observer") for copy in found.observers], key=_by_node)


def _by_node(pair: "tuple[ReplicaInfo, str]") -> int:
    return pair[0].node


def _document(copy: "ReplicaInfo") -> dict[str, Any]:
    return {**asdict(copy), "peer": str(copy.peer) if copy.peer else None}


def ago(milliseconds: float) -> str:
    """A span of time for people; another machine's clock may be a little ahead."""
    seconds = max(milliseconds, 0.0) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s ago"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"
