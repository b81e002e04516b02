"""`tidelog simulate`: whole clusters in virtual time, with everything going wrong."""

import itertools
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.common import AsJson, UserError, note, number, plain, print_json, print_table
from tidelog.faces.cli.coverage import coverage_document, print_coverage

if TYPE_CHECKING:
    from rich.progress import Progress

    from tidelog.simulation.campaign import Campaign, Finding, Totals

SEEDS_DEFAULT = 100


class Story(StrEnum):
    ALONE = "alone"
    CLUSTER = "cluster"
    REPLICATED = "replicated"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    KV = "kv"
    QUEUES = "queues"
    HTTP = "http"


def simulate(
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            help=f"Number of seeds (default {SEEDS_DEFAULT}; unlimited with --minutes).",
        ),
    ] = None,
    start: Annotated[int, typer.Option("--start", metavar="S", min=0, help="First seed.")] = 0,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", metavar="M", min=0.01, help="Start no seed after this many minutes."),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="A,B,...",
            help="Enable exactly these faults in every seed; `none` for none, `list` to list them.",
        ),
    ] = None,
    story: Annotated[
        Story | None, typer.Option("--story", help="Story to play (default: the seed decides).")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print what happened, line by line.")] = False,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Find the fewest faults that still make a seed fail.")
    ] = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Report which requests, verbs and faults the seeds exercised.")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", metavar="K", min=1, help="Number of processes; each uses one core.")
    ] = 1,
    as_json: AsJson = False,
) -> int:
    """Run clusters in virtual time under faults, and check their invariants.

    A seed decides everything: the number of nodes, what clients do, which
    faults happen when, how long each message takes. Nodes crash, lose power
    in the middle of a write, are partitioned and paused, and their disks
    fill up, stall and fail. Then all faults end, every node must recover,
    and every acknowledged write must be there.

    The same seed gives the same history, to the byte; `trace hash` proves
    it. A violation is printed with the command that reproduces it, and the
    exit code is 1.

    \b
    Examples:
      tidelog simulate --seeds 200 --workers 2
      tidelog simulate --story replicated --minutes 10
      tidelog simulate --minutes 10 --faults lose_power,fail_syncs
      tidelog simulate --start 42 --seeds 1 --trace
      tidelog simulate --start 42 --seeds 1 --shrink
      tidelog simulate --seeds 200 --coverage
    """
    from tidelog.simulation.campaign import Campaign, Totals

    if faults == "list":
        _print_kinds()
        return 0
    kinds = None if faults is None else _parse_kinds(faults)
    totals = Totals()
    began = time.monotonic()
    wanted = seeds if seeds is not None or minutes is not None else SEEDS_DEFAULT
    with _progress(visible=not as_json) as progress, Campaign(workers) as campaign:
        task = progress.add_task("", total=_total(wanted, minutes))
        chosen = _seeds(start, wanted, minutes)
        told = None if story is None else story.value
        for played in campaign.play(chosen, kinds=kinds, keep=trace, story=told):
            totals.add(played)
            for line in played.trace:
                print(plain(line), file=sys.stderr if as_json else sys.stdout)
            elapsed = time.monotonic() - began
            done = totals.seeds if wanted is not None else min(elapsed, (minutes or 0) * 60)
            progress.update(task, completed=done, description=_description(totals))
        if shrink:
            _shrink(campaign, totals, kinds, told, progress)
    if as_json:
        document = _document(totals)
        if coverage and totals.met is not None:
            document["coverage"] = coverage_document(totals.met)
        print_json(document)
    else:
        if coverage and totals.met is not None:
            print_coverage(totals.met)
        _print(totals, time.monotonic() - began)
    return int(bool(totals.findings))


def _seeds(start: int, wanted: int | None, minutes: float | None) -> Iterator[int]:
    end = None if minutes is None else time.monotonic() + minutes * 60
    for seed in itertools.count(start) if wanted is None else range(start, start + wanted):
        if end is not None and time.monotonic() > end:
            return
        yield seed


def _total(wanted: int | None, minutes: float | None) -> float:
    if wanted is not None:
        return wanted
    return (minutes or 0) * 60


def _parse_kinds(faults: str) -> list[str]:
    from tidelog.simulation.situations import EVERY_KIND

    if faults == "none":
        return []
    kinds = [kind.strip() for kind in faults.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in EVERY_KIND:
            raise UserError(f"--faults {kind!r} is no kind of fault; these are: {', '.join(EVERY_KIND)}")
    return kinds


def _print_kinds() -> None:
    from tidelog.simulation.situations import EVERY_KIND

    for kind in EVERY_KIND:
        print(kind)


def _shrink(
    campaign: "Campaign", totals: "Totals", kinds: list[str] | None, story: str | None, progress: "Progress"
) -> None:
    for index, finding in enumerate(totals.findings):
        task = progress.add_task(f"shrinking seed {finding.seed}", total=None)
        totals.findings[index] = campaign.shrink(finding.seed, kinds=kinds, story=story)
        progress.remove_task(task)


def _progress(*, visible: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        disable=not (visible and sys.stderr.isatty()),
    )


def _description(totals: "Totals") -> str:
    violations = f", {len(totals.findings)} VIOLATIONS" if totals.findings else ""
    return (
        f"{number(totals.seeds)} seeds, {number(totals.events_per_second)} events/s, "
        f"{totals.simulated_seconds / 3600:.2f} simulated hours, "
        f"{number(totals.faults.total())} faults{violations}"
    )


def _document(totals: "Totals") -> dict[str, Any]:
    return {
        "seeds": totals.seeds,
        "violations": [_finding(finding) for finding in totals.findings],
        "events": totals.events,
        "events_per_second": round(totals.events_per_second),
        "simulated_hours": round(totals.simulated_seconds / 3600, 4),
        "operations": totals.operations,
        "acknowledged_records": totals.acknowledged,
        "faults": dict(sorted(totals.faults.items())),
        "trace_hash": totals.trace_hash,
    }


def _finding(finding: "Finding") -> dict[str, Any]:
    return {
        "seed": finding.seed,
        "invariant": finding.name,
        "problem": finding.problem,
        "at_seconds": round(finding.at_seconds, 6),
        "replay": finding.replay,
        "faults": finding.faults,
        "shrunk": finding.shrunk,
        "trace": finding.trace,
    }


def _print(totals: "Totals", seconds: float) -> None:
    for finding in totals.findings:
        print(f"VIOLATED: {plain(finding.name)}: {plain(finding.problem)}")
        print(f"  seed {finding.seed}, at {finding.at_seconds:.6f} s of its time")
        for line in finding.trace:
            print(f"    {plain(line)}")
        if finding.shrunk:
            print(f"  the fewest faults that still do it ({len(finding.faults)}):")
            for fault in finding.faults:
                print(f"    {plain(fault)}")
        print(f"  to see it again: {finding.replay}")
        print()
    simulated_hours = totals.simulated_seconds / 3600
    rows = [
        ("seeds", number(totals.seeds)),
        ("violations", number(len(totals.findings))),
        ("events", number(totals.events)),
        ("events per second of one core", number(totals.events_per_second)),
        ("simulated hours", f"{simulated_hours:,.2f}"),
        ("simulated hours per minute", f"{simulated_hours / (seconds / 60):,.2f}"),
        ("operations", number(totals.operations)),
        ("acknowledged records", number(totals.acknowledged)),
        ("faults", number(totals.faults.total())),
        *((f"  {kind}", number(count)) for kind, count in sorted(totals.faults.items())),
    ]
    print_table(["simulated", "count#"], rows)
    print(f"trace hash {totals.trace_hash}")
    if totals.findings and not any(finding.shrunk for finding in totals.findings):
        note("--shrink finds the fewest faults with which a seed still fails.")
