"""A catalog and a store that are really down for a while, and come back: nothing is missing, and
nothing is there twice."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import glue

from tests.spark.outages import Lake, check_nothing_is_missing_or_twice
from tests.spark.store import store
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_pipeline_and_an_archive_go_on_after_their_catalog_and_store_were_down(
    spark: "SparkSession", topics: Topics, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it is we who wait for the catalog, and not for minutes the library that asks it.
    monkeypatch.setattr(glue, "MAX_RETRIES", 1)

    with store() as running:
        lake = Lake(running.glue, running.down, running.up)
        check_nothing_is_missing_or_twice(spark, topics, topic, tmp_path / "shop", lake)
