"""`tidelog pipeline`: topics through Spark into topics, buckets and tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.errors import TidelogError
from tidelog.faces.cli import decisions
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    key_values,
    note,
    number,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.pipeline_view import COLUMNS, Viewer, print_tried, row, viewer
from tidelog.faces.cli.spark import Conf, Environment, Master

if TYPE_CHECKING:
    from tidelog.spark.pipelines.progress import Ends
    from tidelog.spark.pipelines.spec import Pipeline
    from tidelog.spark.pipelines.state import Run

ASK_SECONDS_MAX: Final = 3.0
STOP_SECONDS: Final = 60.0

app = typer.Typer(
    help="Run pipelines on Spark: read topics, transform, write topics, buckets and tables.",
    no_args_is_help=True,
)
app.add_typer(decisions.app, name="decisions")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the pipeline.")]
OtherBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Where the cluster listens, instead of what pipeline.yaml says.",
    ),
]


@app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a sample pipeline to start from.

    The sample reads orders, sums them up by region and time, and writes a
    bucket and an Iceberg table; broken orders go to a topic of their own. It
    generates its orders.

    \b
    Examples:
      tidelog pipeline new revenue
      tidelog pipeline run revenue
    """
    from tidelog.spark.pipelines.folders import create

    made = create(folder, bootstrap=bootstrap)
    if as_json:
        files = [str(file.relative_to(folder.absolute())) for file in made]
        print_json({"folder": str(folder.absolute()), "files": files})
        return
    for file in made:
        print(file)
    note(f"run it: tidelog pipeline run {folder}")


@app.command("run")
def run_pipeline(
    folder: Folder,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Process the present records and end, whatever the pipeline's trigger is."
        ),
    ] = False,
    every: Annotated[
        str,
        typer.Option(
            "--every", metavar="TIME", help="Run continuously with this time between batches: 5 seconds."
        ),
    ] = "",
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    bootstrap: OtherBootstrap = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve metrics for Prometheus at http://HOST:PORT/metrics; 0 picks a free port.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="Address to serve metrics on.")
    ] = "127.0.0.1",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each batch and each change.")
    ] = False,
) -> None:
    """Run a pipeline, once or until Ctrl-C.

    Each sink is a query of its own. After any end it continues where it was,
    and each row is written once. Missing topics are created. While it runs, a
    table shows the progress of each query; `describe` shows the same from
    another terminal.

    \b
    Examples:
      tidelog pipeline run revenue
      tidelog pipeline run revenue --once --json
      tidelog pipeline run revenue --metrics-port 9100
      tidelog pipeline run revenue --master spark://host:7077 --environment environment.tar.gz
    """
    import threading

    from msgspec.structs import replace

    from tidelog.spark.pipelines.spec import ONCE, check, load
    from tidelog.spark.session import check_installed

    if once and every:
        raise UsageError("--once and --every contradict each other; leave one out")
    pipeline = load(folder)
    pipeline = replace(
        pipeline,
        bootstrap=bootstrap or pipeline.bootstrap,
        trigger=ONCE if once else every or pipeline.trigger,
    )
    check(pipeline)
    check_installed()
    from tidelog.spark.pipelines.running import Where, listening
    from tidelog.spark.pipelines.running import run as run_queries

    where = Where(master=master, conf=dict(key_values(conf or [], "--conf")), environment=environment)
    view, stop = viewer(pipeline.name, as_json=as_json), threading.Event()
    with _metrics(pipeline, metrics_host, metrics_port, view) as tell, listening(stop), view.shown():
        ended = run_queries(pipeline, where, stop=stop, on_change=tell)
    if not as_json:
        print_table(COLUMNS, [row(name, state) for name, state in ended.queries.items()])


@app.command("test")
def try_pipeline(
    folder: Folder,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Names of tests (default: all).")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace the expected files by the results.")
    ] = False,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline on sample rows without a cluster, and compare the results.

    FOLDER/tests/NAME/SOURCE.jsonl has the rows of a source, TABLE.jsonl the rows
    that a step must produce, and SINK.sink.jsonl the records that a topic or
    bucket must get. Nothing is written anywhere. Exits with 1 if a test fails.

    \b
    Examples:
      tidelog pipeline test revenue
      tidelog pipeline test revenue windows --update
    """
    import msgspec

    from tidelog.spark.pipelines.spec import load
    from tidelog.spark.session import check_installed

    pipeline = load(folder)
    check_installed()
    from tidelog.spark.pipelines.samples import cases
    from tidelog.spark.pipelines.trying import run as run_tests

    wanted = cases(pipeline, names or ())
    settings = dict(key_values(conf or [], "--conf"))
    tried = []
    for one in run_tests(pipeline, wanted, conf=settings, update=update):
        tried.append(one)
        if not as_json:
            print_tried(one)
    failed = sum(not one.passed for one in tried)
    if as_json:
        told = [{"passed": one.passed, **msgspec.to_builtins(one)} for one in tried]
        print_json({"tests": told, "failed": failed})
    else:
        print(f"{len(tried)} test{'s' * (len(tried) != 1)}, {failed} failed")
    if failed:
        raise typer.Exit(1)


@app.command("list")
def list_pipelines(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to search, three levels deep.")
    ] = Path("."),
    as_json: AsJson = False,
) -> None:
    """List pipelines, their state and their progress.

    \b
    Example:
      tidelog pipeline list ./pipelines
    """
    from tidelog.spark.pipelines.folders import find
    from tidelog.spark.pipelines.state import look

    found = [(folder, look(folder)) for folder in find(directory)]
    if as_json:
        described = [{"folder": str(folder), **_described(noted)} for folder, noted in found]
        print_json({"pipelines": described})
        return
    if not found:
        note(f"there is no pipeline in {directory}; make one: tidelog pipeline new revenue")
    print_table(
        ["pipeline", "state", "queries#", "rows#", "rows/s#", "lag#", "folder"],
        [_listed(folder, noted) for folder, noted in found],
    )


def _listed(folder: Path, noted: "Run") -> tuple[object, ...]:
    queries = noted.queries.values()
    lags = [query.lag for query in queries if query.lag is not None]
    return (
        folder.name,
        noted.phase,
        len(queries) or "-",
        number(sum(query.rows for query in queries)),
        number(sum(query.rows_per_second for query in queries)),
        number(max(lags)) if lags else "-",
        folder,
    )


@app.command("describe")
def describe(folder: Folder, as_json: AsJson = False) -> None:
    """Show what a pipeline reads and writes, and the progress of each query.

    The lag is what the topics have now and the query has not read; if the
    cluster does not answer, it is the last one known.

    \b
    Example:
      tidelog pipeline describe revenue
    """
    from tidelog.spark.pipelines.spec import load
    from tidelog.spark.pipelines.state import log_path, look

    pipeline = load(folder)
    noted = look(pipeline.folder)
    bootstrap = noted.bootstrap or pipeline.bootstrap
    topics = {topic for query in noted.queries.values() for topic in query.ends}
    latest, problem = run(_latest(bootstrap, topics)) if topics else ({}, "")
    described = _described(noted)
    for name, query in noted.queries.items():
        described["queries"][name]["lag_now"] = _lag_now(query.ends, latest)
    if as_json:
        print_json(
            {
                "name": pipeline.name,
                "folder": str(pipeline.folder),
                "bootstrap": bootstrap,
                **_parts(pipeline),
                **described,
            }
        )
        return
    for title, parts in _parts(pipeline).items():
        for name, text in parts.items():
            print(f"{title.removesuffix('s'):<7} {name}: {text}")
    where = f", process {noted.pid} on {noted.host}, {noted.master}" if noted.pid else ""
    print(f"state   {noted.phase}{where}")
    if noted.problem:
        print(f"problem {noted.problem}; see {log_path(pipeline.folder)}")
    if problem:
        note(f"the lag is the one noted last: {problem}")
    rows = []
    for name, query in noted.queries.items():
        cells = list(row(name, query))
        if (lag := described["queries"][name]["lag_now"]) is not None:
            cells[COLUMNS.index("lag#")] = number(lag)
        rows.append(cells)
    if rows:
        print_table(COLUMNS, rows)


@app.command("stop")
def stop(
    folder: Folder,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0, help="Timeout in seconds.")
    ] = STOP_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Stop a pipeline that runs on this machine; returns when it has ended.

    \b
    Example:
      tidelog pipeline stop revenue
    """
    from tidelog.spark.pipelines.state import stop as stop_run

    ended = stop_run(folder.absolute(), seconds_max=seconds)
    if as_json:
        print_json({"folder": str(folder.absolute()), **_described(ended)})
    else:
        print(f"{folder.absolute().name}: {ended.phase}")


@app.command("pack")
def pack(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="Archive to write.")],
    also: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="PACKAGE", help="Package that steps use; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack this Python environment for executors on other machines.

    Those machines need no Python, only the same kind of system. pyspark is
    left out: executors use that of their own Spark, which must have the
    same version as the one here.

    \b
    Examples:
      tidelog pipeline pack environment.tar.gz --with pandas
      tidelog pipeline run revenue --master spark://host:7077 --environment environment.tar.gz
    """
    from tidelog.spark.packing import pack as pack_files

    if not file.name.endswith((".tar.gz", ".tgz")):
        raise UserError(f"{file} must end in .tar.gz, or Spark does not unpack it")
    if not file.absolute().parent.is_dir():
        raise UserError(f"there is no directory {file.parent}; make it first")
    count = pack_files(file, also=also or ())
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file.absolute()), "files": count, "bytes": size})
    else:
        print(f"{file}: {number(count)} files, {number(size / 1e6)} MB")


@contextmanager
def _metrics(
    pipeline: "Pipeline", host: str, port: int | None, view: "Viewer"
) -> "Iterator[Callable[[Run], None]]":
    """Who is to be told of changes: the viewer, and the page for Prometheus if there is one."""
    if port is None:
        yield view
        return
    from tidelog.faces.cli.pipeline_metrics import metrics_text, served
    from tidelog.spark.pipelines.state import Run, look

    before, shown = look(pipeline.folder), Run()

    def tell(run: Run) -> None:
        nonlocal shown
        shown = run
        view(run)

    with served(host, port, lambda: metrics_text(pipeline.name, shown, before)) as taken:
        note(f"metrics: http://{host}:{taken}/metrics")
        yield tell


def _described(noted: "Run") -> dict[str, Any]:
    import msgspec

    described: dict[str, Any] = msgspec.to_builtins(noted)
    del described["born"]
    return described


def _parts(pipeline: "Pipeline") -> dict[str, dict[str, str]]:
    """What is read, made and written, in few words."""
    sources = {}
    for name, source in pipeline.sources.items():
        what = ", ".join(source.topics) or getattr(source, source.kind)
        dead = f", broken ones to {source.dead_letter}" if source.dead_letter else ""
        sources[name] = f"{source.kind} {what}{dead}"
    return {
        "sources": sources,
        "steps": {step.table: step.file for step in pipeline.steps},
        "sinks": {
            name: f"{sink.table} to {sink.kind} {sink.target}" for name, sink in pipeline.sinks.items()
        },
    }


async def _latest(bootstrap: str, topics: set[str]) -> "tuple[Ends, str]":
    """Where topics end now; and why that is not known, if so."""
    import asyncio

    from tidelog.client.kafka import LATEST, KafkaClient

    latest: Ends = {}
    try:
        async with (
            asyncio.timeout(ASK_SECONDS_MAX),
            KafkaClient(bootstrap, timeout_seconds=ASK_SECONDS_MAX) as client,
        ):
            for topic in sorted(topics):
                info = await client.topic(topic)
                wanted = {partition.partition: LATEST for partition in info.partitions}
                found = await client.list_offsets(topic, wanted)
                latest[topic] = {str(at): one.offset for at, one in found.items()}
    except TimeoutError:
        return {}, f"{bootstrap} did not answer within {ASK_SECONDS_MAX:g} s"
    except TidelogError as error:
        return {}, str(error)
    return latest, ""


def _lag_now(ends: "Ends", latest: "Ends") -> int | None:
    from tidelog.spark.pipelines.progress import behind

    known = {topic: latest[topic] for topic in ends if topic in latest}
    return behind(ends, known) if known else None
