"""`tidelog reassign`: let other brokers hold partitions, watch them get there, or call it off.

Plans are made in `client.moves`; the cluster takes them or refuses them. What `--dry-run --json`
prints, and what Kafka's own kafka-reassign-partitions writes, `--plan` reads.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    complain,
    note,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.model import NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.cluster import Refused
    from tidelog.client.members import MembersClient
    from tidelog.client.moves import Moving, Plan, Progress
    from tidelog.controller.moves import Layout

Targets: TypeAlias = dict[TopicPartition, tuple[NodeId, ...]]

PLAN_VERSION: Final = 1
POLL_SECONDS: Final = 0.5
REFUSED_SHOWN_MAX: Final = 5
STRANGE_MAX: Final = 10
"""How often in a row a partition may be elsewhere than it should be, and not be moving."""

app = typer.Typer(
    help="Move replicas from broker to broker, see how far they are, or call it off.",
    no_args_is_help=True,
)

Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="T", help="This topic; repeatable.")
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", min=0, help="Only this one; repeatable."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Show how far it is, and return when done.")]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle", metavar="BYTES", min=1,
        help="Per second, for what each broker sends; lifted at the end with --wait.",
    ),
]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and do nothing.")]


# Beginning.


@app.command("start")
def start(
    topic: Topics = None,
    partition: Partitions = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas", metavar="ID,ID,...", help="These brokers; the preferred leader first."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="What this JSON file says; - for stdin."),
    ] = None,
    drain: Annotated[
        list[int] | None,
        typer.Option("--drain", metavar="ID", min=0, help="All off this broker; repeatable."),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication", metavar="R", min=1, help="So many replicas of each."),
    ] = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="As many replicas and leads on every broker.")
    ] = False,
    throttle: Throttle = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let other brokers hold partitions: by hand, by a plan, or as it is best.

    Copies are made first. Once they are in sync, the brokers that shall not
    hold a partition any more let go of it, and delete their files. Producers
    and consumers go on meanwhile. Starting again with other replicas replaces
    a move that is under way.

    \b
    Examples:
      tidelog reassign start --topic orders --partition 0 --replicas 3,4,5 --wait
      tidelog reassign start --topic orders --replication 3
      tidelog reassign start --balance --dry-run
      tidelog reassign start --balance --dry-run --json > plan.json
      tidelog reassign start --plan plan.json --wait
      tidelog reassign start --drain 4            # as `tidelog brokers drain 4`
      tidelog reassign start --balance --throttle 50000000 --wait
    """
    given = [replicas is not None, plan is not None, bool(drain), replication is not None, balance]
    if sum(given) != 1:
        raise UsageError(
            "say what to do, once: --replicas, --plan, --drain, --replication or --balance"
        )
    if (replicas is not None or replication is not None) and not topic:
        raise UsageError("--replicas and --replication need --topic T")
    if partition and replicas is None:
        raise UsageError("--partition goes with --replicas")
    nodes = None if replicas is None else _parse_nodes(replicas)
    planned = None if plan is None else read_plan(plan)

    def make(layout: "Layout") -> Targets:
        from tidelog.client import moves

        if planned is not None:
            return planned
        if nodes is not None:
            return moves.by_hand(layout, topic or [], partition, nodes)
        return moves.best(layout, drain=drain or [], topics=topic or [], replication=replication)

    run_start(
        bootstrap, make, drain=drain or [], throttle=throttle, wait=wait, dry_run=dry_run,
        as_json=as_json,
    )  # fmt: skip


@app.command("throttle")
def throttle_moves(
    bytes_per_second: Annotated[
        int, typer.Argument(metavar="BYTES", min=0, help="Per second; 0 for no limit.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Limit what each broker sends to replicas that are not in sync, now and from now on.

    It is catchup.bytes.per.second of all brokers; it holds for moves under way
    and for brokers that come back. A limit below 1.5 times what is written
    meanwhile is raised to that, or the copies would never be done.

    \b
    Examples:
      tidelog reassign throttle 50000000
      tidelog reassign throttle 0
    """

    async def work() -> None:
        from tidelog.client.members import MembersClient
        from tidelog.client.moves import set_throttle

        async with MembersClient(bootstrap) as client:
            await set_throttle(client, bytes_per_second)

    run(work())
    if as_json:
        print_json({"bytes_per_second": bytes_per_second})
    else:
        limit = f"{bytes_per_second} bytes per second" if bytes_per_second else "all it can"
        print(f"every broker sends {limit} to those who catch up")


def _parse_nodes(text: str) -> tuple[NodeId, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"--replicas {text!r} is not a list of ids, for example 1,2,3") from None


def read_plan(path: Path) -> Targets:
    """The targets in a file of Kafka's form."""
    text = sys.stdin.read() if str(path) == "-" else path.read_text()
    try:
        document = json.loads(text)
        return {
            TopicPartition(str(one["topic"]), int(one["partition"])): tuple(
                int(node) for node in one["replicas"]
            )
            for one in document["partitions"]
        }
    except (KeyError, TypeError, ValueError) as error:
        form = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'
        raise UserError(f"{path} is not a plan ({error}); it must be like {form}") from None


def run_start(
    bootstrap: str,
    make: "Callable[[Layout], Targets]",
    *,
    drain: Sequence[NodeId],
    throttle: int | None = None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a plan, show it, begin it, and see it through, as far as that is wanted."""

    async def work() -> int:
        from tidelog.client import moves
        from tidelog.client.members import MembersClient

        async with MembersClient(bootstrap) as client:
            plan = await moves.start(client, make, drain=drain, throttle=throttle, dry_run=dry_run)
            for node in plan.uncordoned:
                note(f"broker {node} is not running: what it holds moves, and it is not cordoned")
            if not as_json:
                _show_plan(plan, dry_run=dry_run)
            if wait and not dry_run:
                await follow(client, plan.begun)
                if throttle is not None:
                    await moves.set_throttle(client, 0)
            elif throttle is not None and not dry_run:
                note("the limit stays: `tidelog reassign throttle 0` takes it away")
            if as_json:
                print_json(_document(plan, dry_run=dry_run))
            elif wait and not dry_run:
                print("done")
            return 1 if plan.refused else 0

    if code := run(work()):
        raise typer.Exit(code)


def _show_plan(plan: "Plan", *, dry_run: bool) -> None:
    copies, layout = plan.copies(), plan.layout
    if not plan.targets:
        print("nothing has to move")
    elif plan.begun:
        print_table(
            ["topic", "partition#", "replicas", "target", "copies#"],
            [
                (name.topic, name.partition, _ids(layout.replicas.get(name, ())), _ids(target),
                 copies[name])
                for name, target in sorted(plan.begun.items())
            ],
        )  # fmt: skip
        begun = [copies[name] for name in plan.begun]
        how = "would change" if dry_run else "change now"
        print(f"{len(begun)} partitions {how}, with {sum(begun)} copies to be made")
    _complain_of(plan.refused)


def _document(plan: "Plan", *, dry_run: bool) -> dict[str, Any]:
    return {
        "version": PLAN_VERSION,
        "partitions": [
            {"topic": name.topic, "partition": name.partition, "replicas": list(target)}
            for name, target in sorted(plan.targets.items())
        ],
        "copies": sum(plan.copies().values()),
        "dry_run": dry_run,
        "refused": _refusals(plan.refused),
    }


def _refusals(refused: "Mapping[TopicPartition, Refused]") -> list[dict[str, Any]]:
    return [
        {"topic": name.topic, "partition": name.partition, "error": str(error)}
        for name, error in refused.items()
    ]


def _complain_of(refused: "Mapping[TopicPartition, Refused]") -> None:
    for error in list(refused.values())[:REFUSED_SHOWN_MAX]:
        complain(str(error))
    if len(refused) > REFUSED_SHOWN_MAX:
        complain(f"and {len(refused) - REFUSED_SHOWN_MAX} more were refused")


# Watching.


async def follow(client: "MembersClient", targets: Targets) -> None:
    """Tell how far the moves are, until all are complete; not if others were begun instead."""
    import asyncio

    from tidelog.client import moves

    told, strange = None, 0
    while True:
        moving = await client.list_reassignments()
        known = await moves.known_partitions(client)
        left = [
            name
            for name, target in targets.items()
            if name in moving or (name in known and known[name].replicas != target)
        ]
        other = [n for n in left if n not in moving or moving[n].target != targets[n]]
        strange = strange + 1 if other else 0  # a node may hear of it a little late
        if strange > STRANGE_MAX:
            raise UserError(
                f"{', '.join(map(str, other[:REFUSED_SHOWN_MAX]))} are to be held by others now; "
                "see `tidelog reassign status`"
            )
        progress = moves.progress(targets, known, len(left))
        if progress != told:
            note(str(progress))
            told = progress
        if not left:
            return
        await asyncio.sleep(POLL_SECONDS)


@app.command("status")
def status(
    wait: Wait = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show the partitions whose replicas move, and how many of the target are in sync.

    Brokers in "adding" are copying; those in "removing" go once all of the
    former are in sync. With --wait it returns when nothing moves any more.
    """

    async def work() -> "tuple[list[Moving], Progress]":
        from tidelog.client import moves
        from tidelog.client.members import MembersClient

        async with MembersClient(bootstrap) as client:
            moving = await client.list_reassignments()
            if wait and moving:
                await follow(client, {name: move.target for name, move in moving.items()})
                moving = await client.list_reassignments()
            known = await moves.known_partitions(client)
            targets = {name: move.target for name, move in moving.items()}
            return moves.moving_of(moving, known), moves.progress(targets, known, len(moving))

    found, progress = run(work())
    rows = [asdict(one) for one in found]
    if as_json:
        print_json({"partitions": rows, "in_sync": progress.in_sync, "replicas": progress.replicas})
    elif not rows:
        print("no replicas are moving")
    else:
        print_table(
            ["topic", "partition#", "leader#", "target", "adding", "removing", "in sync#"],
            [
                (row["topic"], row["partition"], row["leader"], _ids(row["target"]),
                 _ids(row["adding"]), _ids(row["removing"]),
                 f"{row['in_sync']}/{len(row['target'])}")
                for row in rows
            ],
        )  # fmt: skip


# Calling it off.


@app.command("cancel")
def cancel(
    topic: Topics = None,
    partition: Partitions = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Whatever moves, of all topics.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let partitions be held by those who held them before they began to move.

    Copies that were made meanwhile are deleted. It is refused where too few of
    the brokers of before are in sync: what was written since must not be lost.

    \b
    Examples:
      tidelog reassign cancel --topic orders --partition 0
      tidelog reassign cancel --all
    """
    if bool(topic) == everything:
        raise UserError("say what to cancel: --topic T, or --all")
    if partition and not topic:
        raise UsageError("--partition goes with --topic")

    async def work() -> "tuple[list[TopicPartition], dict[TopicPartition, Refused]]":
        from tidelog.client import moves
        from tidelog.client.members import MembersClient

        async with MembersClient(bootstrap) as client:
            return await moves.cancel(client, None if everything else topic, partition)

    names, refused = run(work())
    if as_json:
        print_json(
            {
                "cancelled": [
                    {"topic": name.topic, "partition": name.partition}
                    for name in sorted(names)
                    if name not in refused
                ],
                "refused": _refusals(refused),
            }
        )
    elif not names:
        print("no replicas are moving")
    else:
        done = [plain(name) for name in sorted(names) if name not in refused]
        print(f"cancelled: {', '.join(done) or 'nothing'}")
    _complain_of(refused)
    if refused:
        raise typer.Exit(1)


def _ids(nodes: Sequence[NodeId]) -> str:
    return ",".join(map(str, nodes)) or "-"
