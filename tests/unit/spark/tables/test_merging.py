"""Small files that become one, and nothing else that changes."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from tests.unit.spark.tables.lake import NAME, append, append_all, files, make, numbers, on_disk
from tidelog.spark.tables import merging
from tidelog.spark.tables.merging import MergeFailed, merge_small


def test_small_files_become_one_and_the_rows_stay(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 10)

    assert merge_small(table) == 10

    table = catalog.load_table(NAME)
    assert len(files(table)) == 1
    assert numbers(table) == list(range(10))


def test_a_merge_has_the_columns_that_were_added_since(tmp_path: Path) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 8)
    with table.update_schema() as update:
        update.union_by_name(pa.schema([("more", pa.float64())]))

    merge_small(catalog.load_table(NAME))

    table = catalog.load_table(NAME)
    assert len(files(table)) == 1
    assert table.scan().to_arrow()["more"].to_pylist() == [None] * 8


def test_a_batch_that_comes_in_between_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 8)
    write = merging._write

    def interrupted(*told: object) -> None:
        write(*told)  # type: ignore[arg-type]
        append(catalog, 99)

    monkeypatch.setattr(merging, "_write", interrupted)

    assert merge_small(table) == 8
    assert numbers(catalog.load_table(NAME)) == [*range(8), 99]


def test_a_merge_of_files_that_are_gone_comes_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 8)
    write = merging._write

    def interrupted(*told: object) -> None:
        write(*told)  # type: ignore[arg-type]
        catalog.load_table(NAME).delete("number = 3")

    monkeypatch.setattr(merging, "_write", interrupted)

    assert merge_small(table) == 0

    table = catalog.load_table(NAME)
    assert numbers(table) == [0, 1, 2, 4, 5, 6, 7], "what was deleted does not come back"
    assert not [one for one in on_disk(table, ".parquet") if "merged-" in one]


def test_a_merge_that_lost_rows_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 8)
    read = merging._read

    def lossy(table: Table, tasks: list) -> object:
        return read(table, tasks[1:])

    monkeypatch.setattr(merging, "_read", lossy)

    with pytest.raises(MergeFailed, match="has 7 rows, not 8"):
        merge_small(table)
    assert numbers(catalog.load_table(NAME)) == list(range(8))
