"""A catalog and a store that are really down for a while, and come back: nothing is missing, and
nothing is there twice."""

import json
import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from pyiceberg.catalog import glue

from tests.spark.store import Store, store
from tests.spark.topics import Topics
from tests.support.cluster import wait_until
from tidelog.records import Record
from tidelog.spark.archive.archiving import Archiver, Settings
from tidelog.spark.archive.catalog import load_topic, open_catalog
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.sinks import start_all
from tidelog.spark.pipelines.spec import Pipeline, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS_MAX = 240.0
EACH = 20


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    # So that it is we who wait for the catalog, and not for minutes the library that asks it.
    monkeypatch.setattr(glue, "MAX_RETRIES", 1)
    with store() as running:
        yield running


def made(folder: Path, topics: Topics, topic: str, lake: Store) -> Pipeline:
    folder.mkdir()
    sink = {
        "from": "rows",
        "iceberg": "shop.rows",
        "partition_by": ["bucket(2, id)"],
        "catalog": lake.glue,
    }
    document = {
        "bootstrap": topics.bootstrap,
        "trigger": "500 milliseconds",
        "sources": {"rows": {"topic": topic, "json": "id long"}},
        "sinks": {"table": sink},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    return load(folder)


def test_a_pipeline_and_an_archive_go_on_after_their_catalog_and_store_were_down(
    spark: "SparkSession",
    topics: Topics,
    topic: str,
    lake: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "tidelog")
    topics.make(topic, 1)
    pipeline = made(tmp_path / "shop", topics, topic, lake)
    catalog = Catalog.of(pipeline, pipeline.sinks["table"].catalog)
    named = ",".join(f"{key}={value}" for key, value in lake.glue.items())
    stopping = threading.Event()

    def put(first: int) -> None:
        numbers = range(first, first + EACH)
        topics.put(topic, [Record(value=json.dumps({"id": at}).encode()) for at in numbers])

    def ids() -> list[int]:
        found: list[int] = catalog.table("shop.rows").scan().to_arrow()["id"].to_pylist()
        return sorted(found)

    with open_catalog("s3://lake/archive", named) as archive:

        def offsets() -> list[int]:
            table = load_topic(archive, topic).table
            found: list[int] = table.scan().to_arrow()["offset"].to_pylist()
            return sorted(found)

        def is_written(count: int) -> bool:
            return len(ids()) >= count and len(offsets()) >= count

        put(0)
        archiver = Archiver(spark, archive, topics.bootstrap, [topic], Settings())
        archiving = threading.Thread(target=archiver.keep_on, args=(0.5, stopping))
        archiving.start()
        queries = start_all(spark, pipeline)
        try:
            wait_until(partial(is_written, EACH), "nothing is written", SECONDS_MAX)
            for outage in (1, 2):
                caplog.clear()
                lake.down()
                put(EACH * outage)
                wait_until(
                    lambda: "waiting for" in caplog.text and "tried again:" in caplog.text,
                    "nobody misses the store", SECONDS_MAX,
                )  # fmt: skip
                lake.up()
                wait_until(partial(is_written, EACH * (outage + 1)), "nobody goes on", SECONDS_MAX)
        finally:
            stopping.set()
            for query in queries:
                query.stop()
            archiving.join()

        assert [query.exception() for query in queries] == [None]
        assert ids() == list(range(3 * EACH))
        assert offsets() == list(range(3 * EACH))
