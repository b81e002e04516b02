"""Sessions of our own jobs, with a real Spark."""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_workers_run_the_python_of_the_driver(spark):
    def executable(batches):
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    (found,) = spark.range(1).mapInArrow(executable, "python string").collect()

    assert Path(found.python).samefile(sys.executable)


def test_times_are_in_utc_and_nothing_is_left_in_the_working_directory(spark):
    before = set(Path.cwd().iterdir())

    (found,) = spark.sql("SELECT CAST(TIMESTAMP '2026-01-01 12:00:00Z' AS STRING) AS at").collect()
    spark.range(3).createOrReplaceTempView("three")
    spark.sql("CREATE TABLE kept USING parquet AS SELECT * FROM three")
    spark.sql("DROP TABLE kept")

    assert found["at"] == "2026-01-01 12:00:00"
    assert set(Path.cwd().iterdir()) == before
