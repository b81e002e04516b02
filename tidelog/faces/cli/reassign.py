"""`tidelog reassign`: let other brokers hold partitions, watch them get there, or call it off.

The cluster makes the plans. What `--dry-run --json` prints, and what Kafka's own kafka-reassign-partitions
writes, `--plan` reads.
"""

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    PAGE,
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
    from tidelog.client.admin import AdminClient
    from tidelog.client.kafka import KafkaClient

Targets: TypeAlias = dict[TopicPartition, tuple[NodeId, ...]]

PLAN_VERSION: Final = 1
THROTTLE: Final = "catchup.bytes.per.second"
POLL_SECONDS: Final = 0.5
REFUSED_SHOWN_MAX: Final = 5
STRANGE_MAX: Final = 10
"""How often in a row a partition may be elsewhere than it should be, and not be moving."""

app = typer.Typer(help="Move replicas between brokers, show the progress, or cancel.", no_args_is_help=True)

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="T", help="Topic; repeatable.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition; repeatable.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Show the progress, and return when done.")]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        min=1,
        help="Bytes per second that each broker sends; with --wait the limit ends with the moves.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and do nothing.")]


# Beginning.


@app.command("start")
def start(
    topic: Topics = None,
    partition: Partitions = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas", metavar="ID,ID,...", help="Brokers for the replicas; the preferred leader first."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="JSON file with the plan; - for standard input."),
    ] = None,
    drain: Annotated[
        list[int] | None,
        typer.Option("--drain", metavar="ID", min=0, help="Move everything off this broker; repeatable."),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication", metavar="R", min=1, help="Number of replicas of each partition."),
    ] = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="Balance replicas and leaders over all brokers.")
    ] = False,
    throttle: Throttle = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move replicas to other brokers: by hand, by a plan, or balanced.

    New replicas are copied first. Once they are in sync, the old ones are
    removed, and their files deleted. Producers and consumers keep working. A
    new start for the same partition replaces a move that is under way.

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
        raise UsageError("say what to do, once: --replicas, --plan, --drain, --replication or --balance")
    if (replicas is not None or replication is not None) and not topic:
        raise UsageError("--replicas and --replication need --topic T")
    if partition and replicas is None:
        raise UsageError("--partition goes with --replicas")
    wanted: dict[str, Any] = {
        "replicas": None if replicas is None else _parse_nodes(replicas),
        "partitions": None if plan is None else _places(read_plan(plan)),
        "drain": drain or None,
        "replication": replication,
        "balance": balance,
        "topics": topic or None if replicas is not None or replication is not None else None,
        "numbers": partition or None,
    }
    run_start(bootstrap, wanted, throttle=throttle, wait=wait, dry_run=dry_run, as_json=as_json)


@app.command("throttle")
def throttle_moves(
    bytes_per_second: Annotated[
        int, typer.Argument(metavar="BYTES", min=0, help="Bytes per second; 0 = unlimited.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Limit the bytes per second that each broker sends to replicas that are not in sync.

    This sets catchup.bytes.per.second of all brokers; it applies to moves
    under way and to returning brokers. A limit below 1.5 times the rate of
    writes is raised to that, so that the moves end.

    \b
    Examples:
      tidelog reassign throttle 50000000
      tidelog reassign throttle 0
    """

    run(_set_throttle(bootstrap, bytes_per_second))
    if as_json:
        print_json({"bytes_per_second": bytes_per_second})
    else:
        limit = f"{bytes_per_second} bytes per second" if bytes_per_second else "all it can"
        print(f"every broker sends {limit} to those who catch up")


async def _set_throttle(bootstrap: str, bytes_per_second: int) -> None:
    from tidelog.client.kafka import KafkaClient

    async with KafkaClient(bootstrap) as client:
        await _throttle(client, bytes_per_second)


async def _throttle(client: "KafkaClient", bytes_per_second: int) -> None:
    """The limit of all brokers; 0 takes it away."""
    settings = {THROTTLE: bytes_per_second or None}
    await client.perform("configs.change_broker", broker="default", settings=settings)


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


def _places(targets: Targets) -> list[dict[str, Any]]:
    return [
        {"topic": name.topic, "partition": name.partition, "replicas": list(target)}
        for name, target in targets.items()
    ]


def run_start(
    bootstrap: str,
    wanted: dict[str, Any],
    *,
    throttle: int | None = None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Have a plan made, show it, begin it, and see it through, as far as that is wanted."""

    async def work() -> int:
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            before = await _replicas(client)
            plan = await client.perform(
                "moves.begin", **wanted, throttle_bytes_per_second=throttle, dry_run=dry_run
            )
            for node in plan.get("uncordoned", ()):
                note(f"broker {node} is not running: what it holds moves, and it is not cordoned")
            begun = _begun(plan)
            if not as_json:
                _show_plan(plan, begun, before)
            if wait and not dry_run:
                await follow(client, begun)
                if throttle is not None:
                    await _throttle(client, 0)
            elif throttle is not None and not dry_run:
                note("the limit stays: `tidelog reassign throttle 0` takes it away")
            if as_json:
                keys = ("partitions", "copies", "dry_run", "refused")
                print_json({"version": PLAN_VERSION, **{key: plan[key] for key in keys}})
            elif wait and not dry_run:
                print("done")
            return 1 if plan["refused"] else 0

    if code := run(work()):
        raise typer.Exit(code)


async def _replicas(client: "AdminClient") -> Targets:
    """Who shall hold each partition now, once what moves is there."""
    moving = await client.list_reassignments()
    return {
        name: moving[name].target if name in moving else one.replicas
        for topic in await client.topics()
        for one in topic.partitions
        for name in (TopicPartition(topic.name, one.partition),)
    }


def _begun(plan: dict[str, Any]) -> Targets:
    """What was not refused."""
    refused = {(one["topic"], one["partition"]) for one in plan["refused"]}
    return {
        TopicPartition(one["topic"], one["partition"]): tuple(one["replicas"])
        for one in plan["partitions"]
        if (one["topic"], one["partition"]) not in refused
    }


def _show_plan(plan: dict[str, Any], begun: Targets, before: Targets) -> None:
    copies = {name: len(set(target).difference(before.get(name, ()))) for name, target in begun.items()}
    if not plan["partitions"]:
        print("nothing has to move")
    elif begun:
        print_table(
            ["topic", "partition#", "replicas", "target", "copies#"],
            [
                (name.topic, name.partition, _ids(before.get(name, ())), _ids(target), copies[name])
                for name, target in sorted(begun.items())
            ],
        )
        how = "would change" if plan["dry_run"] else "change now"
        print(f"{len(begun)} partitions {how}, with {sum(copies.values())} copies to be made")
    _complain_of(plan["refused"])


def _complain_of(refused: Sequence[dict[str, Any]]) -> None:
    for one in refused[:REFUSED_SHOWN_MAX]:
        complain(one["error"])
    if len(refused) > REFUSED_SHOWN_MAX:
        complain(f"and {len(refused) - REFUSED_SHOWN_MAX} more were refused")


# Watching.


async def follow(client: "AdminClient", targets: Targets) -> None:
    """Tell how far the moves are, until all are complete; not if others were begun instead."""
    import asyncio

    told, strange = None, 0
    while True:
        moving = await client.list_reassignments()
        known = {
            TopicPartition(topic.name, one.partition): one
            for topic in await client.topics()
            for one in topic.partitions
        }
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
        in_sync = sum(
            len(set(target).intersection(known[name].in_sync))
            for name, target in targets.items()
            if name in known
        )
        replicas = sum(map(len, targets.values()))
        progress = f"{in_sync} of {replicas} replicas are in sync, {len(left)} partitions are moving"
        if progress != told:
            note(progress)
            told = progress
        if not left:
            return
        await asyncio.sleep(POLL_SECONDS)


@app.command("status")
def status(wait: Wait = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show the partitions that are moving, and how many target replicas are in sync.

    Brokers in "adding" are copying; those in "removing" are removed once
    all of the former are in sync. With --wait it returns when no move is
    left.
    """

    async def work() -> dict[str, Any]:
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            if wait and (moving := await client.list_reassignments()):
                await follow(client, {name: move.target for name, move in moving.items()})
            found: dict[str, Any] = await client.perform("moves.list", limit=PAGE)
            while found["next"] is not None:
                more = await client.perform("moves.list", limit=PAGE, after=found["next"])
                found["partitions"] += more["partitions"]
                found["next"] = more["next"]
            return found

    found = run(work())
    rows = found["partitions"]
    if as_json:
        print_json({"partitions": rows, "in_sync": found["in_sync"], "replicas": found["replicas"]})
    elif not rows:
        print("no replicas are moving")
    else:
        print_table(
            ["topic", "partition#", "leader#", "target", "adding", "removing", "in sync#"],
            [
                (
                    row["topic"],
                    row["partition"],
                    row["leader"],
                    _ids(row["target"]),
                    _ids(row["adding"]),
                    _ids(row["removing"]),
                    f"{row['in_sync']}/{len(row['target'])}",
                )
                for row in rows
            ],
        )


# Calling it off.


@app.command("cancel")
def cancel(
    topic: Topics = None,
    partition: Partitions = None,
    everything: Annotated[bool, typer.Option("--all", help="Cancel all moves.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Cancel moves: partitions go back to their former replicas.

    New copies are deleted. The request is refused if too few of the former
    replicas are in sync, so that no committed record is lost.

    \b
    Examples:
      tidelog reassign cancel --topic orders --partition 0
      tidelog reassign cancel --all
    """
    if bool(topic) == everything:
        raise UserError("say what to cancel: --topic T, or --all")
    if partition and not topic:
        raise UsageError("--partition goes with --topic")

    async def work() -> dict[str, list[dict[str, Any]]]:
        from tidelog.client.kafka import KafkaClient

        done: dict[str, list[dict[str, Any]]] = {"cancelled": [], "refused": []}
        async with KafkaClient(bootstrap) as client:
            for name, number in product(topic or (None,), partition or (None,)):
                found = await client.perform("moves.cancel", topic=name, partition=number)
                done["cancelled"] += found["cancelled"]
                done["refused"] += found["refused"]
        return done

    done = run(work())
    if as_json:
        print_json(done)
    elif not done["cancelled"] and not done["refused"]:
        print("no replicas are moving")
    else:
        names = [plain(f"{one['topic']}-{one['partition']}") for one in done["cancelled"]]
        print(f"cancelled: {', '.join(names) or 'nothing'}")
    _complain_of(done["refused"])
    if done["refused"]:
        raise typer.Exit(1)


def _ids(nodes: Sequence[NodeId]) -> str:
    return ",".join(map(str, nodes)) or "-"
