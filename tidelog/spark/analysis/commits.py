"""What groups have committed, and when, from `__consumer_offsets`.

Rule 1: no loop runs over commits. Of each, eight bytes are read; its key names group, topic and
        partition, and is read once for all of its commits.
Rule 2: compaction keeps the newest commit of each key only: how far back history goes is a matter
        of luck, and of how seldom the topic is cleaned.
"""

# The formats are in `tidelog.groups.records`: a commit's key begins with version 0 or 1, its value
# with a version, int16, and the offset, int64.

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import CorruptMessage
from tidelog.groups.records import OffsetWritten, decode
from tidelog.model import Offset, TopicPartition
from tidelog.records import Record
from tidelog.spark.analysis.measure import MEASURES, Kind, Numbers, rows_of

VERSION_BYTES: Final = 2
OFFSET_BYTES: Final = 8
VERSIONS: Final = pa.array([b"\0\0", b"\0\1"], pa.binary())


class Commit(NamedTuple):
    """How far a group was in a partition, at the end of a second or of a longer time."""

    group: str
    place: TopicPartition
    at: int
    offset: Offset


def measure_commits(rows: pa.RecordBatch, topic: str, partition: int) -> pa.Table:
    """A measure of commits: the last of each key in each second. `rows` are in order."""
    value_bytes = pc.fill_null(pc.binary_length(rows.column("value")), 0)
    is_commit = pc.and_(
        pc.is_in(pc.binary_slice(rows.column("key"), 0, VERSION_BYTES), VERSIONS),
        pc.greater_equal(value_bytes, VERSION_BYTES + OFFSET_BYTES),
    )
    shown = rows.filter(is_commit)
    if not shown.num_rows:
        return MEASURES.empty_table()
    seconds = shown.column("timestamp").cast(pa.int64()).to_numpy() // 1_000_000
    found = pa.table(
        {
            "place": pa.array(seconds),
            "key": shown.column("key"),
            "end": pa.array(_offsets(shown.column("value"))),
        }
    )
    last = found.group_by(["place", "key"], use_threads=False).aggregate([("end", "last")])
    columns = {"place": last["place"], "key": last["key"], "end": last["end_last"]}
    return rows_of(Kind.COMMIT, topic, partition, last.num_rows, columns)


def read_key(key: bytes) -> tuple[str, TopicPartition] | None:
    """The group and the partition that a commit's key names; None if it makes no sense."""
    try:
        written = decode(Record(key=key))
    except CorruptMessage:
        return None
    return (written.group_id, written.place) if isinstance(written, OffsetWritten) else None


def _offsets(values: pa.Array) -> Numbers:
    heads = pc.binary_slice(values, VERSION_BYTES, VERSION_BYTES + OFFSET_BYTES)
    fixed = heads.cast(pa.binary(OFFSET_BYTES))
    numbers = np.frombuffer(fixed.buffers()[1], ">i8")[fixed.offset : fixed.offset + len(fixed)]
    return numbers.astype(np.int64)
