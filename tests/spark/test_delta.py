"""Delta tables of pipelines on a real Spark: on a disk and in an object store, each row once."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml

from tests.spark.store import store
from tests.spark.test_pipelines import forget_the_last_commit, run_once
from tests.spark.topics import Topics
from tidelog.records import Record
from tidelog.spark.pipelines.delta import DeltaWriter, Place
from tidelog.spark.pipelines.spec import Pipeline, Sink, load
from tidelog.spark.pipelines.upserts import as_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def made(folder: Path, topics: Topics, topic: str, fields: str, sinks: Any) -> Pipeline:
    folder.mkdir(exist_ok=True)
    source = {"topic": topic, "json": fields, "options": {"maxOffsetsPerTrigger": 4}}
    document = {
        "bootstrap": topics.bootstrap,
        "sources": {"rows": source},
        "sinks": {name: {"from": "rows", **sink} for name, sink in sinks.items()},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    return load(folder)


def rows(place: Place, *names: str) -> list[tuple[Any, ...]]:
    found = pa.table(place.table().scan().read_all()).to_pylist()
    return sorted((tuple(one[name] for name in names) for one in found), key=str)


def test_rows_are_appended_and_upserted_once_and_columns_follow(
    spark: "SparkSession", tmp_path: Path, topics: Topics, topic: str
) -> None:
    topics.make(topic, 1)

    def put(*values: Any) -> None:
        texts = [None if one is None else json.dumps(one).encode() for one in values]
        topics.put(topic, [Record(key=b"k", value=one) for one in texts])

    with store() as lake:
        sinks: Any = {
            "all": {"delta": "s3://lake/delta/all", "options": lake.s3},
            "latest": {"delta": "tables/latest", "upsert": ["id"], "delete": "name = 'gone'"},
        }
        pipeline = made(tmp_path / "shop", topics, topic, "id long, name string", sinks)
        put(*({"id": at, "name": "new"} for at in range(5)))
        put({"id": 1, "name": "gone"}, {"id": 2, "name": "changed"}, {"id": 7, "name": "gone"})
        run_once(spark, pipeline)
        forget_the_last_commit(pipeline)
        wider = made(tmp_path / "shop", topics, topic, "id int, name string, more double", sinks)
        put({"id": 1, "name": "again", "more": 0.5})
        run_once(spark, wider)

        every = Place("s3://lake/delta/all", lake.s3)
        assert rows(every, "id", "name", "more") == sorted(
            [
                *((at, "new", None) for at in range(5)),
                (1, "gone", None),
                (2, "changed", None),
                (7, "gone", None),
                (1, "again", 0.5),
            ],
            key=str,
        )
    latest = Place(str(tmp_path / "shop" / "tables" / "latest"))
    assert rows(latest, "id", "name", "more") == [
        (0, "new", None),
        (1, "again", 0.5),
        (2, "changed", None),
        (3, "new", None),
        (4, "new", None),
    ]


def test_a_partitioned_table_is_written_and_changed_on_a_disk_and_in_a_store(
    spark: "SparkSession", tmp_path: Path
) -> None:
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "id", "date_add(date'2026-01-01', cast(id % 3 as int)) day", "nullif(string(id % 2), '1') half"
    )
    sink = Sink(table="t", delta="t", upsert=("id",), order_by=("id",), delete="id = 3")
    moved = frame.selectExpr("id", "date'2027-01-01' day", "half").where("id < 5")
    with store() as lake:
        for place in (Place(str(tmp_path / "rows")), Place("s3://lake/delta/rows", lake.s3)):
            place.prepare(frame.schema, partition_by=["day", "half"])
            assert DeltaWriter(place).write(frame, "query", 0) == 20
            assert DeltaWriter(place).write(frame, "query", 0) == 0
            changed = DeltaWriter(place, ("id",))
            changed.write(as_changes(sink, moved), "other", 0)

            found = pa.table(place.table().scan().read_all()).to_pylist()
            assert sorted(one["id"] for one in found) == [at for at in range(20) if at != 3]
            assert {one["day"].year for one in found if one["id"] < 5} == {2027}
            assert {one["half"] for one in found if one["id"] % 2} == {None}
            assert len(place.table().partitions()) == 8
