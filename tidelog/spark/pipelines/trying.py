"""A pipeline on sample rows: sources are files, tables are made as ever, nothing is written.

Rule 1: no cluster is asked, and no catalog. Whatever a source is, its rows are those of the test.
        A schema registry is asked for schemas, where a format needs one; nothing is registered.
Rule 2: tables are read as a whole, not as streams: every window has closed at the end, no row
        comes too late, and each row is there once in its final form.
Rule 3: a test that fails does not stop the others.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidelog.errors import TidelogError
from tidelog.spark.connect import own_session
from tidelog.spark.pipelines import samples
from tidelog.spark.pipelines.expressions import quoted
from tidelog.spark.pipelines.registered_samples import RECORD_SCHEMA, check_fit, registered_rows
from tidelog.spark.pipelines.running import SETTINGS
from tidelog.spark.pipelines.samples import Case, Row, Tried, compare
from tidelog.spark.pipelines.shipping import ship
from tidelog.spark.pipelines.sinks import records
from tidelog.spark.pipelines.spec import Pipeline, Source, SpecError
from tidelog.spark.pipelines.tables import DEAD_LETTER, Tables, build, explained, first_words
from tidelog.spark.session import check_installed, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[1]"
FAST: Final = {
    # A sample is small: what costs is to plan it, and to start tasks.
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
PLAIN: Final = "key, value, topic, partition, offset, timestamp, 0 AS timestampType"


def run(
    pipeline: Pipeline, cases: Sequence[Case], *, conf: Mapping[str, str], update: bool = False
) -> Iterator[Tried]:
    """Run tests, one after the other; `update` writes what came into the files instead."""
    check_installed()
    settings = {**SETTINGS, **pipeline.spark, **FAST, **conf}
    with spark_session(f"{pipeline.name}-tests", master=MASTER, conf=settings) as session:
        for case in cases:
            yield attempt(session, pipeline, case, update=update)


def attempt(session: "SparkSession", pipeline: Pipeline, case: Case, *, update: bool = False) -> Tried:
    """Run one test."""
    compared = []
    try:
        own = own_session(session)
        ship(own, pipeline)
        read = partial(_read, pipeline, case)
        tables = build(own, pipeline, case.name, read=read)
        for what, file in case.expected.items():
            with explained(what):
                got = _rows(_outcome(pipeline, tables, what))
            found = compare(what, samples.rows_of(file), got)
            if update and not found.is_same:
                samples.write_rows(file, got)
                found = compare(what, got, got)
            compared.append(found)
    except TidelogError as error:
        return Tried(name=case.name, compared=compared, problem=first_words(error))
    return Tried(name=case.name, compared=compared)


def _outcome(pipeline: Pipeline, tables: Tables, what: str) -> "DataFrame":
    if what.endswith(DEAD_LETTER):
        return _readable(tables.broken[what.removesuffix(DEAD_LETTER)])
    if not what.endswith(samples.SINK):
        return _readable(tables.named[what])
    name = what.removesuffix(samples.SINK)
    sink = pipeline.sinks[name]
    frame = tables.named[sink.table]
    if not sink.topic and not sink.bucket:
        return _readable(frame)
    made = records(name, sink, frame)
    if sink.format or sink.key_format:
        check_fit(pipeline, sink, made)
    return _readable(made)


def _readable(frame: "DataFrame") -> "DataFrame":
    """Bytes as text, headers as an object."""
    columns = []
    for column in frame.schema:
        name, kind = quoted(column.name), column.dataType.simpleString()
        if kind == "binary":
            name = f"CAST({name} AS STRING) AS {name}"
        elif kind == "array<struct<key:string,value:binary>>":
            name = (
                f"map_from_entries(transform({name}, one -> "
                f"struct(one.key, CAST(one.value AS STRING)))) AS {name}"
            )
        columns.append(name)
    return frame.selectExpr(*columns)


def _rows(frame: "DataFrame") -> list[Row]:
    whole = "to_json(struct(*), map('ignoreNullFields', 'false')) AS row"
    return [json.loads(found.row) for found in frame.selectExpr(whole).collect()]


def _read(pipeline: Pipeline, case: Case, session: "SparkSession", name: str, source: Source) -> "DataFrame":
    """The rows that a test has for a source; none, if it has no file."""
    file = case.given.get(name)
    if source.is_topics:
        made = [] if file is None else samples.records_of(file, source)
        if source.format or source.key_format:
            return session.createDataFrame(registered_rows(pipeline, source, made))
        frame = session.createDataFrame(pa.Table.from_pylist(made, RECORD_SCHEMA))
        has_headers = str(_option(source, "includeHeaders")).lower() == "true"
        return frame.selectExpr(*(PLAIN.split(", ")), *(["headers"] if has_headers else []))
    reader = session.read
    if source.schema:
        reader = reader.schema(source.schema)
    elif file is None:
        raise SpecError(f"tests/{case.name}: {name}{samples.SUFFIX} is missing; it tells columns")
    return reader.json([] if file is None else str(file))


def _option(source: Source, name: str) -> Any:
    found = {key.lower(): value for key, value in source.options.items()}
    return found.get(name.lower(), "")
