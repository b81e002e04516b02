"""What pipelines and archives do through a catalog of Iceberg tables, also while it dies."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import yaml

from tests.spark.outages import Lake, check_nothing_is_missing_or_twice
from tests.spark.topics import Topics
from tests.suites import tools
from tests.suites.checks import Context
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


class CatalogProcess:
    """A catalog in a process of its own; what it knows is in files, and survives it.

    The program takes the port as its last argument (0: any that is free), and prints the one that it has.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._words = words
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.up()

    def up(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._words, str(self.port)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        assert told, self._log.read_text()[-2000:]
        self.port = int(told)

    def down(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


@contextmanager
def running(words: Sequence[str], log: Path) -> Iterator[CatalogProcess]:
    process = CatalogProcess(words, log)
    try:
        yield process
    finally:
        process.down()


@contextmanager
def session(context: Context) -> "Iterator[SparkSession]":
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    log = context.directory / "spark.log"
    with (
        patch.dict(os.environ, PYTHONPATH=LEAN),
        spark_session("suite", master="local[2]", conf=conf, log=log) as spark,
    ):
        yield spark


def checks_of(through: "Through") -> list[Callable[[], None]]:
    kinds = reversed(type(through).mro()[:-1])
    return [getattr(through, name) for kind in kinds for name in vars(kind) if not name.startswith("_")]


class Through:
    """What is done through the catalog. Each check is named by what it shows."""

    def __init__(
        self, spark: "SparkSession", context: Context, catalog: CatalogProcess, told: Mapping[str, str]
    ) -> None:
        self._spark = spark
        self._topics = Topics(context.bootstrap)
        self._directory = context.directory
        self._catalog = catalog
        self._told = dict(told)

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
        lake = Lake(self._told, self._catalog.down, self._catalog.up)
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
        told = {"from": "rows", "iceberg": f"shop.{topic}", "catalog": self._told, **sink}
        document = {
            "bootstrap": self._topics.bootstrap,
            "sources": {"rows": {"topic": topic, "json": fields}},
            "sinks": {"table": told},
        }
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
        return load(folder)

    def _rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = Catalog(self._told).table(table).scan().to_arrow().to_pylist()
        return found
