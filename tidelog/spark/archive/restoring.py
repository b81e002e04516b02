"""From the archive back into a topic: the same partitions, order, times and headers.

Rule 1: a restore is a job, and its plan stands in the table's properties from its first record to
        its last. So it can be ended at any point, and goes on where it was, though more was
        archived meanwhile.
Rule 2: it goes in chunks, the same ones whenever it runs. Each is decided once, under its number;
        the topic has all of a chunk or nothing.
Rule 3: a target has one job at a time. Who finds another's plan in the place of its own writes no
        further; who finds none goes on, for the decisions stay when a job is done, and nothing is
        written twice by a second run that was started meanwhile.
Rule 4: rows of one partition are read and written by one task, in the order of their offsets.
"""

# tidelog.restore.TARGET (of the table) :=
#     {"job": id, "topic_id": of the target, "spans": {"partition": [start, end]},
#      "rows": of a chunk and partition, "wish": its identity}  (JSON)

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException

from tidelog.errors import ConfigError
from tidelog.model import Offset
from tidelog.spark.archive.changing import NO_CHANGE, Change
from tidelog.spark.archive.files import NAMES, ArchivedRange, read_archived
from tidelog.spark.archive.logs import Log, look_at, look_at_or_make
from tidelog.spark.archive.spans import Span, Spans
from tidelog.spark.archive.tables import ArchiveError, TopicTable
from tidelog.spark.archive.tasks import blaming_spark
from tidelog.spark.client_loop import ask
from tidelog.spark.columns import ddl
from tidelog.spark.progress import OnProgress, as_records, watched
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.writing import application_group

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "tidelog.restore."
CHUNK_ROWS: Final = 1_000_000
"""Of one partition: what is written in one transaction."""
TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which records, and where to."""

    target: str
    partitions: tuple[int, ...] = ()
    from_offset: Offset | None = None
    to_offset: Offset | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    change: Change = NO_CHANGE
    append: bool = False
    """Write into a topic that has records already."""
    restart: bool = False
    """Forget a restore that was begun and not ended."""
    chunk_rows: int = CHUNK_ROWS
    codec: str = "none"

    @property
    def identity(self) -> str:
        """The same for the same records and the same change."""
        bounds = (self.from_offset, self.to_offset, self.from_ms, self.to_ms)
        return json.dumps([sorted(self.partitions), *bounds, self.change.identity])


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A restore that was begun."""

    id: str
    topic_id: str
    spans: Spans
    chunk_rows: int
    wish: str
    """Its identity: a job is not gone on with for another one."""

    @property
    def application(self) -> str:
        return f"restore-{self.id}"

    @property
    def chunks(self) -> int:
        return max(
            (-(-(span.end - span.start) // self.chunk_rows) for span in self.spans.values()), default=0
        )

    def chunk(self, topic: str, number: int) -> list[OffsetRange]:
        """The ranges of a chunk, at most one of each partition."""
        at = number * self.chunk_rows
        ranges = [
            OffsetRange(topic, partition, span.start + at, min(span.end, span.start + at + self.chunk_rows))
            for partition, span in sorted(self.spans.items())
        ]
        return [one for one in ranges if one.count]

    def to_json(self) -> str:
        spans = {str(partition): list(span) for partition, span in self.spans.items()}
        return json.dumps(
            {
                "job": self.id,
                "topic_id": self.topic_id,
                "spans": spans,
                "rows": self.chunk_rows,
                "wish": self.wish,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Job":
        document = json.loads(text)
        return cls(
            id=document["job"],
            topic_id=document["topic_id"],
            spans={int(at): Span(*span) for at, span in document["spans"].items()},
            chunk_rows=document["rows"],
            wish=document["wish"],
        )


@dataclass(slots=True)
class Restored:
    """What a restore has done."""

    job: Job
    chunks: int = 0
    skipped: int = 0
    """Chunks that an earlier run had written."""
    resumed: bool = False


def restore(
    spark: "SparkSession",
    bootstrap: str,
    table: TopicTable,
    wish: Wish,
    *,
    on_progress: OnProgress | None = None,
) -> Restored:
    """Write what is wished into a topic, or go on with what was begun."""
    job, resumed = begin(bootstrap, table, wish)
    done = Restored(job, resumed=resumed)
    group = application_group(job.application, wish.target)
    decided = ask(bootstrap, lambda client: client.read_decision(group))
    total, before = sum(span.end - span.start for span in job.spans.values()), 0
    for number in range(job.chunks):
        here = sum(one.count for one in job.chunk(table.topic, number))
        tell = as_records(on_progress, before=before, here=here, total=total)
        before += here
        if decided is not None and number <= decided:
            done.skipped += 1
            continue
        _check_stands(table, wish.target, job)
        with watched(spark, f"restoring {table.topic}", tell):
            write_chunk(spark, bootstrap, table, wish, job, number)
        done.chunks += 1
    _remove_job(table, wish.target, job)
    return done


# The plan.


def begin(bootstrap: str, table: TopicTable, wish: Wish) -> tuple[Job, bool]:
    """The job of a wish, and whether it was begun before."""
    table = table.reload()  # a start of Spark takes long enough for another to begin the same
    standing = _standing(table, wish.target)
    if standing is not None and not wish.restart:
        _check_same(bootstrap, standing, wish)
        return standing, True
    spans = chosen(table, wish)
    if not spans:
        raise ArchiveError(f"the archive of {table.topic!r} has nothing of what was asked for")
    log = prepare_target(bootstrap, wish, partitions=max(table.spans) + 1)
    job = Job(
        id=uuid.uuid4().hex, topic_id=str(log.id), spans=spans, chunk_rows=wish.chunk_rows, wish=wish.identity
    )
    _set_job(table, wish, job)
    return job, False


def _check_same(bootstrap: str, job: Job, wish: Wish) -> None:
    """Refuse to go on with something else than was begun."""
    if job.wish != wish.identity:
        raise ArchiveError(
            f"a restore into {wish.target!r} was begun with other options; repeat it with those, "
            "or add --restart to forget it (what it wrote stays in the topic)"
        )
    found = look_at(bootstrap, wish.target)
    if str(found.id) != job.topic_id:
        raise ArchiveError(
            f"a restore into {wish.target!r} was begun, but the topic was made anew since; add "
            "--restart to begin again"
        )


def chosen(table: TopicTable, wish: Wish) -> Spans:
    """What of each partition shall be restored."""
    unknown = set(wish.partitions) - table.spans.keys()
    if unknown:
        raise ConfigError(
            f"--partition {min(unknown)} was never archived; there are "
            f"{', '.join(map(str, sorted(table.spans)))}"
        )
    found = {}
    for partition in wish.partitions or sorted(table.spans):
        span = table.spans[partition]
        whole = OffsetRange(table.topic, partition, span.start, span.end)
        start = max(span.start, wish.from_offset or 0, _at(table, whole, wish.from_ms, span.start))
        end = min(
            span.end,
            span.end if wish.to_offset is None else wish.to_offset,
            _at(table, whole, wish.to_ms, span.end),
        )
        if start < end:
            found[partition] = Span(start, end)
    return found


def _at(table: TopicTable, whole: OffsetRange, time_ms: int | None, default: Offset) -> Offset:
    """The first offset of a time; `default` without one, the end if all is older."""
    if time_ms is None:
        return default
    found = table.first_at(whole, time_ms * 1000)
    return whole.end if found is None else found


def prepare_target(bootstrap: str, wish: Wish, *, partitions: int) -> Log:
    """The topic to write into, made if need be; refused if it has records or too few partitions."""
    log = look_at_or_make(bootstrap, wish.target, partitions)
    if len(log.spans) < partitions and not wish.change:
        raise ArchiveError(
            f"topic {wish.target!r} has {len(log.spans)} partitions, but records of {partitions} "
            f"are to be restored: `tidelog topics alter {wish.target} --partitions {partitions}`"
        )
    if any(span.end > span.start for span in log.spans.values()) and not wish.append:
        raise ArchiveError(
            f"topic {wish.target!r} has records already; restore into a new topic, or add --append"
        )
    return log


def _standing(table: TopicTable, target: str) -> Job | None:
    """The job that the table has noted."""
    text = table.table.properties.get(JOB + target)
    return None if text is None else Job.from_json(text)


def _check_stands(table: TopicTable, target: str, job: Job) -> None:
    """ArchiveError, if another job took the place of this one."""
    standing = _standing(table.reload(), target)
    if standing is not None and standing.id != job.id:
        raise ArchiveError(
            f"another restore into {target!r} was begun meanwhile, and this one writes no further. "
            "Let that one end; or restore into a new topic"
        )


def _set_job(table: TopicTable, wish: Wish, job: Job) -> None:
    """Note a job in the table, unless somebody else has."""

    def note(transaction: "Transaction", standing: Job | None) -> None:
        if standing is not None and not wish.restart:
            raise ArchiveError(
                f"another restore into {wish.target!r} was begun at the same time; once it has "
                "ended or failed, repeat the command, which goes on with it"
            )
        transaction.set_properties({JOB + wish.target: job.to_json()})

    _change(table, wish.target, note)
    _check_stands(table, wish.target, job)


def _remove_job(table: TopicTable, target: str, job: Job) -> None:
    """Note that a job is done, unless that is noted already."""

    def note(transaction: "Transaction", standing: Job | None) -> None:
        if standing is not None and standing.id == job.id:
            transaction.remove_properties(JOB + target)

    _change(table, target, note)


def _change(table: TopicTable, target: str, note: "Callable[[Transaction, Job | None], None]") -> None:
    for attempt in range(1, TRIES_MAX + 1):
        found = table.reload()
        try:
            with found.table.transaction() as transaction:
                note(transaction, _standing(found, target))
            return
        except CommitFailedException:
            if attempt == TRIES_MAX:
                raise


# The rows.


def write_chunk(
    spark: "SparkSession", bootstrap: str, table: TopicTable, wish: Wish, job: Job, number: int
) -> None:
    """Write one chunk, unless it was written before."""
    archived = archived_rows(spark, table, job.chunk(table.topic, number))
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": wish.target,
        "includeTimestamp": "true",
        "txnAppId": job.application,
        "txnVersion": str(number),
        "verifyReplays": "false",  # a chunk of a job is the same whoever writes it
        "kafka.compression.type": wish.codec,
    }
    with blaming_spark(f"restoring into {wish.target}"):
        rows = wish.change.apply(archived)
        rows.write.format("tidelog").mode("append").options(**options).save()


def archived_rows(spark: "SparkSession", table: TopicTable, wanted: Sequence[OffsetRange]) -> "DataFrame":
    """The rows of ranges, in order; a partition is a task."""
    by_task = _by_partition(table.ranges(wanted))
    tasks = spark.range(0, len(by_task), 1, max(1, len(by_task)))
    return tasks.mapInArrow(partial(read_tasks, by_task), ddl(NAMES))


def _by_partition(parts: Iterable[ArchivedRange]) -> list[list[ArchivedRange]]:
    found: dict[int, list[ArchivedRange]] = {}
    for part in parts:
        found.setdefault(part.partition, []).append(part)
    return list(found.values())


def read_tasks(
    tasks: Sequence[Sequence[ArchivedRange]], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task runs: it is told its number."""
    for batch in numbers:
        for number in batch.column("id").to_pylist():
            for part in tasks[number]:
                yield from read_archived(part, NAMES)


def as_json_document(done: Restored) -> dict[str, Any]:
    return {
        "job": done.job.id,
        "partitions": {str(at): list(span) for at, span in sorted(done.job.spans.items())},
        "chunks": done.chunks,
        "skipped": done.skipped,
        "resumed": done.resumed,
    }
