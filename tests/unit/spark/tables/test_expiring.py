"""Snapshots that are forgotten, and when their files go."""

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update.snapshot import ExpireSnapshots

from tests.unit.spark.tables.lake import NAME, SCHEMA, append, append_all, files, make, numbers, on_disk
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
        0,
        1,
        2,
        3,
        4,
    ]

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


def test_the_time_of_files_begins_when_their_snapshots_leave_the_list(
    merged: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20, 23):
        append(merged, number)
    with monkeypatch.context() as patch:
        patch.setattr(ExpireSnapshots, "commit", _die)
        with pytest.raises(KeyboardInterrupt):
            expire(merged.load_table(NAME), FEW, now=NOW)
    reader = merged.load_table(NAME)

    expire(merged.load_table(NAME), FEW, now=NOW + 1000)
    remove_expired(merged.load_table(NAME), FEW, now=NOW + 1099)
    assert reader.scan(snapshot_id=reader.snapshots()[5].snapshot_id).to_arrow().num_rows == 6

    assert remove_expired(merged.load_table(NAME), FEW, now=NOW + 1100) > 0
    assert on_disk(merged.load_table(NAME), "expired/*.json") == set()
    assert numbers(merged.load_table(NAME)) == [*range(10), 20, 21, 22]


def test_a_file_that_was_deleted_and_added_again_stays(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    first = files(append(catalog, 0))
    append(catalog, 1)
    catalog.load_table(NAME).delete("number = 0")
    catalog.load_table(NAME).add_files(sorted(first))
    append(catalog, 2)

    expire(catalog.load_table(NAME), Expiry(snapshots=1), now=NOW)
    remove_expired(catalog.load_table(NAME), FEW, now=NOW + 1000)

    assert numbers(catalog.load_table(NAME)) == [0, 1, 2]


def test_a_table_that_shares_its_files_with_another_removes_none(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    shared = sorted(files(append_all(catalog, 10)))
    copy = catalog.create_table("lake.copy", SCHEMA, properties={"gc.enabled": "false"})
    for file in shared:
        copy.add_files([file])
    merge_small(copy)

    assert not FEW.is_due(catalog.load_table("lake.copy"))
    assert expire(catalog.load_table("lake.copy"), FEW, now=NOW) == 0
    copy = catalog.load_table("lake.copy")
    with copy.transaction() as transaction:  # it was not shared when these were forgotten
        transaction.set_properties({"gc.enabled": "true"})
    assert expire(catalog.load_table("lake.copy"), Expiry(snapshots=1), now=NOW) == 10
    with catalog.load_table("lake.copy").transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    assert remove_expired(catalog.load_table("lake.copy"), FEW, now=NOW + 1000) == 0

    assert numbers(catalog.load_table(NAME)) == list(range(10))


def test_what_is_rolled_back_to_meanwhile_is_not_forgotten(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 10)
    back = table.snapshots()[2].snapshot_id
    catalog.load_table(NAME).manage_snapshots().rollback_to_snapshot(back).commit()

    assert expire(table, FEW, now=NOW) == 0

    assert numbers(catalog.load_table(NAME)) == [0, 1, 2]
    assert on_disk(table, "expired/*.json") == set()


def test_what_is_rolled_back_to_at_the_last_moment_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 10)
    back, commit = table.snapshots()[2].snapshot_id, ExpireSnapshots.commit

    def late(update: ExpireSnapshots) -> None:
        catalog.load_table(NAME).manage_snapshots().rollback_to_snapshot(back).commit()
        commit(update)

    monkeypatch.setattr(ExpireSnapshots, "commit", late)
    assert expire(table, FEW, now=NOW) == 0

    assert numbers(catalog.load_table(NAME)) == [0, 1, 2]


def test_what_gets_a_tag_meanwhile_is_not_forgotten(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 10)
    tagged = table.snapshots()[2].snapshot_id
    catalog.load_table(NAME).manage_snapshots().create_tag(tagged, "march").commit()

    assert expire(table, FEW, now=NOW) == 0

    assert catalog.load_table(NAME).scan().use_ref("march").to_arrow().num_rows == 3


def test_who_appends_meanwhile_does_not_keep_snapshots_listed(merged: Catalog) -> None:
    table = merged.load_table(NAME)
    append(merged, 99)

    assert expire(table, FEW, now=NOW) == 8
    assert numbers(merged.load_table(NAME)) == [*range(10), 99]


def _die(_: object) -> None:
    raise KeyboardInterrupt
