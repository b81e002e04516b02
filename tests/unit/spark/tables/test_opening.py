"""Catalogs that several processes open."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from sqlalchemy.exc import OperationalError

from tidelog.spark.tables.opening import load


def test_a_new_catalog_is_there_for_both_of_two_that_open_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_all, tries = SqlCatalogBaseTable.metadata.create_all, []

    def overtaken(engine: Any, **options: Any) -> None:
        tries.append(engine)
        create_all(engine)  # another process, between the look and the making
        create_all(engine, checkfirst=False)

    monkeypatch.setattr(SqlCatalogBaseTable.metadata, "create_all", overtaken)
    uri = f"sqlite:///{tmp_path / 'catalog.db'}"

    catalog = load("lake", {"type": "sql", "uri": uri, "warehouse": tmp_path.as_uri()})

    assert len(tries) == 1 and catalog.list_namespaces() == []


def test_a_catalog_that_cannot_be_made_is_said_to_be_so(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'no' / 'such' / 'directory' / 'catalog.db'}"

    with pytest.raises(OperationalError, match="unable to open"):
        load("lake", {"type": "sql", "uri": uri, "warehouse": tmp_path.as_uri()})
