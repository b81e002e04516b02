"""`tidelog replay`: a topic into another one, changed on the way, on Spark."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.archive import CatalogName
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    number,
    plain,
    print_json,
)
from tidelog.faces.cli.completing import topic_names
from tidelog.faces.cli.restore import Compression, Python, Sql, check_codec, time_ms
from tidelog.faces.cli.spark import Conf, Environment, Master, spark_job

if TYPE_CHECKING:
    from tidelog.spark.pipelines.progress import QueryState
    from tidelog.spark.progress import OnProgress

LOOK_SECONDS = 0.5


def replay(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Topic to read.", autocompletion=topic_names)
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Topic to write; created if it does not exist.")
    ],
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", metavar="DIR", help="Directory that keeps the progress of this copy."),
    ],
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="T", help="Begin with records of this time.")
    ] = None,
    sql: Sql = "",
    python: Python = None,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Choose partitions by key instead of keeping them.")
    ] = False,
    continuous: Annotated[bool, typer.Option("--continuous", help="Run until stopped.")] = False,
    compression: Compression = "none",
    warehouse: Annotated[
        str | None, typer.Option("--warehouse", metavar="DIR", help="Archive that has the older records.")
    ] = None,
    catalog: CatalogName = None,
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Copy a topic into another: its present records, or continuously.

    Records keep their partition, timestamp and headers, unless --sql or
    --python changes them. The same command with the same checkpoint continues
    where it ended, and writes no record twice. To begin again, name another
    checkpoint.

    \b
    Examples:
      tidelog replay orders orders-copy --checkpoint ./replay
      tidelog replay orders large --checkpoint ./large --continuous \\
          --sql "SELECT key, value, timestamp FROM records WHERE length(value) > 1000"
      tidelog replay events by-user --checkpoint ./by-user --by-key --python change.py
    """
    from tidelog.spark.session import check_installed

    check_installed()
    from tidelog.spark.archive.changing import Change, read_sql
    from tidelog.spark.archive.replaying import Replay, prepare

    wish = Replay(
        source=source,
        target=target,
        checkpoint=checkpoint,
        from_ms=time_ms(from_time, "--from-time"),
        warehouse=warehouse,
        catalog=catalog,
        change=Change(sql=read_sql(sql), python=python),
        by_key=by_key,
        codec=check_codec(compression),
    )
    prepare(bootstrap, wish)
    with spark_job("tidelog replay", master=master, conf=conf, environment=environment, as_json=as_json) as (
        session,
        on_progress,
    ):
        rows = _run(session, bootstrap, wish, continuous, on_progress)
    if as_json:
        print_json({"source": source, "target": target, "rows": rows})
    else:
        print(f"{plain(source)} replayed into {plain(target)}: {number(rows)} records read")


def _run(session: Any, bootstrap: str, wish: Any, continuous: bool, on_progress: "OnProgress") -> int:
    """The query from its start to its end; how many records were read."""
    import threading

    from tidelog.spark.archive.replaying import start
    from tidelog.spark.pipelines.progress import QueryState
    from tidelog.spark.pipelines.running import listening
    from tidelog.spark.pipelines.tables import first_words
    from tidelog.spark.progress import Progress

    stopping, state = threading.Event(), QueryState()
    with listening(stopping):
        query = start(session, bootstrap, wish, for_good=continuous)
        try:
            while query.isActive and not stopping.wait(LOOK_SECONDS):
                state = _look(query, state)
                total = 0 if state.lag is None else state.rows + state.lag
                on_progress(Progress(f"replaying {wish.source}", state.rows, total, "records"))
        finally:
            failure = query.exception()
            query.stop()
            state = _look(query, state)
    if failure is not None:
        raise UserError(f"the replay failed: {first_words(failure)}")
    return state.rows


def _look(query: Any, state: "QueryState") -> "QueryState":
    from tidelog.spark.pipelines.progress import fold

    for report in query.recentProgress:
        state = fold(state, json.loads(report.json))
    return state
