"""The SQL that sources and sinks are made with."""

import pytest

from tidelog.spark.pipelines.expressions import (
    BROKEN_ROW,
    checked_json,
    json_columns,
    literal,
    parsed_json,
    quoted,
    record_columns,
    record_parts,
)
from tidelog.spark.pipelines.spec import Sink, SpecError


def test_names_and_texts_cannot_leave_their_quotes() -> None:
    assert quoted("a`b") == "`a``b`"
    assert literal("it's a \\ line\n") == r"'it\'s a \\ line\n'"


def test_fields_of_json_are_columns_beside_those_of_the_record() -> None:
    columns = json_columns(["id", "a b", "_broken"])

    assert columns[:2] == ["_json.`id`", "_json.`a b`"]
    assert columns[2:] == [
        "`key` AS _key",
        "`topic` AS _topic",
        "`partition` AS _partition",
        "`offset` AS _offset",
        "`timestamp` AS _timestamp",
        "value IS NULL AS _tombstone",
    ]


def test_a_schema_is_a_literal_whatever_it_says() -> None:
    assert parsed_json("id string COMMENT 'x'").startswith(
        r"from_json(CAST(value AS STRING), 'id string COMMENT \'x\', _broken string'"
    )


def test_a_broken_value_that_nobody_wants_names_the_keys_to_set() -> None:
    assert "sources.orders.json; fix the schema, or set dead_letter" in checked_json("orders")


def test_without_key_and_value_all_columns_are_one_json() -> None:
    assert record_parts(Sink(table="t", topic="a"), ["id", "total"]) == {
        "value": "to_json(struct(`id`, `total`))"
    }


def test_columns_with_the_names_of_a_record_are_its_parts() -> None:
    sink = Sink(table="t", topic="a")

    assert record_parts(sink, ["key", "value", "headers", "other"]) == {
        "key": "`key`",
        "value": "`value`",
        "headers": "`headers`",
    }
    assert record_parts(sink, ["key", "total"])["value"] == "to_json(struct(`total`))"


def test_expressions_win_over_columns() -> None:
    sink = Sink(table="t", topic="a", key="upper(id)", value="total")

    assert record_parts(sink, ["key", "value", "id"]) == {"key": "upper(id)", "value": "total"}


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("binary", "x AS value"),
        ("string", "CAST(x AS BINARY) AS value"),
        ("double", "CAST(CAST(x AS STRING) AS BINARY) AS value"),
        ("struct", "CAST(to_json(x) AS BINARY) AS value"),
    ],
)
def test_values_of_any_type_become_bytes_that_people_can_read(kind: str, made: str) -> None:
    columns = record_columns("s", Sink(table="t", topic="a"), {"value": "x"}, {"value": kind})

    assert columns == [made]


def test_a_bucket_needs_a_key() -> None:
    sink = Sink(table="t", bucket="a")

    with pytest.raises(SpecError, match=r"sinks\.s\.key is missing: a bucket keeps one value"):
        record_columns("s", sink, {"value": "x"}, {"value": "string"})


def test_a_row_of_a_bucket_without_a_key_fails_with_the_name_of_the_setting() -> None:
    sink = Sink(table="t", bucket="a")

    (key,) = record_columns("s", sink, {"key": "id"}, {"key": "binary"})

    assert key.startswith("coalesce(id, CAST(raise_error('sinks.s.key is null in a row;")


def test_a_tombstone_is_no_broken_row_and_deletes_in_a_sink() -> None:
    assert BROKEN_ROW.startswith("(value IS NOT NULL AND ")
    assert "value IS NULL AS _tombstone" in json_columns(["id"])
    parts = record_parts(Sink(table="t", bucket="b", key="_key"), ["id", "_key", "_tombstone"])

    assert parts["value"] == "if(_tombstone, NULL, to_json(struct(`id`, `_key`)))"
