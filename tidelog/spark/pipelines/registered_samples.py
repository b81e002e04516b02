"""Sample rows of sources and sinks whose schemas a registry knows.

Rule 1: a sample is JSON that people type. It is written by the schema and read back as records of
        the topic are, so a test sees the columns that a run sees.
Rule 2: nothing is registered. A row of a sink that its schema cannot say fails the test.
"""

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from tidelog.schemas.problems import DoesNotFit
from tidelog.schemas.values import ValueWriter
from tidelog.spark.columns import PLAIN
from tidelog.spark.options import read_options, write_options
from tidelog.spark.pipelines.formats import format_options, keeps_broken, with_broken
from tidelog.spark.pipelines.samples import Row
from tidelog.spark.pipelines.spec import Pipeline, Sink, Source, SpecError
from tidelog.spark.registered import part_writers, registered_projection, registered_schema
from tidelog.spark.rows import spark_schema
from tidelog.spark.source import part_readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD_SCHEMA: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
)


def registered_rows(pipeline: Pipeline, source: Source, records: list[Row]) -> pa.Table:
    """Records as the columns that a run would have of them."""
    subscription = (
        {"subscribePattern": source.pattern}
        if source.pattern
        else {"subscribe": ",".join(source.topics) or source.topic}
    )
    options = read_options(
        {"kafka.bootstrap.servers": pipeline.bootstrap, **subscription, **format_options(pipeline, source)},
        streaming=True,
    )
    topic = source.topic or next(iter(source.topics), None)
    written = [dict(record) for record in records]
    for form in (options.key_format, options.value_format):
        if form.is_registered:
            writer = ValueWriter(form, topic, None)
            for row in written:
                row[form.part] = _framed(writer, row[form.part], source, row)
    readers = part_readers(options)
    names = (*PLAIN, "headers") if options.include_headers else PLAIN
    schema: StructType = registered_schema(spark_schema(names), readers)
    if keeps_broken(source):
        schema = with_broken(schema)
    table = pa.Table.from_pylist(written, RECORD_SCHEMA)
    kinds = pa.array([0] * len(written), pa.int32())
    batch = pa.RecordBatch.from_arrays(
        [*(one.combine_chunks() for one in table.columns), kinds],
        names=[*RECORD_SCHEMA.names, "timestampType"],
    )
    return pa.Table.from_batches([registered_projection(schema, readers).rows(batch)])


def _framed(writer: ValueWriter, data: bytes | None, source: Source, row: Row) -> bytes | None:
    try:
        return writer.bytes_of(data)
    except DoesNotFit as problem:
        if keeps_broken(source):
            return data  # a record without a frame is broken, too
        raise SpecError(f"the sample at offset {row['offset']} does not fit: {problem}") from None


def check_fit(pipeline: Pipeline, sink: Sink, records: "DataFrame") -> None:
    """DoesNotFit, if the schemas of a sink cannot say its records."""
    options = write_options(
        {
            "kafka.bootstrap.servers": pipeline.bootstrap,
            "topic": sink.target,
            **format_options(pipeline, sink),
        },
        streaming=False,
    )
    if options.value_format.auto_register:
        return  # the schema is made of the columns
    rows = records.toArrow()
    for part, writer in part_writers(records.schema, options).items():
        for chunk in rows.column(part).chunks:
            writer.write(chunk)
