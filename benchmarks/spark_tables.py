"""How long a commit to an Iceberg table takes, early and after very many.

Rule 1: each commit adds one file of one row, as a micro-batch does. The file is not timed.
Rule 2: upkeep is on, as it is by default; the commits that do it are among those that are timed.
"""

from pathlib import Path
from time import perf_counter
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.typedef import Record
from pyspark.sql.types import LongType, StringType, StructType

from benchmarks.report import Result, result
from tidelog.spark.pipelines.iceberg import Catalog, TableWriter
from tidelog.spark.proofs import Proof
from tidelog.spark.tables.commits import data_file

TABLE: Final = "bench.rows"
COMMITS: Final = 1000
COMMITS_QUICK: Final = 100
COUNTED: Final = 50
"""Commits at the beginning, and as many at the end."""


def commit_times(directory: Path, commits: int) -> list[float]:
    """Milliseconds of each commit."""
    location = f"file://{directory}"
    catalog = Catalog({"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": location})
    catalog.prepare(TABLE, StructType().add("id", LongType()).add("text", StringType()))
    writer = TableWriter(catalog, TABLE)
    took = []
    for number in range(commits):
        table = catalog.table(TABLE)
        path = directory / "data" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [number], "text": ["x"]}), path)
        file = data_file(table, f"file://{path}", Record())
        began = perf_counter()
        writer._commit(table, [file], "query", number, Proof.of_rows(1))
        took.append((perf_counter() - began) * 1000)
    return took


def commit_result(benchmark: str, took: list[float]) -> Result:
    """The last commits beside the first."""
    return result(
        benchmark,
        f"commit to an Iceberg table, the last {COUNTED} of {len(took)}",
        took[-COUNTED:],
        "ms",
        limits=took[:COUNTED],
        limit_name=f"the first {COUNTED}",
    )
