"""`tidelog restore`: archived records back into a topic, on Spark."""

from pathlib import Path
from typing import Annotated

import typer

from tidelog.faces.cli.archive import CatalogName, Warehouse, opened
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    plain,
    print_json,
)
from tidelog.faces.cli.consume import parse_time
from tidelog.faces.cli.spark import Conf, Environment, Master, spark_job

Sql = Annotated[
    str,
    typer.Option(
        "--sql", metavar="FILE|QUERY", help="SQL query over the view `records` that changes the rows."
    ),
]
Python = Annotated[
    Path | None,
    typer.Option(
        "--python", metavar="FILE", help="Python file whose function transform(records) changes the rows."
    ),
]
Compression = Annotated[
    str, typer.Option("--compression", metavar="CODEC", help="Compression of the written batches.")
]


def time_ms(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    try:
        return parse_time(text)
    except UserError:
        raise UsageError(
            f"{option} {text!r} is neither milliseconds nor a time such as 2025-01-31T12:00"
        ) from None


def check_codec(name: str) -> str:
    from tidelog.records import Codec

    known = [codec.name.lower() for codec in Codec]
    if name.lower() not in known:
        raise UserError(f"--compression {name!r} is none of {', '.join(known)}")
    return name.lower()


def restore(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic in the archive.")],
    warehouse: Warehouse,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Topic to write (default: the archived name).")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="P", help="Restore only this partition; repeatable."),
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option("--from-offset", metavar="N", min=0, help="First offset to restore.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="Offset to stop before.")
    ] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="T", help="Restore records from this time on.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", metavar="T", help="Restore records before this time.")
    ] = None,
    sql: Sql = "",
    python: Python = None,
    append: Annotated[bool, typer.Option("--append", help="Allow a topic that already has records.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over: forget an unfinished restore.")
    ] = False,
    compression: Compression = "none",
    catalog: CatalogName = None,
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write archived records into a topic again.

    Records keep their partition, order, timestamp and headers; offsets are
    new where the archive has gaps. The topic is created if it does not exist.
    After an interruption the same command continues, and writes no record
    twice.

    --sql and --python see the columns key, value, topic, partition, offset,
    timestamp, timestampType and headers. Their result must have `value`.

    \b
    Examples:
      tidelog restore orders --warehouse ./archive --to orders-again
      tidelog restore orders --warehouse ./archive --to march \\
          --from-time 2026-03-01 --to-time 2026-04-01
      tidelog restore orders --warehouse ./archive --to paid \\
          --sql "SELECT * FROM records WHERE string(value) LIKE '%paid%'"
    """
    with opened(warehouse, catalog) as found:
        from tidelog.spark.archive.catalog import load_topic
        from tidelog.spark.archive.changing import Change, read_sql
        from tidelog.spark.archive.restoring import Wish, as_json_document
        from tidelog.spark.archive.restoring import restore as run_restore

        table = load_topic(found, topic)
        wish = Wish(
            target=to or table.topic,
            partitions=tuple(partition or ()),
            from_offset=from_offset,
            to_offset=to_offset,
            from_ms=time_ms(from_time, "--from-time"),
            to_ms=time_ms(to_time, "--to-time"),
            change=Change(sql=read_sql(sql), python=python),
            append=append,
            restart=restart,
            codec=check_codec(compression),
        )
        with spark_job(
            "tidelog restore", master=master, conf=conf, environment=environment, as_json=as_json
        ) as (session, on_progress):
            done = run_restore(session, bootstrap, table, wish, on_progress=on_progress)
    if as_json:
        print_json({"topic": topic, "target": wish.target, **as_json_document(done)})
        return
    before = f", {done.skipped} were there" if done.resumed else ""
    print(f"{plain(topic)} restored into {plain(wish.target)}: {done.chunks} chunks{before}")
    for at, span in sorted(done.job.spans.items()):
        print(f"  partition {at}: offsets {span.start} to {span.end - 1} of the archive")
