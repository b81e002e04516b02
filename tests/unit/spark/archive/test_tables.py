"""A real catalog, real tables, rows that were made up."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.unit.spark.archive.rows import TIME_US, archive, batch_of, put
from tests.unit.spark.tables.lake import sent_twice
from tidelog.errors import ConfigError
from tidelog.spark.archive import files
from tidelog.spark.archive.catalog import (
    NAMESPACE,
    create_topic,
    load_topic,
    open_catalog,
    set_aside,
    topics_in,
)
from tidelog.spark.archive.cleaning import remove_strays
from tidelog.spark.archive.files import read_archived, verify_file
from tidelog.spark.archive.merging import merge_archived
from tidelog.spark.archive.spans import Span
from tidelog.spark.archive.tables import RETRIES, ArchiveError, NotArchived, OtherTopic, Outpaced, TopicTable
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.tables.expiring import Expiry, expire, remove_expired

TOPIC = uuid.UUID(int=7)


@pytest.fixture
def catalog(tmp_path) -> Iterator[Catalog]:
    with open_catalog(str(tmp_path / "warehouse"), create=True) as opened:
        yield opened


@pytest.fixture
def table(catalog) -> TopicTable:
    return create_topic(catalog, "orders", TOPIC)


def rows(table: TopicTable, partition: int, start: int, end: int) -> pa.Table:
    parts = table.ranges([OffsetRange("orders", partition, start, end)])
    batches = [batch for one in parts for batch in read_archived(one, files.NAMES)]
    return pa.Table.from_batches(batches, files.SCHEMA)


def test_what_was_committed_is_there_for_whoever_opens_the_catalog(table, tmp_path):
    archive(archive(table, 0, 0, 100), 1, 5, 50)

    with open_catalog(str(tmp_path / "warehouse")) as again:
        assert topics_in(again) == ["orders"]
        found = load_topic(again, "orders")
        assert found.spans == {0: Span(0, 100), 1: Span(5, 50)}
        assert found.totals[0] == 145
        assert rows(found, 1, 0, 99).equals(pa.Table.from_batches([batch_of(range(5, 50), partition=1)]))


def test_any_reader_of_iceberg_has_the_same_rows(table):
    table = archive(archive(table, 0, 0, 100), 0, 100, 120)

    got = table.table.scan(row_filter="offset >= 90").to_arrow().sort_by("offset")

    assert got.column("value").to_pylist() == batch_of(range(90, 120)).column("value").to_pylist()


def test_a_range_without_records_is_archived_too(table):
    table = archive(table, 0, 0, 100)
    table = table.commit([], [OffsetRange("orders", 0, 100, 140)])

    assert table.reload().spans == {0: Span(0, 140)}


def test_a_range_is_cut_into_tasks_between_files_and_has_no_others(table):
    for start in (0, 100, 200, 300):
        table = archive(table, 0, start, start + 100, step=3)
        table = archive(table, 1, start, start + 100)

    parts = table.ranges([OffsetRange("orders", 0, 150, 301)], bytes_max=1)
    together = table.ranges([OffsetRange("orders", 0, 150, 301)])

    assert [(one.start, one.end, len(one.paths)) for one in parts] == [
        (150, 200, 1),
        (200, 300, 1),
        (300, 301, 1),
    ]
    assert [(one.start, one.end, len(one.paths)) for one in together] == [(150, 301, 3)]
    offsets = rows(table, 0, 150, 301).column("offset").to_pylist()
    assert offsets == [*range(151, 200, 3), *range(200, 300, 3), 300]


def test_of_two_who_archive_the_same_one_wins_and_the_other_adds_nothing(table):
    late = table.reload()
    archive(table, 0, 0, 100)

    with pytest.raises(Outpaced):
        archive(late, 0, 0, 100)

    assert late.reload().totals[0] == 100


def test_a_second_round_on_an_old_snapshot_adds_nothing_either(table):
    table = archive(table, 0, 0, 100)
    late = table.reload()
    archive(table, 0, 100, 200)

    with pytest.raises(Outpaced):
        archive(late, 0, 100, 200)

    assert late.reload().totals[0] == 200


def test_a_table_that_lets_commits_be_tried_again_is_refused(catalog, table):
    table.table.transaction().set_properties({RETRIES: "4"}).commit_transaction()

    with pytest.raises(ArchiveError, match=f"{RETRIES}=0"):
        load_topic(catalog, "orders")


def test_a_commit_whose_answer_was_lost_is_recognized(table, monkeypatch):
    real = type(table.table)._do_commit

    def lose_the_answer(self, updates, requirements):
        real(self, updates, requirements)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(type(table.table), "_do_commit", lose_the_answer)

    assert archive(table, 0, 0, 100).spans == {0: Span(0, 100)}


def test_a_commit_that_is_said_to_have_failed_and_was_done_keeps_its_files(table, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", sent_twice)
        archive(table, 0, 0, 100)

    assert rows(table.reload(), 0, 0, 100).num_rows == 100


def test_a_commit_that_failed_is_not_taken_for_one_that_was_done(table, monkeypatch):
    def fail(self, updates, requirements):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(type(table.table), "_do_commit", fail)

    with pytest.raises(ConnectionError):
        archive(table, 0, 0, 100)


def test_a_snapshot_of_somebody_else_does_not_hide_what_is_archived(catalog, table):
    table = archive(table, 0, 0, 100)
    other = catalog.load_table((NAMESPACE, "orders"))
    other.append(other.scan().to_arrow().slice(0, 0))

    assert table.reload().spans == {0: Span(0, 100)}


def test_a_topic_made_anew_is_refused_until_the_old_table_is_set_aside(catalog, table):
    archive(table, 0, 0, 100)
    new = uuid.UUID(int=8)

    with pytest.raises(OtherTopic, match="--new-table"):
        create_topic(catalog, "orders", new)
    old_name = set_aside(catalog, "orders")
    begun = archive(create_topic(catalog, "orders", new), 0, 0, 10)

    assert begun.spans == {0: Span(0, 10)}
    assert remove_strays(begun) == []
    assert rows(load_topic(catalog, old_name), 0, 0, 100).num_rows == 100


def test_strays_go_once_they_cannot_be_committed_any_more_and_not_before(table):
    table = archive(table, 0, 0, 100)
    (left,) = put(table, OffsetRange("orders", 0, 100, 200), range(100, 200))

    assert remove_strays(table) == []
    table = archive(table, 0, 100, 200)
    assert remove_strays(table) == [left.path]
    assert rows(table, 0, 0, 200).num_rows == 200


def test_old_snapshots_are_forgotten_and_nothing_else(table):
    for start in range(0, 60, 10):
        table = archive(table, 0, start, start + 10)

    expire(table.reload().table, Expiry(snapshots=2))

    table = table.reload()
    assert len(table.table.metadata.snapshots) == 2
    assert table.spans == {0: Span(0, 60)}
    assert rows(table, 0, 0, 60).num_rows == 60
    assert remove_strays(table) == []


def test_small_files_become_one_stretch_of_each_partition_with_the_same_claim(table):
    for start in range(0, 90, 10):
        table = archive(archive(table, 0, start, start + 10, 2), 1, start, start + 10)
    claim = table.claim

    assert merge_archived(table) == 18

    table = table.reload()
    assert [(one.partition, one.first, one.last) for one in table.files()] == [(0, 0, 88), (1, 0, 89)]
    assert table.claim == claim
    assert table.miscounted() == []
    assert rows(table, 0, 0, 90).num_rows == 45
    for file in table.files():
        verify_file(file, table.storage)
    assert archive(table, 0, 90, 100).spans == {0: Span(0, 100), 1: Span(0, 90)}


def test_a_merge_that_was_outpaced_changes_nothing_and_leaves_no_files(table):
    for start in range(0, 80, 10):
        table = archive(table, 0, start, start + 10)
    newer = archive(table.reload(), 0, 80, 90)

    assert merge_archived(table) == 0

    table = table.reload()
    assert table.tag == newer.tag
    assert len(table.storage.list_files(table.directory, ".parquet")) == 9


def test_what_was_merged_stays_for_its_readers_though_its_snapshots_are_forgotten(table):
    for start in range(0, 80, 10):
        table = archive(table, 0, start, start + 10)
    before = table
    merge_archived(table)
    table = archive(table.reload(), 0, 80, 90)
    expire(table.reload().table, Expiry(snapshots=1), now=1000.0)

    assert remove_strays(table) == []
    assert rows(before, 0, 0, 80).num_rows == 80
    assert remove_expired(table.reload().table, Expiry(keep_seconds=60), now=1060.0) > 8
    table = table.reload()
    assert len(table.storage.list_files(table.directory, ".parquet")) == 2
    assert rows(table, 0, 0, 90).num_rows == 90


def test_the_first_record_of_a_time_is_found(table):
    table = archive(archive(table, 0, 0, 100), 0, 100, 200)
    wanted = OffsetRange("orders", 0, 0, 200)

    assert table.first_at(wanted, TIME_US + 150 * 1000) == 150
    assert table.first_at(wanted, TIME_US + 149_001) == 150
    assert table.first_at(wanted, TIME_US + 200 * 1000) is None


def test_a_topic_may_have_dots_in_its_name(catalog):
    archive(create_topic(catalog, "a.b-c_d", TOPIC), 0, 0, 10)

    assert topics_in(catalog) == ["a.b-c_d"]
    assert load_topic(catalog, "a.b-c_d").spans == {0: Span(0, 10)}


def test_there_is_no_archive_where_none_was_made(tmp_path, catalog):
    with pytest.raises(NotArchived, match="--warehouse"), open_catalog(str(tmp_path / "nowhere")):
        pass
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(NotArchived, match="no topic at all"):
        load_topic(catalog, "orders")


@pytest.mark.parametrize(
    ("warehouse", "catalog", "error", "complaint"),
    [
        ("s3://bucket/here", None, ConfigError, "--catalog"),
        ("/tmp/x", "type=rest,uri", ConfigError, "must be a name, or properties"),
        ("/tmp/x", "type=none,s3.secret=x", ArchiveError, r"\(type=none,warehouse=/tmp/x\) cannot"),
        ("/tmp/x", "type=nonsense", ArchiveError, "cannot be opened"),
        ("/tmp/x", "unheard-of", ArchiveError, "cannot be opened"),
    ],
)
def test_a_catalog_that_cannot_be_had_is_said(warehouse, catalog, error, complaint):
    with pytest.raises(error, match=complaint), open_catalog(warehouse, catalog, create=True):
        pass
