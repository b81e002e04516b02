"""Sources and sinks of a pipeline whose keys and values a schema registry knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.schemas.double import registry_double
from tidelog.schemas.problems import SchemaProblem
from tidelog.schemas.registry import Registry, Schema
from tidelog.spark import registered
from tidelog.spark.pipelines import expressions
from tidelog.spark.pipelines.formats import format_options
from tidelog.spark.pipelines.registered_samples import registered_rows
from tidelog.spark.pipelines.samples import records_of
from tidelog.spark.pipelines.spec import Pipeline, Sink, SpecError, parse

URL = "http://127.0.0.1:1"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}],
}


def made(
    folder: Path, source: dict[str, Any], sink: dict[str, Any] | None = None, registry: str = URL
) -> Pipeline:
    sinks = {"out": {"from": "orders", "topic": "copies", **(sink or {})}}
    sources = {"orders": {"topic": "orders", **source}}
    document = {"name": "p", "sources": sources, "sinks": sinks}
    return parse(document | ({"registry": registry} if registry else {}), folder)


def test_formats_become_options_and_own_options_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_SCHEMA_REGISTRY_USER", "me:secret")
    other = {"Schema.Registry.Url": "http://other", "value.subject": "s"}
    pipeline = made(tmp_path, {"format": "avro"}, {"key_format": "avro", "options": other})

    assert format_options(pipeline, pipeline.sources["orders"]) == {
        "valueFormat": "avro",
        "schema.registry.url": URL,
        "schema.registry.basic.auth.user.info": "me:secret",
    }
    assert format_options(pipeline, pipeline.sinks["out"]) == {
        "keyFormat": "avro",
        "schema.registry.basic.auth.user.info": "me:secret",
        **other,
    }


@pytest.mark.parametrize(
    ("source", "sink", "complaint"),
    [
        ({"format": "avron"}, {}, r"sources\.orders\.format is 'avron'; it must be avro"),
        ({"format": "avro", "json": "n int"}, {}, r"json contradicts a format"),
        ({}, {"format": "xml"}, r"sinks\.out\.format is 'xml'"),
        ({}, {"options": {"valueFormat": "avro"}}, r"options\.valueFormat: say `format: avro`"),
        ({"broken": "skip"}, {}, r"orders\.json is missing, or \.format"),
    ],
)
def test_what_cannot_be_is_told_with_its_key(
    tmp_path: Path, source: dict[str, Any], sink: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SpecError, match=complaint):
        made(tmp_path, source, sink)


def test_a_format_needs_a_registry(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"registry is missing: sinks\.out\.key_format"):
        made(tmp_path, {}, {"key_format": "avro"}, registry="")
    made(tmp_path, {"format": "avro", "options": {"schema.registry.url": URL}}, registry="")


def test_a_value_by_a_schema_is_the_columns_without_where_they_came_from() -> None:
    sink = Sink(table="t", bucket="b", format="avro", key_format="avro", key="id")
    parts = expressions.record_parts(sink, ["id", "n", "_offset", "_key", "_tombstone"])
    columns = expressions.record_columns("out", sink, parts, {"key": "int", "value": "struct"})

    assert columns[0].startswith("coalesce(id, raise_error(")
    assert columns[1] == "if(_tombstone, NULL, struct(`id`, `n`)) AS value"


def test_columns_of_bytes_have_one_name() -> None:
    assert {name: part for part, name in expressions.RAW.items()} == registered.RAW


def test_samples_are_read_as_a_run_reads_records(tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"id": "a", "n": 1}\n{"id": "b", "n": 3000000000}\n')
    with registry_double() as double:
        Registry(double.url).register("orders-value", Schema("AVRO", json.dumps(ORDER)))
        pipeline = made(tmp_path, {"format": "avro", "broken": "skip"}, registry=double.url)
        source = pipeline.sources["orders"]
        good, bad = registered_rows(pipeline, source, records_of(file, source)).to_pylist()

        assert good["value"] == {"id": "a", "n": 1} and good["_corrupt_record"] is None
        assert bad["value"] is None and bad["_raw_value"].startswith(b'{"id": "b"')
        assert "without a schema registry" in bad["_corrupt_record"]

        pipeline = made(tmp_path, {"format": "avro"}, registry=double.url)
        source = pipeline.sources["orders"]
        with pytest.raises(SpecError, match=r"sample at offset 1 does not fit: 3000000000 is no"):
            registered_rows(pipeline, source, records_of(file, source))
        assert all(not one.startswith("POST") for one in double.asked[1:])


def test_a_source_without_a_schema_is_told(tmp_path: Path) -> None:
    with registry_double() as double:
        pipeline = made(tmp_path, {"format": "avro"}, registry=double.url)
        with pytest.raises(SchemaProblem, match="orders-value"):
            registered_rows(pipeline, pipeline.sources["orders"], [])
