"""The table of a topic: which files it has, and which offsets they are of.

Rule 1: what was archived of every partition stands in the snapshot that added it, and is decided
        with it; see `claims.py`. A snapshot of somebody else's (who has put small files together,
        say) has none; then that of its parent holds.
Rule 2: a commit goes onto the snapshot it was planned on, or fails with `Outpaced`. pyiceberg would
        try again on a newer one, and so archive twice; the table's properties forbid it.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from tidelog.errors import TidelogError
from tidelog.model import Epoch, Offset
from tidelog.spark.archive.claims import Claim, read_claim
from tidelog.spark.archive.files import (
    FILE_BYTES,
    ArchivedFile,
    ArchivedRange,
    Destination,
    WrittenFile,
    read_archived,
)
from tidelog.spark.archive.spans import Spans
from tidelog.spark.archive.storage import Storage
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.tables.commits import tried_once

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

TOPIC: Final = "tidelog.topic"
TOPIC_ID: Final = "tidelog.topic-id"
ROUND: Final = "tidelog.round"
RETRIES: Final = "commit.retry.num-retries"
NO_SNAPSHOT: Final = "0"
NO_EPOCHS: Final[Mapping[int, Epoch]] = {}

SHORT_METADATA: Final = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""For any table with many commits: what is written about it does not grow without end."""
PROPERTIES: Final = {
    RETRIES: "0",
    **SHORT_METADATA,
    # Of these no file has the least and greatest value.
    "write.metadata.metrics.column.value": "none",
    "write.metadata.metrics.column.headers.element.key": "none",
    "write.metadata.metrics.column.headers.element.value": "none",
}

PARTITION_ID: Final = 4
OFFSET_ID: Final = 5
TIMESTAMP_ID: Final = 6
SCHEMA: Final = Schema(
    NestedField(1, "key", BinaryType(), required=False),
    NestedField(2, "value", BinaryType(), required=False),
    NestedField(3, "topic", StringType(), required=False),
    NestedField(PARTITION_ID, "partition", IntegerType(), required=False),
    NestedField(OFFSET_ID, "offset", LongType(), required=False),
    NestedField(TIMESTAMP_ID, "timestamp", TimestamptzType(), required=False),
    NestedField(7, "timestampType", IntegerType(), required=False),
    NestedField(
        8,
        "headers",
        ListType(
            element_id=9,
            element=StructType(
                NestedField(10, "key", StringType(), required=False),
                NestedField(11, "value", BinaryType(), required=False),
            ),
            element_required=False,
        ),
        required=False,
    ),
)
BY_PARTITION: Final = PartitionSpec(
    PartitionField(source_id=PARTITION_ID, field_id=1000, transform=IdentityTransform(), name="partition")
)


class ArchiveError(TidelogError):
    """The archive cannot do what was asked; the message says what to change."""


class NotArchived(ArchiveError):
    """There is no archive of the topic; archive it first, or look for it elsewhere."""


class Outpaced(ArchiveError):
    """Somebody else has archived the same meanwhile; plan again on what there is now."""


class OtherTopic(ArchiveError):
    """The archive is of a topic that had the same name and was deleted."""


class TopicTable:
    """What is archived of one topic, as one snapshot has it.

    A commit makes a new one; this one stays what it was.
    """

    def __init__(self, table: "Table") -> None:
        properties = table.properties
        if TOPIC_ID not in properties:
            raise ArchiveError(
                f"table {'.'.join(table.name())} was not made by `tidelog archive`; name another "
                "warehouse or catalog"
            )
        if properties.get(RETRIES) != PROPERTIES[RETRIES]:
            raise ArchiveError(
                f"table {'.'.join(table.name())} must have {RETRIES}=0, or records may be archived "
                "twice; set it back"
            )
        self.table = table
        self.topic = properties[TOPIC]
        self.topic_id = uuid.UUID(properties[TOPIC_ID])
        self.storage = Storage.of(table.io.properties)
        self.claim = _claim(table)

    def __repr__(self) -> str:
        return f"TopicTable({self.topic!r}, snapshot={self.tag})"

    @property
    def spans(self) -> Spans:
        return self.claim.spans

    @property
    def name(self) -> str:
        return self.table.name()[-1]

    @property
    def location(self) -> str:
        return self.table.location()

    @property
    def tag(self) -> str:
        """Names the snapshot that the next commit goes onto."""
        snapshot = self.table.metadata.current_snapshot_id
        return NO_SNAPSHOT if snapshot is None else str(snapshot)

    @property
    def committed_at_ms(self) -> int | None:
        snapshot = self.table.current_snapshot()
        return None if snapshot is None else snapshot.timestamp_ms

    @property
    def totals(self) -> tuple[int, int, int]:
        """Rows, bytes and files of all partitions."""
        snapshot = self.table.current_snapshot()
        summary: Any = {} if snapshot is None or snapshot.summary is None else snapshot.summary
        names = ("total-records", "total-files-size", "total-data-files")
        rows, size, files = (int(summary[name] or 0) if summary else 0 for name in names)
        return rows, size, files

    @property
    def directory(self) -> str:
        """Where its files are. No other table's are there, even under the same name."""
        return f"{self.location.rstrip('/')}/data/{self.table.metadata.table_uuid}"

    def destination(self, bytes_max: int) -> Destination:
        return Destination(storage=self.storage, directory=self.directory, tag=self.tag, bytes_max=bytes_max)

    def check_topic(self, topic_id: uuid.UUID | None) -> None:
        """OtherTopic, unless the table is of that very topic."""
        if topic_id is not None and topic_id != self.topic_id:
            raise OtherTopic(
                f"the archive of {self.topic!r} is of a topic with the id {self.topic_id}; the one "
                f"in the cluster has {topic_id}: it was deleted and made anew, and its offsets are "
                "others. Archive it with --new-table, which keeps the old one under another name"
            )

    def files(self, wanted: Sequence[OffsetRange] | None = None) -> list[ArchivedFile]:
        """The files of the table, or of some ranges; by partition, then by offset."""
        scan = self.table.scan()
        if wanted is not None:
            start = min((one.start for one in wanted), default=0)
            end = max((one.end for one in wanted), default=0)
            scan = scan.filter(f"offset >= {start} and offset < {end}")
        found = []
        for task in scan.plan_files():
            if task.delete_files:
                raise ArchiveError(
                    f"{task.file.file_path} has delete files: another engine deleted rows of table "
                    f"{self.name}, which is not read here; rewrite the table's data files there"
                )
            found.append(_archived_file(task.file))
        found.sort(key=lambda file: (file.partition, file.first))
        for before, file in pairwise(found):
            if before.partition == file.partition and before.last >= file.first:
                raise ArchiveError(
                    f"{before.path} and {file.path} overlap; was the table rewritten without order?"
                )
        if wanted is None:
            return found
        return [file for file in found if any(_has(file, one) for one in wanted)]

    def ranges(self, wanted: Sequence[OffsetRange], *, bytes_max: int = FILE_BYTES) -> list[ArchivedRange]:
        """Ranges with the files that have them, cut where files end so that a task is not long."""
        files = self.files(wanted)
        return [
            ArchivedRange(
                storage=self.storage,
                topic=self.topic,
                partition=one.partition,
                start=start,
                end=end,
                paths=tuple(file.path for file in some),
                counts=tuple(file.rows if start <= file.first and file.last < end else None for file in some),
            )
            for one in wanted
            for start, end, some in _cut(files, one, bytes_max)
        ]

    def first_at(self, wanted: OffsetRange, time_us: int) -> Offset | None:
        """The first offset of a range whose time is not before the given one; None without one."""
        for file in self.files([wanted]):
            if file.last_us < time_us:
                continue
            inside = ArchivedRange(
                storage=self.storage,
                topic=self.topic,
                partition=file.partition,
                start=wanted.start,
                end=wanted.end,
                paths=(file.path,),
            )
            for batch in read_archived(inside, ("offset", "timestamp")):
                times = batch.column("timestamp").cast(pa.int64()).to_numpy()
                late = (times >= time_us).nonzero()[0]
                if len(late):
                    return int(batch.column("offset")[int(late[0])].as_py())
        return None

    def miscounted(self) -> list[str]:
        """Which partitions have other rows than were archived."""
        return self.claim.miscounted(self.files())

    def commit(
        self,
        files: Sequence[WrittenFile],
        moved: Iterable[OffsetRange],
        epochs: Mapping[int, Epoch] = NO_EPOCHS,
    ) -> "TopicTable":
        """Add files and what is archived with them, at once; the table that results.

        Outpaced, if the table has moved on since this was loaded: then nothing was added.
        """
        table, round_id = self.table, uuid.uuid4().hex
        claim = self.claim.after(moved, files, epochs)
        properties = {**claim.as_properties(), ROUND: round_id}
        try:
            with tried_once(table).transaction() as transaction:
                transaction.add_files(
                    [file.path for file in files], snapshot_properties=properties, check_duplicate_files=False
                )
        except Exception as error:
            # Whether a catalog that did not answer has decided, only the table can tell. And who
            # was faster may have removed these files, which nobody could commit any more.
            found = self.reload()
            if found.has_round(round_id):
                return found
            if isinstance(error, CommitFailedException) or found.tag != self.tag:
                raise Outpaced(
                    f"somebody else archives {self.topic!r} into the same table: {error}"
                ) from error
            raise
        return TopicTable(table)

    def reload(self) -> "TopicTable":
        """The table as it is now."""
        return TopicTable(self.table.catalog.load_table(self.table.name()))

    def has_round(self, round_id: str) -> bool:
        return any(_property(one, ROUND) == round_id for one in self.table.metadata.snapshots)


def _has(file: ArchivedFile, wanted: OffsetRange) -> bool:
    """Whether a file may have rows of a range."""
    is_inside = file.first < wanted.end and file.last >= wanted.start
    return is_inside and file.partition == wanted.partition


def _cut(
    files: Sequence[ArchivedFile], wanted: OffsetRange, bytes_max: int
) -> Iterator[tuple[Offset, Offset, list[ArchivedFile]]]:
    """[start, end) and its files: together all of the range that has any."""
    some: list[ArchivedFile] = []
    start = wanted.start
    for file in (file for file in files if _has(file, wanted)):
        if some and sum(one.bytes for one in [*some, file]) > bytes_max:
            yield start, file.first, some
            start, some = file.first, []
        some.append(file)
    if some:
        yield start, wanted.end, some


def _property(snapshot: "Snapshot", name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary[name]


def _claim(table: "Table") -> Claim:
    """What is archived, by the newest snapshot that says so."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        claim = read_claim(partial(_property, snapshot))
        if claim is not None:
            return claim
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
        if snapshot is None:
            raise ArchiveError(
                f"no snapshot of table {'.'.join(table.name())} tells what is archived; those that "
                "did were expired. Archive into another warehouse"
            )
    return Claim()


def _archived_file(file: Any) -> ArchivedFile:
    def bound(bounds: Mapping[int, bytes] | None, field: int, kind: Any) -> int:
        if bounds is None or field not in bounds:
            raise ArchiveError(
                f"the table has no bounds of the offsets in {file.file_path}; rewrite that file"
            )
        return int(from_bytes(kind, bounds[field]))

    return ArchivedFile(
        path=file.file_path,
        partition=int(file.partition[0]),
        first=bound(file.lower_bounds, OFFSET_ID, LongType()),
        last=bound(file.upper_bounds, OFFSET_ID, LongType()),
        first_us=bound(file.lower_bounds, TIMESTAMP_ID, TimestamptzType()),
        last_us=bound(file.upper_bounds, TIMESTAMP_ID, TimestamptzType()),
        rows=file.record_count,
        bytes=file.file_size_in_bytes,
    )
