"""pipeline.yaml: what it may say, and what people are told when it says something else."""

from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.pipelines.spec import Pipeline, SpecError, load, options_of, parse


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "big.sql").write_text("SELECT * FROM orders WHERE total > 100")
    (tmp_path / "other.py").write_text("def transform(spark, tables): ...")
    return tmp_path


def document(**changes: Any) -> dict[str, Any]:
    """A small pipeline that is right, with something changed; None leaves a key out."""
    whole = {
        "name": "large-orders",
        "sources": {"orders": {"topic": "orders", "json": "total double"}},
        "steps": [{"sql": "big.sql"}],
        "sinks": {"large": {"from": "big", "topic": "large"}},
        **changes,
    }
    return {key: value for key, value in whole.items() if value is not None}


def test_what_is_left_out_has_a_sensible_value(folder: Path) -> None:
    pipeline = parse(document(name=None), folder)

    assert pipeline.name == folder.name
    assert pipeline.is_once
    assert pipeline.bootstrap == "127.0.0.1:9092"
    assert pipeline.steps[0].table == "big"
    assert (pipeline.sinks["large"].kind, pipeline.sinks["large"].target) == ("topic", "large")
    assert pipeline.traffic is None


def test_paths_are_of_the_folder_unless_they_say_otherwise(folder: Path) -> None:
    pipeline = parse(document(), folder)

    assert pipeline.path("out") == str(folder / "out")
    assert pipeline.path("/out") == "/out"
    assert pipeline.path("s3://bucket/out") == "s3://bucket/out"


def test_a_folder_is_loaded_with_all_that_it_may_have(folder: Path) -> None:
    (folder / "pipeline.yaml").write_text("""
name: whole
trigger: 10 seconds
topics: {orders: {partitions: 3, config: {retention.ms: 1000}}}
traffic: {topic: orders, per_second: 5}
sources:
  orders: {topics: [orders, more], json: "id string", dead_letter: bad,
           watermark: {column: at, delay: 1 minute}, options: {maxOffsetsPerTrigger: 10}}
  regions: {files: regions.csv, format: csv, options: {header: true}}
  days: {iceberg: sales.days}
steps: [{python: other.py, name: joined}, {sql: big.sql}]
sinks:
  latest: {from: joined, bucket: latest, key: id, mode: update}
  files: {from: big, parquet: out, partition_by: [id]}
  table: {from: big, iceberg: sales.big, catalog: {uri: "sqlite:///c.db"}}
spark: {spark.driver.memory: 1g, spark.sql.adaptive.enabled: true}
""")

    pipeline = load(folder)

    assert isinstance(pipeline, Pipeline)
    assert not pipeline.is_once
    assert pipeline.dead_letters == {"orders": "bad"}
    assert pipeline.spark["spark.sql.adaptive.enabled"] == "true"
    assert options_of(pipeline.sources["regions"].options) == {"header": "true"}
    assert pipeline.traffic is not None and pipeline.traffic.per_second == 5


SOURCE = {"topic": "orders", "json": "total double"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sinkz": {}}, "unknown key 'sinkz'; did you mean 'sinks'"),
        ({"name": "a b"}, "name is 'a b'; it must be letters"),
        ({"name": 7}, "name is 7; it must be text"),
        ({"trigger": "often"}, "trigger is 'often'; it must be `once` or an interval"),
        ({"sources": None}, "sources: there is nothing to read"),
        ({"sources": []}, "sources must be a mapping"),
        ({"sinks": None}, "sinks: the results go nowhere"),
        ({"spark": {"driver.memory": "1g"}}, "begin with `spark.`: `spark.driver.memory`"),
        ({"steps": {"sql": "big.sql"}}, "steps must be a list"),
        ({"steps": [{"sql": "none.sql"}]}, r"steps\[1\]: there is no file none.sql"),
        ({"steps": [{"sql": "big.sql", "python": "other.py"}]}, r"steps\[1\]: name one file"),
        ({"steps": [{"sql": "big.sql", "name": "orders"}]}, "there is a table 'orders' already"),
        ({"steps": [{"sql": "big.sql", "name": "a-b"}]}, "must be letters, digits and _"),
        ({"sources": {"orders": {}}}, "sources.orders: name exactly one of topic, topics"),
        ({"sources": {"orders": {"topic": 1}}}, "sources.orders.topic: Expected str, got int"),
        ({"sources": {"orders": {"topik": "a"}}}, "unknown key 'topik'; did you mean 'topic'"),
        ({"sources": {"orders": {"files": "a"}}}, "sources.orders.format is missing"),
        (
            {"sources": {"orders": {"files": "a", "format": "csv", "stream": True}}},
            "sources.orders.schema is missing",
        ),
        ({"sources": {"orders": {"topic": "a", "dead_letter": "b"}}}, "sources.orders.json is missing"),
        (
            {"sources": {"orders": {**SOURCE, "dead_letter": "b", "broken": "skip"}}},
            "sources.orders.broken contradicts sources.orders.dead_letter",
        ),
        ({"sources": {"orders": {**SOURCE, "broken": "hide"}}}, "orders.broken: Invalid enum"),
        (
            {"sources": {"orders": {**SOURCE, "format": "csv"}}},
            "sources.orders.json contradicts a format that a schema registry knows",
        ),
        ({"sinks": {"large": {"from": "big"}}}, "sinks.large: name exactly one of topic, bucket"),
        (
            {"sinks": {"large": {"from": "bik", "topic": "a"}}},
            "sinks.large.from: there is no table 'bik'; did you mean 'big'",
        ),
        ({"sinks": {"a/b": {"from": "big", "topic": "a"}}}, "sinks.a/b: the name must be"),
        (
            {"sinks": {"large": {"from": "big", "parquet": "a", "key": "id"}}},
            "sinks.large.key has no meaning for parquet; remove it",
        ),
        (
            {"sinks": {"large": {"from": "big", "iceberg": "a.b", "mode": "update"}}},
            "sinks.large.mode has no meaning for iceberg",
        ),
        ({"traffic": {"topic": "orders", "per_second": 0}}, "traffic: per_second and once must"),
        ({"traffic": {}}, "traffic: Object missing required field topic"),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(folder: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        parse(document(**changes), folder)


def test_a_folder_without_a_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist; `tidelog pipeline new sales`"):
        load(tmp_path / "sales")


@pytest.mark.parametrize("text", ["a: [", "a: \xff".encode("latin-1")])
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, text: str | bytes) -> None:
    raw = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "pipeline.yaml").write_bytes(raw)

    with pytest.raises(SpecError, match=r"pipeline\.yaml is no YAML"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "- a", "text"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "pipeline.yaml").write_text(content)

    with pytest.raises(SpecError, match="must be a mapping with `name`"):
        load(tmp_path)


def test_changes_need_a_key(folder: Path) -> None:
    sink = {"from": "big", "iceberg": "a.b", "changes": "debezium"}

    with pytest.raises(SpecError, match=r"sinks\.large\.upsert is missing: which columns"):
        parse(document(sinks={"large": sink}), folder)


def test_upkeep_is_checked(folder: Path) -> None:
    for upkeep, complaint in (({"keep_files": "soon"}, "as `1 hour`"), ({"snapshots": 0}, "least 1")):
        sink = {"from": "big", "iceberg": "a.b", "upkeep": upkeep}
        with pytest.raises(SpecError, match=complaint):
            parse(document(sinks={"large": sink}), folder)
