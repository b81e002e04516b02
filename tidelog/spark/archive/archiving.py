"""From the log into the archive, in rounds: tasks write files, the driver commits them.

Rule 1: only offsets below the last stable one are taken. So a range never changes after it was
        planned: neither by a transaction that is aborted, nor by another leader.
Rule 2: each topic is looked at, planned and committed by itself: what goes wrong with one is said
        at the end, and stops no other.
Rule 3: whatever happens to a round, the next one is planned on what the table says then. A round
        that came to nothing leaves files that no snapshot names; they are removed.
Rule 4: a log is asked whether it is still that of the table whenever it is looked at, and again
        before a commit.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pyiceberg.catalog import Catalog

from tidelog.client.cluster import Refused
from tidelog.client.wire import ConnectionFailed
from tidelog.errors import TidelogError
from tidelog.spark.archive.catalog import create_topic, set_aside
from tidelog.spark.archive.cleaning import remove_strays
from tidelog.spark.archive.files import FILE_BYTES, NAMES, Destination, WrittenFile, write_range
from tidelog.spark.archive.logs import Log, check_not_cut, look_at
from tidelog.spark.archive.merging import merge_archived
from tidelog.spark.archive.problems import Problems, collecting, raise_all
from tidelog.spark.archive.spans import ArchiveAhead, check_reaches, lacking, next_round, rows_for, whole
from tidelog.spark.archive.tables import OtherTopic, Outpaced, TopicTable
from tidelog.spark.archive.tasks import run_tasks
from tidelog.spark.connect import parallelism
from tidelog.spark.progress import OnProgress, Progress, as_records, watched
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.reading import Reading, read_range
from tidelog.spark.tables.commits import Locked
from tidelog.spark.tables.upkeep import Upkeep
from tidelog.spark.tables.waiting import is_away

if TYPE_CHECKING:
    from pyiceberg.table import Table
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


PASSING: Final = (ConnectionFailed, Refused, NotMoved, Outpaced, OSError)
"""What may be gone when it is tried again."""


def is_passing(error: Exception) -> bool:
    return isinstance(error, PASSING) or is_away(error)


AFTERWARDS: Final = "what follows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a topic is archived."""

    file_bytes: int = FILE_BYTES
    skip_lost: bool = False
    new_table: bool = False
    upkeep: Upkeep = field(default_factory=Upkeep)


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


def everything(ranges: Iterable[OffsetRange], rows: int) -> list[OffsetRange]:
    """A choice: all that waits."""
    return list(ranges)


class Archiver:
    """Archives topics, until it has what was there, or for good. One thread uses it.

    `tables` has those that could be opened; with the others it is tried again each time.
    """

    def __init__(
        self,
        spark: "SparkSession",
        catalog: Catalog,
        bootstrap: str,
        topics: Sequence[str],
        settings: Settings,
        *,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._bootstrap = bootstrap
        self._settings = settings
        self._on_progress = on_progress
        self._parallel = parallelism(spark)
        self._told: dict[str, str] = {}
        self.done = {topic: Done(topic) for topic in topics}
        self.logs: dict[str, Log] = {}
        self.tables: dict[str, TopicTable] = {}
        problems = self._open_all()
        if not self.tables and not any(is_passing(error) for error in problems.values()):
            raise_all(problems)

    def once(self) -> None:
        """Archive all that the logs have now; raises what went wrong once the rest is done."""
        raise_all(self.attempt())

    def attempt(self, choose: Choice = everything) -> Problems:
        """Archive what is chosen of what the logs have now; what went wrong."""
        problems = self._open_all()
        for topic in self.tables:
            with collecting(problems, topic):
                self.logs[topic] = self._look(topic)
        self._drain(choose, problems)
        return problems

    def keep_on(
        self,
        interval_seconds: float,
        stopping: threading.Event,
        *,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """Archive until told to stop: everything each interval, and whole files at once.

        What goes wrong is logged and tried again, so a cluster that is away is waited for; it is
        raised only if no topic can be gone on with. `after` is called whenever all is archived of
        any topic.
        """
        due = 0.0
        while not stopping.is_set():
            is_due = time.monotonic() >= due
            problems = self.attempt(everything if is_due else whole)
            pause = LOOK_SECONDS
            if len(problems) < len(self.done):
                if is_due:
                    due = time.monotonic() + interval_seconds
                    with collecting(problems, AFTERWARDS):
                        after()
                pause = min(LOOK_SECONDS, max(0.0, due - time.monotonic()))
            elif not any(is_passing(error) for error in problems.values()):
                raise_all(problems)
            self._tell(problems)
            stopping.wait(pause)

    def _tell(self, problems: Problems) -> None:
        """Log what went wrong, unless it was told last time."""
        texts = {topic: str(error) for topic, error in problems.items()}
        for topic, text in texts.items():
            if self._told.get(topic) != text:
                logger.warning("%s will be tried again: %s", topic, text)
        self._told = texts

    # Tables and logs.

    def _open_all(self) -> Problems:
        """Open the tables that are not; what went wrong."""
        problems: Problems = {}
        for topic in self.done:
            if topic not in self.tables:
                with collecting(problems, topic):
                    self.tables[topic] = self._open(topic)
        return problems

    def _open(self, topic: str) -> TopicTable:
        found = look_at(self._bootstrap, topic).id
        try:
            table = create_topic(self._catalog, topic, found)
            # The table first, then the log: somebody else may archive it meanwhile.
            self._check(table, look_at(self._bootstrap, topic))
            return table
        except (OtherTopic, ArchiveAhead):
            if not self._settings.new_table:
                raise
            self.done[topic].set_aside = set_aside(self._catalog, topic)
            return create_topic(self._catalog, topic, look_at(self._bootstrap, topic).id)

    def _look(self, topic: str) -> Log:
        """A log as it is now, if it is still the one of the table."""
        log = look_at(self._bootstrap, topic)
        self._check(self.tables[topic], log)
        return log

    def _check(self, table: TopicTable, log: Log) -> None:
        table.check_topic(log.id)
        for partition, span in table.spans.items():
            if partition in log.spans:
                check_reaches(table.topic, partition, log.spans[partition].end, span.end)
        check_not_cut(self._bootstrap, table.topic, table.spans, table.claim.epochs)

    # Rounds.

    def _drain(self, choose: Choice, problems: Problems) -> None:
        """Rounds, until nothing is left of what the logs had when this began."""
        tries = dict.fromkeys(self.tables, 0)
        moved, total = 0, self._waiting(problems)
        while plan := self._plan(choose, problems):
            with watched(self._spark, "archiving", self._share(plan, moved, total)):
                results = self._run(plan)
            for topic in sorted({one.wanted.topic for one in results}):
                mine = [one for one in results if one.wanted.topic == topic]
                with collecting(problems, topic):
                    tries[topic] = 0 if self._commit(topic, mine) else tries[topic] + 1
                    if tries[topic] == TRIES_MAX:
                        raise Outpaced("somebody else archives the same topics; end one of the two")
            moved = total - self._waiting(problems)

    def _lacking(self, topic: str, problems: Problems) -> list[OffsetRange]:
        """What the archive of a topic lacks; nothing, if something is wrong with it."""
        if topic not in problems:
            with collecting(problems, topic):
                log, table = self.logs[topic], self.tables[topic]
                return lacking(topic, log.spans, table.spans, skip_lost=self._settings.skip_lost)
        return []

    def _waiting(self, problems: Problems) -> int:
        return sum(one.count for topic in self.tables for one in self._lacking(topic, problems))

    def _plan(self, choose: Choice, problems: Problems) -> list[Task]:
        """The tasks of a round: some of each topic, so that none waits for another."""
        plan = []
        for topic, table in self.tables.items():
            rows, size, _ = table.totals
            file_rows = rows_for(self._settings.file_bytes, rows=rows, bytes_taken=size)
            chosen = choose(self._lacking(topic, problems), file_rows)
            to = table.destination(self._settings.file_bytes)
            now = next_round(chosen, rows=file_rows, tasks_max=2 * self._parallel)
            plan += [Task(one, to) for one in now]
        return plan

    def _share(self, plan: Sequence[Task], moved: int, total: int) -> OnProgress | None:
        """Tells the tasks of a round as offsets of all, and which partitions wait for nothing."""
        tell = self._on_progress
        if tell is None:
            return None
        written = sum(one.bytes for one in self.done.values())
        known = sum(len(log.spans) for log in self.logs.values())
        waiting = {(one.topic, one.partition) for topic in self.tables for one in self._lacking(topic, {})}
        partitions = known - len(waiting), known

        def on_progress(at: Progress) -> None:
            tell(at._replace(bytes=written, partitions=partitions))

        here = sum(task.wanted.count for task in plan)
        return as_records(on_progress, before=moved, here=here, total=total)

    def _run(self, plan: Sequence[Task]) -> list[Moved]:
        reading = Reading(bootstrap=self._bootstrap, columns=NAMES)
        return run_tasks(self._spark, plan, partial(move, reading), "archiving")

    def _commit(self, topic: str, moved: Sequence[Moved]) -> bool:
        """Commit what was moved of a topic; False, if somebody else was faster."""
        table, done = self.tables[topic], self.done[topic]
        ranges, epochs = [one.wanted for one in moved], self.logs[topic].epochs
        files = [file for one in moved for file in one.files]
        try:
            self._check_moved(table, moved)
        except TidelogError:
            table.storage.remove(file.path for file in files)
            raise
        try:
            table = table.commit(files, ranges, epochs)
        except Locked:
            table.storage.remove(file.path for file in files)
            raise
        except Outpaced as error:
            logger.info("%s; planning again", error)
            table.storage.remove(file.path for file in files)
            self.tables[topic] = table.reload()
            self.logs[topic] = self._look(topic)  # the archive may have more than the log had
            return False
        self.tables[topic] = table
        if not done.commits:
            done.strays = len(remove_strays(table))
        if self._settings.upkeep.after_commit(table.table, self._merge):
            self.tables[topic] = table.reload()
            self.logs[topic] = self._look(topic)
        done.commits += 1
        done.offsets += sum(one.count for one in ranges)
        done.rows += sum(file.rows for file in files)
        done.bytes += sum(file.bytes for file in files)
        done.files += len(files)
        return True

    def _merge(self, table: "Table") -> None:
        merge_archived(TopicTable(table), file_bytes=self._settings.file_bytes)

    def _check_moved(self, table: TopicTable, moved: Sequence[Moved]) -> None:
        """What was read must be of the table's topic still, and of a log that was not cut."""
        if failed := [one.problem for one in moved if one.problem]:
            raise NotMoved("; ".join(failed[:3]))
        table.check_topic(look_at(self._bootstrap, table.topic).id)
        ranges = [one.wanted for one in moved]
        claim = table.claim.after(ranges, (), self.logs[table.topic].epochs)
        check_not_cut(self._bootstrap, table.topic, claim.spans, claim.epochs)
