"""SQL that tables and sinks are made with.

Rule 1: nothing here needs a session; every function is pure.
Rule 2: names and texts of others go through `quoted` and `literal`, whatever they contain.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.spark.pipelines.spec import Sink, SpecError

JSON: Final = "_json"
BROKEN: Final = "_broken"
OF_RECORDS: Final = ("key", "topic", "partition", "offset", "timestamp")
"""Columns of a topic that stay beside the fields of its JSON, each with a `_` before it."""
OF_SOURCES: Final = frozenset(f"_{name}" for name in OF_RECORDS)
TOMBSTONE: Final = "_tombstone"
"""A column beside the fields: whether the record has no value, which deletes its key."""
BROKEN_ROW: Final = f"(value IS NOT NULL AND ({JSON} IS NULL OR {JSON}.{BROKEN} IS NOT NULL))"
CORRUPT: Final = "_corrupt_record"
RAW: Final = {"key": "_raw_key", "value": "_raw_value"}
"""Columns with the bytes of a record whose key and value a schema registry knows."""
NESTED: Final = ("struct", "array", "map")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


# Values in JSON.


def parsed_json(schema: str) -> str:
    """A column of what the value says; it has BROKEN where the value does not fit the schema."""
    whole = literal(f"{schema}, {BROKEN} string")
    options = f"map('columnNameOfCorruptRecord', '{BROKEN}')"
    return f"from_json(CAST(value AS STRING), {whole}, {options}) AS {JSON}"


def json_columns(fields: Sequence[str]) -> list[str]:
    """The fields as columns, and where each comes from."""
    told = [f"{JSON}.{quoted(name)}" for name in fields if name != BROKEN]
    own = [f"{quoted(name)} AS _{name}" for name in OF_RECORDS]
    return [*told, *own, f"value IS NULL AS {TOMBSTONE}"]


def checked_json(source: str) -> str:
    """The parsed column once more, which fails the query at the first broken value."""
    reason = (
        "concat(topic, '-', partition, ' has at offset ', offset, "
        + literal(
            f" a value that is no JSON with the fields of sources.{source}.json; fix the schema, "
            "or set dead_letter: TOPIC, or broken: skip"
        )
        + ")"
    )
    return f"if({BROKEN_ROW}, raise_error({reason}), {JSON}) AS {JSON}"


def dead_letter_columns(schema: str) -> list[str]:
    """A broken record as it was, with headers that tell where it was and what was expected."""
    error = literal(f"the value is no JSON with the fields {schema}")
    return ["key", "value", f"{_headers(error)} AS headers"]


def _headers(error: str) -> str:
    """Headers of a dead letter: where it was, and an expression of what is wrong with it."""
    told = {
        "error": error,
        "topic": "topic",
        "partition": "CAST(partition AS STRING)",
        "offset": "CAST(offset AS STRING)",
    }
    headers = ", ".join(
        f"named_struct('key', '{name}', 'value', CAST({text} AS BINARY))" for name, text in told.items()
    )
    return f"array({headers})"


# Values of a schema registry.


def registered_columns(fields: Sequence[str] | None) -> list[str]:
    """The fields of a value as columns, or the value if it has none, and where each comes from."""
    told = ["value"] if fields is None else [f"value.{quoted(name)}" for name in fields]
    own = [f"{quoted(name)} AS _{name}" for name in OF_RECORDS]
    return [*told, *own, f"value IS NULL AS {TOMBSTONE}"]


def registered_dead_letter() -> list[str]:
    """A record that cannot be read, as it was, with headers that tell where it was and why."""
    raw = [f"{column} AS {part}" for part, column in RAW.items()]
    return [*raw, f"{_headers(CORRUPT)} AS headers"]


# Rows as records.


def record_parts(sink: Sink, columns: Sequence[str]) -> dict[str, str]:
    """The expressions of a record's key, value and headers, of a table with these columns."""
    parts = {}
    if sink.key or "key" in columns:
        parts["key"] = sink.key or "`key`"
    if sink.value or "value" in columns:
        parts["value"] = sink.value or "`value`"
    else:
        others = [name for name in columns if name != TOMBSTONE and (sink.key or name != "key")]
        if sink.format:
            others = [name for name in others if name not in OF_SOURCES]
        whole = f"struct({', '.join(map(quoted, others))})"
        parts["value"] = whole if sink.format else f"to_json({whole})"
        if TOMBSTONE in columns:
            parts["value"] = f"if({TOMBSTONE}, NULL, {parts['value']})"
    if sink.headers or "headers" in columns:
        parts["headers"] = sink.headers or "`headers`"
    return parts


def record_columns(name: str, sink: Sink, parts: Mapping[str, str], types: Mapping[str, str]) -> list[str]:
    """These expressions as the columns that a writer takes; `types` says what each gives."""
    if sink.bucket and "key" not in parts:
        raise SpecError(
            f"sinks.{name}.key is missing: a bucket keeps one value for each key. Name an "
            "expression, or have a column `key`"
        )
    columns = []
    typed = {"headers": True, "key": bool(sink.key_format), "value": bool(sink.format)}
    for part, expression in parts.items():
        made = expression if typed[part] else _as_bytes(expression, types[part])
        if part == "key" and sink.bucket:
            reason = literal(f"sinks.{name}.key is null in a row; a bucket needs a key")
            failed = f"raise_error({reason})"
            made = f"coalesce({made}, {failed if typed[part] else f'CAST({failed} AS BINARY)'})"
        columns.append(f"{made} AS {part}")
    return columns


def _as_bytes(expression: str, kind: str) -> str:
    if kind == "binary":
        return expression
    if kind in NESTED:
        return f"CAST(to_json({expression}) AS BINARY)"
    if kind == "string":
        return f"CAST({expression} AS BINARY)"
    return f"CAST(CAST({expression} AS STRING) AS BINARY)"
