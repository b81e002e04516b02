"""What the commands that run on Spark share: where it runs, and how far it is.

Rule: nobody waits in the dark. Starting Spark takes seconds; on a terminal, standard error says
what goes on.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.faces.cli.common import UserError, key_values, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.spark.progress import OnProgress

Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Where Spark runs: local[*], spark://, k8s://, yarn, sc://."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
]
Environment = Annotated[
    str,
    typer.Option("--environment", metavar="FILE", help="A packed Python for executors elsewhere."),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Also write a page that stands alone."),
]


@contextmanager
def spark_job(
    name: str, *, master: str, conf: Sequence[str] | None, environment: str, visible: bool
) -> Iterator[tuple["SparkSession", "OnProgress"]]:
    """A session for one command, and what its job tells its progress to."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tidelog.spark.session import spark_session

    settings = dict(key_values(conf or [], "--conf"))
    bar = Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=Console(stderr=True), transient=True,
        disable=not (visible and sys.stderr.isatty()),
    )  # fmt: skip
    with bar, warnings.catch_warnings():
        # Whatever pandas is there: our jobs use none.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
        task = bar.add_task("starting Spark", total=None)

        def on_progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=plain(what), completed=done, total=total or None)

        with spark_session(name, master=master, conf=settings, environment=environment) as session:
            yield session, on_progress


def check_report(report: Path | None) -> None:
    """Refuse a file that cannot be written before hours are spent on what it shall hold."""
    if report is not None and not report.absolute().parent.is_dir():
        raise UserError(f"--report {report}: there is no directory {report.parent}; make it first")
    if report is not None and report.is_dir():
        raise UserError(f"--report {report} is a directory; name a file, such as report.html")
