"""What the archive has, compared with the log and with its own files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.spark.archive.files import ArchivedFile, FileDamaged, verify_file
from tidelog.spark.archive.logs import Log
from tidelog.spark.archive.spans import Span
from tidelog.spark.archive.storage import Storage
from tidelog.spark.archive.tables import TopicTable
from tidelog.spark.archive.tasks import run_tasks
from tidelog.spark.progress import OnProgress, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition, in the archive and in the log."""

    partition: int
    archived: Span | None
    log: Span | None
    """None, where nobody was asked or nobody has it any more."""
    skipped: Sequence[Span] = ()
    """What was deleted from the log unarchived, and archiving went on behind it."""
    files: int
    rows: int
    bytes: int

    @property
    def lag(self) -> int | None:
        """How many offsets the log has that are not archived."""
        if self.log is None:
            return None
        return self.log.end - max(self.log.start, self.archived.end if self.archived else 0)

    @property
    def lost(self) -> int:
        """How many are in neither: the log has deleted them too early."""
        before = sum(span.end - span.start for span in self.skipped)
        if self.log is None or self.archived is None:
            return before
        return before + max(0, self.log.start - self.archived.end)

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "archived": None if self.archived is None else list(self.archived),
            "log": None if self.log is None else list(self.log),
            "lag": self.lag,
            "lost": self.lost,
            "skipped": [list(span) for span in self.skipped],
            "files": self.files,
            "rows": self.rows,
            "bytes": self.bytes,
        }


def status(table: TopicTable, log: Log | None) -> list[PartitionStatus]:
    """All partitions that are in either."""
    files: dict[int, list[ArchivedFile]] = {}
    for file in table.files():
        files.setdefault(file.partition, []).append(file)
    spans = {} if log is None else log.spans
    return [
        PartitionStatus(
            partition=one,
            archived=table.spans.get(one),
            log=spans.get(one),
            skipped=table.claim.lost.get(one, ()),
            files=len(files.get(one, ())),
            rows=sum(file.rows for file in files.get(one, ())),
            bytes=sum(file.bytes for file in files.get(one, ())),
        )
        for one in sorted(table.spans.keys() | spans.keys())
    ]


def verify(
    spark: "SparkSession",
    table: TopicTable,
    files: Sequence[ArchivedFile],
    *,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Read files to their last byte; what is wrong with them, and with the table's rows."""
    wrong = [f"table {table.name}: {one}" for one in table.miscounted()]
    wrong += [
        f"{file.path}: it has offsets {file.first} to {file.last}, which the table does not claim"
        for file in files
        if not _is_claimed(file, table.spans.get(file.partition))
    ]
    what = f"verifying {table.topic}"
    with watched(spark, what, on_progress):
        return wrong + run_tasks(spark, files, partial(find_damage, table.storage), what)


def _is_claimed(file: ArchivedFile, span: Span | None) -> bool:
    return span is not None and span.start <= file.first <= file.last < span.end


def find_damage(storage: Storage, files: Iterable[ArchivedFile]) -> Iterator[str]:
    """What a task finds."""
    for file in files:
        try:
            verify_file(file, storage)
        except FileDamaged as damage:
            yield str(damage)
