"""The data source that Spark sees: `format("tidelog")`.

Spark finds it through the module `pyspark_tidelog`; nobody registers it. Its options and columns
are those of Spark's Kafka source and sink, and some more: see docs/spark.md.
"""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from tidelog.errors import ConfigError
from tidelog.schemas.table import FORMATS
from tidelog.spark.batch import BatchReader, FilteringReader
from tidelog.spark.columns import PLAIN
from tidelog.spark.options import (
    READ_BATCH,
    READ_STREAM,
    WRITE,
    Assigned,
    ReadOptions,
    Subscribed,
    read_options,
    write_options,
)
from tidelog.spark.registered import (
    PartReader,
    RegisteredProjection,
    part_reader,
    part_writers,
    registered_projection,
    registered_schema,
)
from tidelog.spark.rows import check_writable, projection, spark_schema
from tidelog.spark.streaming import StreamReader
from tidelog.spark.workers import called
from tidelog.spark.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from tidelog.spark.rows import Projection

REMEMBERED: Final = "tidelog.options"
PROVIDER: Final = "provider"
"""Among the options only where a table is made in a catalog."""
OPTION_PREFIX: Final = "option."
FILTERING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class TidelogSource(DataSource):
    """Topics as tables, batches and streams, to be read and to be written."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        if self._flag("valueFormat") == "json":
            raise ConfigError(
                'valueFormat=json needs a schema: .schema("id string, price double, offset bigint")'
            )
        has_headers = self._flag("includeHeaders") == "true"
        schema = spark_schema((*PLAIN, "headers") if has_headers else PLAIN)
        if self._names_a_registered_format():
            given = {
                name.removeprefix(OPTION_PREFIX): text
                for name, text in self.options.items()
                if PROVIDER not in self.options or name.startswith(OPTION_PREFIX)
            }
            schema = registered_schema(schema, part_readers(read_options(_of_reads(given), streaming=False)))
        return _remember(schema, self.options) if PROVIDER in self.options else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self._given(schema), streaming=False)
        reader = FilteringReader if _may_filter() else BatchReader
        return reader(options, self._projection(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self._given(schema), streaming=True)
        return StreamReader(options, self._projection(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigError('a topic is not overwritten; write with mode("append")')
        options = write_options(self._given_to_write(schema), streaming=False)
        check_writable(schema, options)
        return BatchWriter(options, schema, part_writers(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        called()
        if overwrite:
            raise ConfigError("complete mode would overwrite a topic; write with foreachBatch")
        options = write_options(self._given_to_write(schema), streaming=True)
        check_writable(schema, options)
        return StreamWriter(options, schema, part_writers(schema, options))

    def _given(self, schema: StructType) -> Mapping[str, str]:
        """The options; of a table of the catalog, those that it was made with."""
        return self._with(_remembered(schema))

    def _given_to_write(self, schema: StructType) -> Mapping[str, str]:
        return self._with(_of_writes(_remembered(schema)))

    def _with(self, remembered: Mapping[str, str]) -> Mapping[str, str]:
        """Who names a cluster says all there is to say; else a table's options stand behind."""
        names_cluster = "kafka.bootstrap.servers" in {name.lower() for name in self.options}
        return self.options if names_cluster else {**remembered, **self.options}

    def _flag(self, name: str) -> str:
        return str(self.options.get(name, "")).lower()

    def _names_a_registered_format(self) -> bool:
        return any(
            name.removeprefix(OPTION_PREFIX).lower() in ("valueformat", "keyformat")
            and text.lower() in FORMATS
            for name, text in self.options.items()
        )

    def _projection(self, schema: StructType, options: ReadOptions) -> "Projection | RegisteredProjection":
        if readers := part_readers(options):
            return registered_projection(schema, readers)
        return projection(schema, value_is_json=options.value_is_json, time_zone=options.time_zone)


def part_readers(options: ReadOptions) -> dict[str, PartReader]:
    """Who reads keys and values that a registry knows; the first topic's subjects are meant."""
    match options.subscription:
        case Subscribed(topics):
            topic: str | None = topics[0]
        case Assigned(places):
            topic = places[0].topic
        case _:
            topic = None
    forms = (options.key_format, options.value_format)
    return {form.part: part_reader(form, topic) for form in forms if form.is_registered}


def _of_reads(options: Mapping[str, str]) -> Mapping[str, str]:
    """What batches and streams have in common: a schema is asked for before either is made."""
    common = {name.lower() for name in READ_BATCH & READ_STREAM}
    return {
        name: text
        for name, text in options.items()
        if name.lower() in common or name.lower().startswith("kafka.")
    }


# Spark keeps the options of a table in its catalog, but gives them to a Python source only once,
# among other things that it says of the table: when it asks for the schema, as the table is made.
# Whoever reads the table or inserts into it gets that schema, and no options. So options travel
# with the schema's first column.


def _remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    first, *others = schema.fields
    given = {
        name.removeprefix(OPTION_PREFIX): text
        for name, text in options.items()
        if name.startswith(OPTION_PREFIX)
    }
    metadata = {REMEMBERED: json.dumps(given)}
    return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])


def _remembered(schema: StructType) -> Mapping[str, str]:
    for field in schema.fields:
        if (text := field.metadata.get(REMEMBERED)) is not None:
            found: dict[str, str] = json.loads(text)
            return found
    return {}


def _of_writes(options: Mapping[str, str]) -> Mapping[str, str]:
    """A table that reads a topic is written to that topic, however it is read."""
    lower = {name.lower(): text for name, text in options.items()}
    only_read = {name.lower() for name in (READ_BATCH | READ_STREAM) - WRITE}
    kept = {name: text for name, text in lower.items() if name not in only_read}
    return {"topic": lower["subscribe"], **kept} if "subscribe" in lower else kept


def _may_filter() -> bool:
    """Whether this process asks for a reader that takes filters.

    Spark refuses such a reader where filters are not pushed down, which is its default; and only
    where they are does the worker run that pushes them.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return FILTERING_WORKER in sys.modules or getattr(main, "name", "") == FILTERING_WORKER
