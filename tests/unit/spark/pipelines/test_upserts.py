"""Upserts, as far as they need no Spark."""

import pytest

from tidelog.spark.pipelines.spec import SpecError
from tidelog.spark.pipelines.upserts import check_store


def test_a_table_that_spark_cannot_read_back_is_refused() -> None:
    check_store("file:///warehouse")
    check_store("")
    with pytest.raises(SpecError, match="Spark does not read without a jar"):
        check_store("s3://bucket/tables")
