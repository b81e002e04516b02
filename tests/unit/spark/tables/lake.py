"""A table on this machine's disk, and commits of a row each."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
NAME = "lake.rows"
COMMIT = SqlCatalog.commit_table


def make(directory: Path, **told: Any) -> Catalog:
    catalog = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}"
    )
    catalog.create_namespace("lake")
    catalog.create_table(NAME, told.pop("schema", SCHEMA), **told)
    return catalog


def append(catalog: Catalog, number: int, rows: int = 1) -> Table:
    """A commit of a file with some rows; the table as it is then."""
    table = catalog.load_table(NAME)
    data = pa.table({"number": [number] * rows, "text": [f"row {number}"] * rows}, schema=SCHEMA)
    path = Path(table.location().removeprefix("file://")) / "data" / f"{number:05}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path)
    table.add_files([f"file://{path}"], check_duplicate_files=False)
    return table


def append_all(catalog: Catalog, commits: int) -> Table:
    """So many commits; the table as it is then."""
    for number in range(commits):
        append(catalog, number)
    return catalog.load_table(NAME)


def numbers(table: Table) -> list[int]:
    found: list[int] = table.scan().to_arrow()["number"].to_pylist()
    return sorted(found)


def files(table: Table) -> set[str]:
    """The data files of the current snapshot."""
    return {task.file.file_path for task in table.scan().plan_files()}


def on_disk(table: Table, suffix: str) -> set[str]:
    directory = Path(table.location().removeprefix("file://"))
    return {f"file://{path}" for path in directory.rglob(f"*{suffix}")}


def sent_twice(*told: Any) -> None:
    """A commit that whoever carries it sends again: it was done, and the second one is refused."""
    COMMIT(*told)
    raise CommitFailedException("the table has another snapshot by now")
