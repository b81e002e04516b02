"""Tables into topics, buckets, folders and Iceberg tables: one query each.

Rule: a query's name is its sink's, and so is its checkpoint's. Both stay the same from run to run;
that is how a query goes on where it was.
"""

import json
import threading
import time
from typing import TYPE_CHECKING, Final

from tidelog.spark.connect import is_connect, own_session
from tidelog.spark.pipelines import expressions
from tidelog.spark.pipelines.delta import DeltaWriter, Place
from tidelog.spark.pipelines.formats import format_options
from tidelog.spark.pipelines.iceberg import Catalog, TableWriter, upkeep_of
from tidelog.spark.pipelines.shipping import ship
from tidelog.spark.pipelines.spec import Pipeline, Sink, SpecError, layout_of, options_of
from tidelog.spark.pipelines.tables import DEAD_LETTER, Tables, build, explained
from tidelog.spark.pipelines.upserts import UpsertWriter, as_changes, row_schema
from tidelog.spark.tables.waiting import Patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

INITIALISING: Final = "Initializing"
NOT_CALLED_BACK: Final = "Python worker failed to connect back"
STARTS_MAX: Final = 5
LOOK_SECONDS: Final = 0.05
FORMAT: Final = "tidelog"
QUERY_ID: Final = "sql.streaming.queryId"


def query_names(pipeline: Pipeline) -> list[str]:
    """Every query of a pipeline: one for each sink, and for each source with a dead letter."""
    return [*pipeline.sinks, *(source + DEAD_LETTER for source in pipeline.dead_letters)]


def start_all(
    session: "SparkSession", pipeline: Pipeline, stop: threading.Event | None = None
) -> "list[StreamingQuery]":
    """Start every query; if one cannot start, none goes on.

    `stop` ends the wait of a query for a catalog or a store that is away.
    """
    patience = Patience(stop=stop or threading.Event())
    queries: list[StreamingQuery] = []
    try:
        for name in query_names(pipeline):
            own = own_session(session)
            ship(own, pipeline)
            tables = build(own, pipeline, name)
            with explained(f"sinks.{name}"):
                sink, frame = _what(pipeline, name, tables)
                queries.append(_started(pipeline, name, sink, frame, patience))
    except BaseException:
        for query in queries:
            query.stop()
        raise
    return queries


def _started(
    pipeline: Pipeline, name: str, sink: Sink, frame: "DataFrame", patience: Patience
) -> "StreamingQuery":
    """A query that has its Python processes. Spark gives up on one that has not called back after
    ten seconds, and on a busy machine that is soon: so queries start one after another, and again
    if need be."""
    for _ in range(STARTS_MAX - 1):
        try:
            query = _start(pipeline, name, sink, frame, patience)
        except Exception as error:  # of a Spark Connect server, which starts some of them first
            if NOT_CALLED_BACK not in str(error):
                raise
            continue
        while query.isActive and query.status["message"].startswith(INITIALISING):
            time.sleep(LOOK_SECONDS)
        if query.isActive or NOT_CALLED_BACK not in str(query.exception()):
            return query
    return _start(pipeline, name, sink, frame, patience)


def _what(pipeline: Pipeline, name: str, tables: Tables) -> "tuple[Sink, DataFrame]":
    """A query's sink, and the table that goes there."""
    sink = pipeline.sinks.get(name)
    if sink is not None:
        return sink, tables.named[sink.table]
    source = name.removesuffix(DEAD_LETTER)
    return Sink(table=name, topic=pipeline.dead_letters[source]), tables.broken[source]


def _start(
    pipeline: Pipeline, name: str, sink: Sink, frame: "DataFrame", patience: Patience
) -> "StreamingQuery":
    if not frame.isStreaming:
        raise SpecError(
            f"table {sink.table} has no stream in it; read a topic, or set stream: true for files"
        )
    match sink.kind:
        case "iceberg":
            writer = _into_iceberg(pipeline, name, sink, frame, patience)
        case "delta":
            writer = _into_delta(pipeline, name, sink, frame, patience)
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
        writer.options(**({} if sink.delta else options_of(sink.options)))
        .outputMode(sink.mode or "append")
        .queryName(name)
        .option("checkpointLocation", _checkpoint(pipeline, name))
        .start()
    )


def _checkpoint(pipeline: Pipeline, name: str) -> str:
    return f"{pipeline.path(pipeline.checkpoint)}/{name}"


def _into_topic(pipeline: Pipeline, name: str, sink: Sink, frame: "DataFrame") -> "DataStreamWriter":
    made = records(name, sink, frame)
    told = {"kafka.bootstrap.servers": pipeline.bootstrap, "topic": sink.target}
    told |= format_options(pipeline, sink)
    if sink.mode in ("", "append"):
        return made.writeStream.format(FORMAT).options(**told)
    # Spark lets sinks in Python append only. So each batch is a write of its own, which has the
    # query and the number of the batch in its transaction: one that is repeated is there once.
    checkpoint = _checkpoint(pipeline, name)
    told |= {"checkpointLocation": checkpoint}

    def write(batch: "DataFrame", number: int) -> None:
        writer = batch.write.format(FORMAT).mode("append").options(**told)
        writer.options(txnAppId=query_id(batch, checkpoint), txnVersion=str(number)).save()

    return made.writeStream.foreachBatch(write)


def records(name: str, sink: Sink, frame: "DataFrame") -> "DataFrame":
    """The rows of a table as the records that a topic or a bucket gets."""
    parts = expressions.record_parts(sink, frame.columns)
    probe = frame.selectExpr(*(f"{text} AS {part}" for part, text in parts.items()))
    types = {column.name: column.dataType.typeName() for column in probe.schema}
    return frame.selectExpr(*expressions.record_columns(name, sink, parts, types))


def _into_iceberg(
    pipeline: Pipeline, name: str, sink: Sink, frame: "DataFrame", patience: Patience
) -> "DataStreamWriter":
    catalog = Catalog.of(pipeline, sink.catalog)
    checkpoint = _checkpoint(pipeline, name)
    verifies = sink.verify_replays is not False
    table: TableWriter | UpsertWriter
    if sink.upsert:
        frame = as_changes(sink, frame)
        schema = row_schema(frame)
        table = UpsertWriter(
            catalog, sink.iceberg, sink.upsert, upkeep_of(sink), patience, checkpoint, verifies
        )
    else:
        schema = frame.schema
        table = TableWriter(catalog, sink.iceberg, upkeep_of(sink), patience, checkpoint, verifies)
    what = f"the catalog of table {sink.iceberg}"
    layout, evolve = layout_of(f"sinks.{name}", sink), sink.evolve is not False
    patience.until_there(what, lambda: catalog.prepare(sink.iceberg, schema, layout, evolve=evolve))

    def write(batch: "DataFrame", number: int) -> None:
        table.write(batch, query_id(batch, checkpoint), number)

    return frame.writeStream.foreachBatch(write)


def _into_delta(
    pipeline: Pipeline, name: str, sink: Sink, frame: "DataFrame", patience: Patience
) -> "DataStreamWriter":
    place = Place(pipeline.path(sink.delta), options_of(sink.options))
    checkpoint = _checkpoint(pipeline, name)
    schema = frame.schema
    if sink.upsert:
        frame = as_changes(sink, frame)
        schema = row_schema(frame)
    has_upkeep, verifies = sink.upkeep is not False, sink.verify_replays is not False
    table = DeltaWriter(place, sink.upsert, has_upkeep, patience, checkpoint, verifies)
    evolve, parts = sink.evolve is not False, sink.partition_by
    patience.until_there(
        f"the store of {place.uri}", lambda: place.prepare(schema, evolve=evolve, partition_by=parts)
    )

    def write(batch: "DataFrame", number: int) -> None:
        table.write(batch, query_id(batch, checkpoint), number)

    return frame.writeStream.foreachBatch(write)


def query_id(batch: "DataFrame", checkpoint: str = "") -> str:
    """The id of the query that a batch is of; it is the same after a restart.

    Spark names it in the thread of its batches. With Spark Connect these are in a process of their
    own; there it is read where Spark keeps it, since before the first batch.
    """
    session = batch.sparkSession
    if is_connect(session):
        (line,) = session.read.text(f"{checkpoint}/metadata").collect()
        return str(json.loads(line.value)["id"])
    found = session.sparkContext.getLocalProperty(QUERY_ID)
    assert found, "Spark names the query in the thread of its batches"
    return found
