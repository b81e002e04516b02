"""From the log into the archive, in rounds: tasks write files, the driver commits them.

Rule 1: only offsets below the last stable one are taken. So a range never changes after it was
        planned: neither by a transaction that is aborted, nor by another leader.
Rule 2: each topic is committed by itself: a task that fails is the loss of its topic only.
Rule 3: whatever happens to a round, the next one is planned on what the table says then. A round
        that came to nothing leaves files that no snapshot names; they are removed.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pyiceberg.catalog import Catalog

from tidelog.client.cluster import Refused
from tidelog.client.wire import ConnectionFailed
from tidelog.errors import TidelogError
from tidelog.spark.archive.catalog import create_topic, set_aside
from tidelog.spark.archive.cleaning import forget_snapshots, remove_strays
from tidelog.spark.archive.files import (
    FILE_BYTES,
    NAMES,
    Destination,
    WrittenFile,
    write_range,
)  # fmt: skip
from tidelog.spark.archive.logs import Log, check_not_cut, look_at
from tidelog.spark.archive.spans import lacking, next_round, rows_for, whole
from tidelog.spark.archive.tables import OtherTopic, Outpaced, TopicTable
from tidelog.spark.archive.tasks import run_tasks
from tidelog.spark.progress import OnProgress, watched
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.reading import Reading, read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 5
"""Of a round that somebody else was faster with; two who archive the same make no sense anyhow."""
LOOK_SECONDS: Final = 2.0
"""How often a continuous archive looks for whole files' worth of records."""


Choice: TypeAlias = Callable[[Iterable[OffsetRange], int], list[OffsetRange]]
"""Of ranges that wait, those to move now, if a file has about so many rows."""


class NotMoved(TidelogError):
    """A task could not read or write its range; the message is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a topic is archived."""

    file_bytes: int = FILE_BYTES
    skip_lost: bool = False
    new_table: bool = False


@dataclass(slots=True)
class Done:
    """What was archived of a topic since the command began."""

    topic: str
    rows: int = 0
    offsets: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    strays: int = 0
    set_aside: str = ""


# In a task.


class Task(NamedTuple):
    """A range to move, and where to."""

    wanted: OffsetRange
    to: Destination


class Moved(NamedTuple):
    """What became of a task: files, or what went wrong."""

    wanted: OffsetRange
    files: Sequence[WrittenFile]
    problem: str = ""


def move(reading: Reading, tasks: Iterable[Task]) -> Iterator[Moved]:
    """Read ranges and write them as files."""
    for wanted, to in tasks:
        try:
            yield Moved(wanted, write_range(read_range(reading, wanted), wanted, to))
        except (TidelogError, OSError) as error:
            yield Moved(wanted, (), f"{wanted}: {error}")


# On the driver.


class Archiver:
    """Archives topics, until it has what was there, or for good. One thread uses it."""

    def __init__(
        self, spark: "SparkSession", catalog: Catalog, bootstrap: str, topics: Sequence[str],
        settings: Settings, *, on_progress: OnProgress | None = None,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._bootstrap = bootstrap
        self._settings = settings
        self._on_progress = on_progress
        self._parallel = spark.sparkContext.defaultParallelism
        self.done = {topic: Done(topic) for topic in topics}
        self.logs = {topic: look_at(bootstrap, topic) for topic in topics}
        self.tables = {topic: self._open(catalog, log) for topic, log in self.logs.items()}

    def _open(self, catalog: Catalog, log: Log) -> TopicTable:
        try:
            return create_topic(catalog, log.topic, log.id)
        except OtherTopic:
            if not self._settings.new_table:
                raise
            self.done[log.topic].set_aside = set_aside(catalog, log.topic)
            return create_topic(catalog, log.topic, log.id)

    def once(self) -> None:
        """Archive all that the logs have now."""
        self.logs = {topic: look_at(self._bootstrap, topic) for topic in self.tables}
        self._drain(lambda ranges, rows: list(ranges))

    def keep_on(
        self, interval_seconds: float, stopping: threading.Event, *,
        after: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Archive until told to stop: everything each interval, and whole files at once.

        A cluster that cannot be reached for a while is waited for. `after` is called whenever all
        is archived.
        """
        due = 0.0
        while not stopping.is_set():
            try:
                if time.monotonic() >= due:
                    self.once()
                    due = time.monotonic() + interval_seconds
                    after()
                else:
                    self.logs = {topic: look_at(self._bootstrap, topic) for topic in self.tables}
                    self._drain(whole)
                pause = min(LOOK_SECONDS, max(0.0, due - time.monotonic()))
            except (ConnectionFailed, Refused, NotMoved) as error:
                logger.warning("will try again in %g s: %s", LOOK_SECONDS, error)
                pause = LOOK_SECONDS
            stopping.wait(pause)

    def _drain(self, choose: Choice) -> None:
        """Rounds, until nothing is left of what the logs had when this began."""
        tries = moved = 0
        total = self._waiting()
        while plan := self._plan(choose):
            with watched(self._spark, "archiving", self._share(plan, moved, total)):
                results = self._run(plan)
            tries = 0 if self._commit(results) else tries + 1
            if tries == TRIES_MAX:
                raise Outpaced("somebody else archives the same topics; end one of the two")
            moved = total - self._waiting()

    def _lacking(self, topic: str) -> list[OffsetRange]:
        log, table = self.logs[topic], self.tables[topic]
        return lacking(topic, log.spans, table.spans, skip_lost=self._settings.skip_lost)

    def _waiting(self) -> int:
        return sum(one.count for topic in self.tables for one in self._lacking(topic))

    def _plan(self, choose: Choice) -> list[Task]:
        """The tasks of a round: some of each topic, so that none waits for another."""
        plan = []
        for topic, table in self.tables.items():
            rows, size, _ = table.totals
            file_rows = rows_for(self._settings.file_bytes, rows=rows, bytes_taken=size)
            chosen = choose(self._lacking(topic), file_rows)
            to = table.destination(self._settings.file_bytes)
            now = next_round(chosen, rows=file_rows, tasks_max=2 * self._parallel)
            plan += [Task(one, to) for one in now]
        return plan

    def _share(self, plan: Sequence[Task], moved: int, total: int) -> OnProgress | None:
        """Tells the tasks that are done as offsets of all."""
        tell = self._on_progress
        if tell is None:
            return None
        here = sum(task.wanted.count for task in plan)

        def on_progress(what: str, done: int, tasks: int) -> None:
            tell(what, moved + here * done // max(tasks, 1), total)

        return on_progress

    def _run(self, plan: Sequence[Task]) -> list[Moved]:
        reading = Reading(bootstrap=self._bootstrap, columns=NAMES)
        return run_tasks(self._spark, plan, partial(move, reading), "archiving")

    def _commit(self, results: Sequence[Moved]) -> bool:
        """Commit what was moved, topic by topic; whether all of it was."""
        problems, all_done = [], True
        for topic in sorted({one.wanted.topic for one in results}):
            mine = [one for one in results if one.wanted.topic == topic]
            files = [file for one in mine for file in one.files]
            failed = [one.problem for one in mine if one.problem]
            if failed:
                problems += failed
                self.tables[topic].storage.remove(file.path for file in files)
                continue
            try:
                self._commit_topic(topic, mine, files)
            except Outpaced as error:
                logger.info("%s; planning again", error)
                self.tables[topic].storage.remove(file.path for file in files)
                self.tables[topic] = self.tables[topic].reload()
                all_done = False
        if problems:
            raise NotMoved("; ".join(problems[:3]))
        return all_done

    def _commit_topic(
        self, topic: str, moved: Sequence[Moved], files: Sequence[WrittenFile]
    ) -> None:
        table, done = self.tables[topic], self.done[topic]
        ranges, epochs = [one.wanted for one in moved], self.logs[topic].epochs
        table.check_topic(look_at(self._bootstrap, topic).id)
        after = table.claim.after(ranges, files, epochs)
        check_not_cut(self._bootstrap, topic, after.spans, after.epochs)
        table = table.commit(files, ranges, epochs)
        if not done.commits:
            done.strays = len(remove_strays(table))
        forget_snapshots(table)
        self.tables[topic] = table
        done.commits += 1
        done.offsets += sum(one.wanted.count for one in moved)
        done.rows += sum(file.rows for file in files)
        done.bytes += sum(file.bytes for file in files)
        done.files += len(files)
