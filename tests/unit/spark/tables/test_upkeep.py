"""A table that many commits go to stays small."""

from pathlib import Path

import pytest

from tests.unit.spark.tables.lake import NAME, append, files, make, numbers, on_disk
from tidelog.spark.tables import upkeep
from tidelog.spark.tables.expiring import Expiry
from tidelog.spark.tables.upkeep import Upkeep


def test_snapshots_files_and_metadata_are_bounded_however_many_commits(tmp_path: Path) -> None:
    catalog = make(
        tmp_path,
        properties={
            "commit.manifest-merge.enabled": "true",
            "commit.manifest.min-count-to-merge": "10",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "5",
        },
    )
    keeping = Upkeep(expiry=Expiry(snapshots=5, keep_seconds=0))
    for number in range(80):
        keeping.after_commit(append(catalog, number))

    table = catalog.load_table(NAME)
    assert numbers(table) == list(range(80))
    assert len(table.metadata.snapshots) <= 10
    assert len(files(table)) <= 24
    assert len(on_disk(table, ".parquet")) <= 40
    assert len(on_disk(table, ".avro")) <= 60
    assert len(on_disk(table, ".metadata.json")) <= 7


def test_what_goes_wrong_is_told_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(upkeep, "expire", broken)
    catalog = make(tmp_path)
    keeping = Upkeep(expiry=Expiry(snapshots=1))
    for number in range(3):
        keeping.after_commit(append(catalog, number))

    assert "lake.rows is not kept in order" in caplog.text
    assert "the store is away" in caplog.text
