"""Changes of keys into Iceberg tables, on a real Spark: one row for each key, whatever happens."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.spark.test_pipelines import forget_the_last_commit, run_once
from tests.spark.topics import Topics
from tidelog.records import Record
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.spec import Pipeline, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROW = "struct<id: long, name: string>"


def made(folder: Path, topics: Topics, topic: str, source: dict[str, Any], sink: Any) -> Pipeline:
    folder.mkdir()
    document = {
        "bootstrap": topics.bootstrap,
        "sources": {"changed": {"topic": topic, "options": {"maxOffsetsPerTrigger": 4}, **source}},
        "sinks": {"table": {"from": "changed", "iceberg": "shop.rows", **sink}},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    return load(folder)


def batches(pipeline: Pipeline) -> int:
    return len(Catalog.of(pipeline, {}).table("shop.rows").snapshots())


def table(pipeline: Pipeline) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Catalog.of(pipeline, {}).table("shop.rows").scan().to_arrow().to_pylist()
    return found


def debezium(op: str, before: Any, after: Any) -> Record:
    value = json.dumps({"before": before, "after": after, "op": op})
    return Record(key=b"k", value=value.encode(), timestamp_ms=1000)


def test_debezium_changes_are_applied_once_in_their_order(
    spark: "SparkSession", tmp_path: Path, topics: Topics, topic: str
) -> None:
    source = {"json": f"before {ROW}, after {ROW}, op string"}
    pipeline = made(tmp_path / "shop", topics, topic, source, {"upsert": ["id"], "changes": "debezium"})
    topics.make(topic, 1)
    ann, bob, eve = ({"id": at, "name": name} for at, name in enumerate(("ann", "bob", "eve")))
    topics.put(
        topic,
        [
            debezium("c", None, ann),
            debezium("c", None, bob),
            debezium("r", None, eve),
            debezium("u", ann, {**ann, "name": "anna"}),
            debezium("u", bob, {**bob, "name": "rob"}),
            debezium("d", eve, None),
            debezium("d", ann, None),
            debezium("c", None, {**ann, "name": "ann again"}),
        ],
    )
    run_once(spark, pipeline)
    forget_the_last_commit(pipeline)
    run_once(spark, pipeline)

    assert sorted(one["name"] for one in table(pipeline)) == ["ann again", "rob"]
    assert batches(pipeline) == 2


def test_the_latest_value_of_each_key_is_a_row_and_a_tombstone_is_none(
    spark: "SparkSession", tmp_path: Path, topics: Topics, topic: str
) -> None:
    pipeline = made(tmp_path / "shop", topics, topic, {}, {"upsert": ["key"]})
    topics.make(topic, 2)

    def put(partition: int, **values: bytes | None) -> None:
        records = [Record(key=key.encode(), value=value, timestamp_ms=1000) for key, value in values.items()]
        topics.put(topic, records, partition=partition)

    put(0, a=b"1", b=b"1")
    put(1, c=b"1")
    put(0, a=b"2", b=None)
    put(1, c=None, d=b"1")
    put(1, c=b"3")
    run_once(spark, pipeline)
    forget_the_last_commit(pipeline)
    run_once(spark, pipeline)

    assert {one["key"]: one["value"] for one in table(pipeline)} == {b"a": b"2", b"c": b"3", b"d": b"1"}
    assert len(table(pipeline)) == 3
    assert batches(pipeline) == 2
