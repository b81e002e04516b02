"""Snapshots that are forgotten, and when their files go."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update.snapshot import ExpireSnapshots

from tests.unit.spark.tables.lake import NAME, append, append_all, files, make, numbers, on_disk
from tidelog.spark.tables.expiring import Expiry, expire, remove_expired
from tidelog.spark.tables.merging import merge_small

FEW = Expiry(snapshots=3, keep_seconds=100)
NOW = 1_800_000_000.0


@pytest.fixture
def merged(tmp_path: Path) -> Catalog:
    """A table of ten commits whose files were put together."""
    catalog = make(tmp_path)
    merge_small(append_all(catalog, 10))
    return catalog


def test_only_the_last_snapshots_are_listed(merged: Catalog) -> None:
    assert expire(merged.load_table(NAME), FEW, now=NOW) == 8

    table = merged.load_table(NAME)
    assert len(table.metadata.snapshots) == len(table.metadata.snapshot_log) == 3
    assert numbers(table) == list(range(10))


def test_who_reads_a_forgotten_snapshot_can_go_on_until_its_time_has_come(merged: Catalog) -> None:
    reader = merged.load_table(NAME)
    first = reader.snapshots()[4]
    expire(merged.load_table(NAME), Expiry(snapshots=1, keep_seconds=100), now=NOW)

    remove_expired(merged.load_table(NAME), FEW, now=NOW + 99)
    assert sorted(reader.scan(snapshot_id=first.snapshot_id).to_arrow()["number"].to_pylist()) == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip

    remove_expired(merged.load_table(NAME), FEW, now=NOW + 100)
    table = merged.load_table(NAME)
    assert on_disk(table, ".parquet") == files(table), "what was merged is gone"
    assert len(on_disk(table, ".avro")) == len(table.current_snapshot().manifests(table.io)) + 1  # type: ignore[union-attr]
    assert on_disk(table, "expired/*.json") == set()
    assert numbers(table) == list(range(10))


def test_files_that_a_listed_snapshot_has_stay(merged: Catalog) -> None:
    expire(merged.load_table(NAME), FEW, now=NOW)  # two of those from before the merge stay
    remove_expired(merged.load_table(NAME), FEW, now=NOW + 1000)

    table = merged.load_table(NAME)
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows >= 9


def test_a_table_with_a_tag_keeps_its_files(merged: Catalog) -> None:
    table = merged.load_table(NAME)
    table.manage_snapshots().create_tag(table.snapshots()[2].snapshot_id, "march").commit()

    expire(merged.load_table(NAME), FEW, now=NOW)
    remove_expired(merged.load_table(NAME), FEW, now=NOW + 1000)

    table = merged.load_table(NAME)
    assert table.scan().use_ref("march").to_arrow().num_rows == 3


def test_what_was_deleted_and_rolled_back_stays(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    for number in range(4):
        append(catalog, number)
    before = catalog.load_table(NAME).current_snapshot()
    assert before is not None
    catalog.load_table(NAME).delete("number >= 0")
    catalog.load_table(NAME).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    for number in range(4, 9):
        append(catalog, number)

    expire(catalog.load_table(NAME), FEW, now=NOW)
    remove_expired(catalog.load_table(NAME), FEW, now=NOW + 1000)

    assert numbers(catalog.load_table(NAME)) == list(range(9))


def test_a_grave_whose_snapshots_are_still_listed_is_void(
    merged: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ExpireSnapshots, "commit", _die)
        with pytest.raises(KeyboardInterrupt):
            expire(merged.load_table(NAME), FEW, now=NOW)

    remove_expired(merged.load_table(NAME), FEW, now=NOW + 1000)

    table = merged.load_table(NAME)
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows > 0
    assert on_disk(table, "expired/*.json") == set()


def test_who_was_slower_forgets_nothing(merged: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def outpaced(_: object) -> None:
        raise CommitFailedException("somebody was faster")

    monkeypatch.setattr(ExpireSnapshots, "commit", outpaced)

    assert expire(merged.load_table(NAME), FEW, now=NOW) == 0
    assert on_disk(merged.load_table(NAME), "expired/*.json") == set()


def _die(_: object) -> None:
    raise KeyboardInterrupt
