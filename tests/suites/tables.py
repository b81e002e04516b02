"""Iceberg's own REST catalog: pipelines and archives that write through it, also while it dies."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import yaml

from tests.spark.outages import Lake, check_nothing_is_missing_or_twice
from tests.spark.topics import Topics
from tests.suites import tools
from tests.suites.checks import Context, run_checks
from tests.suites.report import Check
from tidelog.records import Record
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.sinks import start_all
from tidelog.spark.pipelines.spec import Pipeline, SpecError, load
from tidelog.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_SECONDS_MAX = 300
LEAN = str(tools.ROOT / "tests" / "spark" / "lean")
"""Spark's Python processes have ten seconds to start, which is little on a busy machine."""


def version() -> str:
    jars = tools.iceberg_jars()
    names = (jar.stem for jar in jars.glob("iceberg-core-*.jar"))
    return next(name for name in names if "tests" not in name).rpartition("-")[2]


class RestCatalog:
    """A catalog in a process of its own; what it knows is in a file, and survives it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.up()
        self.told = {
            "type": "rest",
            "uri": f"http://127.0.0.1:{self._port}",
            "warehouse": f"file://{directory}/warehouse",
        }

    def up(self) -> None:
        jars = tools.iceberg_jars()
        source = tools.PROGRAMS / "iceberg" / "RestCatalog.java"
        words = ["java", "-Xmx256m", "-cp", f"{jars}/*", str(source)]
        words += [f"{self._directory}/catalog.db", f"file://{self._directory}/warehouse"]
        with (self._directory / "catalog.log").open("a") as log:
            self._process = subprocess.Popen(
                [*words, str(self._port)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def down(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


@contextmanager
def rest_catalog(directory: Path) -> Iterator[RestCatalog]:
    directory.mkdir()
    catalog = RestCatalog(directory)
    try:
        yield catalog
    finally:
        catalog.down()


def run(context: Context) -> Iterator[Check]:
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    log = context.directory / "spark.log"
    with (
        patch.dict(os.environ, PYTHONPATH=LEAN),
        spark_session("suite", master="local[2]", conf=conf, log=log) as spark,
        rest_catalog(context.directory / "rest") as catalog,
    ):
        through = Through(spark, Topics(context.bootstrap), context.directory, catalog)
        yield from run_checks([getattr(through, name) for name in vars(Through) if not name.startswith("_")])


class Through:
    """What is done through the catalog. Each check is named by what it shows."""

    def __init__(self, spark: "SparkSession", topics: Topics, directory: Path, catalog: RestCatalog) -> None:
        self._spark = spark
        self._topics = topics
        self._directory = directory
        self._catalog = catalog

    def a_partitioned_table_follows_its_source(self) -> None:
        layout = {"partition_by": ["region", "bucket(2, id)"], "sort_by": ["id"]}
        self._topics.make("orders")
        self._put("orders", *({"id": at, "region": "north"} for at in range(4)))
        self._run("orders", "id int, region string", **layout)
        self._put("orders", {"id": 2**40, "region": "south", "total": 0.5})
        self._run("orders", "id long, region string, total double", **layout)
        rows = self._rows("shop.orders")
        assert sorted(one["id"] for one in rows) == [0, 1, 2, 3, 2**40], rows
        assert {one["total"] for one in rows} == {None, 0.5}, rows
        with pytest.raises(SpecError, match="id is long in the table, and string in the source"):
            self._run("orders", "id string, region string", **layout)

    def changes_are_upserted_by_key(self) -> None:
        self._topics.make("users")
        self._put("users", {"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
        self._run("users", "id long, name string", upsert=["id"])
        self._put("users", {"id": 1, "name": "anna"}, None)
        self._run("users", "id long, name string", upsert=["id"])
        rows = self._rows("shop.users")
        assert sorted((one["id"], one["name"]) for one in rows if one["id"]) == [(1, "anna"), (2, "bob")], (
            rows
        )

    def a_catalog_that_is_killed_and_started_again_is_waited_for(self) -> None:
        lake = Lake(self._catalog.told, self._catalog.down, self._catalog.up)
        check_nothing_is_missing_or_twice(
            self._spark, self._topics, "numbers", self._directory / "outages", lake
        )

    def _put(self, topic: str, *values: Any) -> None:
        texts = [None if one is None else json.dumps(one).encode() for one in values]
        self._topics.put(topic, [Record(key=b"k", value=one) for one in texts])

    def _run(self, topic: str, fields: str, **sink: Any) -> None:
        for query in start_all(self._spark, self._made(topic, fields, sink)):
            assert query.awaitTermination(RUN_SECONDS_MAX)

    def _made(self, topic: str, fields: str, sink: Any) -> Pipeline:
        folder = self._directory / topic
        folder.mkdir(exist_ok=True)
        told = {"from": "rows", "iceberg": f"shop.{topic}", "catalog": self._catalog.told, **sink}
        document = {
            "bootstrap": self._topics.bootstrap,
            "sources": {"rows": {"topic": topic, "json": fields}},
            "sinks": {"table": told},
        }
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
        return load(folder)

    def _rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = Catalog(self._catalog.told).table(table).scan().to_arrow().to_pylist()
        return found
