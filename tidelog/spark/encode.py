"""Arrow columns in, record batches out: the work of a producer, by the column.

A record is lengths and bytes in turn. Lengths that lie side by side are put together by numpy, as
numbers; then Arrow joins them with keys, values and headers, row by row, and what it makes is the
body of the batch.

Rule 1: no loop here runs over rows or headers.
Rule 2: what is cut here fits into its batch, whatever the times and the codec are.
Rule 3: a row that cannot become a record is refused, and the message says why.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import TidelogError
from tidelog.records import HEADER_BYTES, TRANSACTIONAL, Codec, compress, seal_batch
from tidelog.spark.gathering import gather
from tidelog.spark.varints import Numbers, Words, write_varints

# The grammar of a record is in `tidelog.records`.
RECORD_BYTES_MAX: Final = 5 + 1 + 8 + 5 + 5 + 5 + 5
"""Of a record without key, value and headers: length, attributes, time, offset, and three sizes."""
HEADER_SIZES_BYTES_MAX: Final = 5 + 5

_WORD_BYTES: Final = 8
_EMPTY: Final = pa.scalar(b"", pa.binary())


class CannotEncode(TidelogError):
    """A row that cannot become a record; the message says what is wrong with it."""


def cut(key: pa.Array, value: pa.Array, headers: pa.Array | None = None, *, bytes_max: int) -> list[slice]:
    """Rows in parts, each of which makes a batch of at most `bytes_max` before it is compressed."""
    sizes = RECORD_BYTES_MAX + np.maximum(_sizes(key), 0) + np.maximum(_sizes(value), 0)
    if headers is not None:
        counts, names, values = _headers(headers)
        each = HEADER_SIZES_BYTES_MAX + _sizes(names) + np.maximum(_sizes(values), 0)
        sizes += _sums(each, counts)
    room = bytes_max - HEADER_BYTES
    if len(sizes) and int(sizes.max()) > room:
        row = int(sizes.argmax())
        raise CannotEncode(
            f"row {row} takes {HEADER_BYTES + int(sizes[row])} bytes as a record, and at most "
            f"{bytes_max} are sent at once: make it smaller, or raise kafka.max.request.size "
            "(and the topic's max.message.bytes)"
        )
    ends = np.cumsum(sizes)
    parts: list[slice] = []
    start, sent = 0, 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, sent + room, "right"))
        parts.append(slice(start, stop))
        start, sent = stop, int(ends[stop - 1])
    return parts


def encode(
    key: pa.Array,
    value: pa.Array,
    *,
    headers: pa.Array | None = None,
    timestamps: pa.Array | None = None,
    now_ms: int | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
) -> bytearray:
    """One batch of all rows, of which there is at least one.

    Keys and values are strings or binary. A row whose time is null, or all if there are none, is
    of `now_ms`, which is the clock's if it is not given.
    """
    rows = len(value)
    assert rows == len(key) > 0, "a batch holds at least one record"
    if now_ms is None:
        now_ms = time.time_ns() // 1_000_000
    times = _times_ms(timestamps, now_ms, rows)
    payload = _body(_as_binary(key), _as_binary(value), headers, times - times[0])
    return seal_batch(
        payload if codec is Codec.NONE else compress(codec, bytes(payload)),
        count=rows,
        attributes=codec | (TRANSACTIONAL if is_transactional else 0),
        base_timestamp=int(times[0]),
        max_timestamp=int(times.max()),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def _body(key: pa.Array, value: pa.Array, headers: pa.Array | None, time_delta: Numbers) -> memoryview:
    rows = len(value)
    key_size, value_size = _sizes(key), _sizes(value)
    attributes = write_varints(np.zeros(rows, np.int64))
    front = [attributes, write_varints(time_delta), write_varints(np.arange(rows))]
    key_varint, value_varint = write_varints(key_size), write_varints(value_size)
    header_varint, header_bytes = _encode_headers(headers, rows)
    fields = [*front, key_varint, value_varint, header_varint]
    size = np.maximum(key_size, 0) + np.maximum(value_size, 0)
    for _, width in fields:
        size += width
    if header_bytes is not None:
        size += _sizes(header_bytes)
    pieces = [
        *_words([write_varints(size), *front, key_varint]),
        _filled(key),
        *_words([value_varint]),
        _filled(value),
        *_words([header_varint]),
    ]
    if header_bytes is not None:
        pieces.append(header_bytes)
    return _join(pieces)


def _times_ms(timestamps: pa.Array | None, now_ms: int, rows: int) -> Numbers:
    if timestamps is None or timestamps.null_count == rows:
        return np.full(rows, now_ms, np.int64)
    micros = timestamps.cast(pa.timestamp("us", timestamps.type.tz), safe=False).cast(pa.int64())
    if micros.null_count:
        micros = micros.fill_null(1000 * now_ms)
    times: Numbers = micros.to_numpy() // 1000
    return times


# Columns.


def _as_binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _filled(column: pa.Array) -> pa.Array:
    return column.fill_null(b"") if column.null_count else column


def _sizes(column: pa.Array) -> Numbers:
    """How long each is; -1 for null."""
    sizes = pc.binary_length(column)
    if sizes.null_count:
        sizes = sizes.fill_null(-1)
    found: Numbers = sizes.to_numpy().astype(np.int64)
    return found


def _headers(headers: pa.Array) -> tuple[Numbers, pa.Array, pa.Array]:
    """How many headers each row has; and the keys and the values of all."""
    counts: Numbers = pc.list_value_length(headers).fill_null(0).to_numpy().astype(np.int64)
    names, values = headers.flatten().flatten()
    if names.null_count:
        raise CannotEncode("a header has no key: column `headers` holds a null where a key must be")
    return counts, _as_binary(names), _as_binary(values)


def _sums(values: Numbers, counts: Numbers) -> Numbers:
    """The sum of the first counts[0] values, of the next counts[1], and so on."""
    ends = np.cumsum(counts)
    totals = np.concatenate([[0], np.cumsum(values)])
    sums: Numbers = totals[ends] - totals[ends - counts]
    return sums


def _encode_headers(headers: pa.Array | None, rows: int) -> tuple[tuple[Words, Numbers], pa.Array | None]:
    """Varints of how many headers each row has, and the bytes of them all; None for no bytes."""
    if headers is None:
        return write_varints(np.zeros(rows, np.int64)), None
    counts, names, values = _headers(headers)
    varints = write_varints(counts)
    if not len(names):
        return varints, None
    name_varint, value_varint = write_varints(_sizes(names)), write_varints(_sizes(values))
    joined = _join_column([*_words([name_varint]), names, *_words([value_varint]), _filled(values)])
    # All headers of a row lie side by side: they are one piece, from its first to its last.
    _, edges, body = joined.buffers()
    ends = np.concatenate([[0], np.cumsum(counts)])
    row_edges = np.frombuffer(edges, np.int32)[ends]
    return varints, pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(row_edges), body])


# Pieces of rows.


def _words(fields: Sequence[tuple[Words, Numbers]]) -> list[pa.Array]:
    """Varints that follow each other, as few columns of bytes."""
    columns: list[pa.Array] = []
    words, widths = fields[0]
    for more, more_widths in fields[1:]:
        if int(widths.max()) + int(more_widths.max()) > _WORD_BYTES:
            columns.append(_bytes_of(words, widths))
            words, widths = more, more_widths
        else:
            words = words | more << (8 * widths).view(np.uint64)
            widths = widths + more_widths
    return [*columns, _bytes_of(words, widths)]


def _bytes_of(words: Words, widths: Numbers) -> pa.Array:
    """The low bytes of words, as many as their widths say."""
    rows, width = len(words), int(widths[0])
    octets = words.astype("<u8", copy=False).view(np.uint8)
    if int(widths.max()) == int(widths.min()):
        edges = np.arange(0, rows * width + 1, width, dtype=np.int32)
        packed = octets.reshape(rows, _WORD_BYTES)[:, :width].ravel()
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(edges), pa.py_buffer(packed)])
    return gather(pa.py_buffer(octets), np.arange(0, _WORD_BYTES * rows, _WORD_BYTES), widths)


def _join_column(pieces: Sequence[pa.Array]) -> pa.Array:
    """A column whose every row has the rows of all pieces, one after the other."""
    return pc.binary_join_element_wise(*pieces, _EMPTY)


def _join(pieces: Sequence[pa.Array]) -> memoryview:
    """The same, and all rows one after the other."""
    joined = _join_column(pieces)
    _, edges, body = joined.buffers()
    ends = np.frombuffer(edges, np.int32)
    return memoryview(body)[int(ends[joined.offset]) : int(ends[joined.offset + len(joined)])]
