"""How far a job on Spark is, as people and programs are told it."""

import json
import sys

import pytest

from tidelog.faces.cli.spark_progress import Clock, Lines, Pace, event, shown, told
from tidelog.spark.progress import OnProgress, Progress, as_records


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def archiving(done: int, total: int = 5000) -> Progress:
    return Progress("archiving", done, total, "records", bytes=81_920, partitions=(1, 4))


def test_the_pace_is_of_what_was_done_since_the_step_began() -> None:
    time = Time()
    clock = Clock(time)

    assert clock.pace(archiving(1000)) == Pace()
    time.now += 2
    assert clock.pace(archiving(1800)) == Pace(400, 8)
    time.now += 2
    assert clock.pace(Progress("comparing", 3, 6)) == Pace(), "another step begins anew"
    time.now += 3
    assert clock.pace(Progress("comparing", 6, 6)) == Pace(1, 0)


def test_a_pace_without_a_total_has_no_end() -> None:
    time = Time()
    clock = Clock(time)
    clock.pace(archiving(0, 0))
    time.now += 2

    assert clock.pace(archiving(800, 0)) == Pace(400, None)


@pytest.mark.parametrize(
    ("at", "pace", "text"),
    [
        (
            archiving(1200),
            Pace(400, 9.5),
            "1,200 of 5,000 records (24 %), 400/s, 10 s left, 1 of 4 partitions, 81.9 kB",
        ),
        (Progress("replaying", 1200, 0, "records"), Pace(400), "1,200 records, 400/s"),
        (Progress("comparing", 3, 6), Pace(0.1, 7322), "3 of 6 tasks (50 %), 2 h 2 min left"),
        (Progress("comparing", 3, 6), Pace(0.1, 61), "3 of 6 tasks (50 %), 1 min 1 s left"),
        (Progress("starting"), Pace(), ""),
    ],
)
def test_what_a_person_is_told(at: Progress, pace: Pace, text: str) -> None:
    assert told(at, pace) == text


def test_a_line_every_ten_seconds_goes_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    time = Time()
    lines = Lines(as_json=False, now=time)
    for _ in range(100):
        lines(archiving(int(40 * (time.now - 100))))
        time.now += 0.25

    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split(" of ")[0] for line in printed.err.splitlines()] == [
        "archiving: 400",
        "archiving: 800",
    ]


def test_a_program_is_told_events_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    time = Time()
    lines = Lines(as_json=True, now=time)
    lines(archiving(0))
    time.now += 10
    lines(archiving(1000))

    printed = capsys.readouterr()
    assert printed.out == ""
    assert (
        json.loads(printed.err)
        == event(archiving(1000), Pace(100, 40))
        == {
            "event": "progress",
            "what": "archiving",
            "done": 1000,
            "total": 5000,
            "unit": "records",
            "per_second": 100.0,
            "seconds_left": 40.0,
            "bytes": 81_920,
            "partitions": [1, 4],
        }
    )


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    with shown(as_json=False) as on_progress:
        assert not isinstance(on_progress, Lines)
        on_progress(archiving(1000))
    with shown(as_json=True) as on_progress:
        assert isinstance(on_progress, Lines)


def test_tasks_are_told_as_their_share_of_all_records() -> None:
    seen: list[Progress] = []
    tell: OnProgress | None = as_records(seen.append, before=100, here=50, total=400)
    assert tell is not None

    tell(Progress("restoring"))
    tell(Progress("restoring", 1, 2))

    assert seen == [Progress("restoring", 100, 400, "records"), Progress("restoring", 125, 400, "records")]
    assert as_records(None, before=0, here=1, total=1) is None
