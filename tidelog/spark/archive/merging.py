"""Small files of an archive, put together: neighbours only, so each file stays one stretch.

Rule: a merge goes onto the snapshot that it was planned on, or not at all, as every commit of an
      archive does; and it makes the same claim as that one.
"""

from tidelog.spark.archive.files import (
    FILE_BYTES,
    ArchivedFile,
    ArchivedRange,
    FileDamaged,
    read_archived,
    write_range,
)
from tidelog.spark.archive.files import NAMES as COLUMNS
from tidelog.spark.archive.tables import TopicTable
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.tables.commits import data_file
from tidelog.spark.tables.merging import Merged, replace_files
from tidelog.spark.tables.tiers import Sized, adjacent_to_merge


def merge_archived(archived: TopicTable, *, file_bytes: int = FILE_BYTES) -> int:
    """Put small files together, as many as one round may; how many are gone from the table."""
    files = [Sized(file, file.partition, file.bytes) for file in archived.files()]
    plan = adjacent_to_merge(files, file_bytes=file_bytes)
    if not plan:
        return 0
    named = {task.file.file_path: task.file for task in archived.table.scan().plan_files()}
    merged = []
    for some in plan:
        old = [named[file.path] for file in some]
        new = [
            data_file(archived.table, path, old[0].partition) for path in _merge(archived, some, file_bytes)
        ]
        merged.append(Merged(new, old))
    claim = archived.claim.as_properties()
    if not replace_files(archived.table, merged, claim, attempts=1):
        return 0
    return sum(len(one.old) for one in merged)


def _merge(archived: TopicTable, some: list[ArchivedFile], file_bytes: int) -> list[str]:
    """Files with the rows of several; mostly it is one."""
    first, last = some[0], some[-1]
    there = ArchivedRange(
        storage=archived.storage,
        topic=archived.topic,
        partition=first.partition,
        start=first.first,
        end=last.last + 1,
        paths=tuple(file.path for file in some),
        counts=tuple(file.rows for file in some),
    )
    wanted = OffsetRange(archived.topic, first.partition, there.start, there.end)
    to = archived.destination(file_bytes)
    written = write_range(read_archived(there, COLUMNS), wanted, to)
    if sum(file.rows for file in written) != sum(file.rows for file in some):
        archived.storage.remove(file.path for file in written)
        raise FileDamaged(written[0].path, "it has other rows than the files that it was made of")
    return [file.path for file in written]
