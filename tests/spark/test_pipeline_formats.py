"""Pipelines on a real Spark with keys and values of a schema registry."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.spark.topics import NOW_MS, Topics
from tests.unit.schemas.double import registry_double
from tidelog.records import Record
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.values import ValueReader, ValueWriter
from tidelog.spark.client_loop import ask
from tidelog.spark.pipelines.samples import cases
from tidelog.spark.pipelines.sinks import start_all
from tidelog.spark.pipelines.spec import load
from tidelog.spark.pipelines.topics import prepare
from tidelog.spark.pipelines.trying import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}],
}
PROTO = 'syntax = "proto3"; message Order { string id = 1; int32 n = 2; }'
JSON = {
    "type": "object",
    "required": ["id", "n"],
    "properties": {"id": {"type": "string"}, "n": {"type": "integer"}},
}
PROTO_KEY = 'syntax = "proto3"; message Key { string id = 1; }'
BATCH_SECONDS_MAX = 300


@pytest.mark.parametrize(
    ("name", "key_schema", "schema", "key_of"),
    [
        ("avro", '"string"', json.dumps(AVRO), lambda key: key),
        ("protobuf", PROTO_KEY, PROTO, lambda key: {"id": key}),
        ("json-schema", '{"type": "string"}', json.dumps(JSON), lambda key: key),
    ],
)
def test_a_format_is_read_written_tested_and_put_aside(
    spark: "SparkSession",
    topics: Topics,
    topic: str,
    tmp_path: Path,
    name: str,
    key_schema: str,
    schema: str,
    key_of: "Callable[[str], Any]",
) -> None:
    folder = tmp_path / "copying"
    (folder / "tests" / "doubled").mkdir(parents=True)
    (folder / "doubled.sql").write_text("SELECT id, n * 2 AS n, _tombstone, _key FROM orders")

    def typed(key: str) -> bytes:
        return json.dumps(key_of(key)).encode()

    with registry_double() as double:
        key = PartFormat(part="key", name=name, url=double.url)
        value = PartFormat(part="value", name=name, url=double.url)
        keys = ValueWriter(key, topic, key_schema)
        values = ValueWriter(value, topic, schema)
        ValueWriter(key, f"{topic}-out", key_schema)
        ValueWriter(value, f"{topic}-out", schema)
        source = {"topic": topic, "format": name, "key_format": name, "dead_letter": f"{topic}-broken"}
        sink = {
            "from": "doubled",
            "bucket": f"{topic}-out",
            "key": "_key",
            "format": name,
            "key_format": name,
        }
        document = {
            "bootstrap": topics.bootstrap,
            "registry": double.url,
            "topics": {topic: {"partitions": 1}, f"{topic}-out": {"partitions": 1}},
            "sources": {"orders": source},
            "steps": [{"sql": "doubled.sql"}],
            "sinks": {"out": sink},
        }
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
        made = load(folder)
        ask(topics.bootstrap, lambda client: prepare(client, made))
        topics.put(
            topic,
            [
                Record(
                    key=keys.bytes_of(typed("a")),
                    value=values.bytes_of(b'{"id": "a", "n": 1}'),
                    timestamp_ms=NOW_MS,
                ),
                Record(key=keys.bytes_of(typed("b")), value=b"no frame", timestamp_ms=NOW_MS),
                Record(key=keys.bytes_of(typed("c")), value=None, timestamp_ms=NOW_MS),
            ],
        )

        for query in start_all(spark, made):
            assert query.awaitTermination(BATCH_SECONDS_MAX), f"{query.name} takes too long"

        (written,) = topics.records(f"{topic}-out").values()
        read_key, read_value = ValueReader(key), ValueReader(value)
        found = [(read_key.document(one.key), read_value.document(one.value)) for one in written]
        assert found == [(key_of("a"), {"id": "a", "n": 2}), (key_of("c"), None)]
        broken = [one for some in topics.records(f"{topic}-broken").values() for one in some]
        assert [(one.key, one.value) for one in broken] == [(keys.bytes_of(typed("b")), b"no frame")]
        headers = dict(broken[0].headers)
        assert headers["offset"] == b"1" and b"without a schema" in (headers["error"] or b"")

        test = folder / "tests" / "doubled"
        first = {"key": key_of("a"), "value": {"id": "a", "n": 1}}
        second = {"key": key_of("b"), "value": "[]"}
        (test / "orders.records.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
        wanted = {"key": key_of("a"), "value": {"id": "a", "n": 2}}
        (test / "out.sink.jsonl").write_text(json.dumps(wanted))
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
