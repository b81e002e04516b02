from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.log.epochs import EpochHistory
from tidelog.model import NO_EPOCH
from tidelog.partition.follower import BeginAnew, Cut, Follower, disagreement


def aligned() -> Follower:
    follower = Follower(epoch=4, leader=1)
    follower.agreed()
    return follower


# Telling.


def test_nothing_is_told_before_the_logs_are_found_to_agree():
    follower = Follower(epoch=4, leader=1)

    assert not follower.news(10)
    assert follower.agreed()
    assert follower.news(10)


def test_what_was_told_is_not_told_again():
    follower = aligned()

    assert follower.news(5)
    assert not follower.news(5)
    assert not follower.news(4)
    assert follower.news(6)


def test_agreement_is_news_once():
    follower = Follower(epoch=4, leader=1)

    assert follower.agreed()
    assert not follower.agreed()


def test_an_empty_log_is_told_of_too():
    """The leader waits for whoever is in sync, and must know that it is there."""
    assert aligned().news(0)


def test_what_may_not_have_arrived_is_told_again_once_the_leader_answers():
    follower = aligned()
    follower.news(5)

    follower.tell_again()

    assert follower.agreed()
    assert follower.news(5)


def test_what_is_told_to_nobody_does_not_count_as_told():
    """A round of the disk ends between two sessions: whom would the note reach?"""
    follower = aligned()
    follower.news(5)
    follower.tell_again()

    assert not follower.news(6)
    assert follower.agreed()
    assert follower.news(6)


@pytest.mark.parametrize("doubt", ["differs", "is_behind", "doubt"])
def test_a_log_in_doubt_is_not_told_of_until_it_agrees_again(doubt):
    follower = aligned()
    follower.news(9)

    if doubt == "differs":
        follower.differs(1, 3, mine=EpochHistory([(1, 0)]), start=0, log_end=9)
    elif doubt == "is_behind":
        follower.is_behind(20)
    else:
        follower.doubt()

    assert not follower.is_aligned
    assert not follower.news(10)
    assert follower.agreed()
    assert follower.news(3), "less than before is news, too"


# Cutting.

MINE = EpochHistory([(1, 0), (2, 3), (4, 4)])


@pytest.mark.parametrize(
    ("epoch", "end", "change"),
    [
        (4, 5, Cut(5)),  # both have it, the leader less of it
        (3, 7, Cut(4)),  # the leader lacks the last: back to where the greatest before it ends
        (3, 2, Cut(2)),
        (2, 9, Cut(4)),
        (1, 5, Cut(3)),
        (1, 2, Cut(2)),
        (0, 8, Cut(0)),  # nothing here is as old
    ],
)
def test_the_log_is_cut_to_the_end_of_the_greatest_epoch_that_both_may_have(epoch, end, change):
    found = Follower(epoch=5, leader=1).differs(epoch, end, mine=MINE, start=0, log_end=6)

    assert found == change


def test_what_begins_only_after_the_logs_part_begins_anew():
    mine = EpochHistory([(2, 30)])

    found = Follower(epoch=5, leader=1).differs(2, 20, mine=mine, start=30, log_end=40)

    assert found == BeginAnew(20)


def test_a_cut_at_the_very_start_leaves_an_empty_log():
    mine = EpochHistory([(2, 30)])

    found = Follower(epoch=5, leader=1).differs(2, 30, mine=mine, start=30, log_end=40)

    assert found == Cut(30)


def test_a_log_older_than_all_that_the_leader_has_begins_anew():
    found = Follower(epoch=5, leader=1).differs(NO_EPOCH, 20, mine=MINE, start=0, log_end=6)

    assert found == BeginAnew(20)


def test_what_is_deleted_at_the_leader_is_not_waited_for():
    assert Follower(epoch=5, leader=1).is_behind(70) == BeginAnew(70)


# Comparing.

LEADER = EpochHistory([(1, 10), (3, 15), (6, 20)])


@pytest.mark.parametrize(
    ("offset", "last_epoch", "answer"),
    [
        (25, 6, None),
        (20, 6, None),
        (26, 6, (6, 25)),  # more than the leader has
        (20, 3, None),
        (17, 3, None),
        (21, 3, (3, 20)),
        (17, 4, (3, 20)),  # of an epoch that the leader has nothing of
        (25, 5, (3, 20)),
        (26, 9, (6, 25)),
        (15, 1, None),
        (16, 1, (1, 15)),
        (12, 2, (1, 15)),
    ],
)
def test_a_log_agrees_if_it_ends_within_what_the_leader_has_of_its_last_epoch(offset, last_epoch, answer):
    assert disagreement(LEADER, 25, offset, last_epoch) == answer


@pytest.mark.parametrize("offset", [5, 10, 12])
def test_a_log_that_ends_in_an_epoch_of_which_all_is_deleted_is_not_believed(offset):
    """Whether it is the same that was deleted, nobody knows."""
    assert disagreement(LEADER, 25, offset, 0) == (NO_EPOCH, 10)


@pytest.mark.parametrize(("offset", "answer"), [(0, None), (25, None), (26, (NO_EPOCH, 25))])
def test_an_empty_log_agrees_with_any_that_reaches_so_far(offset, answer):
    assert disagreement(LEADER, 25, offset, NO_EPOCH) == answer


def test_nothing_agrees_with_an_empty_leader_but_emptiness():
    assert disagreement(EpochHistory(), 7, 7, NO_EPOCH) is None
    assert disagreement(EpochHistory(), 7, 9, 2) == (NO_EPOCH, 7)
    assert disagreement(EpochHistory(), 7, 7, 2) == (NO_EPOCH, 7)


# Any two histories.

Record = tuple[int, int]
"""Its epoch, and what makes it another one than every other."""
HISTORIES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), max_size=14
)


def logs_after(steps: Iterable[tuple[int, int, int, int]]) -> list[list[Record]]:
    """Four logs after some elections: one leads, writes, and another copies a part of it."""
    logs: list[list[Record]] = [[], [], [], []]
    for epoch, (leader, follower, count, copied) in enumerate(steps, 1):
        logs[leader] += [(epoch, number) for number in range(count)]
        if follower != leader:
            keep = shared(logs[leader], logs[follower])
            logs[follower] = logs[leader][: keep + copied]
    return logs


def shared(one: list[Record], other: list[Record]) -> int:
    """How many records the two begin with in common."""
    for offset, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return offset
    return min(len(one), len(other))


def epochs_of(log: list[Record], start: int = 0) -> EpochHistory:
    history = EpochHistory()
    for offset, (epoch, _) in enumerate(log):
        history.assign(epoch, offset)
    history.cut_start(start)
    if start == len(log):
        history.cut_end(start)  # nothing is left
    return history


@settings(max_examples=400)
@given(HISTORIES, st.permutations(range(4)))
def test_two_logs_always_come_to_agree_and_keep_all_that_they_share(steps, order):
    logs = logs_after(steps)
    leader, follower = logs[order[0]], list(logs[order[1]])
    keep = shared(leader, follower)
    machine = Follower(epoch=99, leader=1)

    for _ in range(len(follower) + 1):
        mine = epochs_of(follower)
        found = disagreement(epochs_of(leader), len(leader), len(follower), mine.latest)
        if found is None:
            break
        change = machine.differs(*found, mine=mine, start=0, log_end=len(follower))
        end = change.end if isinstance(change, Cut) else change.start
        assert end < len(follower), "each step comes nearer"
        assert isinstance(change, Cut) or end == 0, "nothing is deleted here"
        del follower[end:]
    else:
        raise AssertionError("they never agree")

    assert follower == leader[: len(follower)]
    assert len(follower) >= keep


@settings(max_examples=400)
@given(HISTORIES, st.permutations(range(4)), st.integers(0, 12), st.integers(0, 12))
def test_whatever_was_deleted_the_logs_agree_wherever_both_have_records(
    steps, order, leader_start, follower_start
):
    """Retention moves the starts; what is left must be the same, and be reached."""
    logs = logs_after(steps)
    leader, follower = logs[order[0]], list(logs[order[1]])
    leader_start = min(leader_start, len(leader))
    start = min(follower_start, len(follower))
    machine = Follower(epoch=99, leader=1)
    theirs = epochs_of(leader, leader_start)

    for _ in range(len(follower) + 3):
        mine = epochs_of(follower, start)
        found = disagreement(theirs, len(leader), len(follower), mine.latest)
        change: Cut | BeginAnew | None = None
        if found is not None:
            change = machine.differs(*found, mine=mine, start=start, log_end=len(follower))
        elif len(follower) < leader_start:
            change = machine.is_behind(leader_start)
        if change is None:
            break
        if isinstance(change, Cut):
            assert start <= change.end < len(follower)
            del follower[change.end :]
        else:
            start = change.start
            follower = [(-1, -1)] * start  # deleted
    else:
        raise AssertionError("they never agree")

    both = slice(max(start, leader_start), len(follower))
    assert follower[both] == leader[both]
    assert leader_start <= len(follower) <= len(leader)
