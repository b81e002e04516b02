"""Where a leader's log begins: nowhere that a later leader's would not."""

from typing import Any

from tests.unit.partition.test_driver import Producer
from tidelog.partition.leader import Leader

LIFE = {1: 11, 2: 12, 3: 13}


def leader_of(*in_sync: int, end: int = 10, watermark: int = 10, **more: Any) -> Leader:
    """Node 1 leads, and the others have fetched up to the end."""
    leader = Leader(
        me=1,
        epoch=3,
        log_end=end,
        held=end,
        high_watermark=watermark,
        in_sync=in_sync,
        replicas=(1, 2, 3),
        **more,
    )
    for node in (2, 3):
        leader.fetched(node, LIFE[node], end, end, 0.0)
        leader.holds(node, end, LIFE[node])
    return leader


def test_the_start_waits_for_the_promise_of_every_replica_in_sync():
    leader = leader_of(1, 2, 3)
    leader.want_start(7)
    leader.promises(2, 7, LIFE[2])
    assert leader.start_agreed == 0

    leader.promises(3, 5, LIFE[3])
    assert leader.start_agreed == 5
    leader.promises(3, 7, LIFE[3])
    assert leader.start_agreed == 7


def test_a_replica_that_is_not_in_sync_keeps_nobody_waiting():
    leader = leader_of(1, 2)
    leader.want_start(7)

    leader.promises(2, 7, LIFE[2])

    assert leader.start_agreed == 7


def test_one_that_may_be_in_sync_already_is_waited_for():
    leader = leader_of(1, 2)
    leader.promises(3, 0, LIFE[3])
    leader.propose(0.0, 10.0, LIFE)
    leader.want_start(7)

    leader.promises(2, 7, LIFE[2])
    assert leader.start_agreed == 0
    leader.promises(3, 7, LIFE[3])
    assert leader.start_agreed == 7


def test_alone_in_sync_a_leader_needs_no_promise():
    leader = leader_of(1)

    leader.want_start(7)

    assert leader.start_agreed == 7


def test_a_set_that_is_too_small_agrees_on_nothing():
    leader = leader_of(1, min_in_sync=2)
    leader.want_start(7)
    assert leader.start_agreed == 0

    leader.promises(2, 7, LIFE[2])
    leader.decided([1, 2], 1)

    assert leader.start_agreed == 7


def test_a_promise_of_another_life_does_not_count():
    leader = leader_of(1, 2)
    leader.want_start(7)
    leader.promises(2, 7, LIFE[2] - 1)
    assert leader.start_agreed == 0

    leader.want_start(8)
    leader.promises(2, 7, LIFE[2])
    leader.fetched(2, LIFE[2] + 1, 10, 10, 1.0)

    assert leader.followers[2].promised == 0


def test_who_joins_has_promised_what_was_ever_shown():
    leader = leader_of(1, 2)
    leader.want_start(7)
    leader.promises(2, 7, LIFE[2])
    assert leader.propose(0.0, 10.0, LIFE) is None

    leader.promises(3, 7, LIFE[3])

    assert leader.propose(0.0, 10.0, LIFE) == LIFE


def test_who_waits_is_told_once_the_log_begins_there():
    leader, early, late = leader_of(1), Producer(), Producer()
    leader.want_start(7)
    assert not leader.wait_start(5, early)
    assert not leader.wait_start(7, late)

    assert leader.start_moved(5).waiters == [early]
    assert leader.start_moved(7).waiters == [late]
    assert leader.wait_start(7, Producer())


def test_who_waits_for_too_long_is_told_so():
    leader, waiter = leader_of(1, 2), Producer(deadline=5.0)
    leader.want_start(7)
    leader.wait_start(7, waiter)

    assert leader.expire(4.0) == []
    assert leader.expire(5.0) == [waiter]


def test_a_new_leader_shows_nothing_before_what_it_has_promised_is_agreed_on():
    leader = leader_of(1, 2, promised=7)
    assert (leader.start_wanted, leader.start_agreed) == (7, 0)
    assert not leader.knows_watermark

    leader.promises(2, 7, LIFE[2])
    assert leader.start_agreed == 7
    assert not leader.knows_watermark, "its log begins at 0 still"
    leader.start_moved(7)

    assert leader.knows_watermark


def test_a_start_that_a_crash_could_take_back_is_not_shown():
    leader = leader_of(1, 2)
    leader.start_moved(3)

    leader.hide_start(7)
    assert not leader.knows_watermark

    leader.start_moved(7)
    assert leader.knows_watermark


def test_a_start_is_never_past_the_watermark():
    leader = leader_of(1, 2, end=10, watermark=4, promised=7)
    leader.followers[2].held = 4
    assert leader.high_watermark == 10

    behind = Leader(me=1, epoch=3, log_end=10, held=10, high_watermark=4, in_sync=(1, 2), promised=7)
    behind.fetched(2, LIFE[2], 10, 10, 0.0)
    behind.promises(2, 7, LIFE[2])
    assert behind.start_agreed == 4

    behind.holds(2, 10, LIFE[2])
    assert behind.start_agreed == 7


def test_a_new_leader_of_a_set_that_is_too_small_is_read_once_another_joins():
    leader = leader_of(1, min_in_sync=2, promised=7)
    assert not leader.knows_watermark
    assert leader.propose(0.0, 10.0, LIFE) is None  # who joins has promised it, too

    leader.promises(2, 7, LIFE[2])
    assert leader.propose(0.0, 10.0, LIFE) == {1: 11, 2: 12}
    leader.decided([1, 2], 1)
    assert leader.start_agreed == 7
    leader.start_moved(7)

    assert leader.knows_watermark


def test_a_new_leader_of_a_set_that_is_too_small_is_read_once_fewer_suffice():
    leader = leader_of(1, min_in_sync=2, promised=7)
    assert not leader.knows_watermark

    leader.min_in_sync = 1
    leader.advance()
    assert leader.start_agreed == 7
    leader.start_moved(7)

    assert leader.knows_watermark
