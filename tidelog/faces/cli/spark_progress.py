"""How far a command on Spark is: on standard error, so that results stay apart.

On a terminal a bar, which is gone when the work is done. Into a file a line every ten seconds. With
`--json` an event every ten seconds, a line of JSON each:

    {"event": "progress", "what": "archiving", "done": 1200, "total": 5000, "unit": "records",
     "per_second": 400.0, "seconds_left": 9.5, "bytes": 81920, "partitions": [1, 4]}

Rule: rate and time left are of the step that is being done, since it began here: what an earlier
      run had done does not make this one look faster.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.faces.cli.common import note, number, plain
from tidelog.faces.cli.replication import size

if TYPE_CHECKING:
    from tidelog.spark.progress import OnProgress, Progress

LINE_SECONDS: Final = 10.0
STARTING: Final = "starting Spark"


class Pace(NamedTuple):
    """How fast a step goes; None of what cannot be told."""

    per_second: float | None = None
    seconds_left: float | None = None


class Clock:
    """Tells the pace of a step from what it has done since it was first seen."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._step: tuple[str, str] = ("", "")
        self._began = 0.0
        self._before = 0

    def pace(self, at: "Progress") -> Pace:
        now = self._now()
        if (at.what, at.unit) != self._step or at.done < self._before:
            self._step, self._began, self._before = (at.what, at.unit), now, at.done
        seconds, done = now - self._began, at.done - self._before
        if seconds <= 0 or done <= 0:
            return Pace()
        rate = done / seconds
        return Pace(rate, (at.total - at.done) / rate if at.total >= at.done else None)


def told(at: "Progress", pace: Pace) -> str:
    """`1,200 of 5,000 records (24 %), 400/s, 10 s left, 1 of 4 partitions, 81.9 kB`."""
    parts = []
    if at.total:
        share = f" ({100 * at.done // at.total} %)"
        parts.append(f"{number(at.done)} of {number(at.total)} {at.unit}{share}")
    elif at.done:
        parts.append(f"{number(at.done)} {at.unit}")
    if pace.per_second is not None and at.unit != "tasks":
        parts.append(f"{number(pace.per_second)}/s")
    if pace.seconds_left is not None:
        parts.append(f"{_duration(pace.seconds_left)} left")
    if at.partitions is not None:
        parts.append(f"{number(at.partitions[0])} of {number(at.partitions[1])} partitions")
    if at.bytes:
        parts.append(size(at.bytes))
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def event(at: "Progress", pace: Pace) -> dict[str, Any]:
    return {
        "event": "progress",
        "what": at.what,
        "done": at.done,
        "total": at.total or None,
        "unit": at.unit,
        "per_second": None if pace.per_second is None else round(pace.per_second, 1),
        "seconds_left": None if pace.seconds_left is None else round(pace.seconds_left, 1),
        "bytes": at.bytes or None,
        "partitions": None if at.partitions is None else list(at.partitions),
    }


class Lines:
    """A line now and then: for people who read a file, or as an event for programs."""

    def __init__(self, *, as_json: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._as_json = as_json
        self._now = now
        self._clock = Clock(now)
        self._told = now()

    def __call__(self, at: "Progress") -> None:
        pace = self._clock.pace(at)
        if self._now() < self._told + LINE_SECONDS:
            return
        self._told = self._now()
        if self._as_json:
            print(json.dumps(event(at, pace), ensure_ascii=False), file=sys.stderr, flush=True)
        else:
            known = told(at, pace)
            note(f"{at.what}: {known}" if known else at.what)


@contextmanager
def shown(*, as_json: bool) -> "Iterator[OnProgress]":
    """Where progress is told to while inside."""
    from tidelog.spark.progress import Progress

    if as_json or not sys.stderr.isatty():
        yield Lines(as_json=as_json)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    clock = Clock()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(STARTING, total=None, told="")

        def on_progress(at: Progress) -> None:
            bar.update(
                task,
                description=plain(at.what),
                completed=at.done,
                total=at.total or None,
                told=told(at, clock.pace(at)),
            )

        yield on_progress
