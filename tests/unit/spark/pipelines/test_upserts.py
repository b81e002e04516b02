"""Upserts, as far as they need no Spark."""

import pytest

from tidelog.spark.pipelines.spec import Sink, SpecError
from tidelog.spark.pipelines.upserts import _deletes, touched_among


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


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("file:///lake/t/data/1.parquet", "file:/lake/t/data/1.parquet"),
        ("file:///my lake/1.parquet", "file:///my%20lake/1.parquet"),
        ("file:///a%20b/1.parquet", "file:///a%2520b/1.parquet"),
        ("file:///lake//t/1.parquet", "file:///lake/t/1.parquet"),
        ("/lake/t/1.parquet", "file:///lake/t/1.parquet"),
        ("file:///lake/k=a#1?b/1.parquet", "file:/lake/k=a%231%3Fb/1.parquet"),
        ("hdfs://name:8020/lake/1.parquet", "hdfs://name:8020/lake/1.parquet"),
    ],
)
def test_a_file_is_known_by_what_spark_calls_it(location: str, found: str) -> None:
    assert touched_among([location, "file:///lake/other.parquet"], [found]) == {location}


@pytest.mark.parametrize("names", [("k=a%2Fb", "k=a/b"), ("k=a#1", "k=a#2"), ("k=a?1", "k=a?2")])
def test_a_file_of_an_object_store_is_known_by_its_very_name(names: tuple[str, str]) -> None:
    one, other = (f"s3://lake/{name}/1.parquet" for name in names)

    assert touched_among([one, other], [one], is_by_spark=False) == {one}
    assert touched_among([one, other], [one, other], is_by_spark=False) == {one, other}


def test_a_file_that_is_not_of_the_table_is_not_passed_over() -> None:
    with pytest.raises(SpecError, match=r"/lake/2\.parquet was read, and is no file of the table"):
        touched_among(["file:///lake/1.parquet"], ["file:///lake/2.parquet"])
