"""`tidelog archive`: topics into Parquet files and Iceberg tables, on Spark."""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    note,
    number,
    plain,
    print_json,
    print_table,
)
from tidelog.faces.cli.replication import size
from tidelog.faces.cli.spark import Conf, Environment, Master, spark_job

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from tidelog.spark.archive.archiving import Archiver

app = typer.Typer(no_args_is_help=True, help="Keep topics in Parquet files and Iceberg tables.")

MIB = 1024 * 1024
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Warehouse = Annotated[
    str,
    typer.Option(
        "--warehouse",
        envvar="TIDELOG_WAREHOUSE",
        metavar="DIR",
        help="Location of the archive: a directory, or with --catalog any URL that pyiceberg takes.",
    ),
]
CatalogName = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        envvar="TIDELOG_CATALOG",
        metavar="NAME|K=V,...",
        help="Another Iceberg catalog: a name in pyiceberg's configuration, or its properties.",
    ),
]
Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", show_default=False)]
KeepRecords = Annotated[
    int,
    typer.Option(
        "--keep-records",
        metavar="N",
        min=0,
        help="Keep the last N offsets of each partition in the log (fewer records, if some are gaps).",
    ),
]
KeepTime = Annotated[
    str,
    typer.Option(
        "--keep-time",
        metavar="T",
        help="Keep records in the log that are younger than this: 90s, 30m, 24h, 7d.",
    ),
]


def duration_seconds(text: str, option: str) -> float:
    """`90s`, `30m`, `24h` or `7d`, in seconds; empty is none."""
    if not text:
        return 0.0
    digits, unit = text[:-1], text[-1].lower()
    if not digits.isdigit() or unit not in SECONDS:
        raise UserError(f"{option} {text!r} is not a time such as 90s, 30m, 24h or 7d")
    return float(int(digits) * SECONDS[unit])


def check_needed() -> None:
    """SparkMissing, unless all that archives need is installed."""
    from tidelog.spark.session import check_installed

    check_installed(("pyspark", "pyarrow", "numpy", "pyiceberg"))


@contextmanager
def opened(warehouse: str, catalog: str | None, *, create: bool = False) -> "Iterator[Catalog]":
    """The catalog of the options; says what to install if it cannot be."""
    check_needed()
    from tidelog.spark.archive.catalog import open_catalog

    with open_catalog(warehouse, catalog, create=create) as found:
        yield found


@app.command("run")
def run(
    warehouse: Warehouse,
    topics: Topics = None,
    all_topics: Annotated[bool, typer.Option("--all", help="Archive every topic.")] = False,
    continuous: Annotated[bool, typer.Option("--continuous", help="Run until stopped.")] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="T", help="With --continuous, time between two rounds.")
    ] = "60s",
    file_size: Annotated[
        int, typer.Option("--file-mib", metavar="N", min=1, help="Approximate size of files in MiB.")
    ] = 128,
    does_trim: Annotated[
        bool, typer.Option("--trim", help="Then delete archived records from the log.")
    ] = False,
    keep_records: KeepRecords = 0,
    keep_time: KeepTime = "",
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Continue although records were deleted before they were archived."),
    ] = False,
    new_table: Annotated[
        bool,
        typer.Option(
            "--new-table",
            help="Start a new table for a topic that was deleted and made again, or lost records.",
        ),
    ] = False,
    keep_files: Annotated[
        str, typer.Option("--keep-files", metavar="T", help="How long merged files are kept.")
    ] = "1h",
    catalog: CatalogName = None,
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Archive topics: every committed record that is not in the archive.

    Each topic gets a table `tidelog.TOPIC` that every engine with Iceberg can
    read. The progress is stored in the table, in the same commit as the
    files, so the command may be stopped and started again at any point: no
    record is archived twice or left out.

    With --trim, archived records are then deleted from the log, after the
    files were read once more. Give such topics `retention.ms=-1`: then no
    record is deleted that is not archived.

    \b
    Examples:
      tidelog archive run orders payments --warehouse ./archive
      tidelog archive run --all --warehouse ./archive --continuous --interval 30s
      tidelog archive run orders --warehouse ./archive --trim --keep-time 24h
      tidelog archive run orders --warehouse s3://bucket/archive \\
          --catalog type=rest,uri=http://catalog:8181
    """
    if (keep_records or keep_time) and not does_trim:
        raise UsageError("--keep-records and --keep-time say what --trim leaves; add --trim")
    keep_seconds = duration_seconds(keep_time, "--keep-time")
    seconds = duration_seconds(interval, "--interval") or 1.0
    keep_files_seconds = duration_seconds(keep_files, "--keep-files")
    if bool(topics) == all_topics:
        raise UserError("name topics, or say --all")
    began = time.monotonic()
    check_needed()
    from tidelog.spark.archive.archiving import Archiver, Settings
    from tidelog.spark.archive.logs import look_at, topic_names
    from tidelog.spark.archive.problems import Problems, collecting, raise_all
    from tidelog.spark.archive.trimming import Keep, trim_all
    from tidelog.spark.pipelines.running import listening
    from tidelog.spark.tables.expiring import Expiry
    from tidelog.spark.tables.upkeep import Upkeep

    keep = Keep(records=keep_records, seconds=keep_seconds)
    names = list(dict.fromkeys(topics or topic_names(bootstrap)))
    problems: Problems = {}
    for name in names:
        with collecting(problems, name):
            look_at(bootstrap, name)
    if len(problems) == len(names):  # wrong names shall cost neither a catalog nor a Spark
        raise_all(problems)
    stop = threading.Event()
    with first_opened(warehouse, catalog, stop if continuous else None) as found:
        upkeep = Upkeep(expiry=Expiry(keep_seconds=keep_files_seconds))
        settings = Settings(
            file_bytes=file_size * MIB, skip_lost=skip_lost, new_table=new_table, upkeep=upkeep
        )
        with spark_job(
            "tidelog archive", master=master, conf=conf, environment=environment, as_json=as_json, stop=stop
        ) as (session, on_progress):
            archiver = Archiver(session, found, bootstrap, names, settings, on_progress=on_progress)
            trimmed: dict[str, dict[int, int]] = {}

            def trim_archived() -> Problems:
                if not does_trim:
                    return {}
                starts, untrimmed = trim_all(session, bootstrap, archiver.tables.values(), keep)
                trimmed.update(starts)
                return untrimmed

            if continuous:
                problems = {}
                with listening(stop):
                    archiver.keep_on(seconds, stop, after=lambda: raise_all(trim_archived()))
            else:
                problems = archiver.attempt()
                problems = trim_archived() | problems
    _show(archiver, trimmed, time.monotonic() - began, as_json=as_json)
    raise_all(problems)


@contextmanager
def first_opened(warehouse: str, catalog: str | None, stop: threading.Event | None) -> "Iterator[Catalog]":
    """The catalog of an archive that may be new; with `stop`, wait for one that is away until then."""
    from tidelog.spark.pipelines.running import listening
    from tidelog.spark.tables.waiting import Patience

    with ExitStack() as stack:

        def open_now() -> "Catalog":
            return stack.enter_context(opened(warehouse, catalog, create=True))

        if stop is None:
            yield open_now()
            return
        with listening(stop):
            found = Patience(stop=stop, seconds_max=math.inf).until_there("the catalog", open_now)
        yield found


def _show(archiver: "Archiver", trimmed: dict[str, dict[int, int]], seconds: float, *, as_json: bool) -> None:
    documents: list[dict[str, Any]] = [
        {
            "topic": one.topic,
            "rows": one.rows,
            "offsets": one.offsets,
            "bytes": one.bytes,
            "files": one.files,
            "commits": one.commits,
            "strays_removed": one.strays,
            "set_aside": one.set_aside or None,
            "archived": {str(at): list(span) for at, span in archiver.tables[one.topic].spans.items()},
            "log_starts": {str(at): start for at, start in trimmed.get(one.topic, {}).items()},
        }
        for one in archiver.done.values()
        if one.topic in archiver.tables
    ]
    if as_json:
        print_json({"topics": documents, "seconds": round(seconds, 3)})
        return
    print_table(
        ["topic", "rows#", "size#", "files#", "commits#"],
        [
            (one["topic"], number(one["rows"]), size(one["bytes"]), one["files"], one["commits"])
            for one in documents
        ],
    )
    for one in documents:
        if one["set_aside"]:
            note(f"{one['topic']}: the table of the deleted topic is now {one['set_aside']}")
        for partition, start in one["log_starts"].items():
            note(f"{one['topic']}-{partition}: the log begins at {start} now")


@app.command("status")
def show_status(
    warehouse: Warehouse,
    topics: Topics = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the cluster.")] = False,
    catalog: CatalogName = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show what is archived of each partition, and how far that is behind the log."""
    with opened(warehouse, catalog) as found:
        from tidelog.spark.archive.catalog import load_topic, topics_in
        from tidelog.spark.archive.checking import status
        from tidelog.spark.archive.logs import look_at, topic_names

        alive = set() if offline else set(topic_names(bootstrap))
        documents = []
        for name in topics or topics_in(found):
            table = load_topic(found, name)
            log = look_at(bootstrap, table.topic) if name in alive else None
            is_other = log is not None and log.id != table.topic_id
            documents.append(
                {
                    "topic": name,
                    "topic_id": str(table.topic_id),
                    "location": table.location,
                    "committed_at_ms": table.committed_at_ms,
                    "is_of_another_topic": is_other,
                    "partitions": [one.as_json() for one in status(table, None if is_other else log)],
                }
            )
    if as_json:
        print_json({"topics": documents})
    else:
        _show_status(documents)


def _show_status(documents: Sequence[dict[str, Any]]) -> None:
    def bounds(span: list[int] | None) -> str:
        return "-" if span is None or span[0] == span[1] else f"{span[0]} to {span[1] - 1}"

    print_table(
        ["topic", "partition#", "archived#", "in the log#", "lag#", "rows#", "files#", "size#"],
        [
            (
                one["topic"],
                part["partition"],
                bounds(part["archived"]),
                bounds(part["log"]),
                "-" if part["lag"] is None else number(part["lag"]),
                number(part["rows"]),
                part["files"],
                size(part["bytes"]),
            )
            for one in documents
            for part in one["partitions"]
        ],
    )
    for one in documents:
        if one["is_of_another_topic"]:
            note(
                f"{one['topic']}: the cluster has another topic of this name by now; archive it "
                "with --new-table"
            )
        for part in one["partitions"]:
            if part["lost"]:
                note(
                    f"{one['topic']}-{part['partition']}: {number(part['lost'])} offsets were "
                    "deleted from the log before they were archived"
                    + "".join(f"; {bounds(gap)} were skipped" for gap in part["skipped"])
                )


@app.command("verify")
def verify_files(
    warehouse: Warehouse,
    topics: Topics = None,
    catalog: CatalogName = None,
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    as_json: AsJson = False,
) -> int:
    """Read every archived file to its last byte, and compare it with its table.

    Exits with 1 if a file is damaged or missing.
    """
    with opened(warehouse, catalog) as found:
        from tidelog.spark.archive.catalog import load_topic, topics_in
        from tidelog.spark.archive.checking import verify

        tables = [load_topic(found, name) for name in topics or topics_in(found)]
        documents: list[dict[str, Any]] = []
        with spark_job(
            "tidelog archive verify", master=master, conf=conf, environment=environment, as_json=as_json
        ) as (session, on_progress):
            for table in tables:
                files = table.files()
                damage = verify(session, table, files, on_progress=on_progress)
                documents.append(
                    {
                        "topic": table.name,
                        "files": len(files),
                        "rows": sum(file.rows for file in files),
                        "damage": damage,
                    }
                )
    if as_json:
        print_json({"topics": documents})
    else:
        print_table(
            ["topic", "files#", "rows#", "damaged#"],
            [(one["topic"], one["files"], number(one["rows"]), len(one["damage"])) for one in documents],
        )
        for one in documents:
            for line in one["damage"]:
                print(plain(line))
    return int(any(one["damage"] for one in documents))


@app.command("trim")
def trim_logs(
    warehouse: Warehouse,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)],
    keep_records: KeepRecords = 0,
    keep_time: KeepTime = "",
    catalog: CatalogName = None,
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete archived records from the log.

    The files are read once more before anything is deleted; records that
    the archive lacks stay. Readers with `history=archive` see no
    difference.
    """
    keep_seconds = duration_seconds(keep_time, "--keep-time")
    with opened(warehouse, catalog) as found:
        from tidelog.spark.archive.catalog import load_topic
        from tidelog.spark.archive.problems import raise_all
        from tidelog.spark.archive.trimming import Keep, trim_all

        keep = Keep(records=keep_records, seconds=keep_seconds)
        tables = [load_topic(found, name) for name in topics]
        with spark_job(
            "tidelog archive trim", master=master, conf=conf, environment=environment, as_json=as_json
        ) as (session, on_progress):
            starts, problems = trim_all(session, bootstrap, tables, keep, on_progress=on_progress)
    if as_json:
        print_json({"log_starts": starts})
    for topic, some in [] if as_json else starts.items():
        for partition, start in some.items():
            print(f"{plain(topic)}-{partition}: the log begins at {start} now")
        if not some:
            print(f"{plain(topic)}: nothing to trim")
    raise_all(problems)
