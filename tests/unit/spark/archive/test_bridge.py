"""Reads that are planned over an archive and a log."""

import uuid
from typing import Any

import pytest

from tests.unit.spark.archive.rows import TIME_US, archive
from tidelog.model import TopicPartition
from tidelog.spark.archive.bridge import History, open_history, read_archived
from tidelog.spark.archive.catalog import create_topic, load_topic, open_catalog
from tidelog.spark.archive.files import ArchivedRange
from tidelog.spark.archive.spans import RecordsLost, Span
from tidelog.spark.archive.tables import NotArchived, OtherTopic
from tidelog.spark.options import read_options
from tidelog.spark.planning import Planner
from tidelog.spark.ranges import OffsetRange

TOPIC = uuid.UUID(int=7)
TIME_MS = TIME_US // 1000


@pytest.fixture
def history(tmp_path) -> History:
    """Offsets 0 to 99 of partition 0 are archived, in two files."""
    with open_catalog(str(tmp_path), create=True) as catalog:
        table = create_topic(catalog, "orders", TOPIC)
        for start in (0, 50):
            table = archive(table, 0, start, start + 50)
    return open_history(str(tmp_path), None, "orders", TOPIC)


def test_the_archive_comes_first_and_the_log_goes_on_where_it_ends(history):
    wanted = [OffsetRange("orders", 0, 40, 150), OffsetRange("orders", 1, 3, 9)]

    archived, live, other = history.parts(wanted, {0: Span(80, 150), 1: Span(0, 9)})

    assert isinstance(archived, ArchivedRange)
    offsets = [
        offset
        for batch in read_archived(archived, ("offset",))
        for offset in batch.column("offset").to_pylist()
    ]
    assert offsets == list(range(40, 100))
    assert live == OffsetRange("orders", 0, 100, 150)
    assert other == OffsetRange("orders", 1, 3, 9)


def test_who_prefers_the_log_gets_from_it_what_it_has(history):
    wanted, log = OffsetRange("orders", 0, 80, 150), {0: Span(80, 150)}

    assert history.parts([wanted], log, prefer_log=True) == [wanted]
    earlier = OffsetRange("orders", 0, 79, 150)
    assert [one.start for one in history.parts([earlier], log, prefer_log=True)] == [79, 100]


def test_large_ranges_are_cut_into_tasks_on_both_sides(history):
    wanted = OffsetRange("orders", 0, 0, 200)

    parts = history.parts([wanted], {0: Span(80, 200)}, rows_max=50)

    bounds = [(one.start, one.end) for one in parts]
    assert bounds == [(0, 50), (50, 100), (100, 150), (150, 200)]


def test_a_gap_between_archive_and_log_is_data_lost(history):
    wanted, log = OffsetRange("orders", 0, 0, 200), {0: Span(120, 200)}

    with pytest.raises(RecordsLost, match="offsets 100 to 119"):
        history.parts([wanted], log)
    bounds = [(one.start, one.end) for one in history.parts([wanted], log, may_lose=True)]
    assert bounds == [(0, 100), (120, 200)]


def test_reading_begins_where_the_archive_does_or_the_log_of_a_partition_without(history):
    assert history.start(0, log_start=80) == 0
    assert history.start(1, log_start=5) == 5


def test_a_time_is_looked_for_in_the_archive_first(history):
    assert history.first_at(0, TIME_MS + 70) == 70
    assert history.first_at(0, TIME_MS + 100) is None
    assert history.first_at(1, TIME_MS) is None


def test_a_topic_without_an_archive_is_read_from_its_log(tmp_path, history):
    other = open_history(str(tmp_path), None, "payments", TOPIC)
    wanted = OffsetRange("payments", 0, 3, 9)

    assert other.parts([wanted], {0: Span(0, 9)}) == [wanted]


def test_a_topic_made_anew_has_no_history(tmp_path, history):
    with pytest.raises(OtherTopic):
        open_history(str(tmp_path), None, "orders", uuid.UUID(int=8))


def test_no_archive_at_all_is_said(tmp_path):
    with pytest.raises(NotArchived, match=r"archive\.warehouse"):
        open_history(str(tmp_path / "nowhere"), None, "orders")


def test_records_that_are_archived_and_trimmed_while_a_read_is_planned_are_found(
    tmp_path, history, monkeypatch
):
    """The planner looks at log and archive one after the other."""
    options = {
        "kafka.bootstrap.servers": "nowhere:1",
        "subscribe": "orders",
        "history": "archive",
        "archive.warehouse": str(tmp_path),
    }
    planner = Planner(read_options(options, streaming=False))
    place, looks = TopicPartition("orders", 0), iter((100, 150))

    def between_looks() -> int:
        """Where the log begins; after the first look another stretch is archived."""
        start = next(looks)
        if start == 100:
            with open_catalog(str(tmp_path)) as catalog:
                archive(load_topic(catalog, "orders"), 0, 100, 150)
        return start

    def look_into_archives(self: Any) -> None:
        self._histories = {"orders": open_history(str(tmp_path), None, "orders", TOPIC)}
        between_looks()

    monkeypatch.setattr(Planner, "_look_into_archives", look_into_archives)
    monkeypatch.setattr(Planner, "_ask", lambda *_: ({place: between_looks()}, {place: 200}))

    parts = planner.tasks([OffsetRange("orders", 0, 0, 200)], prefer_log=False)

    assert sum(part.end - part.start for part in parts) == 200
