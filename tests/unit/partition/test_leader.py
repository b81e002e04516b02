from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.partition.leader import Leader


@dataclass(eq=False)
class Waiting:
    """A producer that waits; the machine only hands it back."""

    end: int = 0
    deadline: float = field(default=float("inf"))

    def settled(self, error):
        raise AssertionError("the machine tells nobody; its driver does")


def leader_of(*in_sync, log_end=0, held=0, high_watermark=0):
    return Leader(
        me=1, epoch=4, log_end=log_end, held=held, high_watermark=high_watermark, in_sync=in_sync
    )


# The watermark.


def test_alone_the_watermark_is_what_the_leader_holds():
    leader = leader_of(1)

    settled = leader.holds(1, 7)

    assert settled.advanced
    assert leader.high_watermark == 7


def test_the_watermark_waits_for_the_slowest_in_sync_replica():
    leader = leader_of(1, 2, 3)

    assert not leader.holds(1, 10).advanced
    assert not leader.holds(2, 9).advanced
    assert leader.high_watermark == 0
    assert leader.holds(3, 4).advanced
    assert leader.high_watermark == 4
    assert leader.holds(3, 20).advanced
    assert leader.high_watermark == 9


def test_a_replica_out_of_sync_neither_raises_nor_holds_back_the_watermark():
    leader = leader_of(1, 2)

    leader.holds(3, 1)
    leader.holds(1, 5)
    assert leader.high_watermark == 0
    leader.holds(2, 5)

    assert leader.high_watermark == 5


@given(
    in_sync=st.sampled_from([(1,), (1, 2), (1, 2, 3)]),
    events=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), max_size=30),
)
def test_the_watermark_is_the_least_held_end_and_only_rises(in_sync, events):
    leader = leader_of(*in_sync)
    held = {1: 0, 2: 0, 3: 0, 4: 0}
    for node, end in events:
        before = leader.high_watermark

        settled = leader.holds(node, end)

        held[node] = max(held[node], end)
        assert leader.high_watermark == min(held[node] for node in in_sync)
        assert settled.advanced == (leader.high_watermark > before)


def test_a_new_leader_keeps_the_watermark_until_followers_say_what_they_hold():
    leader = leader_of(1, 2, log_end=10, held=10, high_watermark=6)

    assert leader.high_watermark == 6
    assert not leader.knows_watermark
    leader.holds(2, 9)
    assert not leader.knows_watermark
    leader.holds(2, 10)
    assert leader.knows_watermark


def test_alone_a_new_leader_knows_the_watermark_once_all_it_found_is_synced():
    leader = leader_of(1, log_end=10, held=8, high_watermark=3)
    assert (leader.high_watermark, leader.knows_watermark) == (8, False)

    leader.holds(1, 10)

    assert leader.knows_watermark


# Waiters.


def test_what_is_reached_already_is_not_waited_for():
    leader = leader_of(1, log_end=5, held=5, high_watermark=5)

    assert leader.wait_written(5, Waiting())
    assert leader.wait_committed(5, Waiting())
    assert leader.waiting == 0


def test_acks_one_is_released_by_the_write_and_acks_all_by_the_watermark():
    leader = leader_of(1, 2)
    one, everyone = Waiting(), Waiting()
    assert not leader.wait_written(3, one)
    assert not leader.wait_committed(3, everyone)
    assert leader.awaits_written

    assert leader.written(2).waiters == []
    assert leader.written(3).waiters == [one]
    assert not leader.awaits_written
    assert leader.holds(1, 3).waiters == []
    assert leader.holds(2, 2).waiters == []
    assert leader.holds(2, 3).waiters == [everyone]
    assert leader.waiting == 0


def test_a_write_alone_moves_no_watermark():
    leader = leader_of(1)

    assert not leader.written(9).advanced
    assert leader.high_watermark == 0


def test_waiters_are_released_in_the_order_of_their_ends():
    leader = leader_of(1)
    waiters = [Waiting(end) for end in (1, 4, 4, 9)]
    for waiter in waiters:
        leader.wait_committed(waiter.end, waiter)

    assert leader.holds(1, 8).waiters == waiters[:3]
    assert leader.holds(1, 9).waiters == waiters[3:]


def test_a_retry_of_something_in_flight_is_released_with_it():
    leader = leader_of(1)
    first, second, retry = Waiting(3), Waiting(6), Waiting(3)
    for waiter in (first, second, retry):
        leader.wait_committed(waiter.end, waiter)

    assert leader.holds(1, 3).waiters == [first, retry]
    assert leader.holds(1, 6).waiters == [second]


@given(
    acks=st.sampled_from([1, -1]),
    events=st.lists(
        st.tuples(st.sampled_from(["wait", "reach", "expire"]), st.integers(1, 30)), max_size=40
    ),
)
def test_each_waiter_is_released_once_and_never_early(acks, events):
    leader = leader_of(1)
    reached, told = 0, []
    waiting: list[Waiting] = []
    for kind, number in events:
        if kind == "wait":
            waiter = Waiting(number, deadline=float(number % 7))
            wait = leader.wait_written if acks == 1 else leader.wait_committed
            if wait(number, waiter):
                assert number <= reached
            else:
                waiting.append(waiter)
        elif kind == "expire":
            late = leader.expire(number / 5)
            assert set(late) == {w for w in waiting if w.deadline <= number / 5}
            waiting = [w for w in waiting if w not in late]
            told += late
        elif number > reached:
            reached = number
            settled = leader.written(number) if acks == 1 else leader.holds(1, number)
            due = [w for w in waiting if w.end <= number]
            assert settled.waiters == sorted(due, key=lambda w: w.end)
            waiting = [w for w in waiting if w.end > number]
            told += settled.waiters
        assert leader.waiting == len(waiting)
    assert len(set(told)) == len(told)


def test_waiters_past_their_deadline_are_given_up_and_no_others():
    leader = leader_of(1)
    early, late, written = Waiting(deadline=1.0), Waiting(deadline=2.5), Waiting(deadline=2.0)
    leader.wait_committed(5, early)
    leader.wait_committed(6, late)
    leader.wait_written(6, written)

    assert leader.expire(0.9) == []
    assert set(leader.expire(2.0)) == {early, written}
    assert leader.holds(1, 6).waiters == [late]


def test_losing_the_end_of_the_log_fails_those_who_wait_for_it():
    leader = leader_of(1)
    kept, lost, lost_written = Waiting(), Waiting(), Waiting()
    leader.wait_committed(4, kept)
    leader.wait_committed(5, lost)
    leader.wait_written(5, lost_written)

    assert set(leader.lose_after(4)) == {lost, lost_written}
    assert leader.holds(1, 4).waiters == [kept]
    assert leader.waiting == 0


def test_after_a_loss_the_same_offsets_are_waited_for_again():
    leader = leader_of(1)
    leader.written(8)

    leader.lose_after(4)

    assert not leader.wait_written(5, Waiting())


def test_losing_what_is_committed_is_our_own_bug():
    leader = leader_of(1)
    leader.holds(1, 5)

    with pytest.raises(AssertionError, match="never lost"):
        leader.lose_after(4)


def test_a_leader_outside_of_its_in_sync_set_is_our_own_bug():
    with pytest.raises(AssertionError, match="in sync with itself"):
        leader_of(2, 3)
