"""What the commands that run on Spark share: where it runs, and how far it is.

Rule: nobody waits in the dark. Starting Spark takes seconds; standard error says what goes on
(`spark_progress.py`).
"""

import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.faces.cli.common import UserError, key_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.spark.progress import OnProgress

Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="Spark master: local[*], spark://, k8s://, yarn, sc://."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting as KEY=VALUE; repeatable."),
]
Environment = Annotated[
    str,
    typer.Option(
        "--environment",
        metavar="FILE",
        help="Packed Python environment for executors on other machines (`tidelog pipeline pack`).",
    ),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Also write an HTML report.")
]


@contextmanager
def spark_job(
    name: str,
    *,
    master: str,
    conf: Sequence[str] | None,
    environment: str,
    as_json: bool,
    stop: threading.Event | None = None,
) -> Iterator[tuple["SparkSession", "OnProgress"]]:
    """A session for one command, and what its job tells its progress to.

    SIGTERM ends it as Ctrl-C does: what it started ends, too.
    """
    from tidelog.faces.cli.spark_progress import shown
    from tidelog.spark.session import spark_session

    settings = dict(key_values(conf or [], "--conf"))
    with shown(as_json=as_json) as on_progress, warnings.catch_warnings():
        # Whatever pandas is there: our jobs use none.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
        with (
            interrupted_by_sigterm(),
            spark_session(name, master=master, conf=settings, environment=environment, stop=stop) as session,
        ):
            yield session, on_progress


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does, while inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_report(report: Path | None) -> None:
    """Refuse a file that cannot be written before hours are spent on what it shall hold."""
    if report is not None and not report.absolute().parent.is_dir():
        raise UserError(f"--report {report}: there is no directory {report.parent}; make it first")
    if report is not None and report.is_dir():
        raise UserError(f"--report {report} is a directory; name a file, such as report.html")
