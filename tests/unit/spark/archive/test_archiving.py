"""Rounds of an archive, without a cluster and without a JVM."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

from tests.unit.spark.archive.loop import Cluster, LoopSpark
from tidelog.client.wire import ConnectionFailed
from tidelog.faces.cli import archive as cli
from tidelog.model import Endpoint
from tidelog.spark.archive import archiving, spans
from tidelog.spark.archive.archiving import Archiver, NotMoved, Settings
from tidelog.spark.archive.catalog import CatalogAway, load_topic, open_catalog
from tidelog.spark.archive.checking import status, verify
from tidelog.spark.archive.logs import Log
from tidelog.spark.archive.spans import Span
from tidelog.spark.archive.tables import ArchiveError, Outpaced
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.tables.waiting import StoppedWaiting


@pytest.fixture
def catalog(tmp_path) -> Iterator[Catalog]:
    with open_catalog(str(tmp_path), create=True) as opened:
        yield opened


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    found = Cluster(orders={0: Span(10, 500), 1: Span(0, 30)}, pay={0: Span(0, 40)})
    monkeypatch.setattr(archiving, "look_at", found.look_at)
    monkeypatch.setattr(archiving, "read_range", found.read_range)
    monkeypatch.setattr(spans, "FIRST_ROWS", 200)
    return found


@pytest.fixture
def spark() -> Any:
    return LoopSpark()


def begin(spark: Any, catalog: Catalog, *topics: str, **settings: Any) -> Archiver:
    return Archiver(spark, catalog, "nowhere:1", topics, Settings(**settings))


def files_of(archiver: Archiver, topic: str) -> list[Path]:
    directory = archiver.tables[topic].directory.removeprefix("file://")
    return list(Path(directory).rglob("*.parquet"))


def test_all_topics_are_archived_to_the_ends_that_their_logs_had(spark, catalog, cluster):
    archiver = begin(spark, catalog, "orders", "pay")

    archiver.once()

    assert load_topic(catalog, "orders").spans == {0: Span(10, 500), 1: Span(0, 30)}
    assert load_topic(catalog, "pay").spans == {0: Span(0, 40)}
    done = archiver.done["orders"]
    assert (done.rows, done.offsets, done.files) == (520, 520, 3)
    assert verify(spark, load_topic(catalog, "orders"), archiver.tables["orders"].files()) == []


def test_what_is_archived_is_not_archived_again(spark, catalog, cluster):
    begin(spark, catalog, "orders").once()
    cluster.topics["orders"] = {0: Span(400, 510), 1: Span(0, 30)}

    again = begin(spark, catalog, "orders")
    again.once()
    again.once()

    assert [task.wanted for task in spark.rounds[-1]] == [OffsetRange("orders", 0, 500, 510)]
    assert again.done["orders"].commits == 1
    assert load_topic(catalog, "orders").totals[0] == 530


def test_a_round_that_somebody_else_was_faster_with_is_planned_again(spark, catalog, cluster):
    archiver = begin(spark, catalog, "orders")
    other = begin(LoopSpark(), catalog, "orders")
    spark.between = other.once

    archiver.once()

    assert archiver.done["orders"].commits == 0
    assert load_topic(catalog, "orders").totals[0] == 520
    assert len(files_of(archiver, "orders")) == len(load_topic(catalog, "orders").files())


def test_a_table_that_is_locked_is_tried_again_and_no_files_stay(spark, catalog, cluster, monkeypatch):
    archiver, stopping = begin(spark, catalog, "orders"), threading.Event()
    archiver.once()
    cluster.topics["orders"] = {0: Span(10, 600), 1: Span(0, 30)}
    locked, commit = [1, 1], SqlCatalog.commit_table

    def commit_table(*told: Any) -> Any:
        if locked:
            locked.pop()
            raise CommitFailedException("Failed to acquire lock for ('tidelog', 'orders'), state: 2")
        return commit(*told)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.0)

    archiver.keep_on(60, stopping, after=stopping.set)

    table = load_topic(catalog, "orders")
    assert not locked
    assert table.totals[0] == 620
    assert len(files_of(archiver, "orders")) == len(table.files())


def test_who_never_wins_gives_up(spark, catalog, cluster):
    archiver = begin(spark, catalog, "orders")
    numbers = iter(range(500, 600))

    def win() -> None:
        cluster.topics["pay"] = {0: Span(0, next(numbers))}
        begin(LoopSpark(), catalog, "pay").once()
        cluster.topics["pay"] = {0: Span(0, 1000)}

    cluster.topics["pay"] = {0: Span(0, 1000)}
    archiver = begin(spark, catalog, "pay")
    spark.between = win

    with pytest.raises(Outpaced, match="end one of the two"):
        archiver.once()


def test_a_task_that_fails_costs_its_topic_the_round_and_leaves_no_files(spark, catalog, cluster):
    cluster.broken = lambda wanted: (wanted.topic, wanted.partition) == ("orders", 1)
    archiver = begin(spark, catalog, "orders", "pay")

    with pytest.raises(NotMoved, match=r"orders-1 \[0, 30\).*on fire"):
        archiver.once()

    assert load_topic(catalog, "orders").spans == {}
    assert load_topic(catalog, "pay").spans == {0: Span(0, 40)}
    assert files_of(archiver, "orders") == []


def test_files_of_a_run_that_was_killed_go_with_the_next_one(spark, catalog, cluster):
    killed = begin(spark, catalog, "orders")

    def kill() -> None:
        raise KeyboardInterrupt

    spark.between = kill
    with pytest.raises(KeyboardInterrupt):
        killed.once()
    assert len(files_of(killed, "orders")) == 3

    archiver = begin(LoopSpark(), catalog, "orders")
    archiver.once()

    assert archiver.done["orders"].strays == 3
    assert len(files_of(archiver, "orders")) == len(load_topic(catalog, "orders").files())


def test_a_continuous_archive_waits_for_a_cluster_that_is_away(spark, catalog, cluster, monkeypatch):
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.01)
    archiver = begin(spark, catalog, "orders")
    stopping, failures = threading.Event(), iter(range(2))

    def look_at(bootstrap: str, topic: str) -> Log:
        for _ in failures:
            raise ConnectionFailed(Endpoint(host="nowhere", port=1), "nobody is there")
        return cluster.look_at(bootstrap, topic)

    monkeypatch.setattr(archiving, "look_at", look_at)
    archiver.keep_on(0.01, stopping, after=stopping.set)

    assert load_topic(catalog, "orders").totals[0] == 520


def test_between_its_intervals_only_whole_files_are_archived(spark, catalog, cluster, monkeypatch):
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(archiving, "rows_for", lambda wanted, rows, bytes_taken: 200)
    archiver = begin(spark, catalog, "orders")
    stopping = threading.Event()

    def after() -> None:
        cluster.topics["orders"] = {0: Span(10, 750), 1: Span(0, 31)}
        spark.between = stopping.set

    archiver.keep_on(3600, stopping, after=after)

    assert load_topic(catalog, "orders").spans == {0: Span(10, 700), 1: Span(0, 30)}


def test_the_status_says_how_far_behind_the_archive_is(spark, catalog, cluster):
    archiver = begin(spark, catalog, "orders")
    archiver.once()
    cluster.topics["orders"] = {0: Span(505, 520), 1: Span(0, 30), 2: Span(4, 9)}

    shown = status(archiver.tables["orders"], cluster.look_at("", "orders"))

    assert [(one.partition, one.archived, one.lag, one.lost, one.rows) for one in shown] == [
        (0, Span(10, 500), 15, 5, 490),
        (1, Span(0, 30), 0, 0, 30),
        (2, None, 5, 0, 0),
    ]
    assert status(archiver.tables["orders"], None)[0].lag is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_an_archive_that_is_killed_again_and_again_has_every_record_once(seed):
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.spark.archive.fire", str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "archived once" in done.stdout


def test_a_catalog_that_is_away_is_waited_for_and_nothing_comes_twice(
    spark, catalog, cluster, monkeypatch, caplog
):
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.01)
    archiver = begin(spark, catalog, "pay")
    commit, asked, stopping = SqlCatalog.commit_table, [], threading.Event()

    def away(*told: Any) -> Any:
        asked.append(1)
        done = commit(*told) if len(asked) == 3 else None  # one is done, and not answered
        if len(asked) <= 3:
            raise OperationalError("commit", {}, ConnectionRefusedError("the database is down"))
        return done or commit(*told)

    def after() -> None:
        if archiver.tables["pay"].reload().spans:
            stopping.set()

    monkeypatch.setattr(SqlCatalog, "commit_table", away)
    archiver.keep_on(0.01, stopping, after=after)

    table = load_topic(catalog, "pay")
    assert table.spans == {0: Span(0, 40)}
    assert table.miscounted() == []
    assert [(one.first, one.last) for one in table.files()] == [(0, 39)]
    assert "pay will be tried again" in caplog.text
    assert "the database is down" in caplog.text


def test_a_continuous_archive_waits_for_a_catalog_that_is_away_when_it_begins(
    spark, catalog, cluster, monkeypatch
):
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.01)
    create, stopping, failures = SqlCatalog.create_table, threading.Event(), iter(range(3))

    def away(*told: Any, **named: Any) -> Any:
        for _ in failures:
            raise OperationalError("create", {}, ConnectionRefusedError("the database is down"))
        return create(*told, **named)

    monkeypatch.setattr(SqlCatalog, "create_table", away)
    begin(spark, catalog, "pay").keep_on(0.01, stopping, after=stopping.set)

    assert load_topic(catalog, "pay").spans == {0: Span(0, 40)}


def test_a_command_that_goes_on_waits_until_its_catalog_can_be_opened(catalog, monkeypatch):
    answers = iter([CatalogAway("it is down"), catalog])

    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Catalog]:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        yield found

    monkeypatch.setattr(cli, "opened", opened)
    with cli.first_opened("x", None, threading.Event()) as found:
        assert found is catalog

    answers, stopped = iter([CatalogAway("it is down")]), threading.Event()
    stopped.set()
    with pytest.raises(StoppedWaiting), cli.first_opened("x", None, stopped):
        pass
    answers = iter([CatalogAway("it is down")])
    with pytest.raises(CatalogAway), cli.first_opened("x", None, None):
        pass


def test_a_catalog_that_cannot_be_reached_is_away_and_one_that_is_wrong_is_not():
    with pytest.raises(CatalogAway), open_catalog("s3://b/w", "type=rest,uri=http://127.0.0.1:1"):
        pass
    with pytest.raises(ArchiveError) as wrong, open_catalog("s3://b/w", "type=nonsense"):
        pass
    assert not isinstance(wrong.value, CatalogAway)
