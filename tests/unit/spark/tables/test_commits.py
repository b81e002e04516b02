"""Commits that were done, though their answer says otherwise."""

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from tests.unit.spark.tables.lake import NAME, append, append_all, make, numbers, sent_twice
from tidelog.spark.tables.commits import tried_once
from tidelog.spark.tables.merging import merge_small


def test_a_merge_that_was_done_is_not_removed_because_its_second_sending_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 10)
    monkeypatch.setattr(SqlCatalog, "commit_table", sent_twice)

    assert merge_small(table) == 10

    assert numbers(catalog.load_table(NAME)) == list(range(10))


def test_who_was_outpaced_has_failed(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    table = append(catalog, 0)
    append(catalog, 1)

    with (
        pytest.raises(CommitFailedException),
        tried_once(table).transaction() as transaction,
    ):
        transaction.append(table.scan().to_arrow())

    assert numbers(catalog.load_table(NAME)) == [0, 1]
