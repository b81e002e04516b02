"""pipeline.yaml, as checked values.

    name: revenue
    bootstrap: 127.0.0.1:9092
    trigger: 5 seconds              # or `once`: all that is there, and end
    checkpoint: PATH                # where queries keep how far they are; state/checkpoints
    shared: true                    # all executors have this machine's paths mounted
    registry: URL                   # a schema registry, for sources and sinks with a `format`
    topics: {TOPIC: {partitions, replication, config}}       made if they are missing
    traffic: {topic, per_second, once}                       orders to try it with
    sources: {TABLE: {topic | topics | pattern | files | iceberg, ...}}
    steps: [{sql | python: FILE, name: TABLE}]
    sinks: {NAME: {from: TABLE, topic | bucket | parquet | iceberg | delta, ...}}
    spark: {spark.some.setting: value}

Rule 1: nothing is read here but the folder's files; a cluster is not asked.
Rule 2: an error names the file, the key and the fix. Tables are known before they are used.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from tidelog.config.setting import similar
from tidelog.schemas.table import FORMATS
from tidelog.spark.pipelines import documents
from tidelog.spark.pipelines.documents import SpecError as SpecError
from tidelog.spark.tables.layout import Layout, LayoutError

FILE_NAME: Final = "pipeline.yaml"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
ONCE: Final = "once"
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INTERVAL: Final = re.compile(r"\d+ (millisecond|second|minute|hour)s?")
UNIT_SECONDS: Final = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}

Option = str | int | float | bool


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Watermark(_Strict, frozen=True, kw_only=True):
    """How late rows may be: older ones than the newest less `delay` are dropped from windows."""

    column: str
    delay: str


class Source(_Strict, frozen=True, kw_only=True):
    """One table to read: of topics, of files, or of an Iceberg table."""

    topic: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    files: str = ""
    """A path, of the folder if it is relative; it may have wildcards."""
    iceberg: str = ""
    """NAMESPACE.TABLE of `catalog`; appended to only."""

    format: str = ""
    """Of files: what they are. Of topics: how values are written that a schema registry knows."""
    key_format: str = ""
    """Of topics: the same of keys."""
    schema: str = ""
    stream: bool = False
    """Of files: whether new ones are read as they come."""
    json: str = ""
    """The fields of values in JSON, as columns: `id string, total double`."""
    dead_letter: str = ""
    """Where values go that are no such JSON, and records that do not fit their schemas."""
    broken: Literal["fail", "skip"] | None = None
    """What else becomes of them."""
    watermark: Watermark | None = None
    options: dict[str, Option] = field(default_factory=dict)
    catalog: dict[str, Option] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return next((kind for kind in SOURCE_KINDS if getattr(self, kind)), "")

    @property
    def is_topics(self) -> bool:
        return self.kind in ("topic", "topics", "pattern")


class Step(_Strict, frozen=True, kw_only=True):
    """One table made of others: by a file with a SELECT, or by a file with `transform`."""

    sql: str = ""
    python: str = ""
    name: str = ""

    @property
    def file(self) -> str:
        return self.sql or self.python

    @property
    def table(self) -> str:
        return self.name or Path(self.file).stem


class Upkeep(_Strict, frozen=True, kw_only=True):
    """How an Iceberg table is kept in order; see `tidelog.spark.tables.upkeep`."""

    snapshots: int = 20
    """How many are listed at least."""
    keep_files: str = "1 hour"
    """How long the files of others stay for those who read them."""
    file_mib: int = 128
    """How large merged files become."""


class Sink(_Strict, frozen=True, kw_only=True):
    """Where one table goes."""

    table: str = field(name="from")
    topic: str = ""
    bucket: str = ""
    """A compacted topic: the latest value of each key; no value deletes."""
    parquet: str = ""
    iceberg: str = ""
    delta: str = ""
    """A Delta table's place: a path, or a URI of an object store."""

    mode: Literal["", "append", "update", "complete"] = ""
    """Which rows a batch gives: new ones (the default), changed ones, or all."""
    key: str = ""
    """An expression, or else the column `key`."""
    value: str = ""
    """An expression, or else the column `value`, or else all columns as JSON."""
    headers: str = ""
    format: str = ""
    """Of topics and buckets: how values are written, by a schema of the registry."""
    key_format: str = ""
    partition_by: tuple[str, ...] = ()
    """Of Parquet: columns. Of Iceberg: transforms of columns, too, as `day(at)`."""
    sort_by: tuple[str, ...] = ()
    """How rows are sorted in the files of an Iceberg table: `at desc`."""
    evolve: bool | None = None
    """Whether the columns of an Iceberg or Delta table follow the source's (the default)."""
    upsert: tuple[str, ...] = ()
    """Columns that are the key of an Iceberg or Delta table, which then has one row for each."""
    changes: Literal["", "debezium"] = ""
    """What rows are: changes as Debezium tells them, or (the default) the new row."""
    delete: str = ""
    """An expression: which rows delete their key. Of a table with `value`: those without one."""
    order_by: tuple[str, ...] = ()
    """Tells the last change of a key; `_offset` or `offset`, if there is one."""
    verify_replays: bool | None = None
    """Of an Iceberg or Delta table; `false`: a batch whose number is written is passed over,
    whatever it holds."""
    upkeep: Upkeep | bool | None = None
    """Of an Iceberg or Delta table; `false`: somebody else keeps it in order."""
    options: dict[str, Option] = field(default_factory=dict)
    catalog: dict[str, Option] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return next((kind for kind in SINK_KINDS if getattr(self, kind)), "")

    @property
    def target(self) -> str:
        return str(getattr(self, self.kind))


class Topic(_Strict, frozen=True, kw_only=True):
    """How a topic is made if it is missing; -1 is the cluster's default."""

    partitions: int = -1
    replication: int = -1
    config: dict[str, Option] = field(default_factory=dict)


class Traffic(_Strict, frozen=True, kw_only=True):
    """Orders that are made up while the pipeline runs, for a sample to have something to do."""

    topic: str
    per_second: int = 200
    once: int = 2000
    """How many, before a pipeline that runs once."""


class Pipeline(_Strict, frozen=True, kw_only=True):
    """A whole pipeline.yaml, and the folder that it is in."""

    folder: Path
    name: str
    bootstrap: str
    trigger: str
    checkpoint: str
    shared: bool
    """Whether executors on other machines have the paths of this one mounted."""
    registry: str
    """The schema registry; a source or a sink may have another in its options."""
    topics: dict[str, Topic]
    traffic: Traffic | None
    sources: dict[str, Source]
    steps: tuple[Step, ...]
    sinks: dict[str, Sink]
    spark: dict[str, str]

    @property
    def is_once(self) -> bool:
        return self.trigger == ONCE

    @property
    def dead_letters(self) -> dict[str, str]:
        """The topic of each source that has one."""
        return {name: s.dead_letter for name, s in self.sources.items() if s.dead_letter}

    def path(self, text: str) -> str:
        """A path as Spark takes it: the folder's own, unless it is absolute or a URI."""
        return text if "://" in text else str(self.folder / text)


SOURCE_KINDS: Final = ("topic", "topics", "pattern", "files", "iceberg")
SINK_KINDS: Final = ("topic", "bucket", "parquet", "iceberg", "delta")
_ALLOWED_OF_SOURCES: Final = {
    "topics": {"json", "format", "key_format", "dead_letter", "broken", "watermark", "options"},
    "files": {"format", "schema", "stream", "watermark", "options"},
    "iceberg": {"catalog"},
}
_ALLOWED_OF_SINKS: Final = {
    "topic": {"mode", "key", "value", "headers", "format", "key_format", "options"},
    "bucket": {"mode", "key", "value", "headers", "format", "key_format", "options"},
    "parquet": {"partition_by", "options"},
    "iceberg": {
        "catalog",
        "upkeep",
        "upsert",
        "changes",
        "delete",
        "order_by",
        "partition_by",
        "sort_by",
        "evolve",
        "verify_replays",
    },
    "delta": {
        "options",
        "upkeep",
        "upsert",
        "changes",
        "delete",
        "order_by",
        "partition_by",
        "evolve",
        "verify_replays",
    },
}


def load(folder: Path) -> Pipeline:
    """The pipeline in a folder; SpecError if something is wrong with it."""
    import yaml

    folder = folder.absolute()
    file = folder / FILE_NAME
    try:
        document = yaml.safe_load(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise SpecError(
            f"{file} does not exist; `tidelog pipeline new {folder.name}` makes an example"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
    try:
        return parse(document, folder)
    except SpecError as error:
        raise SpecError(f"{file}: {error}") from None


def parse(document: Any, folder: Path) -> Pipeline:
    """The pipeline of a document whose files are in `folder`."""
    if not isinstance(document, dict):
        raise SpecError("it must be a mapping with `name`, `sources` and `sinks`")
    known = [key for key in Pipeline.__struct_fields__ if key != "folder"]
    for key in document:
        if key not in known:
            raise SpecError(f"unknown key {key!r}{similar(str(key), known)}; {_list(known)}")
    pipeline = Pipeline(
        folder=folder,
        name=documents.text(document, "name", folder.name),
        bootstrap=documents.text(document, "bootstrap", DEFAULT_BOOTSTRAP),
        trigger=documents.text(document, "trigger", ONCE),
        checkpoint=documents.text(document, "checkpoint", "state/checkpoints"),
        shared=documents.flag(document, "shared"),
        registry=documents.text(document, "registry", "") if "registry" in document else "",
        topics=documents.mapping(document, "topics", Topic),
        traffic=_traffic(document),
        sources=documents.mapping(document, "sources", Source),
        steps=tuple(
            documents.convert(entry, Step, f"steps[{number}]")
            for number, entry in enumerate(documents.section(document, "steps", list), 1)
        ),
        sinks=documents.mapping(document, "sinks", Sink),
        spark={
            str(key): documents.setting(value)
            for key, value in documents.section(document, "spark", dict).items()
        },
    )
    check(pipeline)
    return pipeline


def check(pipeline: Pipeline) -> None:
    """SpecError, if its parts do not fit together."""
    if not NAME.fullmatch(pipeline.name):
        raise SpecError(f"name is {pipeline.name!r}; it must be letters, digits, - and _")
    if not pipeline.is_once and not INTERVAL.fullmatch(pipeline.trigger):
        raise SpecError(f"trigger is {pipeline.trigger!r}; it must be `once` or an interval, as `5 seconds`")
    if pipeline.traffic is not None and min(pipeline.traffic.per_second, pipeline.traffic.once) < 1:
        raise SpecError("traffic: per_second and once must be at least 1; or remove traffic")
    for key in pipeline.spark:
        if not key.startswith("spark."):
            raise SpecError(f"spark.{key}: Spark's settings begin with `spark.`: `spark.{key}`")
    if not pipeline.sources:
        raise SpecError("sources: there is nothing to read; name at least one")
    if not pipeline.sinks:
        raise SpecError("sinks: the results go nowhere; name at least one")
    tables: list[str] = []
    for name, source in pipeline.sources.items():
        _check_table(f"sources.{name}", name, tables)
        _check_source(f"sources.{name}", source)
        if source.is_topics:
            _check_formats(f"sources.{name}", source, pipeline.registry)
    for number, step in enumerate(pipeline.steps, 1):
        _check_step(f"steps[{number}]", step, pipeline.folder)
        _check_table(f"steps[{number}].name", step.table, tables)
    for name, sink in pipeline.sinks.items():
        if not NAME.fullmatch(name):
            raise SpecError(f"sinks.{name}: the name must be letters, digits, - and _")
        _check_sink(f"sinks.{name}", sink, tables)
        _check_formats(f"sinks.{name}", sink, pipeline.registry)


def _check_table(where: str, name: str, tables: list[str]) -> None:
    if not TABLE.fullmatch(name):
        raise SpecError(f"{where}: a table's name must be letters, digits and _, not {name!r}")
    if name.lower() in (table.lower() for table in tables):
        raise SpecError(f"{where}: there is a table {name!r} already; give this one another name")
    tables.append(name)


def _check_source(where: str, source: Source) -> None:
    kind = _check_kind(where, source, SOURCE_KINDS)
    family = "topics" if source.is_topics else kind
    _check_allowed(where, source, SOURCE_KINDS, family, _ALLOWED_OF_SOURCES)
    if source.files and not source.format:
        raise SpecError(f"{where}.format is missing: parquet, json, csv, orc or text")
    if source.stream and not source.schema:
        raise SpecError(f"{where}.schema is missing; files that come later must fit one")
    if source.json and (source.format or source.key_format):
        raise SpecError(f"{where}.json contradicts a format that a schema registry knows; keep one")
    if not source.json and not source.format and (source.dead_letter or source.broken):
        raise SpecError(f"{where}.json is missing, or .format; without it every value is taken as it is")
    if source.dead_letter and source.broken:
        raise SpecError(f"{where}.broken contradicts {where}.dead_letter; keep one of the two")


def _check_formats(where: str, entry: Source | Sink, registry: str) -> None:
    """Formats of keys and values need a registry; a writer's options cannot name them apart."""
    options = {name.lower(): text for name, text in entry.options.items()}
    for key, form in (("format", entry.format), ("key_format", entry.key_format)):
        if form and form not in FORMATS:
            raise SpecError(f"{where}.{key} is {form!r}; it must be {' or '.join(FORMATS)}")
        if form and not registry and "schema.registry.url" not in options:
            raise SpecError(f"registry is missing: {where}.{key} needs the URL of a registry")
    for name, key in (("valueFormat", "format"), ("keyFormat", "key_format")):
        form = str(options.get(name.lower(), ""))
        if form in FORMATS and (isinstance(entry, Sink) or entry.format or entry.key_format):
            raise SpecError(f"{where}.options.{name}: say `{key}: {form}` instead")


def _check_step(where: str, step: Step, folder: Path) -> None:
    if bool(step.sql) == bool(step.python):
        raise SpecError(f"{where}: name one file, as `sql: FILE` or as `python: FILE`")
    if not (folder / step.file).is_file():
        raise SpecError(f"{where}: there is no file {step.file} in {folder}")


def _check_sink(where: str, sink: Sink, tables: list[str]) -> None:
    kind = _check_kind(where, sink, SINK_KINDS)
    _check_allowed(where, sink, SINK_KINDS, kind, _ALLOWED_OF_SINKS)
    if not sink.upsert and (sink.changes or sink.delete or sink.order_by):
        raise SpecError(f"{where}.upsert is missing: which columns are the key of a row?")
    if sink.iceberg:
        layout_of(where, sink)
    if sink.delta and isinstance(sink.upkeep, Upkeep):
        raise SpecError(f"{where}.upkeep: of a Delta table it is true or false")
    if isinstance(sink.upkeep, Upkeep):
        _check_upkeep(f"{where}.upkeep", sink.upkeep)
    if sink.table not in tables:
        raise SpecError(
            f"{where}.from: there is no table {sink.table!r}{similar(sink.table, tables)}; {_list(tables)}"
        )


def layout_of(where: str, sink: Sink) -> Layout:
    """How the files of a sink's table are laid out; SpecError, if an entry makes no sense."""
    try:
        return Layout.parse(sink.partition_by, sink.sort_by)
    except LayoutError as error:
        raise SpecError(f"{where}.{error}") from None


def _check_upkeep(where: str, upkeep: Upkeep) -> None:
    if not INTERVAL.fullmatch(upkeep.keep_files):
        raise SpecError(f"{where}.keep_files is {upkeep.keep_files!r}; say as `1 hour`")
    if min(upkeep.snapshots, upkeep.file_mib) < 1:
        raise SpecError(f"{where}: snapshots and file_mib must be at least 1")


def _check_kind(where: str, entry: Struct, kinds: Iterable[str]) -> str:
    given = [kind for kind in kinds if getattr(entry, kind)]
    if len(given) != 1:
        raise SpecError(f"{where}: name exactly one of {', '.join(kinds)}, not {len(given)}")
    return given[0]


def _check_allowed(
    where: str, entry: Struct, kinds: tuple[str, ...], family: str, allowed: Mapping[str, set[str]]
) -> None:
    """Refuse what has no meaning here, where it would be silently without effect."""
    free = {*kinds, "table", *allowed[family]}
    for config in msgspec.structs.fields(entry):
        value = getattr(entry, config.name)
        if config.name not in free and (value or (value is False and config.default is None)):
            raise SpecError(
                f"{where}.{config.name} has no meaning for {family}; remove it. There may be "
                f"{', '.join(sorted(allowed[family]))}"
            )


def _traffic(document: Mapping[str, Any]) -> Traffic | None:
    entry = document.get("traffic")
    return None if entry is None else documents.convert(entry, Traffic, "traffic")


def interval_seconds(text: str) -> float:
    """How long `5 seconds` or `1 hour` is."""
    count, unit = text.split(" ")
    return int(count) * UNIT_SECONDS[unit.removesuffix("s")]


def options_of(options: Mapping[str, Option]) -> dict[str, str]:
    return {key: documents.setting(value) for key, value in options.items()}


def _list(names: Iterable[str]) -> str:
    return "there are " + ", ".join(names)
