"""A report as one page of HTML: headings, figures, tables and plots.

Rule 1: the page stands alone. It loads nothing, runs nothing, and reads well in light and in dark.
Rule 2: whatever comes from outside is escaped, here and nowhere else; callers pass plain text.
Rule 3: a plot says its numbers in words, too, to whoever points at a mark or hears the page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import Final

WIDTH: Final = 760
HEIGHT: Final = 220
LEFT: Final = 64
BOTTOM: Final = 28
TOP: Final = 10
COLORS_MAX: Final = 6
POINT_LABELS_MAX: Final = 400
"""Of one plot: beyond, marks are too close to be pointed at."""

STYLE: Final = """
:root { color-scheme: light dark; --ink: light-dark(#1c2430, #e4e8ee);
  --paper: light-dark(#ffffff, #14181e); --faint: light-dark(#5d6875, #98a3b0);
  --line: light-dark(#d8dee6, #2d3540); --good: light-dark(#1a7f4b, #4cc38a);
  --bad: light-dark(#c02b2b, #ff7b72); --warn: light-dark(#9a6700, #e3b341);
  --c0: light-dark(#2266cc, #6ea8fe); --c1: light-dark(#c2570c, #f0883e);
  --c2: light-dark(#1a7f4b, #4cc38a); --c3: light-dark(#8250df, #bc8cff);
  --c4: light-dark(#0e7c86, #56d4dd); --c5: light-dark(#b0306a, #f778ba); }
body { margin: 0 auto; padding: 24px; max-width: 960px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 8px; }
p { margin: 4px 0; } .faint { color: var(--faint); }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.figures { display: flex; flex-wrap: wrap; gap: 12px 32px; margin: 20px 0; padding: 0; }
.figures div { min-width: 90px; } .figures dt { color: var(--faint); font-size: 13px; }
.figures dd { margin: 0; font-size: 20px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--faint);
  border-bottom: 1px solid var(--line); }
th, td { padding: 4px 14px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
td { border-bottom: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; margin: 8px 0; }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); } .strip { fill: var(--line); } .mark { fill: var(--bad); }
.legend span { margin-right: 18px; white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 6px; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a plot, or the bars of one."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(slots=True)
class Page:
    """A report that grows from its top to its end."""

    title: str
    _parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, kind: str = "") -> None:
        """A paragraph; `kind` is good, bad, warn, faint or nothing."""
        self._parts.append(f'<p class="{escape(kind)}">{escape(text)}</p>')

    def figures(self, figures: Iterable[tuple[str, object]]) -> None:
        """Some numbers, each with its name."""
        items = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in figures
        )
        self._parts.append(f'<dl class="figures">{items}</dl>')

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table; columns whose name ends in # hold numbers."""
        kinds = [' class="number"' if name.endswith("#") else "" for name in columns]
        head = "".join(
            f"<th{kind}>{escape(name.removesuffix('#'))}</th>"
            for name, kind in zip(columns, kinds, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(f"<td{kind}>{escape(str(cell))}</td>" for cell, kind in zip(row, kinds, strict=True))
            + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def lines(self, label: str, series: Sequence[Series], ticks: Sequence[tuple[float, str]] = ()) -> None:
        """Lines over one axis; `ticks` name some of its places."""
        self._plot(label, series, ticks, are_bars=False)

    def bars(self, label: str, series: Sequence[Series], ticks: Sequence[tuple[float, str]] = ()) -> None:
        """Bars beside each other, one for each place on the axis."""
        self._plot(label, series, ticks, are_bars=True)

    def strip(self, label: str, start: float, end: float, marks: Iterable[tuple[float, str]]) -> None:
        """A stretch of something, and the places in it where something is."""
        width = WIDTH - LEFT
        span = max(end - start, 1)
        drawn = "".join(
            f'<rect class="mark" x="{LEFT + (at - start) / span * (width - 4):.1f}" y="2" '
            f'width="4" height="16"><title>{escape(text)}</title></rect>'
            for at, text in marks
        )
        self._parts.append(
            f'<svg viewBox="0 0 {WIDTH} 20" role="img" aria-label="{escape(label)}">'
            f'<text x="0" y="14">{escape(label)}</text>'
            f'<rect class="strip" x="{LEFT}" y="6" width="{width}" height="8" rx="2"/>{drawn}</svg>'
        )

    def html(self) -> str:
        """The whole page."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head><body>"
            f"<h1>{escape(self.title)}</h1>\n" + "\n".join(self._parts) + "\n</body></html>\n"
        )

    def _plot(
        self, label: str, series: Sequence[Series], ticks: Sequence[tuple[float, str]], *, are_bars: bool
    ) -> None:
        points = [point for one in series for point in one.points]
        if not points:
            self.text(f"{label}: nothing to show", "faint")
            return
        scale = _Scale.of(points, are_bars=are_bars)
        drawn = [_grid(scale), _ticks(scale, ticks)]
        for number, one in enumerate(series):
            color = f"var(--c{number % COLORS_MAX})"
            drawn.append((_bars if are_bars else _line)(scale, one, color))
        self._parts.append(
            f'<p class="faint">{escape(label)}</p>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
            + "".join(drawn)
            + "</svg>"
        )
        if len(series) > 1:
            names = "".join(
                f'<span><i style="background:var(--c{number % COLORS_MAX})"></i>{escape(one.name)}</span>'
                for number, one in enumerate(series)
            )
            self._parts.append(f'<p class="legend">{names}</p>')


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to places on the page. The vertical axis begins at zero."""

    first: float
    last: float
    most: float
    step: float
    """The narrowest distance of two places, which a bar must fit in."""

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]], *, are_bars: bool) -> "_Scale":
        places = sorted({x for x, _ in points})
        step = min((b - a for a, b in pairwise(places)), default=1.0)
        edge = step / 2 if are_bars else 0.0
        most = nice(max(y for _, y in points) or 1.0)
        return cls(places[0] - edge, places[-1] + edge, most, step)

    def x(self, value: float) -> float:
        span = self.last - self.first
        return LEFT + (value - self.first) / (span or 1) * (WIDTH - LEFT - 8)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.most * (HEIGHT - BOTTOM - TOP)

    @property
    def bar_width(self) -> float:
        return max(1.0, (self.x(self.first + self.step) - LEFT) * 0.8)


def nice(value: float) -> float:
    """The next number of 1, 2, 2.5, 5 and 10 times a power of ten."""
    power = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= value * (1 - 1e-9))


def short(value: float) -> str:
    """1234567 as 1.2M."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def _grid(scale: _Scale) -> str:
    lines = []
    for part in range(5):
        value = scale.most * part / 4
        y = scale.y(value)
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
        )
    return "".join(lines)


def _ticks(scale: _Scale, ticks: Iterable[tuple[float, str]]) -> str:
    return "".join(
        f'<text x="{scale.x(at):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(text)}</text>'
        for at, text in ticks
    )


def _line(scale: _Scale, series: Series, color: str) -> str:
    places = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in series.points)
    line = f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    if len(series.points) > POINT_LABELS_MAX:
        return line
    return line + "".join(
        f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="2.5" fill="{color}">'
        f"<title>{escape(series.name)}: {short(y)}</title></circle>"
        for x, y in series.points
    )


def _bars(scale: _Scale, series: Series, color: str) -> str:
    width = scale.bar_width
    return "".join(
        f'<rect x="{scale.x(x) - width / 2:.1f}" y="{scale.y(y):.1f}" width="{width:.1f}" '
        f'height="{scale.y(0) - scale.y(y):.1f}" fill="{color}">'
        f"<title>{escape(series.name)}: {short(y)}</title></rect>"
        for x, y in series.points
    )
