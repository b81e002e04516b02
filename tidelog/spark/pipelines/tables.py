"""Sources and steps, as tables of a session.

Rule 1: nothing is read here that is not needed to know columns: tables are plans.
Rule 2: a step can import the Python files of its folder. Each build imports them anew: another
        pipeline of this process may have files of the same names.
Rule 3: what Spark says against a source or a step is told with the key or the file it is about.
"""

import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.errors import TidelogError
from tidelog.spark.pipelines import expressions
from tidelog.spark.pipelines.formats import format_options, keeps_broken, with_broken
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.spec import Pipeline, Source, SpecError, Step, options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD_LETTER: Final = ".dead_letter"
"""Behind a source's name: the query that carries off what is broken there."""
GROUP: Final = "kafka.group.id"
BEHIND: Final = ("JVM stacktrace", "==", "'", "+-", "\tat ")
"""How lines begin that Spark puts behind a message."""


Read: TypeAlias = "Callable[[SparkSession, str, Source], DataFrame]"
"""What gives the rows of a source, by its name."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What sinks can take: every table by its name, and of some sources what was broken."""

    named: "dict[str, DataFrame]" = field(default_factory=dict)
    broken: "dict[str, DataFrame]" = field(default_factory=dict)


def build(session: "SparkSession", pipeline: Pipeline, query: str, *, read: "Read | None" = None) -> Tables:
    """Every source and every step, in order; each is a view that later ones can name in SQL.

    They are made for one query, and in its own session: it shows how far it is by a group of its
    own. One that is about dead letters needs its source alone. `read` gives sources other rows.
    """
    tables = Tables()
    alone = query.removesuffix(DEAD_LETTER) if query.endswith(DEAD_LETTER) else ""
    for name, source in pipeline.sources.items():
        if alone and name != alone:
            continue
        with explained(f"sources.{name}"):
            if read is None:
                frame = _read(session, pipeline, source, f"{pipeline.name}.{query}")
            else:
                frame = read(session, name, source)
            if source.json:
                frame = _parsed(frame, name, source, tables)
            elif source.is_topics and source.format:
                frame = _registered(frame, name, source, tables)
            if source.watermark is not None:
                frame = frame.withWatermark(source.watermark.column, source.watermark.delay)
        _add(tables, name, frame)
    for number, step in enumerate(() if alone else pipeline.steps, 1):
        with explained(f"steps[{number}] ({step.file})"):
            frame = _make(session, pipeline, step, tables)
        _add(tables, step.table, frame)
    return tables


def _add(tables: Tables, name: str, frame: "DataFrame") -> None:
    frame.createOrReplaceTempView(name)
    tables.named[name] = frame


def _read(session: "SparkSession", pipeline: Pipeline, source: Source, group: str) -> "DataFrame":
    if source.iceberg:
        return Catalog.of(pipeline, source.catalog).read(session, source.iceberg)
    if source.files:
        options = options_of(source.options)
        reader = session.readStream if source.stream else session.read
        reader = reader.format(source.format).options(**options)
        if source.schema:
            reader = reader.schema(source.schema)
        return reader.load(pipeline.path(source.files))
    wanted = {"topic": "subscribe", "topics": "subscribe", "pattern": "subscribePattern"}
    topics = ",".join(source.topics) or source.topic or source.pattern
    ours = {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        "startingOffsets": "earliest",
        wanted[source.kind]: topics,
    }
    options = format_options(pipeline, source)
    if GROUP not in (name.lower() for name in options):
        ours |= {GROUP: group, "commitOffsets": "true"}
    stream = session.readStream.format("tidelog").options(**{**ours, **options})
    frame = stream.load()
    return stream.schema(with_broken(frame.schema)).load() if keeps_broken(source) else frame


def _parsed(frame: "DataFrame", name: str, source: Source, tables: Tables) -> "DataFrame":
    """The fields of the values; what is broken is put aside, or fails the query, or is skipped."""
    parsed = frame.selectExpr("*", expressions.parsed_json(source.json))
    fields = parsed.schema[expressions.JSON].dataType.fieldNames()  # type: ignore[attr-defined]
    if source.dead_letter:
        columns = expressions.dead_letter_columns(source.json)
        tables.broken[name] = parsed.where(expressions.BROKEN_ROW).selectExpr(*columns)
    if source.dead_letter or source.broken == "skip":
        parsed = parsed.where(f"NOT {expressions.BROKEN_ROW}")
    else:
        others = [expressions.quoted(column) for column in frame.columns]
        parsed = parsed.selectExpr(*others, expressions.checked_json(name))
    return parsed.selectExpr(*expressions.json_columns(fields))


def _registered(frame: "DataFrame", name: str, source: Source, tables: Tables) -> "DataFrame":
    """The fields of values that a schema registry knows; who reads them fails on broken ones."""
    kind = frame.schema["value"].dataType
    fields = kind.fieldNames() if kind.typeName() == "struct" else None  # type: ignore[attr-defined]
    if source.dead_letter:
        broken = frame.where(f"{expressions.CORRUPT} IS NOT NULL")
        tables.broken[name] = broken.selectExpr(*expressions.registered_dead_letter())
    if keeps_broken(source):
        frame = frame.where(f"{expressions.CORRUPT} IS NULL")
    return frame.selectExpr(*expressions.registered_columns(fields))


def _make(session: "SparkSession", pipeline: Pipeline, step: Step, tables: Tables) -> "DataFrame":
    from pyspark.sql import DataFrame

    file = pipeline.folder / step.file
    if step.sql:
        return session.sql(file.read_text().strip().rstrip(";"))
    with importable(pipeline.folder):
        transform = runpy.run_path(str(file)).get("transform")
        if not callable(transform):
            raise SpecError("it has no function `transform(spark, tables)`")
        frame = transform(session, dict(tables.named))
    if not isinstance(frame, DataFrame):
        raise SpecError(f"`transform` returned {type(frame).__name__}; it must be a DataFrame")
    return frame


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Have the Python files of a folder importable while inside, and forget them behind it."""
    before, place = set(sys.modules), str(folder)
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):  # a step may have seen to that
            sys.path.remove(place)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).is_relative_to(folder):
                del sys.modules[name]


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Tell failures, of Spark or of a step's own code, with what they are about."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, TidelogError) else f"{type(error).__name__}: "
        raise SpecError(f"{where}: {kind}{first_words(error)}") from error


def first_words(error: BaseException) -> str:
    """What an error says, without the plans and traces that Spark puts behind it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    behind = takewhile(lambda line: line.strip() and not line.startswith(BEHIND), lines[1:])
    return " ".join(line.strip() for line in [lines[0], *behind])
