"""Iceberg tables with partitions, and columns that follow the source, on a real Spark."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.spark.test_pipelines import forget_the_last_commit, run_once
from tests.spark.topics import Topics
from tidelog.records import Record
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.spec import Pipeline, SpecError, load

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def made(folder: Path, topics: Topics, topic: str, fields: str, **sink: Any) -> Pipeline:
    folder.mkdir(exist_ok=True)
    (folder / "fields.sql").write_text("SELECT * EXCEPT (_key, _topic, _timestamp) FROM rows")
    source = {"topic": topic, "json": fields, "options": {"maxOffsetsPerTrigger": 4}}
    document = {
        "bootstrap": topics.bootstrap,
        "sources": {"rows": source},
        "steps": [{"sql": "fields.sql"}],
        "sinks": {"table": {"from": "fields", "iceberg": "shop.rows", **sink}},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    return load(folder)


def put(topics: Topics, topic: str, *values: dict[str, Any]) -> None:
    topics.put(topic, [Record(key=b"k", value=json.dumps(one).encode()) for one in values])


def table(pipeline: Pipeline) -> "Table":
    return Catalog.of(pipeline, {}).table("shop.rows")


def rows(pipeline: Pipeline, *names: str) -> list[tuple[Any, ...]]:
    found = table(pipeline).scan().to_arrow().to_pylist()
    return sorted((tuple(one[name] for name in names) for one in found), key=str)


def partitions(pipeline: Pipeline) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = {}
    for task in table(pipeline).scan().plan_files():
        values = tuple(task.file.partition[at] for at in range(len(task.file.partition)))
        found[values] = found.get(values, 0) + task.file.record_count
    return found


def test_a_partitioned_table_follows_its_source_and_has_each_row_once(
    spark: "SparkSession", tmp_path: Path, topics: Topics, topic: str
) -> None:
    layout: Any = {"partition_by": ["day(at)", "region"], "sort_by": ["id desc"]}
    fields = "id int, region string, at timestamp, more struct<x: int>"
    pipeline = made(tmp_path / "shop", topics, topic, fields, **layout)
    topics.make(topic, 1)
    first, second = "2026-01-01T01:00:00Z", "2026-01-02T23:00:00Z"
    put(
        topics,
        topic,
        {"id": 1, "region": "north", "at": first, "more": {"x": 1}},
        {"id": 2, "region": "south", "at": first, "more": {"x": 2}},
        {"id": 3, "region": "north", "at": second, "more": None},
        {"id": 4, "region": "north", "at": first},
        {"id": 5, "region": None, "at": second},
    )
    run_once(spark, pipeline)
    forget_the_last_commit(pipeline)

    wider = "id long, region string, at timestamp, more struct<x: long, y: array<float>>, z double"
    pipeline = made(tmp_path / "shop", topics, topic, wider, **layout)
    run_once(spark, pipeline)  # the batch of before, in other columns
    put(
        topics,
        topic,
        {"id": 2**40, "region": "south", "at": first, "more": {"x": 2**40, "y": [0.5]}, "z": 0.1},
    )
    run_once(spark, pipeline)
    narrow = made(tmp_path / "shop", topics, topic, "id int, at timestamp", **layout)
    put(topics, topic, {"id": 7, "at": second})
    with pytest.raises(SpecError, match=r"is partitioned by day\(at\), identity"):
        run_once(spark, made(tmp_path / "shop", topics, topic, wider, partition_by=["id"]))
    run_once(spark, narrow)

    day = 20454
    assert partitions(pipeline) == {
        (day, "north"): 2,
        (day, "south"): 2,
        (day + 1, "north"): 1,
        (day + 1, None): 2,
    }
    assert rows(pipeline, "id", "z", "more") == [
        (1, None, {"x": 1, "y": None}),
        (2**40, 0.1, {"x": 2**40, "y": [0.5]}),
        (2, None, {"x": 2, "y": None}),
        (3, None, None),
        (4, None, None),
        (5, None, None),
        (7, None, None),
    ]


def test_a_key_that_moves_to_another_partition_is_there_once(
    spark: "SparkSession", tmp_path: Path, topics: Topics, topic: str
) -> None:
    fields, sink = "id int, region string", {"upsert": ["id"], "partition_by": ["region"]}
    pipeline = made(tmp_path / "shop", topics, topic, fields, **sink)
    topics.make(topic, 1)
    put(topics, topic, *({"id": at, "region": "north"} for at in range(4)))
    put(topics, topic, {"id": 1, "region": "south"}, {"id": 9, "region": "south"})
    run_once(spark, pipeline)
    forget_the_last_commit(pipeline)

    wider = made(tmp_path / "shop", topics, topic, "id long, region string, total float", **sink)
    put(topics, topic, {"id": 2, "region": "south", "total": 0.5}, {"id": 3, "region": "north"})
    run_once(spark, wider)

    assert partitions(wider) == {("north",): 2, ("south",): 3}
    assert rows(wider, "id", "region", "total") == [
        (0, "north", None),
        (1, "south", None),
        (2, "south", 0.5),
        (3, "north", None),
        (9, "south", None),
    ]
