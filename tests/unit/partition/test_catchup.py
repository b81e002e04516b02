import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model import TopicPartition
from tidelog.partition.catchup import (
    ABOVE_INFLOW,
    ENDED_MAX,
    STALLED_SECONDS,
    CatchUp,
    CatchUps,
    Key,
    Pace,
    State,
)

NAME = TopicPartition("tide", 0)


def make(*, limit: int = 0, places: int = 2) -> CatchUps:
    return CatchUps(pace=Pace(limit), concurrent_max=places)


def ask(found: CatchUps, number: int = 0, *, at: int = 0, now: float = 0.0, **more) -> CatchUp:
    values = {"target": 1000, "bytes_left": (1000 - at) * 100} | more
    epoch = values.pop("epoch", 4)
    return found.asks(Key(number, 3), NAME, epoch, at=at, now=now, **values)


# What a catch-up is called, and how far it is.


def test_it_has_a_name_and_says_where_it_began_and_where_it_goes():
    one = ask(make(), at=400)

    assert one.id == "tide-0:3@4.1"
    assert (one.first, one.at, one.target, one.records_left) == (400, 400, 1000, 600)
    assert one.state is State.RUNNING
    assert one.done == 0
    assert one.rate() is None
    assert one.eta_seconds() is None


def test_it_says_how_much_is_done_how_fast_and_when_it_ends():
    found = make()
    one = ask(found)
    for second in range(1, 5):
        found.sent(one.key, 10_000)
        ask(found, at=second * 100, now=second)

    assert one.done == pytest.approx(0.4)
    assert one.rate() == pytest.approx(10_000)
    assert one.eta_seconds() == pytest.approx(6)


def test_the_end_is_later_when_the_log_grows_meanwhile():
    found = make()
    one = ask(found)
    for second in range(1, 5):
        found.sent(one.key, 10_000)
        left = 100_000 - second * 5_000
        ask(found, at=second * 100, target=1000 + second * 50, bytes_left=left, now=second)

    assert one.rate() == pytest.approx(10_000)
    assert one.eta_seconds() == pytest.approx(16)


def test_one_that_does_not_come_closer_has_no_end():
    found = make()
    one = ask(found)
    for second in range(1, 5):
        found.sent(one.key, 1000)
        ask(found, at=second * 10, bytes_left=100_000 + second, now=second)

    assert one.eta_seconds() is None


def test_the_rate_is_that_of_the_last_seconds():
    found = make()
    one = ask(found, bytes_left=10**9)
    sent = 0
    for second in range(1, 40):
        sent += 1000 if second < 20 else 5000
        found.sent(one.key, 1000 if second < 20 else 5000)
        ask(found, at=second, bytes_left=10**9 - sent, now=second)

    assert one.rate() == pytest.approx(5000)


def test_a_follower_that_comes_back_goes_on_under_the_same_name():
    found = make()
    one = ask(found)
    found.interrupt(one.key, "node 3 is away", 1)
    assert (one.state, one.why) == (State.INTERRUPTED, "node 3 is away")

    assert ask(found, at=500, now=9) is one

    assert (one.state, one.attempts, one.why) == (State.RUNNING, 2, "")
    assert one.first == 0


def test_another_epoch_is_another_catch_up():
    found = make()
    one = ask(found)

    other = ask(found, at=10, epoch=5, now=1)

    assert other is not one
    assert (one.state, one.why) == (State.ABORTED, "epoch 5 has begun")
    assert other.id == "tide-0:3@5.2"


def test_what_is_level_is_done_and_remembered():
    found = make()
    one = ask(found)
    found.finish(one.key, 1200, 3)

    assert found.get(one.key) is None
    assert list(found.ended) == [one]
    assert (one.state, one.done, one.at, one.ended_at) == (State.DONE, 1.0, 1200, 3)
    assert (found.began, found.finished) == (1, 1)


def test_only_so_many_are_remembered():
    found = make(places=1)
    for number in range(ENDED_MAX + 7):
        found.finish(ask(found, number).key, 1000, 1)

    assert len(found.ended) == ENDED_MAX
    assert len(found) == 0


def test_what_begins_anew_says_so():
    found = make()
    one = ask(found, at=10)
    found.begins_anew(one.key, 700, 1)

    assert (one.first, one.at, one.began_anew) == (700, 700, True)


# Places.


def test_only_so_many_run_and_the_others_wait_in_order():
    found = make(places=2)
    a, b, c, d = (ask(found, number) for number in range(4))
    assert [one.state for one in (a, b, c, d)] == [State.RUNNING, State.RUNNING, State.WAITING, State.WAITING]
    assert "catchup.concurrent.max" in c.why
    assert found.wait_seconds(c.key, 0) is None

    found.finish(a.key, 1000, 1)

    assert (c.state, d.state) == (State.RUNNING, State.WAITING)
    assert found.wait_seconds(c.key, 1) == 0


@pytest.mark.parametrize("how", ["interrupt", "abort"])
def test_who_goes_away_gives_its_place_to_the_next(how):
    found = make(places=1)
    a, b = ask(found, 0), ask(found, 1)

    getattr(found, how)(a.key, "gone", 1)

    assert b.state is State.RUNNING


def test_who_is_in_sync_takes_no_place_and_waits_for_none():
    found = make(places=1)
    ask(found, 0)
    other = ask(found, 1, is_paced=False)

    assert other.state is State.RUNNING
    assert found.wait_seconds(other.key, 0) == 0


def test_who_is_paced_no_more_frees_its_place():
    found = make(places=1)
    ask(found, 0)
    waiting = ask(found, 1)

    ask(found, 0, at=950, is_paced=False)

    assert waiting.state is State.RUNNING


# Stalling.


def test_who_does_not_come_closer_is_stalled_and_says_why():
    found = make(places=1)
    one, other = ask(found, 0), ask(found, 1)
    found.trouble(one.key, "the disk is full")

    assert found.look(STALLED_SECONDS) == []
    assert found.look(STALLED_SECONDS + 1) == [one]

    assert (one.state, one.why) == (State.STALLED, "the disk is full")
    assert other.state is State.RUNNING
    assert found.look(STALLED_SECONDS + 2) == []


def test_who_is_stalled_is_served_while_a_place_is_free_and_runs_again_once_it_moves():
    found = make(places=1)
    one = ask(found, 0)
    assert found.look(STALLED_SECONDS + 1) == [one]
    assert found.wait_seconds(one.key, 20) == 0

    other = ask(found, 1, now=20)
    assert found.wait_seconds(one.key, 20) is None

    ask(found, 0, at=5, now=21)
    states = [one.state]
    found.finish(other.key, 1000, 22)
    assert [*states, one.state] == [State.WAITING, State.RUNNING]


def test_who_has_stalled_and_asks_waits_for_a_place_in_its_turn():
    found = make(places=1)
    one, other = ask(found, 0), ask(found, 1)
    assert found.look(STALLED_SECONDS + 1) == [one]

    assert found.wait_seconds(one.key, 12) is None
    late = ask(found, 2, now=13)
    found.finish(other.key, 1000, 14)

    assert (one.state, late.state) == (State.RUNNING, State.WAITING)


def test_who_was_thought_to_be_away_and_reads_all_the_same_goes_on():
    found = make(places=1)
    one, other = ask(found, 0), ask(found, 1)
    found.interrupt(one.key, "away", 1)
    assert other.state is State.RUNNING

    assert found.wait_seconds(one.key, 2) is None
    found.finish(other.key, 1000, 3)

    assert (one.state, one.attempts) == (State.RUNNING, 2)
    assert found.wait_seconds(one.key, 3) == 0


def test_who_takes_no_place_stalls_too():
    found = make(places=1)
    one = ask(found, 0, at=950, is_paced=False)
    found.trouble(one.key, "the disk is full")

    assert found.look(STALLED_SECONDS + 1) == [one]
    assert (one.state, one.why) == (State.STALLED, "the disk is full")

    ask(found, 0, at=960, is_paced=False, now=20)
    assert (one.state, one.why) == (State.RUNNING, "")


def test_what_kept_it_is_forgotten_once_it_moves():
    found = make()
    one = ask(found)
    found.trouble(one.key, "the disk is full")

    ask(found, at=5, now=1)

    assert (one.state, one.why) == (State.RUNNING, "")


def test_who_waits_for_its_pace_is_not_stalled():
    found = make(limit=1000)
    one = ask(found)
    found.sent(one.key, 60_000)
    ask(found, at=5, now=1)
    assert found.wait_seconds(one.key, 1) == pytest.approx(60)

    assert found.look(40) == []
    assert found.look(80) == [one]


def test_who_waits_for_its_pace_no_more_may_stall():
    found = make(limit=1)
    one = ask(found)
    found.sent(one.key, 60_000)
    ask(found, at=5, now=1)
    assert found.wait_seconds(one.key, 1) == pytest.approx(60_000)

    found.pace.limit(0, 2)
    assert found.wait_seconds(one.key, 2) == 0

    assert found.look(2 + STALLED_SECONDS + 1) == [one]


# The pace.


def test_without_a_limit_nobody_waits():
    pace = Pace(0)
    pace.spend(10**12)

    assert pace.wait_seconds(0) == 0


def test_a_chunk_is_paid_for_before_the_next():
    pace = Pace(1000)
    assert pace.wait_seconds(0) == 0
    pace.spend(500)

    assert pace.wait_seconds(0) == pytest.approx(0.5)
    assert pace.wait_seconds(0.3) == pytest.approx(0.2)
    assert pace.wait_seconds(0.5) == 0


def test_a_pause_is_not_saved_up():
    pace = Pace(1000)
    pace.wait_seconds(0)
    assert pace.wait_seconds(3600) == 0
    pace.spend(1200)

    assert pace.wait_seconds(3600) == pytest.approx(1.0)


@pytest.mark.parametrize("way_seconds", [0.0, 0.001, 0.05, 0.15])
def test_the_pace_is_kept_over_a_long_way(way_seconds):
    """One request is on its way at a time: what goes with it must last until the next."""
    pace = Pace(1_000_000)
    now, sent = 0.0, 0
    while now < 10.0:
        now += pace.wait_seconds(now)
        assert pace.wait_seconds(now) == pytest.approx(0, abs=1e-9)
        chunk = pace.chunk_bytes
        assert chunk is not None
        pace.spend(chunk)
        sent += chunk
        now += way_seconds

    assert sent / now == pytest.approx(1_000_000, rel=0.05)


def test_another_limit_holds_at_once():
    pace = Pace(10)
    pace.spend(1000)
    assert pace.wait_seconds(0) == 100

    pace.limit(1000, 1)

    assert pace.wait_seconds(1) == 0
    pace.spend(500)
    assert pace.wait_seconds(1) == pytest.approx(0.5)


def test_the_pace_is_faster_than_what_is_written_meanwhile():
    pace = Pace(1000)
    pace.inflow(4000)
    assert pace.bytes_per_second == ABOVE_INFLOW * 4000
    assert pace.is_raised

    pace.inflow(100)
    assert pace.bytes_per_second == 1000
    assert not pace.is_raised


@given(limit=st.integers(1, 10**6), chunks=st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_over_time_no_more_is_sent_than_the_pace_allows(limit, chunks):
    pace, now, sent = Pace(limit), 0.0, 0
    for chunk in chunks:
        now += pace.wait_seconds(now)
        assert pace.wait_seconds(now) == pytest.approx(0, abs=1e-6)
        assert sent <= limit * now + limit * 0.11 + max(chunks) + 1
        pace.spend(chunk)
        sent += chunk


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "near", "leave", "finish", "abort", "look", "move"]), st.integers(0, 5)
        ),
        max_size=80,
    )
)
def test_places_are_never_exceeded_and_nobody_waits_while_one_is_free(events):
    found = make(places=2)
    for at, (what, number) in enumerate(events, 1):
        now = 3.0 * at
        key = Key(number, 3)
        match what:
            case "ask" | "move":
                ask(found, number, at=at if what == "move" else 0, now=now)
            case "near":
                ask(found, number, at=at, is_paced=False, now=now)
            case "leave":
                found.interrupt(key, "away", now)
            case "finish":
                found.finish(key, 1000, now)
            case "abort":
                found.abort(key, "gone", now)
            case "look":
                found.look(now)
        states = [one.state for one in found if one.is_paced]
        assert states.count(State.RUNNING) <= 2
        if State.WAITING in states:
            assert states.count(State.RUNNING) == 2
        assert all(one.why for one in found if one.state not in (State.RUNNING, State.DONE))
