import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import Waiting
from tidelog.model import NO_OFFSET
from tidelog.partition.follower_view import NO_LIFE
from tidelog.partition.leader import Leader, Settled

NOTHING = Settled([])
LAG = 10.0
LIVES = {1: 11, 2: 12, 3: 13}


def leader_of(*in_sync, log_end=0, held=0, high_watermark=0, **more):
    return Leader(
        me=1, epoch=4, log_end=log_end, held=held, high_watermark=high_watermark, in_sync=in_sync, **more
    )


def join(leader, node, *, end, at=0.0):
    """A follower fetches at the end, in the life of `LIVES`, and tells what it holds."""
    leader.fetched(node, LIVES[node], 100, 100, at)
    leader.holds(node, end, LIVES[node])


def keep_level(leader, node, *, at):
    """A follower that holds everything asks for more."""
    end = leader.followers[node].held
    leader.fetched(node, LIVES[node], end, end, at)


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
    events=st.lists(st.tuples(st.sampled_from(["wait", "reach", "expire"]), st.integers(1, 30)), max_size=40),
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


# Too few in sync.


def test_below_the_minimum_nothing_is_committed():
    leader = leader_of(1, min_in_sync=2)
    waiter = Waiting()
    leader.wait_committed(3, waiter)

    assert leader.is_short
    assert leader.holds(1, 3) == NOTHING
    assert leader.high_watermark == 0

    leader.min_in_sync = 1
    assert leader.advance().waiters == [waiter]
    assert leader.high_watermark == 3


def test_a_new_leader_that_is_short_commits_nothing_of_what_it_finds():
    leader = leader_of(1, log_end=9, held=9, high_watermark=4, min_in_sync=2)

    assert (leader.high_watermark, leader.knows_watermark) == (4, False)


def test_the_minimum_counts_the_committed_set_and_not_who_is_proposed():
    leader = leader_of(1, replicas=(1, 2), min_in_sync=2)
    join(leader, 2, end=0)
    assert leader.propose(0.0, LAG, LIVES) == {1: 11, 2: 12}

    leader.holds(2, 5, 12)
    leader.holds(1, 5)
    assert leader.high_watermark == 0

    assert leader.decided({1, 2}, 1).advanced
    assert leader.high_watermark == 5


def test_who_waits_in_vain_is_handed_back_once():
    leader = leader_of(1, 2, min_in_sync=2)
    written, committed = Waiting(), Waiting()
    leader.wait_written(2, written)
    leader.wait_committed(2, committed)

    assert leader.take_uncommitted() == [committed]
    assert leader.take_uncommitted() == []
    assert leader.take_written() == [written]
    assert leader.waiting == 0


# What followers tell counts in one life, in one epoch.


def test_what_a_follower_holds_does_not_fall():
    leader = leader_of(1, 2)
    leader.holds(1, 9)
    leader.holds(2, 5)

    assert leader.holds(2, 3) == NOTHING
    assert leader.followers[2].held == 5


def test_a_word_from_another_life_counts_for_nothing():
    leader = leader_of(1, 2, log_end=4, held=4)
    leader.fetched(2, 7, 0, 4, 0.0)

    assert leader.holds(2, 4, 6) == NOTHING
    assert leader.holds(2, 4, 8) == NOTHING
    assert leader.holds(2, 4, 7).advanced


def test_a_word_before_the_logs_were_compared_counts_for_nothing():
    leader = leader_of(1, 2, log_end=4, held=4)

    assert leader.holds(2, 4, 7) == NOTHING


def test_who_comes_back_in_another_life_holds_nothing_until_it_says_so():
    leader = leader_of(1, 2)
    leader.fetched(2, 7, 0, 0, 0.0)
    leader.holds(2, 5, 7)
    leader.holds(1, 9)
    assert leader.high_watermark == 5

    leader.fetched(2, 8, 0, 9, 1.0)
    assert leader.followers[2].held == NO_OFFSET
    assert leader.holds(2, 3, 8) == NOTHING, "the watermark does not fall, nor rise"
    assert leader.high_watermark == 5
    leader.holds(2, 9, 8)
    assert leader.high_watermark == 9


def test_a_fetch_of_an_earlier_life_changes_nothing():
    leader = leader_of(1, 2)
    leader.fetched(2, 8, 0, 0, 0.0)
    leader.holds(2, 5, 8)

    leader.fetched(2, 7, 1, 6, 3.0)

    view = leader.followers[2]
    assert (view.broker_epoch, view.held, view.offset, view.level_at) == (8, 5, 0, 0.0)


def test_who_is_in_sync_is_taken_to_hold_what_is_committed_in_its_first_life_here():
    leader = leader_of(1, 2, replicas=(1, 2, 3), log_end=9, held=9, high_watermark=6)

    leader.fetched(2, 7, 9, 9, 0.0)
    leader.fetched(3, 7, 9, 9, 0.0)

    assert leader.followers[2].held == 6
    assert leader.followers[3].held == NO_OFFSET


def test_who_holds_no_replica_is_not_listened_to():
    leader = leader_of(1, 2)

    leader.fetched(9, 1, 0, 0, 0.0)
    leader.stays_level(9, 5.0, 0, 5.0)

    assert leader.holds(9, 5, 1) == NOTHING
    assert 9 not in leader.followers


# Level.


@pytest.mark.parametrize(
    ("fetches", "level_at"),
    [
        ([(10, 10, 5.0)], 5.0),  # at the end
        ([(3, 10, 5.0)], 0.0),  # behind
        ([(3, 10, 5.0), (10, 20, 6.0)], 5.0),  # it has reached the end that it saw before
        ([(3, 10, 5.0), (9, 20, 6.0)], 0.0),
        ([(3, 10, 5.0), (20, 20, 6.0)], 6.0),
        ([(10, 10, 5.0), (9, 20, 6.0)], 5.0),
    ],
)
def test_a_follower_is_level_when_it_reads_at_the_end_that_it_last_saw(fetches, level_at):
    leader = leader_of(1, 2)

    for offset, log_end, now in fetches:
        leader.fetched(2, 7, offset, log_end, now)

    assert leader.followers[2].level_at == level_at


def test_who_waits_at_the_end_stays_level_and_never_was_so_earlier():
    leader = leader_of(1, 2)

    leader.stays_level(2, 4.0, 0, 4.5)
    leader.stays_level(2, 3.0, 0, 4.5)

    assert leader.followers[2].level_at == 4.0


def test_who_reads_but_does_not_hold_is_late_in_the_end():
    """Its disk hangs: it would keep everybody waiting."""
    leader = leader_of(1, 2)
    for at in range(int(LAG) + 1):
        leader.fetched(2, 7, 3 + at, 3 + at, float(at))
        assert not leader.followers[2].is_late(float(at), LAG)

    assert leader.followers[2].level_at == LAG
    assert leader.followers[2].is_late(LAG + 0.1, LAG)


def test_who_holds_what_there_was_at_an_earlier_fetch_is_not_late():
    leader = leader_of(1, 2)
    for at in range(3 * int(LAG)):
        leader.fetched(2, 7, 3 + at, 3 + at, float(at))
        leader.holds(2, 2 + at, 7)  # one behind

    assert not leader.followers[2].is_late(3 * LAG, LAG)


def test_who_waits_at_the_end_and_holds_it_is_not_late_though_it_says_nothing():
    leader = leader_of(1, 2)
    leader.fetched(2, 7, 3, 3, 0.0)
    leader.holds(2, 3, 7)

    leader.stays_level(2, 2 * LAG, 3, 2 * LAG)

    assert not leader.followers[2].is_late(2 * LAG, LAG)


def test_who_waits_at_the_end_and_does_not_hold_it_is_late():
    leader = leader_of(1, 2)
    leader.fetched(2, 7, 3, 3, 0.0)

    leader.stays_level(2, 2 * LAG, 3, 2 * LAG)

    assert leader.followers[2].is_late(2 * LAG, LAG)


def test_who_asks_for_what_it_said_that_it_holds_does_not_hold_it():
    leader = leader_of(1, 2)
    leader.fetched(2, 7, 0, 0, 0.0)
    leader.holds(2, 9, 7)

    leader.fetched(2, 7, 5, 9, 1.0)
    leader.holds(1, 9)

    assert leader.high_watermark == 5


# Proposals.


def test_who_is_level_and_holds_all_that_counts_is_proposed_in_the_life_it_fetches_in():
    leader = leader_of(1, 2, replicas=(1, 2, 3), log_end=5, held=5, high_watermark=3)
    join(leader, 3, end=5)

    assert leader.propose(0.0, LAG, LIVES) == {1: 11, 2: 12, 3: 13}
    assert leader.in_flight
    assert leader.maximal == {1, 2, 3}


@pytest.mark.parametrize("held", [NO_OFFSET, 2, 3, 4])
def test_who_does_not_hold_what_was_there_before_the_epoch_is_not_let_in(held):
    """Below the epoch's start something may be committed that this leader does not know of."""
    leader = leader_of(1, 2, replicas=(1, 2, 3), log_end=5, held=5, high_watermark=3)
    join(leader, 3, end=held)

    assert leader.propose(0.0, LAG, LIVES) is None


def test_who_does_not_hold_what_is_committed_is_not_let_in():
    leader = leader_of(1, replicas=(1, 2))
    leader.holds(1, 9)
    join(leader, 2, end=8)

    assert leader.propose(0.0, LAG, LIVES) is None
    leader.holds(2, 9, 12)
    assert leader.propose(0.0, LAG, LIVES) is not None


@pytest.mark.parametrize("life", [{}, {3: 12}, {3: 14}])
def test_who_is_not_there_or_in_another_life_is_not_let_in(life):
    leader = leader_of(1, 2, replicas=(1, 2, 3))
    join(leader, 3, end=0)

    assert leader.propose(0.0, LAG, {1: 11, 2: 12} | life) is None


def test_who_is_late_is_not_let_in():
    leader = leader_of(1, replicas=(1, 2))
    join(leader, 2, end=0)

    assert leader.propose(LAG + 0.1, LAG, LIVES) is None
    assert leader.propose(LAG, LAG, LIVES) is not None


def test_who_falls_behind_is_left_out():
    leader = leader_of(1, 2, 3)
    keep_level(leader, 2, at=5.0)

    assert leader.propose(LAG, LAG, LIVES) is None
    assert leader.propose(LAG + 0.1, LAG, LIVES) == {1: 11, 2: 12}


def test_who_has_no_room_is_left_out_until_it_reads_again():
    leader = leader_of(1, 2, 3)
    join(leader, 2, end=0)
    join(leader, 3, end=0)

    leader.found_full(3, 99)
    assert leader.propose(0.0, LAG, LIVES) is None, "said in another life"
    leader.found_full(3, 13)
    assert leader.propose(0.0, LAG, LIVES) == {1: 11, 2: 12}
    leader.decided((1, 2), 1)
    leader.proposal_ended()
    assert leader.propose(0.0, LAG, LIVES) is None

    join(leader, 3, end=0)
    assert leader.propose(0.0, LAG, LIVES) == {1: 11, 2: 12, 3: 13}


def test_the_leader_never_leaves_itself_out():
    leader = leader_of(1, 2)

    assert leader.propose(LAG + 1, LAG, {}) == {1: NO_LIFE}


def test_one_proposal_is_in_flight_at_a_time():
    leader = leader_of(1, 2, 3)
    assert leader.propose(LAG + 1, LAG, LIVES) is not None

    assert leader.propose(LAG + 2, LAG, LIVES) is None


def test_until_it_is_decided_both_sets_count():
    leader = leader_of(1, 2, replicas=(1, 2, 3))
    join(leader, 3, end=0)
    leader.fetched(2, 12, 0, 0, 0.0)
    keep_level(leader, 3, at=20.0)
    assert leader.propose(20.0, LAG, LIVES) == {1: 11, 3: 13}

    leader.holds(1, 9)
    leader.holds(3, 9, 13)
    assert leader.high_watermark == 0, "2 may still be in sync"
    leader.holds(2, 4, 12)
    assert leader.high_watermark == 4

    assert leader.decided({1, 3}, 1).advanced
    leader.proposal_ended()
    assert leader.high_watermark == 9
    assert leader.maximal == {1, 3}


def test_a_certain_refusal_brings_the_old_set_back():
    leader = leader_of(1, replicas=(1, 2))
    waiter = Waiting()
    join(leader, 2, end=0)
    leader.propose(0.0, LAG, LIVES)
    leader.wait_committed(3, waiter)
    assert leader.holds(1, 3) == NOTHING, "2 is counted already"

    settled = leader.refused(certain=True)

    assert settled.waiters == [waiter]
    assert settled.advanced
    assert not leader.in_flight
    assert leader.propose(0.0, LAG, LIVES) is None, "2 has fallen below the watermark"


def test_a_lost_reply_decides_nothing():
    leader = leader_of(1, replicas=(1, 2))
    join(leader, 2, end=0)
    leader.propose(0.0, LAG, LIVES)

    assert leader.refused(certain=False) == NOTHING
    assert leader.holds(1, 3) == NOTHING
    assert leader.maximal == {1, 2}


def test_after_a_lost_reply_it_is_proposed_again_even_if_nothing_is_to_change():
    leader = leader_of(1, 2)
    assert leader.propose(LAG + 1, LAG, LIVES) == {1: 11}
    leader.refused(certain=False)
    keep_level(leader, 2, at=LAG + 1)

    assert leader.propose(LAG + 1, LAG, LIVES) == {1: 11, 2: 12}


def test_what_was_lost_counts_until_the_metadata_shows_a_set():
    leader = leader_of(1, 2, replicas=(1, 2, 3))
    join(leader, 3, end=0)
    leader.propose(0.0, LAG, LIVES)
    leader.refused(certain=False)
    keep_level(leader, 2, at=LAG)
    assert leader.propose(LAG + 1, LAG, LIVES) == {1: 11, 2: 12}
    assert leader.maximal == {1, 2, 3}

    leader.decided({1, 2}, 1)
    leader.proposal_ended()

    assert leader.maximal == {1, 2}
    assert leader.propose(LAG + 1, LAG, LIVES) is None


def test_a_refusal_does_not_end_an_earlier_proposal_that_may_yet_be_taken():
    """The earlier one may be under way still, and fit what the controller knows."""
    leader = leader_of(1, replicas=(1, 2))
    join(leader, 2, end=0)
    leader.propose(0.0, LAG, LIVES)
    leader.refused(certain=False)
    leader.propose(0.0, LAG, LIVES)

    assert leader.refused(certain=True) == NOTHING
    assert leader.maximal == {1, 2}
    assert leader.propose(0.0, LAG, LIVES) is not None, "until it is known, it is asked again"


def test_the_outcome_may_come_before_the_reply():
    leader = leader_of(1, 2)
    leader.propose(LAG + 1, LAG, LIVES)
    leader.decided({1}, 1)

    assert leader.refused(certain=False) == NOTHING
    assert leader.maximal == {1}
    assert not leader.in_flight


def test_older_news_of_the_set_is_no_news():
    leader = leader_of(1, 2, partition_epoch=5)

    assert leader.decided({1}, 5) == NOTHING
    assert leader.in_sync == {1, 2}


def test_who_leaves_the_set_must_fetch_and_tell_again_before_it_is_let_in():
    leader = leader_of(1, 2, 3)
    join(leader, 2, end=100)

    leader.decided({1, 3}, 1)
    leader.holds(2, 100, LIVES[2])  # it was on its way when it left
    assert leader.awaits(2)
    assert leader.followers[2].held == NO_OFFSET
    assert leader.propose(1.0, LAG, LIVES) is None

    join(leader, 2, end=100, at=1.0)
    assert not leader.awaits(2)
    assert leader.propose(1.0, LAG, LIVES) == {1: 11, 2: 12, 3: 13}


def test_what_a_follower_told_is_forgotten_only_if_nobody_counts_on_it():
    leader = leader_of(1, replicas=(1, 2))
    join(leader, 2, end=100)
    assert leader.propose(0.0, LAG, LIVES) == {1: 11, 2: 12}
    assert not leader.forget(2), "it may be in sync by now"
    assert leader.followers[2].held == 100

    leader.refused(certain=True)

    assert leader.forget(2)
    assert leader.followers[2].held == NO_OFFSET
    assert leader.propose(0.0, LAG, LIVES) is None


def test_who_was_added_by_others_is_waited_for():
    leader = leader_of(1)
    leader.decided({1, 2}, 1)

    assert leader.holds(1, 5) == NOTHING
    leader.fetched(2, 12, 0, 5, 0.0)
    assert leader.holds(2, 5, 12).advanced


# Replicas.


def test_who_holds_the_partition_no_more_is_forgotten_once_it_counts_nowhere():
    leader = leader_of(1, 2, replicas=(1, 2, 3))

    leader.set_replicas((1, 4), 0.0)
    assert sorted(leader.followers) == [2, 4]

    leader.decided({1}, 1)
    leader.set_replicas((1, 4), 0.0)
    assert sorted(leader.followers) == [4]


def test_without_a_list_the_in_sync_are_the_replicas():
    assert leader_of(1, 2).replicas == (1, 2)


# All of it, in any order.

NODES = (2, 3, 4)
EVENTS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("syncs"), st.integers(0, 5)),
    st.tuples(st.just("fetched"), st.sampled_from(NODES), st.integers(0, 5)),
    st.tuples(st.just("holds"), st.sampled_from(NODES), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("joins"), st.sampled_from(NODES)),
    st.tuples(st.just("restarts"), st.sampled_from(NODES)),
    st.tuples(st.just("time"), st.sampled_from([1.0, 6.0, 11.0])),
    st.tuples(st.just("propose")),
    st.tuples(st.just("taken")),
    st.tuples(st.just("lost")),
    st.tuples(st.just("refused")),
    st.tuples(st.just("minimum"), st.integers(1, 3)),
)


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=60), st.integers(1, 3))
def test_the_watermark_never_passes_what_a_possible_member_holds(events, minimum):
    """Against a ledger of what was told, and of every proposal that may yet be committed."""
    stage = Ledger(minimum)
    for kind, *arguments in events:
        before = stage.leader.high_watermark
        getattr(stage, kind)(*arguments)
        stage.check(before)


class Ledger:
    """What each follower has truly told, in which life; and the sets that may be the committed."""

    def __init__(self, minimum: int) -> None:
        self.leader = leader_of(1, 2, 3, replicas=(1, 2, 3, 4), min_in_sync=minimum)
        self.now, self.end, self.held_here = 0.0, 0, 0
        self.lives = {1: 1, 2: 1, 3: 1, 4: 1}
        self.held = {2: 0, 3: 0, 4: NO_OFFSET}
        self.committed = frozenset({1, 2, 3})
        self.possible: list[frozenset[int]] = []
        self.partition_epoch = 0

    def check(self, before: int) -> None:
        leader = self.leader
        counted = self.committed.union(*self.possible)
        assert leader.maximal >= counted
        assert leader.in_sync == self.committed
        assert leader.high_watermark >= before, "it never falls"
        if leader.high_watermark > before:
            assert len(self.committed) >= leader.min_in_sync
            assert leader.high_watermark <= self.held_here
            for node in counted - {1}:
                assert leader.high_watermark <= self.held[node]

    def append(self, count: int) -> None:
        self.end += count

    def syncs(self, behind: int) -> None:
        self.held_here = max(self.held_here, self.end - behind)
        self.leader.holds(1, self.held_here)

    def fetched(self, node: int, behind: int) -> None:
        offset = max(self.end - behind, 0)
        self.held[node] = min(self.held[node], offset)  # it does not hold what it asks for
        self.leader.fetched(node, self.lives[node], offset, self.end, self.now)

    def holds(self, node: int, behind: int, is_late: bool) -> None:
        """A word of this life, or a late one of the life before."""
        life, end = self.lives[node] - is_late, max(self.end - behind, 0)
        if not is_late and self.leader.followers[node].broker_epoch == life:
            self.held[node] = max(self.held[node], end)
        self.leader.holds(node, end, life)

    def joins(self, node: int) -> None:
        """It has caught up, which makes it one to be proposed."""
        self.fetched(node, 0)
        self.holds(node, 0, False)
        self.propose()

    def restarts(self, node: int) -> None:
        """It may have lost everything; the leader hears of it when it fetches."""
        self.lives[node] += 1
        self.held[node] = NO_OFFSET
        self.fetched(node, 0)

    def time(self, seconds: float) -> None:
        self.now += seconds

    def propose(self) -> None:
        members = self.leader.propose(self.now, LAG, self.lives)
        if members is not None:
            assert self.leader.in_flight
            committed = self.leader.high_watermark
            for node in members.keys() - self.committed:  # of nothing, everybody holds all
                assert self.held[node] >= committed or not committed, "who joins holds it all"
            self.possible.append(frozenset(members))

    def taken(self) -> None:
        """The last proposal, or an earlier one whose reply was lost, is committed."""
        if self.possible:
            self.committed = self.possible[-1]
            self.possible = []
            self.partition_epoch += 1
            self.leader.decided(self.committed, self.partition_epoch)
            self.leader.proposal_ended()

    def lost(self) -> None:
        if self.leader.in_flight:
            self.leader.refused(certain=False)

    def refused(self) -> None:
        if self.leader.in_flight:
            self.possible.pop()
            self.leader.refused(certain=True)

    def minimum(self, count: int) -> None:
        self.leader.min_in_sync = count
        self.leader.advance()


def test_who_catches_up_may_join_as_soon_as_it_says_that_it_holds_all():
    leader = Leader(me=1, epoch=4, log_end=100, held=100, high_watermark=100, in_sync=[1], replicas=[1, 2])
    leader.fetched(2, 7, 0, 100, now=50.0)
    leader.holds(2, 40, 7, log_end=100, now=60.0)
    leader.fetched(2, 7, 100, 100, now=70.0)
    assert leader.propose(70.0, 10.0, {1: 1, 2: 7}) is None

    leader.holds(2, 100, 7, log_end=100, now=70.1)

    assert leader.propose(70.1, 10.0, {1: 1, 2: 7}) == {1: 1, 2: 7}
