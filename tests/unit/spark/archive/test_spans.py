"""Which offsets go where."""

import pytest

from tidelog.spark.archive.spans import (
    FIRST_ROWS,
    ArchiveAhead,
    RecordsLost,
    Span,
    cut_history,
    extended,
    lacking,
    next_round,
    rows_for,
    trimmable,
    whole,
)
from tidelog.spark.ranges import OffsetRange


def of(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def test_archiving_goes_on_where_it_ended_and_a_new_partition_begins_with_its_log():
    log = {0: Span(5, 100), 1: Span(7, 9), 2: Span(0, 0)}

    assert lacking("t", log, {0: Span(0, 60)}) == [of(0, 60, 100), of(1, 7, 9)]


def test_records_that_were_deleted_unarchived_stop_it_unless_they_may_be_skipped():
    log, archived = {0: Span(50, 100)}, {0: Span(0, 40)}

    with pytest.raises(RecordsLost, match=r"offsets 40 to 49 of t-0 .* --skip-lost"):
        lacking("t", log, archived)
    assert lacking("t", log, archived, skip_lost=True) == [of(0, 50, 100)]


def test_an_archive_beyond_the_log_is_of_another_log():
    with pytest.raises(ArchiveAhead, match="up to offset 40, but its log ends at 30"):
        lacking("t", {0: Span(0, 30)}, {0: Span(0, 40)})


def test_the_size_of_files_is_learned_from_those_that_are_there():
    assert rows_for(1_000_000, rows=0, bytes_taken=0) == FIRST_ROWS
    assert rows_for(1_000_000, rows=50_000, bytes_taken=500_000) == 100_000


def test_only_whole_files_are_taken_of_what_may_wait():
    assert whole([of(0, 5, 30), of(1, 0, 9)], 10) == [of(0, 5, 25)]


def test_a_round_takes_the_oldest_of_every_partition_and_makes_no_crumbs():
    ranges = [of(0, 0, 104), of(1, 0, 50)]

    assert next_round(ranges, rows=50, tasks_max=2) == [of(0, 0, 52), of(1, 0, 50)]
    assert next_round(ranges, rows=50, tasks_max=9) == [of(0, 0, 52), of(0, 52, 104), of(1, 0, 50)]


def test_what_is_archived_grows_by_what_was_moved():
    moved = [of(0, 52, 104), of(0, 40, 52), of(1, 7, 9)]

    assert extended({0: Span(10, 40)}, moved) == {0: Span(10, 104), 1: Span(7, 9)}


def test_nothing_is_archived_twice():
    with pytest.raises(AssertionError, match="archived already"):
        extended({0: Span(0, 40)}, [of(0, 39, 50)])


def test_a_log_is_never_trimmed_past_its_archive():
    log = {0: Span(0, 100), 1: Span(0, 100), 2: Span(0, 100), 3: Span(80, 100)}
    archived = {0: Span(0, 60), 1: Span(0, 100), 3: Span(0, 90)}
    wish = {0: 100, 1: 30, 2: 100, 3: 70}

    assert trimmable("t", log, archived, wish) == {0: 60, 1: 30}


def test_a_log_that_begins_before_its_archive_is_not_trimmed():
    assert trimmable("t", {0: Span(0, 100)}, {0: Span(10, 60)}, {0: 100}) == {}


@pytest.mark.parametrize(
    ("wanted", "archived", "live"),
    [
        (of(0, 0, 100), [of(0, 0, 60)], [of(0, 60, 100)]),
        (of(0, 10, 60), [of(0, 10, 60)], []),
        (of(0, 59, 61), [of(0, 59, 60)], [of(0, 60, 61)]),
        (of(0, 60, 100), [], [of(0, 60, 100)]),
        (of(1, 5, 9), [], [of(1, 5, 9)]),
    ],
)
def test_a_read_is_cut_where_the_archive_ends(wanted, archived, live):
    parts = cut_history([wanted], {0: Span(0, 60)}, {0: Span(40, 100), 1: Span(5, 9)})

    assert (parts.archived, parts.live) == (archived, live)


@pytest.mark.parametrize(
    ("wanted", "log", "lost"),
    [
        (of(0, 0, 100), Span(70, 100), "60 to 69"),
        (of(0, 65, 100), Span(70, 100), "65 to 69"),
        (of(1, 0, 100), Span(70, 100), "0 to 69"),
    ],
)
def test_what_is_in_neither_is_lost_and_said(wanted, log, lost):
    with pytest.raises(RecordsLost, match=f"offsets {lost} of t-{wanted.partition} "):
        cut_history([wanted], {0: Span(0, 60)}, {wanted.partition: log})


def test_what_is_in_neither_is_passed_over_if_it_may_be_lost():
    parts = cut_history([of(0, 0, 100)], {0: Span(10, 60)}, {0: Span(70, 100)}, may_lose=True)

    assert (parts.archived, parts.live) == ([of(0, 10, 60)], [of(0, 70, 100)])


def test_a_gap_behind_what_is_wanted_is_none():
    parts = cut_history([of(0, 0, 50)], {0: Span(0, 60)}, {0: Span(70, 100)})

    assert (parts.archived, parts.live) == ([of(0, 0, 50)], [])
