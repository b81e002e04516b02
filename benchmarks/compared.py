"""One figure of Tidelog beside the same of another."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.report import PIPED_WIDTH, number

TIDELOG: Final = "Tidelog"
KAFKA: Final = "Kafka"

MORE: Final = "more"
LESS: Final = "less"


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured, and which way is better."""

    name: str
    unit: str
    better: str = MORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of both."""

    pair: str
    case: str
    unit: str
    peer: str
    """Beside whom."""
    tidelog: float
    theirs: float
    ratio: float
    better: str
    """Whether `more` or `less` is."""
    tidelog_range: tuple[float, float]
    their_range: tuple[float, float]
    rounds: int

    @property
    def is_behind(self) -> bool:
        return self.ratio < 1 if self.better == MORE else self.ratio > 1


def compare(
    pair: str, case: Case, ours: Sequence[float], theirs: Sequence[float], *, peer: str = KAFKA
) -> Compared | None:
    """None where there is nothing to compare: a client is missing, a server fell behind."""
    if not ours or not theirs:
        return None
    return Compared(
        pair=pair,
        case=case.name,
        unit=case.unit,
        peer=peer,
        tidelog=median(ours),
        theirs=median(theirs),
        ratio=median(ours) / median(theirs),
        better=case.better,
        tidelog_range=(min(ours), max(ours)),
        their_range=(min(theirs), max(theirs)),
        rounds=min(len(ours), len(theirs)),
    )


def print_compared(compared: Sequence[Compared], notes: Sequence[str], *, seconds: float) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    for pair in dict.fromkeys(one.pair for one in compared):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, title=pair, title_justify="left")
        table.add_column("case")
        peer = next(one.peer for one in compared if one.pair == pair)
        for name in (TIDELOG, peer):
            table.add_column(name, justify="right")
        table.add_column("unit")
        table.add_column("ratio", justify="right")
        for name in ("better is", "we are", f"{TIDELOG}, range", f"{peer}, range"):
            table.add_column(name)
        for one in compared:
            if one.pair == pair:
                table.add_row(*(Text(cell) for cell in _cells(one)))
        console.print(table)
    for note in dict.fromkeys(notes):
        console.print(Text(f"  {note}"))
    console.print(Text(f"  ratio: {TIDELOG} / the other. {seconds:.0f} s in all"))


def _cells(one: Compared) -> tuple[str, ...]:
    ratio = number(one.ratio) if one.ratio >= 0.1 else f"{one.ratio:.2g}"
    return (
        one.case,
        number(one.tidelog),
        number(one.theirs),
        one.unit,
        ratio,
        one.better,
        "behind" if one.is_behind else "",
        _range(*one.tidelog_range),
        _range(*one.their_range),
    )


def _range(least: float, greatest: float) -> str:
    """Nothing where there was one round."""
    return f"{number(least)} .. {number(greatest)}" if least < greatest else ""
