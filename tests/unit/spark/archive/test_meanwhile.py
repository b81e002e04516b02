"""Topics, logs and tables that change while they are archived, and others who do so, too."""

import logging
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from tests.unit.spark.archive.loop import Cluster, LoopSpark
from tests.unit.spark.archive.rows import archive
from tidelog.client.cluster import Refused
from tidelog.spark.archive import archiving, logs
from tidelog.spark.archive.archiving import Archiver, Settings
from tidelog.spark.archive.bridge import History
from tidelog.spark.archive.catalog import create_topic, load_topic, open_catalog
from tidelog.spark.archive.checking import status
from tidelog.spark.archive.cleaning import remove_strays
from tidelog.spark.archive.logs import Log
from tidelog.spark.archive.problems import SeveralFailed
from tidelog.spark.archive.spans import ArchiveAhead, RecordsLost, Span
from tidelog.spark.archive.tables import OtherTopic, Outpaced, TopicTable
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.tables.expiring import Expiry, expire

TOPIC = uuid.UUID(int=6)
OTHER = uuid.UUID(int=7)


class Shifting(Cluster):
    """One whose topics can be made anew, deleted and cut."""

    def __init__(self, **topics: dict[int, Span]) -> None:
        super().__init__(**topics)
        self.ids = dict.fromkeys(topics, TOPIC)
        self.epoch = 0
        self.cut_at: dict[int, int] = {}
        """Where epochs have ended."""

    def look_at(self, bootstrap: str, topic: str) -> Log:
        if topic not in self.topics:
            raise Refused(3, topic)
        spans = dict(self.topics[topic])
        return Log(topic=topic, id=self.ids[topic], spans=spans, epochs=dict.fromkeys(spans, self.epoch))

    def epoch_ends(self, bootstrap: str, topic: str, epochs: Mapping[int, int]) -> dict[int, int]:
        return {at: self.cut_at.get(epoch, self.topics[topic][at].end) for at, epoch in epochs.items()}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with open_catalog(str(tmp_path), create=True) as opened:
        yield opened


@pytest.fixture
def table(catalog: Catalog) -> TopicTable:
    return create_topic(catalog, "orders", TOPIC)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Shifting:
    found = Shifting(orders={0: Span(0, 100)}, pay={0: Span(0, 40)})
    monkeypatch.setattr(archiving, "look_at", found.look_at)
    monkeypatch.setattr(archiving, "read_range", found.read_range)
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(logs, "epoch_ends", found.epoch_ends)
    return found


def begin(catalog: Catalog, *topics: str, **settings: Any) -> Archiver:
    spark: Any = LoopSpark()
    return Archiver(spark, catalog, "nowhere:1", topics, Settings(**settings))


def set_between(archiver: Archiver, between: Any) -> None:
    """Have something happen once a round's files are written."""
    spark: Any = archiver._spark

    def once() -> None:
        spark.between = lambda: None
        between()

    spark.between = once


def archived(catalog: Catalog, topic: str) -> dict[int, Span]:
    return load_topic(catalog, topic).spans


# Topics.


def test_a_topic_made_anew_is_not_mixed_with_the_old_one(catalog: Catalog, cluster: Shifting) -> None:
    running = begin(catalog, "orders")
    running.once()
    cluster.ids["orders"], cluster.topics["orders"] = OTHER, {0: Span(0, 150)}

    with pytest.raises(OtherTopic):
        running.once()
    assert archived(catalog, "orders") == {0: Span(0, 100)}


def test_what_was_read_of_a_topic_that_was_made_anew_meanwhile_is_not_committed(
    catalog: Catalog, cluster: Shifting
) -> None:
    running = begin(catalog, "orders")
    set_between(running, lambda: cluster.ids.update(orders=OTHER))

    with pytest.raises(OtherTopic):
        running.once()
    found = load_topic(catalog, "orders")
    assert found.spans == {}
    assert list(Path(found.directory.removeprefix("file://")).rglob("*.parquet")) == []


def test_a_topic_that_is_deleted_does_not_stop_the_archive_of_others(
    catalog: Catalog, cluster: Shifting, caplog: pytest.LogCaptureFixture
) -> None:
    running, stopping, rounds = begin(catalog, "orders", "pay"), threading.Event(), iter(range(3))
    running.once()
    del cluster.topics["pay"]
    cluster.topics["orders"] = {0: Span(0, 300)}

    def after() -> None:
        if next(rounds) == 2:
            stopping.set()

    with caplog.at_level(logging.WARNING):
        running.keep_on(0.001, stopping, after=after)

    assert archived(catalog, "orders") == {0: Span(0, 300)}
    assert [one.getMessage() for one in caplog.records if "pay" in one.getMessage()][1:] == []
    assert "pay will be tried again" in caplog.text


def test_a_topic_that_has_lost_records_does_not_stop_the_archive_of_others(
    catalog: Catalog, cluster: Shifting
) -> None:
    begin(catalog, "orders", "pay").once()
    cluster.topics |= {"orders": {0: Span(150, 200)}, "pay": {0: Span(0, 60)}}

    with pytest.raises(RecordsLost):
        begin(catalog, "orders", "pay").once()
    assert archived(catalog, "pay") == {0: Span(0, 60)}


def test_a_topic_whose_table_is_of_another_does_not_stop_the_archive_of_others(
    catalog: Catalog, cluster: Shifting
) -> None:
    begin(catalog, "orders").once()
    cluster.ids["orders"] = OTHER

    with pytest.raises(OtherTopic):
        begin(catalog, "orders", "pay").once()
    assert archived(catalog, "pay") == {0: Span(0, 40)}


def test_if_several_topics_fail_all_of_them_are_named(catalog: Catalog, cluster: Shifting) -> None:
    running = begin(catalog, "orders", "pay")
    running.once()
    cluster.topics = {"pay": {0: Span(50, 60)}}

    with pytest.raises(SeveralFailed, match=r"orders: .*; pay: offsets 40 to 49"):
        running.once()


def test_a_continuous_archive_ends_once_no_topic_can_be_gone_on_with(
    catalog: Catalog, cluster: Shifting
) -> None:
    running = begin(catalog, "orders")
    running.once()
    cluster.ids["orders"] = OTHER

    with pytest.raises(OtherTopic):
        running.keep_on(0.01, threading.Event())


def test_what_fails_afterwards_is_tried_again(catalog: Catalog, cluster: Shifting) -> None:
    running, stopping, tries = begin(catalog, "orders"), threading.Event(), iter(range(2))

    def after() -> None:
        if next(tries) == 0:
            raise OtherTopic("not now")
        stopping.set()

    running.keep_on(0.001, stopping, after=after)

    assert next(tries, None) is None


# Logs that were cut.


def test_a_log_that_was_cut_and_has_grown_again_is_not_archived(catalog: Catalog, cluster: Shifting) -> None:
    running = begin(catalog, "orders")
    running.once()
    cluster.epoch, cluster.cut_at = 1, {0: 90}
    cluster.topics["orders"] = {0: Span(0, 150)}

    with pytest.raises(ArchiveAhead, match="cut at 90"):
        running.once()
    assert archived(catalog, "orders") == {0: Span(0, 100)}


def test_what_was_read_of_a_log_that_was_cut_meanwhile_is_not_committed(
    catalog: Catalog, cluster: Shifting
) -> None:
    running = begin(catalog, "orders")
    set_between(running, lambda: cluster.cut_at.update({0: 90}))

    with pytest.raises(ArchiveAhead):
        running.once()
    assert archived(catalog, "orders") == {}


def test_an_archive_ahead_of_its_log_can_be_begun_anew_as_the_error_says(
    catalog: Catalog, cluster: Shifting
) -> None:
    begin(catalog, "orders").once()
    cluster.topics["orders"] = {0: Span(0, 50)}  # under the same id
    with pytest.raises(ArchiveAhead, match="--new-table"):
        begin(catalog, "orders")

    anew = begin(catalog, "orders", new_table=True)
    anew.once()

    assert archived(catalog, "orders") == {0: Span(0, 50)}
    aside = load_topic(catalog, anew.done["orders"].set_aside)
    remove_strays(load_topic(catalog, "orders"))
    for file in aside.files():
        assert Path(file.path.removeprefix("file://")).exists()
    cluster.topics["orders"] = {0: Span(0, 10)}
    assert begin(catalog, "orders", new_table=True).done["orders"].set_aside != aside.name


# Others who archive the same.


def test_who_is_outpaced_looks_at_the_log_again_too(catalog: Catalog, cluster: Shifting) -> None:
    """Otherwise the archive seems to be ahead of the log."""
    slow, fast = begin(catalog, "orders"), begin(catalog, "orders")

    def outpace() -> None:
        cluster.topics["orders"] = {0: Span(0, 150)}
        fast.once()

    set_between(slow, outpace)
    slow.once()

    assert archived(catalog, "orders") == {0: Span(0, 150)}


def test_strays_are_told_by_the_newest_snapshot(table: TopicTable) -> None:
    """Somebody else has committed twice between our commit and our look for strays."""
    mine = archive(table, 0, 0, 100)
    theirs = archive(archive(mine.reload(), 0, 100, 200), 0, 200, 300)

    assert remove_strays(mine) == []
    for file in theirs.files():
        assert Path(file.path.removeprefix("file://")).exists()


def test_who_forgets_snapshots_does_not_go_on_from_one_with_older_spans(table: TopicTable) -> None:
    mine = table
    for start in range(0, 60, 10):
        mine = archive(mine, 0, start, start + 10)
    archive(mine.reload(), 0, 60, 70)  # by somebody else

    expire(mine.reload().table, Expiry(snapshots=2))

    with pytest.raises(Outpaced):
        archive(mine, 0, 60, 70)


# Records that were skipped.


def test_records_that_were_skipped_are_still_said_to_be_lost(catalog: Catalog, cluster: Shifting) -> None:
    begin(catalog, "orders").once()
    cluster.topics["orders"] = {0: Span(150, 200)}
    begin(catalog, "orders", skip_lost=True).once()
    cluster.topics["orders"] = {0: Span(150, 220)}
    begin(catalog, "orders").once()

    found, log = load_topic(catalog, "orders"), {0: Span(150, 220)}
    (shown,) = status(found, None)
    assert (shown.lost, shown.as_json()["skipped"]) == (50, [[100, 150]])
    history = History("orders", found)
    with pytest.raises(RecordsLost, match=r"offsets 120 to 149 of .*has 0 to 219 without them"):
        history.parts([OffsetRange("orders", 0, 120, 220)], log)
    for start, end, may_lose in ((0, 100, False), (150, 220, False), (0, 220, True)):
        wanted = OffsetRange("orders", 0, start, end)
        assert [one.end for one in history.parts([wanted], log, may_lose=may_lose)] == [end]
