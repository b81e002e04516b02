"""Tests of pipelines, without a Spark: their files, and what counts as the same."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.pipelines.samples import cases, compare, is_same, records_of, rows_of, write_rows
from tidelog.spark.pipelines.spec import Pipeline, SpecError, parse


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "sums.sql").touch()
    document = {
        "name": "sales",
        "sources": {
            "orders": {"topic": "orders", "json": "id string", "dead_letter": "broken"},
            "raw": {"topic": "raw"},
            "prices": {"files": "prices", "format": "csv"},
        },
        "steps": [{"sql": "sums.sql"}],
        "sinks": {"out": {"from": "sums", "topic": "out"}},
    }
    return parse(document, tmp_path)


def put(pipeline: Pipeline, **files: str) -> None:
    for path, text in files.items():
        file = pipeline.folder / "tests" / path.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(file.name + ".jsonl").write_text(text)


def test_the_files_of_a_test_are_told_apart_by_their_names(pipeline: Pipeline) -> None:
    put(pipeline, a__orders="", a__prices="", a__sums="", a__out_dot_sink="")
    put(pipeline, b__orders_dot_records="", b__orders_dot_dead_letter="")
    (pipeline.folder / "tests" / "README").touch()
    first, second = cases(pipeline)
    assert (first.name, set(first.given), set(first.expected)) == (
        "a",
        {"orders", "prices"},
        {"sums", "out.sink"},
    )
    assert (set(second.given), set(second.expected)) == ({"orders"}, {"orders.dead_letter"})
    assert [one.name for one in cases(pipeline, ["b"])] == ["b"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no tests"),
        ({"a__orders": ""}, "nothing says what must come out"),
        ({"a__sum": "", "a__sums": ""}, "nothing is called sum; did you mean 'sums'"),
        ({"a__orders": "", "a__orders_dot_records": "", "a__sums": ""}, "has the rows of orders"),
    ],
)
def test_a_test_that_tests_nothing_is_named(pipeline: Pipeline, files: dict[str, str], words: str) -> None:
    put(pipeline, **files)
    with pytest.raises(SpecError, match=words):
        cases(pipeline)


def test_a_test_that_is_not_there_is_named(pipeline: Pipeline) -> None:
    put(pipeline, late__sums="")
    with pytest.raises(SpecError, match="no test 'lat'; did you mean 'late'"):
        cases(pipeline, ["lat"])


def test_values_are_taken_as_they_are_and_records_as_they_say(pipeline: Pipeline) -> None:
    put(pipeline, a__orders='{"id": "1"}\n\n{"id"\n', a__sums="")
    put(pipeline, a__raw='{"key": "k", "value": {"n": 1}, "headers": {"h": "x"}, "offset": 7}\n{}\n')
    (case,) = cases(pipeline)
    first, second = records_of(case.given["orders"], pipeline.sources["orders"])
    assert (first["value"], first["topic"], first["offset"]) == (b'{"id": "1"}', "orders", 0)
    assert (second["value"], second["offset"]) == (b'{"id"', 1)
    whole, empty = records_of(case.given["raw"], pipeline.sources["raw"])
    assert (whole["key"], whole["value"], whole["offset"]) == (b"k", b'{"n": 1}', 7)
    assert whole["headers"] == [{"key": "h", "value": b"x"}]
    assert (empty["value"], empty["timestamp"]) == (None, datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "line 1 is no JSON"), ("[1]", "must be an object"), ('{"vaule": 1}', "mean 'value'")],
)
def test_a_line_that_is_no_record_is_named(pipeline: Pipeline, text: str, words: str) -> None:
    put(pipeline, a__raw=text, a__sums="")
    (case,) = cases(pipeline)
    with pytest.raises(SpecError, match=words):
        records_of(case.given["raw"], pipeline.sources["raw"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.1 + 0.2, 0.3, True),
        (1, 1.0, True),
        (1, 1.001, False),
        (1, True, False),
        (1, "1", True),
        ({"a": None}, {}, True),
        ({"a": 1}, {}, False),
        ([1, 2], [2, 1], False),
        ({"a": [1]}, '{"a": [1]}', True),
        ({"a": 1}, "{", False),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z", True),
        ("2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00Z", True),
        ("2026-01-01", "2026-01-02", False),
        (None, "", False),
    ],
)
def test_what_is_the_same(one: Any, other: Any, same: bool) -> None:
    assert is_same(one, other) is same


def test_rows_are_compared_without_order_each_once_and_by_what_is_named() -> None:
    got = [{"a": 2, "_offset": 1}, {"a": 1, "_offset": 0}, {"a": 1, "_offset": 2}]
    assert compare("t", [{"a": 1}, {"a": 1}, {"a": 2}], got).is_same

    differs = compare("t", [{"a": 1}, {"a": 3}], got)
    assert (differs.missing, differs.unexpected) == ([{"a": 3}], [{"a": 2}, {"a": 1}])
    assert not compare("t", [{"a": 2, "_offset": 9}], got[:1]).is_same


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": "ü", "b": None}, {"a": "\n"}]
    write_rows(tmp_path / "x.jsonl", rows)
    assert rows_of(tmp_path / "x.jsonl") == rows


def test_whole_numbers_are_not_rounded() -> None:
    assert not is_same(1_000_000_000_000, 1_000_000_000_001)
    assert not is_same({"id": 2**60}, {"id": 2**60 + 1})
    assert is_same(1_000_000_000_000, 1_000_000_000_000.0001)


@pytest.mark.parametrize("text", ["x\u2028y", "x\x85y", "x\x0cy"])
def test_a_line_ends_where_json_says(text: str, pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    write_rows(file, [{"id": text}])
    assert rows_of(file) == [{"id": text}]
    (record,) = records_of(file, pipeline.sources["orders"])
    assert record["value"].decode() == file.read_text().removesuffix("\n")


@pytest.mark.parametrize(
    "line",
    [
        b'{"timestamp": "x"}',
        b'{"timestamp": 5}',
        b'{"headers": [1]}',
        b'{"partition": "x"}',
        b'{"value": "\\ud800"}',
        b'{"value": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_told(line: bytes, pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "raw.jsonl"
    file.write_bytes(line)
    with pytest.raises(SpecError, match=r"raw\.jsonl"):
        records_of(file, pipeline.sources["raw"])
