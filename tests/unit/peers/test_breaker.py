"""The breaker's table, row by row; no clock and no network."""

import pytest

from tidelog.peers.breaker import Breaker, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
LONGEST, SHORTEST = 1.0, 0.0
"""Draws: all of the backoff, half of it."""


def closed() -> Breaker:
    return Breaker(now=100.0)


def opened(*, draw: float = LONGEST) -> Breaker:
    """Opened at 100.0."""
    breaker = closed()
    assert breaker.begin(100.0)
    assert breaker.failed(100.0, "nobody listens there", draw=draw)
    return breaker


def half_open() -> Breaker:
    """Opened at 100.0, half-open since 100.1."""
    breaker = opened()
    assert breaker.begin(100.1)
    return breaker


def test_a_new_breaker_is_closed_and_lets_a_try_go():
    breaker = closed()

    assert breaker.status().state is CLOSED
    assert breaker.begin(100.0)
    assert breaker.state is CLOSED


def test_a_try_that_succeeds_leaves_it_closed():
    breaker = closed()
    breaker.begin(100.0)

    assert breaker.succeeded(100.5) is None

    assert breaker.state is CLOSED
    assert breaker.status().since == 100.0
    assert breaker.begin(100.5)


def test_a_try_that_fails_opens_it():
    breaker = closed()
    breaker.begin(100.0)

    assert breaker.failed(100.5, "no answer", draw=LONGEST)

    status = breaker.status()
    assert (status.state, status.since, status.open_since) == (OPEN, 100.5, 100.5)
    assert status.last_error == "no answer"


@pytest.mark.parametrize(("draw", "wait"), [(SHORTEST, 0.025), (0.5, 0.0375), (LONGEST, 0.05)])
def test_open_it_lets_no_try_go_before_its_time(draw, wait):
    breaker = opened(draw=draw)

    assert breaker.status().retry_at == pytest.approx(100.0 + wait)
    assert not breaker.begin(100.0)
    assert not breaker.begin(100.0 + wait - 0.001)
    assert breaker.state is OPEN
    assert breaker.begin(100.0 + wait + 0.001)
    assert breaker.state is HALF_OPEN


def test_half_open_it_lets_no_second_try_go_however_long_the_first_takes():
    breaker = half_open()

    assert not breaker.begin(100.1)
    assert not breaker.begin(1000.0)
    assert breaker.state is HALF_OPEN
    assert breaker.status().since == 100.1


def test_half_open_a_success_closes_it_and_the_backoff_begins_anew():
    breaker = half_open()
    breaker.failed(100.2, "no answer", draw=LONGEST)
    breaker.begin(101.0)

    assert breaker.succeeded(101.5) == pytest.approx(1.5)

    status = breaker.status()
    assert (status.state, status.since, status.open_since) == (CLOSED, 101.5, None)
    assert status.consecutive_failures == 0
    breaker.begin(102.0)
    breaker.failed(102.0, "no answer", draw=LONGEST)
    assert breaker.status().retry_at == pytest.approx(102.05)


def test_half_open_a_failure_opens_it_for_twice_as_long_and_is_no_news():
    breaker = half_open()

    assert not breaker.failed(100.2, "no answer", draw=LONGEST)

    status = breaker.status()
    assert (status.state, status.since, status.open_since) == (OPEN, 100.2, 100.0)
    assert status.retry_at == pytest.approx(100.3)


@pytest.mark.parametrize(("draw", "share"), [(SHORTEST, 0.5), (LONGEST, 1.0)])
def test_the_wait_doubles_up_to_a_second_and_stays_there_for_days(draw, share):
    breaker = closed()
    now = 100.0
    waits = []
    for _ in range(3000):  # doubled so often, a float would overflow
        assert breaker.begin(now)
        breaker.failed(now, "no answer", draw=draw)
        retry_at = breaker.status().retry_at
        assert retry_at is not None
        waits.append(retry_at - now)
        now = retry_at

    assert waits[:6] == pytest.approx([share * wait for wait in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)])
    assert waits[6:] == pytest.approx([share] * 2994)


def test_open_whoever_must_know_gets_one_try_at_once():
    breaker = opened()

    breaker.hurry(100.001)

    assert breaker.state is OPEN
    assert breaker.begin(100.001)
    assert breaker.state is HALF_OPEN
    breaker.failed(100.002, "no answer", draw=LONGEST)
    assert not breaker.begin(100.003)


def test_hurry_changes_nothing_when_closed_or_half_open():
    for breaker, state in ((closed(), CLOSED), (half_open(), HALF_OPEN)):
        before = breaker.status()

        breaker.hurry(100.2)

        assert breaker.state is state
        assert breaker.status() == before


def test_hurry_never_puts_a_try_off():
    breaker = opened()

    breaker.hurry(200.0)

    assert breaker.begin(150.0)


def test_half_open_an_abandoned_try_makes_room_for_the_next():
    breaker = half_open()

    breaker.abandoned(100.2)

    assert breaker.state is OPEN
    assert breaker.begin(100.2)
    assert breaker.status().failures == 1  # of an abandoned try nothing is known


def test_closed_an_abandoned_try_leaves_it_closed():
    breaker = closed()
    breaker.begin(100.0)

    breaker.abandoned(100.2)

    assert breaker.state is CLOSED


def test_a_lost_connection_leaves_it_closed_so_that_the_next_try_goes_at_once():
    breaker = closed()
    breaker.begin(100.0)
    breaker.succeeded(100.0)

    breaker.lost("the connection broke")

    assert breaker.state is CLOSED
    assert breaker.begin(100.0)
    assert breaker.status().connections_lost == 1
    assert breaker.status().last_error == "the connection broke"


def test_requests_that_fail_are_counted_and_open_nothing():
    breaker = closed()

    for _ in range(100):
        breaker.request_failed()

    assert breaker.status().requests_failed == 100
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    "end",
    [
        lambda breaker: breaker.succeeded(100.2),
        lambda breaker: breaker.failed(100.2, "no answer", draw=LONGEST),
        lambda breaker: breaker.abandoned(100.2),
    ],
)
def test_a_try_that_did_not_begin_cannot_end(end):
    breaker = opened()

    with pytest.raises(AssertionError, match="begins before it ends"):
        end(breaker)


def test_it_counts_what_happened():
    breaker = opened()
    assert not breaker.begin(100.01)  # a try that may not go is none
    breaker.begin(100.1)
    breaker.failed(100.1, "no answer", draw=LONGEST)
    breaker.begin(100.3)
    breaker.succeeded(100.3)
    breaker.begin(100.4)
    breaker.failed(100.4, "nobody listens there", draw=LONGEST)

    status = breaker.status()

    assert (status.attempts, status.failures, status.consecutive_failures) == (4, 3, 1)
    assert status.times_opened == 2
    assert status.last_error == "nobody listens there"
    assert "open since 100.4" in repr(breaker)
