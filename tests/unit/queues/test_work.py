"""Work queues without a log: what waits, and for how long."""

import pytest

from tidelog.queues.records import MAIN, About, Delivery, Settings
from tidelog.queues.work import State, WorkQueue
from tidelog.shards.effects import Moment

HOUR_MS = 3_600_000


def at(seconds: float, *, ahead_ms: int = 0) -> Moment:
    """A moment on a node whose clock is so much ahead of the others'."""
    return Moment(now=seconds, wall_ms=int(seconds * 1000) + 10 * HOUR_MS + ahead_ms)


@pytest.fixture
def queue() -> WorkQueue:
    return WorkQueue("q", Settings())


def is_ready(queue: WorkQueue, moment: Moment) -> bool:
    for job in queue.due(moment):
        queue.release(job, moment)
    return queue.has_ready(MAIN)


def test_a_delay_is_over_in_time_though_the_clock_of_who_wrote_it_was_ahead(queue):
    put_back_ms = at(0, ahead_ms=HOUR_MS).wall_ms + 2000
    queue.replayed(0, 7, About(), made_ms=0)
    queue.replayed_delivery(0, Delivery(7, 1, not_before_ms=put_back_ms, delay_ms=2000))
    queue.start(at(0))

    assert not is_ready(queue, at(1.9))
    assert is_ready(queue, at(2.1))


def test_a_delay_is_over_in_time_though_the_clock_is_put_back(queue):
    queue.stored(0, 7, About(delay_ms=2000).from_now(at(0).wall_ms), 0, at(0))

    assert not is_ready(queue, at(1.9))
    assert is_ready(queue, at(2.1, ahead_ms=-HOUR_MS))


def test_a_delay_that_has_passed_is_not_waited_for_again_after_a_failover(queue):
    about = About(delay_ms=2000).from_now(at(0).wall_ms)
    queue.replayed(0, 7, about, made_ms=0)
    queue.start(at(3))

    assert is_ready(queue, at(3))


def test_a_time_is_waited_for_by_the_clock_of_who_leads(queue):
    queue.stored(0, 7, About(not_before_ms=at(2).wall_ms), 0, at(0))

    assert not is_ready(queue, at(2.1, ahead_ms=-HOUR_MS))
    assert queue.jobs[7].state is State.DELAYED
    assert is_ready(queue, at(2.1 + 3600, ahead_ms=-HOUR_MS))
