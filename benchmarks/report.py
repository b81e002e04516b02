"""What was measured, as a table for people or as JSON for programs.

Rule 1: a result stands beside a limit that was measured in the same run, round by round with it.
Rule 2: of several rounds the median counts; the least and the greatest are shown, so that a noisy
        machine is seen as one.
Rule 3: nothing here judges. A target is printed beside the figure and never asserted.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import median
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH: Final = 160
"""Columns of a table that goes to a file or a pipe."""
WIDE: Final = 130
"""Narrower terminals get the case, the median, the limit, the ratio and the target alone."""

TIMES: Final = frozenset(
    {"s", "ms", "us", "CPU s/GB", "CPU ms", "CPU us/record", "CPU s/s", "connections", "KB/s peers"}
)
"""Units in which less is better: their ratio is how many times the limit it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure, and what it can be compared with."""

    benchmark: str
    case: str
    value: float
    unit: str
    limit: float | None = None
    ratio: float | None = None
    """value / limit."""
    limit_name: str = ""
    least: float
    greatest: float
    rounds: int
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one benchmark has to say."""

    title: str
    results: Sequence[Result]
    notes: Sequence[str] = ()


class Measured:
    """Values by name, one per round."""

    def __init__(self) -> None:
        self._values: dict[object, list[float]] = defaultdict(list)

    def add(self, name: object, value: float) -> None:
        self._values[name].append(value)

    def of(self, name: object) -> list[float]:
        return self._values[name]

    def median(self, name: object) -> float:
        return median(self._values[name])


def result(
    benchmark: str,
    case: str,
    values: Sequence[float],
    unit: str,
    *,
    limits: Sequence[float] = (),
    limit_name: str = "",
    target: str = "",
    share: float = 0.5,
) -> Result:
    """The median of `values`, or another share of them, beside the median of `limits`."""
    value = median(values) if share == 0.5 else _at(share, values)
    limit = median(limits) if limits else None
    return Result(
        benchmark=benchmark,
        case=case,
        value=value,
        unit=unit,
        limit=limit,
        ratio=value / limit if limit else None,
        limit_name=limit_name if limits else "",
        least=min(values),
        greatest=max(values),
        rounds=len(values),
        target=target,
    )


def _at(share: float, values: Sequence[float]) -> float:
    """The least value that at least this share of all does not pass."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def print_json(results: Iterable[Result]) -> None:
    print(json.dumps([_rounded(asdict(one)) for one in results], indent=1))


def _rounded(fields: dict) -> dict:
    """Six digits are more than any of this is worth."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in fields.items()
    }


def print_report(name: str, report: Report, *, seconds: float) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    is_wide = console.width >= WIDE
    title = f"{name}: {report.title} ({seconds:.0f} s)"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("case", overflow="fold")
    for column in ("median", *(("least", "greatest") if is_wide else ()), "limit", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in (("the limit is",) if is_wide else ()) + ("target",):
        table.add_column(column, overflow="fold")
    for one in report.results:
        spread = (number(one.least), number(one.greatest)) if is_wide else ()
        limit = "" if one.limit is None else number(one.limit)
        explained = (one.limit_name,) if is_wide else ()
        value = f"{number(one.value)} {one.unit}"
        cells = (one.case, value, *spread, limit, _ratio(one), *explained, one.target)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for note in report.notes:
        console.print(Text(f"  {note}"))
    console.print()


def _ratio(one: Result) -> str:
    if one.ratio is None:
        return ""
    if one.unit in TIMES:
        return f"{one.ratio:.1f}x"
    return f"{one.ratio:.2f}" if one.ratio >= 0.1 else f"{one.ratio:.3f}"


def number(value: float) -> str:
    """About three digits of what is small, all of what is large."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or size == 0 else f"{value:.3f}"
