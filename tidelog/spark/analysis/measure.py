"""One range of offsets, measured by the column: sums that can be added to those of other ranges.

Rule 1: no loop here runs over records.
Rule 2: a batch counts where it begins, a record where it lies; so ranges may be cut anywhere, and
        nothing counts twice.
Rule 3: times are kept by the second, sizes by their power of two.
"""

# A measure is a table of rows of several kinds; what a row has beside its kind:
#
#     record   place: second             records, payload
#     batch    place: second, what: codec    batches, records, stored, payload, end
#     size     place: power of two, what     records: how many, payload: their sum
#     key      key                       records
#     keys     -                         records: those without a key, payload: what was lowered
#     commit   place: second, key: the key in `__consumer_offsets`    end: the offset
#
# payload: bytes of keys and values. stored: bytes of whole batches, as they lie in the log.
# end: the offset after the last record.

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.records import BatchHeader
from tidelog.spark.analysis.heavy import HeavyKeys
from tidelog.spark.ranges import OffsetRange

WANTED: Final = ("offset", "timestamp", "key", "value")
"""The columns that are measured."""

MEASURES: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("place", pa.int64()),
        ("what", pa.string()),
        ("key", pa.binary()),
        ("records", pa.int64()),
        ("batches", pa.int64()),
        ("stored", pa.int64()),
        ("payload", pa.int64()),
        ("end", pa.int64()),
    ]
)
SPARK: Final = (
    "kind string, topic string, partition int, place bigint, what string, key binary, "
    "records bigint, batches bigint, stored bigint, payload bigint, end bigint"
)
SETTLE_ROWS: Final = 100_000

Numbers = npt.NDArray[np.int64]


class Kind(StrEnum):
    RECORD = "record"
    BATCH = "batch"
    SIZE = "size"
    KEY = "key"
    KEYS = "keys"
    COMMIT = "commit"


class Size(StrEnum):
    """What has a size."""

    RECORD = "record bytes"
    KEY = "key bytes"
    VALUE = "value bytes"
    BATCH = "batch bytes"
    BATCH_RECORDS = "records in a batch"


class Measure:
    """Sums over some ranges of one partition. Owned by one task."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._keys = HeavyKeys()
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.RecordBatch, headers: Sequence[BatchHeader], within: OffsetRange) -> None:
        """Take the records of `within`, as decoded, and the headers of all of their batches."""
        key, value = rows.column("key"), rows.column("value")
        key_bytes, value_bytes = _lengths(key), _lengths(value)
        payload = key_bytes + value_bytes
        seconds = rows.column("timestamp").cast(pa.int64()).to_numpy() // 1_000_000
        self._keys.add(key)
        self._keep(Kind.RECORD, place=seconds, records=np.ones_like(payload), payload=payload)
        self._sizes(Size.RECORD, payload)
        self._sizes(Size.KEY, key_bytes[np.asarray(key.is_valid())])
        self._sizes(Size.VALUE, value_bytes[np.asarray(value.is_valid())])
        self._batches(headers, rows.column("offset").to_numpy(), payload, within)
        if self._rows > SETTLE_ROWS:
            self._settle()

    def table(self) -> pa.Table:
        """All sums so far."""
        counted = self._keys.counts()
        self._put(Kind.KEY, counted.num_rows, key=counted["key"], records=counted["count"])
        self._put(Kind.KEYS, 1, records=pa.array([self._keys.nulls]), payload=pa.array([self._keys.lowered]))
        self._settle()
        return self._parts[0]

    def _batches(
        self, headers: Sequence[BatchHeader], offsets: Numbers, payload: Numbers, within: OffsetRange
    ) -> None:
        shown = [header for header in headers if header.base_offset < within.end]
        if not shown:
            return
        base = np.array([header.base_offset for header in shown], np.int64)
        of_record = np.maximum(np.searchsorted(base, offsets, side="right") - 1, 0)
        of_batch = np.bincount(of_record, payload, len(base)).astype(np.int64)
        records = np.bincount(of_record, minlength=len(base)).astype(np.int64)
        begins = base >= within.start
        stored = np.array([header.size for header in shown], np.int64)
        last = np.array([header.next_offset for header in shown], np.int64)
        seconds = np.array([header.max_timestamp // 1000 for header in shown], np.int64)
        codecs = pa.array([header.codec.name.lower() for header in shown], pa.string())
        self._keep(
            Kind.BATCH,
            place=seconds,
            what=codecs,
            records=records,
            payload=of_batch,
            batches=begins.astype(np.int64),
            stored=np.where(begins, stored, 0),
            end=np.minimum(last, within.end),
        )
        self._sizes(Size.BATCH, stored[begins])
        counts = np.array([header.record_count for header in shown], np.int64)
        self._sizes(Size.BATCH_RECORDS, counts[begins])

    def _sizes(self, what: Size, sizes: Numbers) -> None:
        powers = powers_of_two(sizes)
        counts = np.bincount(powers)
        sums = np.bincount(powers, sizes)
        places = np.flatnonzero(counts)
        self._put(
            Kind.SIZE,
            len(places),
            place=pa.array(places),
            what=_repeat(what, len(places)),
            records=pa.array(counts[places]),
            payload=pa.array(sums[places].astype(np.int64)),
        )

    def _keep(self, kind: Kind, **columns: "pa.Array | Numbers") -> None:
        rows = len(next(iter(columns.values())))
        self._put(kind, rows, **{name: pa.array(values) for name, values in columns.items()})

    def _put(self, kind: Kind, rows: int, **columns: pa.Array) -> None:
        if rows:
            self._parts.append(rows_of(kind, self._topic, self._partition, rows, columns))
            self._rows += rows

    def _settle(self) -> None:
        """Add up what can be."""
        parts = self._parts or [MEASURES.empty_table()]
        self._parts = [add_up(pa.concat_tables(parts))]
        self._rows = self._parts[0].num_rows


def rows_of(kind: Kind, topic: str, partition: int, rows: int, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Rows of one kind; whatever is not among `columns` is null."""
    given = {
        "kind": _repeat(kind, rows),
        "topic": _repeat(topic, rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
        **columns,
    }
    arrays = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(rows, field.type)
        for field in MEASURES
    ]
    return pa.table(arrays, schema=MEASURES)


def add_up(table: pa.Table) -> pa.Table:
    """The same measure in as few rows as can be."""
    by = ["kind", "topic", "partition", "place", "what", "key"]
    sums = ["records", "batches", "stored", "payload"]
    summed = table.group_by(by).aggregate([*((name, "sum") for name in sums), ("end", "max")])
    names = {f"{name}_sum": name for name in sums} | {"end_max": "end"}
    renamed = summed.rename_columns([names.get(name, name) for name in summed.column_names])
    return renamed.select(MEASURES.names).cast(MEASURES)


def powers_of_two(sizes: Numbers) -> Numbers:
    """Of each size the least n with size < 2**n: 0 for 0, 1 for 1, 2 for 2 and 3."""
    return np.frexp(sizes.astype(np.float64))[1].astype(np.int64)


def _lengths(values: pa.Array) -> Numbers:
    lengths: Numbers = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _repeat(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(str(text), pa.string()), rows)
