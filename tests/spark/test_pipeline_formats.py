"""Pipelines on a real Spark with keys and values of a schema registry."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.spark.topics import NOW_MS, Topics
from tests.unit.schemas.double import registry_double
from tidelog.records import Record
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.values import ValueReader, ValueWriter
from tidelog.spark.asking import ask
from tidelog.spark.pipelines.samples import cases
from tidelog.spark.pipelines.sinks import start_all
from tidelog.spark.pipelines.spec import load
from tidelog.spark.pipelines.topics import prepare
from tidelog.spark.pipelines.trying import attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}],
}  # fmt: skip
BATCH_SECONDS_MAX = 300


def test_avro_is_read_written_tested_and_put_aside(
    spark: "SparkSession", topics: Topics, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "copying"
    (folder / "tests" / "doubled").mkdir(parents=True)
    (folder / "doubled.sql").write_text("SELECT id, n * 2 AS n, _tombstone, _key FROM orders")
    with registry_double() as double:
        key = PartFormat(part="key", name="avro", url=double.url)
        value = PartFormat(part="value", name="avro", url=double.url)
        keys = ValueWriter(key, topic, '"string"')
        values = ValueWriter(value, topic, json.dumps(ORDER))
        ValueWriter(key, f"{topic}-out", '"string"')
        ValueWriter(value, f"{topic}-out", json.dumps(ORDER))
        source = {"topic": topic, "format": "avro", "key_format": "avro",
                  "dead_letter": f"{topic}-broken"}  # fmt: skip
        sink = {"from": "doubled", "bucket": f"{topic}-out", "key": "_key", "format": "avro",
                "key_format": "avro"}  # fmt: skip
        document = {
            "bootstrap": topics.bootstrap, "registry": double.url,
            "topics": {topic: {"partitions": 1}, f"{topic}-out": {"partitions": 1}},
            "sources": {"orders": source}, "steps": [{"sql": "doubled.sql"}],
            "sinks": {"out": sink},
        }  # fmt: skip
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
        made = load(folder)
        ask(topics.bootstrap, lambda client: prepare(client, made))
        topics.put(topic, [
            Record(key=keys.bytes_of(b"a"), value=values.bytes_of(b'{"id": "a", "n": 1}'),
                   timestamp_ms=NOW_MS),
            Record(key=keys.bytes_of(b"b"), value=b"no frame", timestamp_ms=NOW_MS),
            Record(key=keys.bytes_of(b"c"), value=None, timestamp_ms=NOW_MS),
        ])  # fmt: skip

        for query in start_all(spark, made):
            assert query.awaitTermination(BATCH_SECONDS_MAX), f"{query.name} takes too long"

        (written,) = topics.records(f"{topic}-out").values()
        read_key, read_value = ValueReader(key), ValueReader(value)
        found = [(read_key.document(one.key), read_value.document(one.value)) for one in written]
        assert found == [("a", {"id": "a", "n": 2}), ("c", None)]
        broken = [one for some in topics.records(f"{topic}-broken").values() for one in some]
        assert [(one.key, one.value) for one in broken] == [(keys.bytes_of(b"b"), b"no frame")]
        headers = dict(broken[0].headers)
        assert headers["offset"] == b"1" and b"without a schema" in (headers["error"] or b"")

        test = folder / "tests" / "doubled"
        (test / "orders.records.jsonl").write_text(
            '{"key": "a", "value": {"id": "a", "n": 1}}\n{"key": "b", "value": "[]"}\n'
        )
        (test / "out.sink.jsonl").write_text('{"key": "a", "value": {"id": "a", "n": 2}}\n')
        (test / "orders.dead_letter.jsonl").write_text("")
        (case,) = cases(made)
        tried = attempt(spark, made, case)
        assert not tried.problem
        compared = {one.what: one for one in tried.compared}
        assert compared["out.sink"].is_same
        (aside,) = compared["orders.dead_letter"].unexpected
        assert aside["value"] == "[]"

        (folder / "doubled.sql").write_text("SELECT id, n * 1.5 AS n, _key FROM orders")
        assert "out.sink" in attempt(spark, made, case).problem
