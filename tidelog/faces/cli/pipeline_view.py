"""How a running pipeline shows what it does: to a person at a terminal, to a log, to a program.

Rule: a viewer is told of every change, often of none at all; it decides what is worth showing.
"""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tidelog.faces.cli.common import note, number, plain

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from tidelog.spark.pipelines.progress import QueryState
    from tidelog.spark.pipelines.samples import Tried
    from tidelog.spark.pipelines.state import Run

LINE_SECONDS: Final = 10.0
"""How often a log gets a line of each query."""
COLUMNS: Final = ("query", "batch#", "rows#", "rows/s#", "lag#", "state#", "late#", "watermark")


class Viewer(Protocol):
    def shown(self) -> AbstractContextManager[object]: ...
    def __call__(self, run: "Run") -> None: ...


def viewer(name: str, *, as_json: bool) -> Viewer:
    if as_json:
        return Lines()
    return Screen(name) if sys.stderr.isatty() else Log(name)


def row(name: str, state: "QueryState") -> tuple[str, ...]:
    """One query as cells of a table."""
    return (
        name,
        "-" if state.batch < 0 else str(state.batch),
        number(state.rows),
        number(state.rows_per_second),
        "-" if state.lag is None else number(state.lag),
        number(state.state_rows),
        number(state.late_rows),
        clock(state.watermark),
    )


def clock(watermark: str | None) -> str:
    """2026-01-01T12:30:00.000Z as 2026-01-01 12:30:00; Spark begins at 1970."""
    if not watermark or watermark.startswith("1970"):
        return "-"
    return watermark.replace("T", " ").partition(".")[0].removesuffix("Z")


class Lines:
    """One JSON document for each change of phase and each batch, on standard output."""

    def __init__(self) -> None:
        self._phase = ""
        self._seen: dict[str, tuple[str, int]] = {}

    def shown(self) -> AbstractContextManager[object]:
        return nullcontext()

    def __call__(self, run: "Run") -> None:
        for name, state in run.queries.items():
            if state.at and self._seen.get(name) != (state.at, state.batch):
                self._seen[name] = (state.at, state.batch)
                self._print({"event": "batch", "query": name, **msgspec.to_builtins(state)})
        if run.phase != self._phase:
            self._phase = run.phase
            problem = {"problem": run.problem} if run.problem else {}
            self._print({"event": "phase", "phase": str(run.phase), **problem})

    def _print(self, document: Mapping[str, Any]) -> None:
        print(json.dumps(document, ensure_ascii=False), flush=True)


class Log:
    """A line for each change of phase, and now and then one for each query, on standard error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._phase = ""
        self._told = time.monotonic()
        self._seen: dict[str, int] = {}

    def shown(self) -> AbstractContextManager[object]:
        return nullcontext()

    def __call__(self, run: "Run") -> None:
        if run.phase != self._phase:
            self._phase = run.phase
            note(f"{self._name}: {run.phase}" + (f": {run.problem}" if run.problem else ""))
        if time.monotonic() < self._told + LINE_SECONDS:
            return
        self._told = time.monotonic()
        for name, state in run.queries.items():
            if self._seen.get(name, -1) != state.batch:
                self._seen[name] = state.batch
                note(f"{self._name}: {line(name, state)}")


def line(name: str, state: "QueryState") -> str:
    lag = "" if state.lag is None else f", lag {number(state.lag)}"
    late = f", {number(state.late_rows)} late" if state.late_rows else ""
    return (
        f"{name}: batch {state.batch}, {number(state.rows)} rows, "
        f"{number(state.rows_per_second)} rows/s{lag}{late}"
    )


class Screen:
    """A table that changes in place, on standard error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._live: Live | None = None

    def shown(self) -> AbstractContextManager[object]:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)
        return self._live

    def __call__(self, run: "Run") -> None:
        if self._live is not None:
            self._live.update(self._table(run))

    def _table(self, run: "Run") -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        waits = " (Spark takes some seconds)" if run.phase == "starting" else ", Ctrl-C stops it"
        title = Text(plain(f"{self._name}: {run.phase}{waits}"))
        table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
        for column in COLUMNS:
            justify: Any = "right" if column.endswith("#") else "left"
            table.add_column(column.removesuffix("#"), justify=justify)
        for name, state in run.queries.items():
            table.add_row(*(Text(plain(cell)) for cell in row(name, state)))
        return table


def print_tried(tried: "Tried") -> None:
    """How a test went: a line, and what differs."""
    parts = ", ".join(f"{one.what} {number(one.rows)}" for one in tried.compared)
    verdict = f"passed, rows: {parts}" if tried.passed else "FAILED"
    print(plain(f"{tried.name}: {verdict}"))
    if tried.problem:
        print(plain(f"  {tried.problem}"))
    for one in tried.compared:
        if not one.is_same:
            missing, unexpected = len(one.missing), len(one.unexpected)
            print(plain(f"  {one.what}: {missing} missing (-), {unexpected} not expected (+)"))
            for mark, rows in (("-", one.missing), ("+", one.unexpected)):
                for found in rows:
                    print(plain(f"    {mark} {json.dumps(found, ensure_ascii=False)}"))
