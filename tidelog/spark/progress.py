"""How far a job of Spark is, told while it runs, and why it failed.

Rule: whoever waits for Spark must see that something happens; no failure to look stops the work.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tidelog.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS: Final = 0.2


class Progress(NamedTuple):
    """How far a job is."""

    what: str
    done: int = 0
    total: int = 0
    """0, if nobody knows."""
    unit: str = "tasks"
    bytes: int = 0
    """What was written so far; 0, if nobody counts."""
    partitions: tuple[int, int] | None = None
    """How many are done, and how many there are."""

    def of(self, amount: int) -> int:
        """As much of an amount as of this is done."""
        return amount * self.done // max(self.total, 1)


OnProgress: TypeAlias = Callable[[Progress], None]


def as_records(tell: OnProgress | None, *, before: int, here: int, total: int) -> OnProgress | None:
    """Tells the tasks of a job as its share of all records: `here` of `total`, after `before`."""
    if tell is None:
        return None

    def on_progress(at: Progress) -> None:
        tell(at._replace(done=before + at.of(here), total=total, unit="records"))

    return on_progress


@contextmanager
def watched(spark: "SparkSession", what: str, on_progress: OnProgress | None) -> Iterator[None]:
    """Tell of the tasks that this thread has Spark run while inside."""
    if on_progress is None:
        yield
        return
    if is_connect(spark):
        on_progress(Progress(what))
        with _told_by_server(spark, what, on_progress):
            yield
        return
    context = spark.sparkContext
    context.setJobGroup(what, what)
    ended = threading.Event()
    on_progress(Progress(what))
    thread = threading.Thread(target=_look, args=(spark, what, on_progress, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


@contextmanager
def _told_by_server(spark: "SparkSession", what: str, on_progress: OnProgress) -> Iterator[None]:
    """Spark Connect tells its clients of tasks while they wait for an answer."""
    client: Any = spark

    def told(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        known = list(stages or ())
        if known:
            done_tasks = sum(stage.num_completed_tasks for stage in known)
            on_progress(Progress(what, done_tasks, sum(stage.num_tasks for stage in known)))

    client.registerProgressHandler(told)
    try:
        yield
    finally:
        client.removeProgressHandler(told)


def _look(spark: "SparkSession", what: str, on_progress: OnProgress, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not ended.wait(LOOK_SECONDS):
        try:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(what)]
            stages = [
                tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
            ]
        except Exception:  # the session may be about to end
            return
        known = [stage for stage in stages if stage is not None]
        done = sum(stage.numCompletedTasks for stage in known)
        on_progress(Progress(what, done, sum(stage.numTasks for stage in known)))


def why_failed(error: Exception) -> str:
    """What a job died of, in a line: our own error in a task, if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("tidelog.") and ": " in line]
    return ours[-1].partition(": ")[2] if ours else f"Spark failed: {lines[0] if lines else error}"
