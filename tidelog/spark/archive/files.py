"""Parquet files of one partition's offsets: written by tasks, read by tasks, verified.

Rule 1: a file's name is used once, by one attempt of one task: nothing is ever renamed or written
        over. It tells on which snapshot of the table it was planned; see `cleaning.py`.
Rule 2: a file is on the disk, not merely in memory, when its writer returns.
Rule 3: every page has a checksum, and whoever reads verifies it.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from tidelog.errors import TidelogError
from tidelog.model import Offset
from tidelog.spark.archive.storage import Storage, sync_file
from tidelog.spark.columns import ARROW, arrow_schema
from tidelog.spark.ranges import OffsetRange

NAMES: Final = tuple(ARROW)
SCHEMA: Final = arrow_schema(NAMES)
SUFFIX: Final = ".parquet"

GROUP_ROWS: Final = 128 * 1024
GROUP_BYTES: Final = 32 * 1024 * 1024
"""A row group is closed at either: it is what a reader of few offsets must read at least."""
FILE_BYTES: Final = 128 * 1024 * 1024
READ_ROWS: Final = 64 * 1024

COUNTED: Final = ("key", "topic", "partition", "offset", "timestamp", "timestampType")
"""Columns whose least and greatest value are noted; those of values help nobody."""
REPEATING: Final = ("key", "topic", "partition", "timestampType", "headers.list.element.key")
RISING: Final = ("offset", "timestamp")


class FileDamaged(TidelogError):
    """An archived file is not what the table says; restore it from a copy, and trim nothing."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")


class WrittenFile(NamedTuple):
    """A file that a task has written, and that no snapshot names yet."""

    partition: int
    start: Offset
    end: Offset
    rows: int
    bytes: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """A file of the table. `first` and `last` are the offsets of its first and last row."""

    path: str
    partition: int
    first: Offset
    last: Offset
    first_us: int
    last_us: int
    """The least and the greatest time in it, in microseconds since 1970."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRange:
    """[start, end) of one partition, and the files that have it, in order."""

    storage: Storage
    topic: str
    partition: int
    start: Offset
    end: Offset
    paths: tuple[str, ...]
    counts: tuple[int | None, ...] = ()
    """Of each file its rows, if all of them are in the range; or none at all, if nobody knows."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end}) of the archive"


# Writing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a task puts its files."""

    storage: Storage
    directory: str
    tag: str
    """Of the round, and in the name of every file of it."""
    bytes_max: int = FILE_BYTES


def write_range(batches: Iterable[pa.RecordBatch], wanted: OffsetRange, to: Destination) -> list[WrittenFile]:
    """The rows of a range as one file, or as several once one is large; none without rows."""
    writer = _Writer(wanted, to)
    try:
        for batch in batches:
            writer.add(batch)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Writer:
    """The files of one range, one after another."""

    def __init__(self, wanted: OffsetRange, to: Destination) -> None:
        self._filesystem, self._directory = to.storage.find(to.directory)
        self._prefix = to.directory.removesuffix(self._directory)
        self._wanted = wanted
        self._to = to
        self._written: list[WrittenFile] = []
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0
        self._start = wanted.start
        self._last: Offset = wanted.start - 1
        self._rows = 0
        self._path = ""
        self._sink: Any = None
        self._parquet: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._last = _check_order(batch.column("offset"), self._last, str(self._wanted))
        assert self._last < self._wanted.end, "a range was read beyond its end"
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._flush()
            if self._sink.tell() >= self._to.bytes_max:
                self._close(self._last + 1)

    def finish(self) -> list[WrittenFile]:
        if self._group:
            self._flush()
        if self._parquet is not None:
            self._close(self._wanted.end)
        return self._written

    def abandon(self) -> None:
        """Remove what was begun; what stays anyhow is removed by `cleaning.py`."""
        if self._sink is not None:
            self._sink.close()
        begun = [self._prefix + self._path] if self._path else []
        self._to.storage.remove([*begun, *(file.path for file in self._written)])

    def _flush(self) -> None:
        if self._parquet is None:
            self._open()
        table = pa.Table.from_batches(self._group, SCHEMA)
        self._parquet.write_table(table, row_group_size=table.num_rows)
        self._rows += table.num_rows
        self._group = []
        self._group_rows = self._group_bytes = 0

    def _open(self) -> None:
        directory = f"{self._directory}/partition={self._wanted.partition}"
        self._filesystem.create_dir(directory, recursive=True)
        self._path = f"{directory}/{file_name(self._start, self._to.tag)}"
        self._sink = self._filesystem.open_output_stream(self._path)
        self._parquet = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            use_dictionary=list(REPEATING),
            column_encoding=dict.fromkeys(RISING, "DELTA_BINARY_PACKED"),
            write_statistics=list(COUNTED),
            write_page_checksum=True,
        )

    def _close(self, end: Offset) -> None:
        self._parquet.close()
        size = self._sink.tell()
        self._sink.close()
        if isinstance(self._filesystem, fs.LocalFileSystem):
            sync_file(self._path)
        path = self._prefix + self._path
        written = WrittenFile(self._wanted.partition, self._start, end, self._rows, size, path)
        self._check(written)
        self._written.append(written)
        self._start, self._rows, self._path = end, 0, ""
        self._sink = self._parquet = None

    def _check(self, written: WrittenFile) -> None:
        """Open the file as a reader will: it must have the rows that were put in."""
        with _open_file(written.path, self._to.storage) as file:
            rows, bounds = file.metadata.num_rows, _group_bounds(file.metadata)
        if rows != written.rows or bounds[0][0] < written.start or bounds[-1][1] != self._last:
            raise FileDamaged(written.path, f"{written.rows} rows were written, {rows} are there")


def file_name(start: Offset, tag: str) -> str:
    return f"{start:020d}-{tag}-{uuid.uuid4().hex}{SUFFIX}"


def tag_of(path: str) -> str | None:
    """The tag in a file's name; None if the name is not one of ours."""
    parts = path.rpartition("/")[2].removesuffix(SUFFIX).split("-")
    return parts[1] if len(parts) == 3 and parts[0].isdigit() and len(parts[2]) == 32 else None


def _check_order(offsets: pa.Array, after: Offset, what: str) -> Offset:
    """The last of some offsets, which must rise from `after` on."""
    numbers = offsets.to_numpy()
    if numbers[0] <= after or (numbers[1:] <= numbers[:-1]).any():
        raise FileDamaged(what, f"its offsets do not rise after {after}")
    return int(numbers[-1])


# Reading.


def read_archived(wanted: ArchivedRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in the order of their offsets; row groups outside of it stay unread."""
    schema = arrow_schema(columns)
    needed = list(dict.fromkeys([*columns, "offset"]))
    last = wanted.start - 1
    for path, count in zip_longest(wanted.paths, wanted.counts):
        rows = 0
        with _blaming(path):
            for batch in _read_file(path, wanted, needed):
                last = _check_order(batch.column("offset"), last, path)
                rows += batch.num_rows
                arrays = [batch.column(name) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        if count is not None and rows != count:
            raise FileDamaged(path, f"it has {rows} rows, not {count} as the table says")


def _read_file(path: str, wanted: ArchivedRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with _open_file(path, wanted.storage) as file:
        groups = [
            number
            for number, (first, last) in enumerate(_group_bounds(file.metadata))
            if first < wanted.end and last >= wanted.start
        ]
        for batch in file.iter_batches(READ_ROWS, row_groups=groups, columns=columns):
            offsets = batch.column("offset")
            inside = pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end))
            kept = batch if pc.all(inside).as_py() else batch.filter(inside)
            if kept.num_rows:
                yield kept


@contextmanager
def _blaming(path: str) -> Iterator[None]:
    """Say whatever goes wrong with a file as damage: a footer has no checksum, so all may."""
    try:
        yield
    except FileDamaged:
        raise
    except Exception as error:
        raise FileDamaged(path, str(error) or type(error).__name__) from error


def _open_file(path: str, storage: Storage) -> pq.ParquetFile:
    filesystem, at = storage.find(path)
    return pq.ParquetFile(filesystem.open_input_file(at), page_checksum_verification=True, pre_buffer=True)


def _group_bounds(metadata: Any) -> list[tuple[Offset, Offset]]:
    """The first and last offset of every row group, by its statistics."""
    names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    column = names.index("offset")
    statistics = [
        metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)
    ]
    return [(one.min, one.max) for one in statistics]


def verify_file(file: ArchivedFile, storage: Storage) -> None:
    """Read all of a file: FileDamaged unless it holds what the table says."""
    rows, last = 0, file.first - 1
    with _blaming(file.path), _open_file(file.path, storage) as opened:
        if not opened.schema_arrow.equals(SCHEMA):
            raise FileDamaged(file.path, "its columns are not those of an archive")
        for group, bounds in enumerate(_group_bounds(opened.metadata)):
            firsts = []
            for batch in opened.iter_batches(READ_ROWS, row_groups=[group]):
                firsts.append(batch.column("offset")[0].as_py())
                last = _check_order(batch.column("offset"), last, file.path)
                if pc.any(pc.not_equal(batch.column("partition"), file.partition)).as_py():
                    raise FileDamaged(file.path, f"it has rows of others than {file.partition}")
                rows += batch.num_rows
            if (*firsts[:1], last) != bounds:
                # Readers pass over row groups on the footer's word.
                raise FileDamaged(file.path, f"row group {group} has not the offsets that the footer says")
    if (rows, last) != (file.rows, file.last):
        raise FileDamaged(
            file.path, f"it has {rows} rows up to offset {last}, not {file.rows} up to {file.last}"
        )
