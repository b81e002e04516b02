"""`tidelog pipeline decisions`: which batches queries have written to topics, and forgetting it."""

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    note,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.group_offsets import NOTHING, Yes

if TYPE_CHECKING:
    from tidelog.client.transactional import GroupDecision
    from tidelog.spark.proofs import Proof

PREFIX = "spark."
QUERY_SIGN, APPLICATION_SIGN = "@", ":"

app = typer.Typer(help="Show and reset which batches Spark's queries have written.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name as `list` shows it; the topic may be left out if there is only one."
    ),
]


@app.command("list")
def list_decisions(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the newest batch that each query and application has written.

    The tasks of a batch write in transactions; one decision commits all of
    them, and names the query and the batch. When Spark repeats a batch after
    a crash, the decision tells that it was written, and it is not written
    twice.

    \b
    Names:
      spark.QUERY@TOPIC    the batches of a streaming query, by its id
      spark.APP:TOPIC      the versions of a txnAppId
      spark.NAME           the same where rows name their topics themselves,
                           and of queries from before topics were in names

    \b
    Examples:
      tidelog pipeline decisions list
      tidelog pipeline decisions list --json
    """
    found = run(_list(bootstrap))
    if as_json:
        print_json([_document(one) for one in found])
        return
    if not found:
        note("no query has written a batch yet")
        return
    proofs = [_proof(one) for one in found]
    print_table(
        ["name", "batch#", "rows#", "decided"],
        [
            (one.group, one.batch_id, NOTHING if proof is None else proof.rows, _time(one))
            for one, proof in zip(found, proofs, strict=True)
        ],
    )


@app.command("show")
def show(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a query's last batch, and where its sources ended.

    A new checkpoint with these offsets as startingOffsets continues where
    the query was: no record is lost or written twice.

    \b
    Example:
      tidelog pipeline decisions show spark.0f7c2a51-5d0e-4b3a-9d52-1be5b4c6f1aa@orders
    """
    one = _find(run(_list(bootstrap)), name)
    if as_json:
        print_json(_document(one))
        return
    proof = _proof(one)
    print(f"{plain(one.group)}")
    print(f"  batch    {one.batch_id}, decided {_time(one)} over {one.members} tasks")
    print(f"  before   {NOTHING if one.after is None else one.after}")
    if proof is None:
        print("  rows     not known: it was decided before that was kept")
        return
    print(f"  rows     {proof.rows}")
    for end in proof.ends or []:
        print(f"  end      {plain(json.dumps(end))}")
    if proof.ends is None:
        why = "the checkpoint could not be read" if proof.digest is None else "too long to be kept"
        print(f"  end      not known: {why}")


@app.command("reset")
def reset(
    name: Name, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Forget which batches a query has written. Stop the query first.

    Every batch of the query from then on is written, whatever its number.
    Reset a query whose batch was refused because its checkpoint is older than
    the topic, if duplicates are better than a new checkpoint; or a query that
    is gone for good. Written rows stay in the topic.

    \b
    Example:
      tidelog pipeline decisions reset spark.nightly:orders
    """
    found = run(_list(bootstrap))
    one = _find(found, name)
    if not yes:
        _confirm(one)
    former = _former_name(one)

    async def work() -> None:
        from tidelog.client.transactional import TransactionalClient

        async with TransactionalClient(bootstrap) as client:
            for other in found:  # first: a query looks there while it has decided nothing
                if other.group == former:
                    await client.forget_decision(other.group, other.batch_id, is_reset=True)
            await client.forget_decision(one.group, one.batch_id, is_reset=True)

    run(work())
    if as_json:
        print_json({"reset": _document(one)})
    else:
        print(f"{plain(one.group)}: batch {one.batch_id} is forgotten")


def _confirm(one: "GroupDecision") -> None:
    if not sys.stdin.isatty():
        raise UserError(
            f"resetting {one.group!r} lets batches up to {one.batch_id} be written again, which "
            "may be rows twice; add --yes if you mean it"
        )
    if not typer.confirm(f"Forget that {plain(one.group)} has written batch {one.batch_id}?", err=True):
        raise UserError("nothing was reset")


async def _list(bootstrap: str) -> "list[GroupDecision]":
    from tidelog.client.transactional import TransactionalClient

    async with TransactionalClient(bootstrap) as client:
        return await client.list_decisions()


def _find(found: "list[GroupDecision]", name: str) -> "GroupDecision":
    """The one that is called so, with or without what is the same for all, and the topic."""
    full = name if name.startswith(PREFIX) else PREFIX + name
    exact = [one for one in found if one.group == full]
    begins = tuple(full + sign for sign in (QUERY_SIGN, APPLICATION_SIGN))
    chosen = exact or [one for one in found if one.group.startswith(begins)]
    if not chosen:
        raise UserError(
            f"{name!r} has no decisions; `tidelog pipeline decisions list` shows the queries that have"
        )
    if len(chosen) > 1:
        names = ", ".join(one.group for one in chosen)
        raise UserError(f"{name!r} writes to several topics; name one of {names}")
    return chosen[0]


def _former_name(one: "GroupDecision") -> str | None:
    """What the query's decisions were called before they named their topic."""
    query, sign, _ = one.group.partition(QUERY_SIGN)
    return query if sign else None


def _proof(one: "GroupDecision") -> "Proof | None":
    from tidelog.spark.proofs import Proof

    return Proof.decode(one.proof)


def _time(one: "GroupDecision") -> str:
    at = datetime.fromtimestamp(one.decided_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _document(one: "GroupDecision") -> dict[str, Any]:
    proof = _proof(one)
    return {
        "name": one.group,
        "batch": one.batch_id,
        "decided_ms": one.decided_ms,
        "tasks": one.members,
        "before": one.after,
        "counting": None if one.counting is None else one.counting.name.lower(),
        "rows": None if proof is None else proof.rows,
        "ends": None if proof is None else proof.ends,
        "coordinator": one.coordinator,
    }
