"""Whether a moment is past, though a clock may be wrong."""

from tidelog.shards.believed import PATIENCE_MS, BelievedTime
from tidelog.shards.effects import Moment

WALL_MS = 1_700_000_000_000
MINUTE, DAY = 60, 24 * 60 * 60
WEEK_MS = 7 * DAY * 1000


def clock(*looks: tuple[float, float]) -> BelievedTime:
    """Looks at so many seconds, by a clock that is so many seconds ahead."""
    time = BelievedTime()
    for now, ahead in looks:
        time.look(Moment(float(now), WALL_MS + int((now + ahead) * 1000)))
    return time


def test_a_moment_is_past_when_both_clocks_have_passed_it():
    assert not clock((0, 0), (7 * DAY - 1, 0)).is_past(WALL_MS + WEEK_MS, WEEK_MS)
    assert clock((0, 0), (7 * DAY, 0)).is_past(WALL_MS + WEEK_MS, WEEK_MS)


def test_a_clock_that_jumps_is_not_believed_before_it_has_been_so_for_long():
    jumped = [(0, 0), (60, 8 * DAY)]
    later = [(60 + minutes * MINUTE, 8 * DAY) for minutes in range(0, 24 * 60, 10)]

    assert not clock(*jumped).is_past(WALL_MS + WEEK_MS, WEEK_MS)
    assert not clock(*jumped, *later).is_past(WALL_MS + WEEK_MS, WEEK_MS)
    assert clock(*jumped, *later, (1.2 * DAY, 8 * DAY)).is_past(WALL_MS + WEEK_MS, WEEK_MS)


def test_a_clock_that_was_right_for_a_moment_is_not_believed_either():
    looks = [(minutes * MINUTE, 8 * DAY) for minutes in range(0, 2 * 24 * 60, 10)]
    looks[-20] = (looks[-20][0], 0)

    assert not clock(*looks).is_past(WALL_MS + WEEK_MS, WEEK_MS)


def test_who_has_just_begun_believes_no_clock_but_for_what_is_short():
    assert not clock((0, 0)).is_past(WALL_MS - 1, WEEK_MS)
    assert not clock((0, 0), (59, 0)).is_past(WALL_MS + 59_000, 60_000)
    assert clock((0, 0), (60, 0)).is_past(WALL_MS + 60_000, 60_000)
    assert clock((0, 0), (DAY, 0)).is_past(WALL_MS, WEEK_MS)


def test_few_looks_are_remembered():
    time = clock(*((number, number % 7) for number in range(0, 3 * DAY, 100)))

    assert len(time._known) <= 18
    assert PATIENCE_MS == DAY * 1000
