"""Tables into topics, buckets, folders and Iceberg tables: one query each.

Rule: a query's name is its sink's, and so is its checkpoint's. Both stay the same from run to run;
that is how a query goes on where it was.
"""

from typing import TYPE_CHECKING, Final

from tidelog.spark.pipelines import expressions
from tidelog.spark.pipelines.iceberg import Catalog, TableWriter
from tidelog.spark.pipelines.spec import Pipeline, Sink, SpecError, options_of
from tidelog.spark.pipelines.tables import Tables, explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DEAD_LETTER: Final = ".dead_letter"
QUERY_ID: Final = "sql.streaming.queryId"


def start_all(pipeline: Pipeline, tables: Tables) -> "list[StreamingQuery]":
    """Start every query; if one cannot start, none goes on."""
    queries: list[StreamingQuery] = []
    wanted = [(name, sink, tables.named[sink.table]) for name, sink in pipeline.sinks.items()]
    for source, topic in pipeline.dead_letters.items():
        name = source + DEAD_LETTER
        wanted.append((name, Sink(table=name, topic=topic), tables.broken[source]))
    try:
        for name, sink, frame in wanted:
            with explained(f"sinks.{name}"):
                queries.append(_start(pipeline, name, sink, frame))
    except BaseException:
        for query in queries:
            query.stop()
        raise
    return queries


def _start(pipeline: Pipeline, name: str, sink: Sink, frame: "DataFrame") -> "StreamingQuery":
    if not frame.isStreaming:
        raise SpecError(
            f"table {sink.table} has no stream in it; read a topic, or set stream: true for files"
        )
    match sink.kind:
        case "iceberg":
            writer = _into_iceberg(pipeline, sink, frame)
        case "parquet":
            writer = frame.writeStream.format("parquet").option("path", pipeline.path(sink.parquet))
            writer = writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
        case _:
            writer = _into_topic(pipeline, name, sink, frame)
    if pipeline.is_once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=pipeline.trigger)
    return (
        writer.options(**options_of(sink.options))
        .outputMode(sink.mode or "append")
        .queryName(name)
        .option("checkpointLocation", f"{pipeline.path(pipeline.checkpoint)}/{name}")
        .start()
    )


def _into_topic(
    pipeline: Pipeline, name: str, sink: Sink, frame: "DataFrame"
) -> "DataStreamWriter":
    parts = expressions.record_parts(sink, frame.columns)
    probe = frame.selectExpr(*(f"{text} AS {part}" for part, text in parts.items()))
    types = {column.name: column.dataType.typeName() for column in probe.schema}
    records = frame.selectExpr(*expressions.record_columns(name, sink, parts, types))
    return (
        records.writeStream.format("tidelog")
        .option("kafka.bootstrap.servers", pipeline.bootstrap)
        .option("topic", sink.target)
    )


def _into_iceberg(pipeline: Pipeline, sink: Sink, frame: "DataFrame") -> "DataStreamWriter":
    catalog = Catalog.of(pipeline, sink.catalog)
    catalog.prepare(sink.iceberg, frame.schema)
    table = TableWriter(catalog, sink.iceberg)

    def write(batch: "DataFrame", number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query, "Spark names the query in the thread of its batches"
        table.write(batch, query, number)

    return frame.writeStream.foreachBatch(write)
