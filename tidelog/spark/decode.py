"""Fetched batches in, Arrow columns out: the work of a consumer, by the column.

Rule 1: no loop here runs over records. The records of all batches are found and read together;
        keys and values are copied once, by Arrow.
Rule 2: only what is wanted is read, but what is read stays inside of its record: each length is
        compared with what is left before it is used.
Rule 3: what is wrong with a batch is said with topic, partition and base offset: CorruptMessage.
Rule 4: a record without headers has null for them, as in Spark's Kafka source. Header keys that
        are not UTF-8 are shown with replacement characters, as every reader of ours does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptMessage
from tidelog.model import Offset
from tidelog.records import LOG_APPEND_TIME
from tidelog.spark.boundaries import BrokenBatch, record_starts
from tidelog.spark.columns import ARROW, arrow_schema
from tidelog.spark.gathering import gather
from tidelog.spark.unpacking import Flags, Unpacked, unpack
from tidelog.spark.varints import Numbers, Octets, read_varint, read_varints

HEADERS_MAX: Final = 8 * 1024 * 1024
"""Of all records that are decoded at once: a header may take but two bytes in its batch."""

_TIME_MS_MAX: Final = (2**63 - 1) // 1000
"""The last time that Spark's microseconds can say, and as long before 1970 the first."""
_ATTRIBUTES_BYTES: Final = 1
_TOO_LONG: Final = "a field is longer than its record"
_TOGETHER_MIN: Final = 24
"""Fewer records than this are read sooner one by one than by a step of numpy."""


class Decoded(NamedTuple):
    """Rows, and how far they go."""

    batch: pa.RecordBatch
    next_offset: Offset
    """Where to read on: behind the last batch that was looked at."""


def decode(
    records: bytes | memoryview,
    *,
    topic: str,
    partition: int,
    start: Offset,
    end: Offset,
    aborted: Sequence[tuple[int, Offset]],
    wanted: Sequence[str],
) -> Decoded:
    """The rows of a Fetch answer whose offsets are from `start` to below `end`.

    `records` are whole batches; a last one may be cut off, and is left to the next fetch.
    `aborted` are the (producer id, first offset) that came with them, where only committed
    records shall be seen. A time that Spark cannot say becomes the nearest that it can.
    """
    where = f"{topic}-{partition}"
    batches = unpack(bytes(records), where, start=start, end=end, aborted=aborted)
    try:
        columns = _columns(batches, start, end, frozenset(wanted))
    except BrokenBatch as broken:
        base = batches.headers["base_offset"][broken.index]
        raise CorruptMessage(f"{where} at offset {base}: {broken}") from None
    rows = len(columns["offset"])
    columns["topic"] = pa.repeat(pa.scalar(topic, ARROW["topic"]), rows)
    columns["partition"] = pa.repeat(pa.scalar(partition, ARROW["partition"]), rows)
    schema = arrow_schema(tuple(wanted))
    batch = pa.RecordBatch.from_arrays([columns[name] for name in wanted], schema=schema)
    return Decoded(batch, batches.next_offset)


def _columns(batches: Unpacked, start: Offset, end: Offset, wanted: frozenset[str]) -> dict[str, pa.Array]:
    """The columns that records say: `offset`, and those that are wanted. Raises BrokenBatch."""
    counts = batches.column("record_count")
    starts = record_starts(batches.pool, batches.begins, batches.ends, counts.tolist())
    view = np.frombuffer(batches.pool, np.uint8)
    size, begin = read_varints(view, starts)
    rows = _Rows(
        view=view,
        batch=np.repeat(np.arange(len(counts)), counts),
        at=begin + _ATTRIBUTES_BYTES,
        end=begin + size,
    )
    time_delta, offset_delta = rows.number(), rows.number()
    rows.expect(rows.at <= rows.end, _TOO_LONG)
    within = (offset_delta >= 0) & (offset_delta <= batches.column("last_offset_delta")[rows.batch])
    rows.expect(within, "an offset lies outside of the batch")
    offset = batches.column("base_offset")[rows.batch] + offset_delta
    kept = (offset >= start) & (offset < end)
    if not kept.all():
        rows.keep(kept)
        offset, time_delta = offset[kept], time_delta[kept]

    columns = {"offset": _numbers("offset", offset)}
    is_append = batches.column("attributes") & LOG_APPEND_TIME != 0
    if "timestamp" in wanted:
        time_ms = _times(batches, rows, time_delta, is_append)
        columns["timestamp"] = _numbers("timestamp", time_ms * 1000)
    if "timestampType" in wanted:
        columns["timestampType"] = _numbers("timestampType", is_append[rows.batch].astype(np.int32))
    if wanted.isdisjoint(("key", "value", "headers")):
        return columns
    pool = pa.py_buffer(batches.pool)
    key = rows.field()
    if "key" in wanted:
        columns["key"] = _binary(pool, *key)
    if wanted.isdisjoint(("value", "headers")):
        return columns
    value = rows.field()
    if "value" in wanted:
        columns["value"] = _binary(pool, *value)
    if "headers" in wanted:
        columns["headers"] = _headers(pool, rows)
    return columns


@dataclass(slots=True, kw_only=True)
class _Rows:
    """Records side by side, read from the front."""

    view: Octets
    batch: Numbers
    """Of each record, the number of its batch."""
    at: Numbers
    """Where each is read on."""
    end: Numbers
    """Where each ends."""

    def number(self) -> Numbers:
        value, self.at = read_varints(self.view, self.at)
        return value

    def field(self) -> tuple[Numbers, Numbers]:
        """Where bytes lie that may be null, and how many there are: below zero, they are null."""
        size = self.number()
        at, taken = self.at, np.maximum(size, 0)
        self.expect(taken <= self.end - at, _TOO_LONG)
        self.at = at + taken
        return at, size

    def keep(self, kept: Flags) -> None:
        self.batch, self.at, self.end = self.batch[kept], self.at[kept], self.end[kept]

    def expect(self, good: Flags, what: str) -> None:
        if not good.all():
            raise BrokenBatch(int(self.batch[np.argmin(good)]), what)


def _times(batches: Unpacked, rows: _Rows, delta: Numbers, is_append: Flags) -> Numbers:
    """The time of each record, in milliseconds."""
    base = batches.column("base_timestamp")[rows.batch]
    time_ms = base + delta
    # A sum of 64 bits that went too far has a sign that neither of its parts has.
    rows.expect((base ^ time_ms) & (delta ^ time_ms) >= 0, "a time lies outside of 64 bits")
    if is_append.any():
        append_ms = batches.column("max_timestamp")[rows.batch]
        time_ms = np.where(is_append[rows.batch], append_ms, time_ms)
    clipped: Numbers = np.clip(time_ms, -_TIME_MS_MAX, _TIME_MS_MAX)
    return clipped


def _numbers(name: str, values: np.ndarray[tuple[int], np.dtype[np.signedinteger]]) -> pa.Array:
    """A column of numbers, not copied."""
    return pa.Array.from_buffers(ARROW[name], len(values), [None, pa.py_buffer(values)])


def _binary(pool: pa.Buffer, at: Numbers, size: Numbers) -> pa.Array:
    """A binary column of pieces of the pool; a negative size is null."""
    is_null = size < 0
    if is_null.all():
        return pa.nulls(len(at), pa.binary())
    taken = gather(pool, at, np.maximum(size, 0))
    if not is_null.any():
        return taken
    _, offsets, body = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), len(at), [_bits(~is_null), offsets, body])


def _bits(flags: Flags) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


# Headers.


def _headers(pool: pa.Buffer, rows: _Rows) -> pa.Array:
    """The column of headers; `rows` are read up to the count of them."""
    counts = rows.number()
    left = rows.end - rows.at
    rows.expect((counts >= 0) & (counts <= left // 2), "it cannot hold so many headers")
    rows.expect(np.cumsum(counts) <= HEADERS_MAX, f"with it, there are over {HEADERS_MAX} headers")
    edges = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=edges[1:])
    fields = _header_fields(rows, counts, edges)
    rows.expect(rows.at == rows.end, "a record's length does not fit its fields")

    key_at, key_size, value_at, value_size = fields
    keys = _text(_binary(pool, key_at, np.maximum(key_size, 0)))
    pair = ARROW["headers"].value_type
    pairs = pa.StructArray.from_arrays(
        [keys, _binary(pool, value_at, value_size)], fields=[pair.field(0), pair.field(1)]
    )
    return pa.Array.from_buffers(
        ARROW["headers"],
        len(counts),
        [_bits(counts > 0), pa.py_buffer(edges.astype(np.int32))],
        children=[pairs],
    )


def _header_fields(rows: _Rows, counts: Numbers, edges: Numbers) -> Numbers:
    """Where keys lie, their sizes, where values lie, theirs: four rows, a column for each header.

    In each turn, the next header of all records that still have one. When few have, each of them
    is read to its end, or a single record of very many headers would take as many turns.
    """
    fields = np.zeros((4, int(edges[-1])), np.int64)
    turn, busy = 0, np.flatnonzero(counts)
    while len(busy) >= _TOGETHER_MIN:
        some = _Rows(view=rows.view, batch=rows.batch[busy], at=rows.at[busy], end=rows.end[busy])
        fields[:, edges[busy] + turn] = *some.field(), *some.field()
        rows.at[busy] = some.at
        turn += 1
        busy = busy[counts[busy] > turn]
    for row in busy.tolist():
        begin, end = int(rows.at[row]), int(rows.end[row])
        record, at = rows.view[begin:end].tobytes(), 0
        spans: list[int] = []
        for _ in range(2 * (int(counts[row]) - turn)):
            size, at = _scan_size(record, at, int(rows.batch[row]))
            spans += begin + at, size
            at += max(size, 0)
        fields[:, edges[row] + turn : edges[row + 1]] = np.reshape(spans, (-1, 4)).T
        rows.at[row] = begin + at
    return fields


def _scan_size(record: bytes, at: int, batch: int) -> tuple[int, int]:
    """The size of the field at `at`, and where its bytes begin."""
    try:
        size, at = read_varint(record, at)
    except IndexError:
        raise BrokenBatch(batch, _TOO_LONG) from None
    if size > len(record) - at:
        raise BrokenBatch(batch, _TOO_LONG)
    return size, at


def _text(keys: pa.Array) -> pa.Array:
    """As strings; what is not UTF-8 in them is replaced."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
