"""Commits that were done, though their answer says otherwise."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.unit.spark.tables.lake import NAME, append, append_all, make, numbers, sent_twice
from tidelog.spark.tables.commits import Locked, named, tried_once
from tidelog.spark.tables.evolving import evolve
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

    with pytest.raises(CommitFailedException), tried_once(table).transaction() as transaction:
        transaction.append(table.scan().to_arrow())

    assert numbers(catalog.load_table(NAME)) == [0, 1]


def test_columns_are_told_by_name_as_the_table_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    commit = SqlCatalog.commit_table

    def outpaced(*told: Any) -> Any:
        """Somebody adds a column, and has no property to keep up to date."""
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        with catalog.load_table(NAME).update_schema() as update:
            update.add_column("more", LongType())
        return commit(*told)

    monkeypatch.setattr(SqlCatalog, "commit_table", outpaced)

    table = named(catalog.load_table(NAME))

    mapping = table.metadata.name_mapping()
    assert mapping is not None
    assert [one.names for one in mapping.root] == [["number"], ["text"], ["more"]]
    assert named(table) is table


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("Failed to acquire lock for ('lake', 'rows'), state: 2", Locked),
        ("the columns have changed", CommitFailedException),
    ],
)
def test_a_table_that_cannot_be_told_by_name_is_not_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, expected: type[Exception]
) -> None:
    catalog = make(tmp_path)

    def refused(*told: Any) -> Any:
        raise CommitFailedException(why)

    monkeypatch.setattr(SqlCatalog, "commit_table", refused)

    with pytest.raises(expected):
        named(catalog.load_table(NAME))


def test_columns_are_not_given_up_because_a_table_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    comes = Schema(*catalog.load_table(NAME).schema().fields, NestedField(9, "more", LongType()))

    def locked(*told: Any) -> Any:
        raise CommitFailedException("Failed to acquire lock for ('lake', 'rows'), state: 2")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", locked)
        with pytest.raises(Locked):
            evolve(catalog.load_table(NAME), comes)

    assert "more" in evolve(catalog.load_table(NAME), comes).schema().column_names
