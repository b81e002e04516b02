"""All queries of a pipeline, from their start to their end.

Rule 1: one query that fails ends all: half a pipeline is none. What they wrote stays right, and the
        next run goes on from there.
Rule 2: asked to stop, it stops the queries where they are; a batch that was cut off is done again
        by the next run, and seen once.
"""

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.errors import TidelogError
from tidelog.spark.client_loop import ask, start
from tidelog.spark.pipelines import orders, state
from tidelog.spark.pipelines.progress import QueryState, fold
from tidelog.spark.pipelines.sharing import check_shared, is_path
from tidelog.spark.pipelines.sinks import query_names, start_all
from tidelog.spark.pipelines.spec import Pipeline
from tidelog.spark.pipelines.state import Phase, Run
from tidelog.spark.pipelines.tables import first_words
from tidelog.spark.pipelines.topics import prepare
from tidelog.spark.session import check_installed, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS: Final = 1.0
REACH_SECONDS_MAX: Final = 15.0
NEEDED: Final = ("pyspark", "pyarrow", "numpy", "pyiceberg")
SETTINGS: Final = {
    # What pyiceberg can read; Spark's own default is a form that nothing else writes any more.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}

FILE_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

OnChange: TypeAlias = Callable[[Run], None]


class PipelineFailed(TidelogError):
    """A query has failed; the message names it, and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where Spark runs a pipeline."""

    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""


def run(pipeline: Pipeline, where: Where, *, stop: threading.Event, on_change: OnChange) -> Run:
    """Run a pipeline until it is done, until it is asked to stop, or until it fails."""
    check_installed(NEEDED)
    check_shared(pipeline, where.master)
    with state.held(pipeline.folder):
        noted = state.this_run(master=where.master, trigger=pipeline.trigger, bootstrap=pipeline.bootstrap)
        try:
            _run(pipeline, where, noted, stop, on_change)
            noted.phase = Phase.STOPPED if stop.is_set() else Phase.DONE
        except BaseException as error:
            noted.phase = Phase.FAILED
            noted.problem = first_words(error)
            raise
        finally:
            _tell(pipeline, noted, on_change)
    return noted


def checkpoint_settings(location: str, conf: Mapping[str, str]) -> dict[str, str]:
    """How Spark writes the files of a checkpoint, where that is safe to choose.

    For each file that Spark writes to a disk of this machine, Hadoop starts ten processes (`chmod`
    and `readlink`) by Spark's default, and two with this class. What happens to the files is the
    same: one under another name, a look whether the name is taken, a rename. On other file systems
    the default stays: there only the default may be able to replace a file in one step.
    """
    has_other_default = "spark.hadoop.fs.defaultFS" in conf or "HADOOP_CONF_DIR" in os.environ
    is_here = is_path(location) and (location.startswith("file:") or not has_other_default)
    return {"spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER} if is_here else {}


def _run(pipeline: Pipeline, where: Where, noted: Run, stop: threading.Event, on_change: OnChange) -> None:
    _tell(pipeline, noted, on_change)
    bootstrap = pipeline.bootstrap
    ask(bootstrap, lambda client: prepare(client, pipeline), timeout_seconds=REACH_SECONDS_MAX)
    given = {**pipeline.spark, **where.conf}
    location = pipeline.path(pipeline.checkpoint)
    conf = {**SETTINGS, **checkpoint_settings(location, given), **given}
    with (
        spark_session(
            pipeline.name,
            master=where.master,
            conf=conf,
            environment=where.environment,
            log=state.log_path(pipeline.folder),
            stop=stop,
        ) as session,
        listening(stop),  # anew: Spark has put a handler of its own in its place
        _traffic(pipeline),
    ):
        if not stop.is_set():
            _run_queries(session, pipeline, noted, stop, on_change)


def _run_queries(
    session: "SparkSession", pipeline: Pipeline, noted: Run, stop: threading.Event, on_change: OnChange
) -> None:
    noted.queries = {name: QueryState() for name in query_names(pipeline)}
    queries = start_all(session, pipeline, stop)
    noted.phase = Phase.RUNNING
    try:
        while any(query.isActive for query in queries) and not stop.wait(LOOK_SECONDS):
            _look(queries, noted)
            _tell(pipeline, noted, on_change)
            if _failures(queries):
                break
    finally:
        noted.phase = Phase.STOPPING
        _tell(pipeline, noted, on_change)
        failures = _failures(queries)  # before the stop, which may look like one
        for query in queries:
            query.stop()
        _look(queries, noted)
    if failures:
        raise PipelineFailed("; ".join(failures))


def _failures(queries: "list[StreamingQuery]") -> list[str]:
    return [
        f"{query.name}: {first_words(error)}"
        for query in queries
        if not query.isActive and (error := query.exception()) is not None
    ]


def _look(queries: "list[StreamingQuery]", noted: Run) -> None:
    for query in queries:
        known = noted.queries[query.name]
        for report in query.recentProgress:
            known = fold(known, json.loads(report.json))
        noted.queries[query.name] = known


def _tell(pipeline: Pipeline, noted: Run, on_change: OnChange) -> None:
    state.write(pipeline.folder, noted)
    on_change(noted)


@contextmanager
def listening(stop: threading.Event) -> Iterator[None]:
    """Have signals ask for a stop, while inside; a second one does not wait for it.

    A signal's handler may interrupt the main thread inside of `stop.wait`, which holds the event's
    lock then, and would wait for that lock for ever. So another thread sets the event.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: SimpleQueue[bool] = SimpleQueue()  # its `put` may interrupt anything
    is_asked = False

    def ask_to_stop(number: int, _: object) -> None:
        nonlocal is_asked
        if is_asked or stop.is_set():
            raise KeyboardInterrupt
        is_asked = True
        asked.put(True)

    def set_when_asked() -> None:
        if asked.get():
            stop.set()

    setting = threading.Thread(target=set_when_asked, name="stop-on-signal", daemon=True)
    setting.start()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, ask_to_stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        asked.put(False)
        setting.join()


@contextmanager
def _traffic(pipeline: Pipeline) -> Iterator[None]:
    """The sample's orders: some before a run that ends by itself, else as long as this lasts."""
    traffic = pipeline.traffic
    numbers = random.Random()
    if traffic is None:
        yield
    elif pipeline.is_once:
        ask(pipeline.bootstrap, lambda client: orders.send_some(client, traffic, numbers))
        yield
    else:
        sending = start(orders.send_always(pipeline.bootstrap, traffic, numbers))
        try:
            yield
        finally:
            sending.cancel()
