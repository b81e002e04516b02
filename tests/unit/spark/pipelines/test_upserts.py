"""Upserts, as far as they need no Spark."""

import pytest

from tidelog.spark.pipelines.spec import Sink, SpecError
from tidelog.spark.pipelines.upserts import _deletes, check_store


def test_a_table_that_spark_cannot_read_back_is_refused() -> None:
    check_store("file:///warehouse")
    check_store("")
    with pytest.raises(SpecError, match="Spark does not read without a jar"):
        check_store("s3://bucket/tables")


@pytest.mark.parametrize(
    ("columns", "deletes"),
    [
        (["_key", "total", "_tombstone"], "_tombstone"),
        (["key", "value", "offset"], "value IS NULL"),
        (["id", "total"], "false"),
    ],
)
def test_records_without_a_value_delete_their_key(columns: list[str], deletes: str) -> None:
    assert _deletes(Sink(table="t", iceberg="s.t", upsert=("_key",)), columns) == deletes
