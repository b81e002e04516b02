"""What the log may forget since the archive has it.

Rule 1: nothing is deleted that the archive's current snapshot does not claim, nor while the table
        has other rows than were archived.
Rule 2: and nothing whose files were not read again first, to the last byte. A log is the only other
        copy of what it holds.
Rule 3: all that may change while files are read is looked at again right before the log is trimmed.
        Who cannot be asked is not trimmed.
Rule 4: a compacted log is never trimmed: its oldest record may be the newest one of its key.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.client.admin import Resource
from tidelog.model import Offset
from tidelog.spark.archive.checking import verify
from tidelog.spark.archive.files import ArchivedFile
from tidelog.spark.archive.logs import Log, check_not_cut, look_at, offsets_at
from tidelog.spark.archive.problems import Problems, collecting
from tidelog.spark.archive.spans import check_reaches, trimmable
from tidelog.spark.archive.tables import ArchiveError, TopicTable
from tidelog.spark.client_loop import ask
from tidelog.spark.progress import OnProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEANUP: Final = "cleanup.policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What stays in the log though it is archived: the last so many, and those of the last time."""

    records: int = 0
    seconds: float = 0.0

    def wish(self, log: Log, bootstrap: str) -> dict[int, Offset]:
        """Where each log shall begin."""
        wish = {partition: span.end - self.records for partition, span in log.spans.items()}
        if self.seconds:
            young = offsets_at(log, bootstrap, int((time.time() - self.seconds) * 1000))
            wish = {partition: min(at, young[partition]) for partition, at in wish.items()}
        return wish


def trim(
    spark: "SparkSession",
    bootstrap: str,
    table: TopicTable,
    keep: Keep,
    *,
    on_progress: OnProgress | None = None,
) -> dict[int, Offset]:
    """Delete from the log what is archived; where it begins now, for those that were trimmed."""
    table = table.reload()
    log = _look_at(bootstrap, table)
    starts = trimmable(table.topic, log.spans, table.spans, keep.wish(log, bootstrap))
    if not starts:
        return {}
    if table.claim.rows is None:
        raise ArchiveError(
            f"nothing was trimmed: table {table.name} does not tell how many rows were archived, "
            "so nobody can tell whether it still has them. Archive the topic into another "
            "warehouse, and trim by that"
        )
    files = table.files()
    affected = [
        file
        for file in files
        if file.partition in starts and _loses(file, log.spans[file.partition].start, starts[file.partition])
    ]
    damage = verify(spark, table, affected, on_progress=on_progress)
    if damage:
        raise ArchiveError(
            f"nothing was trimmed, for the archive is damaged: {damage[0]} (and {len(damage) - 1} "
            "more). Restore the files from a copy; the log still has their records"
        )
    _check_unchanged(bootstrap, table, {file.path for file in files}, starts)
    return ask(bootstrap, lambda client: client.delete_records(table.topic, starts))


def trim_all(
    spark: "SparkSession",
    bootstrap: str,
    tables: Iterable[TopicTable],
    keep: Keep,
    *,
    on_progress: OnProgress | None = None,
) -> tuple[dict[str, dict[int, Offset]], Problems]:
    """Trim topics, each by itself; where their logs begin now, and what went wrong."""
    starts, problems = {}, Problems()
    for table in tables:
        with collecting(problems, table.topic):
            starts[table.topic] = trim(spark, bootstrap, table, keep, on_progress=on_progress)
    return starts, problems


def _look_at(bootstrap: str, table: TopicTable) -> Log:
    """The log as it is now, if it is the one that was archived."""
    log = look_at(bootstrap, table.topic)
    table.check_topic(log.id)
    check_not_cut(bootstrap, table.topic, table.spans, table.claim.epochs)
    _check_not_compacted(bootstrap, table.topic)
    return log


def _check_unchanged(
    bootstrap: str, table: TopicTable, verified: set[str], starts: dict[int, Offset]
) -> None:
    """To read files takes long: log and table may have become others meanwhile."""
    now = table.reload()
    files = now.files()
    if not verified <= {file.path for file in files} or now.claim.miscounted(files):
        raise ArchiveError(f"nothing was trimmed: table {table.name} was rewritten meanwhile; trim again")
    log = _look_at(bootstrap, now)
    for partition in starts:
        check_reaches(table.topic, partition, log.spans[partition].end, now.spans[partition].end)


def _check_not_compacted(bootstrap: str, topic: str) -> None:
    configs = ask(bootstrap, lambda client: client.describe_configs(Resource.TOPIC, topic))
    policy = next((one.value for one in configs if one.name == CLEANUP), None)
    if policy is None:
        raise ArchiveError(
            f"nothing was trimmed: the brokers do not tell {CLEANUP} of {topic!r}, and a compacted "
            "topic must not be; may this user describe its configs?"
        )
    if "compact" in policy:
        raise ArchiveError(
            f"topic {topic!r} is compacted: trimming would delete the only records that some keys "
            "have. Compaction keeps its log short; archive it without --trim"
        )


def _loses(file: ArchivedFile, start: Offset, new_start: Offset) -> bool:
    """Whether the log would lose records that the file has."""
    return file.first < new_start and file.last >= start
