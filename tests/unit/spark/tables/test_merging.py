"""Small files that become one, and nothing else that changes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

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


def test_a_batch_that_comes_in_between_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_merge_into_a_table_that_is_locked_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 8)

    def locked(*told: object) -> None:
        raise CommitFailedException("Failed to acquire lock for ('lake', 'rows'), state: 2")

    monkeypatch.setattr(SqlCatalog, "commit_table", locked)

    assert merge_small(table) == 0
    assert not [one for one in on_disk(table, ".parquet") if "merged-" in one]


def test_a_merge_that_lost_rows_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = make(tmp_path)
    table = append_all(catalog, 8)
    read = merging._read

    def lossy(table: Table, tasks: list) -> object:
        return read(table, tasks[1:])

    monkeypatch.setattr(merging, "_read", lossy)

    with pytest.raises(MergeFailed, match="has 7 rows, not 8"):
        merge_small(table)
    assert numbers(catalog.load_table(NAME)) == list(range(8))


def test_what_is_null_in_a_file_is_null_after_a_merge(tmp_path: Path) -> None:
    item = pa.struct([("x", pa.int64())])
    schema = pa.schema(
        [
            ("items", pa.list_(item)),
            ("by_name", pa.map_(pa.string(), item)),
            ("order", pa.struct([("items", pa.list_(item))])),
        ]
    )
    rows: list[dict[str, Any]] = [
        {"items": None, "by_name": None, "order": None},
        {"items": [], "by_name": [], "order": {"items": None}},
        {"items": [None, {"x": 1}], "by_name": [("a", None)], "order": {"items": []}},
    ]
    catalog = make(tmp_path, schema=schema)
    for number in range(8):
        path = f"{tmp_path}/{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        catalog.load_table(NAME).add_files([f"file://{path}"])

    assert merge_small(catalog.load_table(NAME)) == 8

    (file,) = files(catalog.load_table(NAME))
    assert pq.read_table(file.removeprefix("file://")).to_pylist() == rows * 8


def test_a_merge_is_not_put_into_a_table_that_was_partitioned_anew_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make(tmp_path)
    with catalog.load_table(NAME).update_spec() as update:
        update.add_field("number", BucketTransform(8), "part")
    for _ in range(8):
        catalog.load_table(NAME).append(pa.table({"number": [7], "text": ["a"]}))
    write = merging._write

    def interrupted(*told: object) -> None:
        write(*told)  # type: ignore[arg-type]
        with catalog.load_table(NAME).update_spec() as update:
            update.remove_field("part").add_identity("number")
        catalog.load_table(NAME).append(pa.table({"number": [9], "text": ["b"]}))

    monkeypatch.setattr(merging, "_write", interrupted)

    assert merge_small(catalog.load_table(NAME)) == 0

    table = catalog.load_table(NAME)
    found = table.scan("number = 7").to_arrow()["number"].to_pylist()
    assert found == [7] * 8, "in the partition where readers look"
    assert not [one for one in on_disk(table, ".parquet") if "merged-" in one]
