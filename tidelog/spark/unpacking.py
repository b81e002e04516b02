"""The batches of a Fetch answer: looked at, checked, chosen, and unpacked into one pool of bytes.

Rule 1: headers become one table, so that what is asked of them is asked of all at once. Python
        goes from batch to batch to find them, and to check and unpack those that are shown.
Rule 2: which batches are shown is as `tidelog.client.consumer` has it: no control batches, and
        none of a transaction that was aborted.
Rule 3: one call unpacks so much and no more; the caller reads on where it ended.
Rule 4: what is wrong with a batch is said with topic, partition and base offset: CorruptMessage.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from numpy.lib.stride_tricks import sliding_window_view

from tidelog.errors import CorruptMessage, UnsupportedForMessageFormat
from tidelog.model import Offset
from tidelog.records import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    PREFIX,
    PREFIX_BYTES,
    TRANSACTIONAL,
    Codec,
    decompress,
    read_marker,
)

BYTES_MAX: Final = 32 * 1024 * 1024
"""The batch with which one call reaches this, unpacked, is its last."""
RECORDS_MAX: Final = 1024 * 1024
"""And so is the one with which it reaches this many records."""
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""What one batch may hold, unpacked: a consumer's limit, and far below the 2 GiB of Arrow."""
BATCH_RECORDS_MAX: Final = 4 * 1024 * 1024
"""A record takes some 100 bytes while it is read, though but seven in its batch."""

# A table of batch headers: the grammar is in `tidelog.records`.
_HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert _HEADER.itemsize == HEADER_BYTES

_OFFSET_MAX: Final = 2**63 - 2**32
"""No sum of a base offset and a delta passes 64 bits."""

Headers: TypeAlias = npt.NDArray[np.void]
Flags: TypeAlias = npt.NDArray[np.bool_]


class Unpacked(NamedTuple):
    """The batches that are shown. Batch i has its records in pool[begins[i]:ends[i]]."""

    pool: bytes
    begins: list[int]
    ends: list[int]
    headers: Headers
    next_offset: Offset
    """Where to read on: behind the last batch that was looked at."""

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """One field of all headers."""
        return self.headers[name].astype(np.int64)


def unpack(
    data: bytes, where: str, *, start: Offset, end: Offset, aborted: Sequence[tuple[int, Offset]]
) -> Unpacked:
    """The batches of `data` that have something to show from `start` to below `end`."""
    places, beyond = _walk(data, where, end)
    headers = _table(data, places)
    _check(headers, where)
    last = headers["base_offset"].astype(np.int64) + headers["last_offset_delta"]
    shown = (last >= start) & (headers["record_count"] > 0)
    shown &= headers["attributes"] & CONTROL == 0
    if aborted:
        shown &= ~_aborted(data, where, places, headers, aborted)
    chosen = np.flatnonzero(shown)
    pool, begins, ends = _open(data, where, [places[i] for i in chosen], headers[chosen])
    chosen, left = chosen[: len(begins)], chosen[len(begins) :]
    if len(left):
        after = int(last[chosen[-1]]) + 1
    elif beyond:
        after = end
    else:
        after = int(last[-1]) + 1 if len(last) else start
    next_offset = max(start, min(end, after))
    return Unpacked(pool, begins, ends, headers[chosen], next_offset)


def _walk(data: bytes, where: str, end: Offset) -> tuple[list[int], bool]:
    """Where batches begin that are whole and below `end`, and whether one beyond it was seen."""
    places: list[int] = []
    at, size = 0, len(data)
    while size - at > MAGIC_AT:
        base, length = PREFIX.unpack_from(data, at)
        if base >= end:
            return places, True
        if data[at + MAGIC_AT] != MAGIC:
            raise UnsupportedForMessageFormat(
                f"{where} at offset {base}: message format {data[at + MAGIC_AT]} cannot be read, "
                f"only {MAGIC} (Kafka 0.11 and later)"
            )
        if length < HEADER_BYTES - PREFIX_BYTES:
            raise _corrupt(where, base, f"a batch cannot have {PREFIX_BYTES + length} bytes")
        if length > size - at - PREFIX_BYTES:
            break
        places.append(at)
        at += PREFIX_BYTES + length
    return places, False


def _table(data: bytes, places: Sequence[int]) -> Headers:
    if not places:
        return np.empty(0, _HEADER)
    windows = sliding_window_view(np.frombuffer(data, np.uint8), HEADER_BYTES)
    table: Headers = windows[np.array(places)].view(_HEADER)[:, 0]
    return table


def _check(headers: Headers, where: str) -> None:
    """Refuse headers that no broker writes; their checksums come later."""
    base = headers["base_offset"].astype(np.int64)
    delta, count = headers["last_offset_delta"], headers["record_count"]
    follows = np.ones(len(base), np.bool_)
    follows[1:] = base[1:] > base[:-1] + delta[:-1]
    for good, what in (
        ((base >= 0) & (base <= _OFFSET_MAX), "an offset lies outside of any log"),
        (follows, "it lies before the batch that comes before it"),
        ((delta >= 0) & (count >= 0), "it holds less than nothing"),
        (count <= BATCH_RECORDS_MAX, f"it says over {BATCH_RECORDS_MAX} records"),
        (headers["attributes"] & CODEC_MASK <= Codec.ZSTD, "its codec is unknown"),
    ):
        if not good.all():
            raise _corrupt(where, int(base[np.argmin(good)]), what)


def _aborted(
    data: bytes, where: str, places: Sequence[int], headers: Headers, aborted: Sequence[tuple[int, Offset]]
) -> Flags:
    """Which batches are of a transaction that was aborted.

    Batches before the first that is wanted count as well: their markers end what began there.
    """
    ahead = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    hidden = np.zeros(len(places), np.bool_)
    for index, header in enumerate(headers[_ABORTING_FIELDS].tolist()):
        base, length, attributes, delta, producer, count = header
        while ahead and ahead[-1][1] <= base + delta:
            aborting.add(ahead.pop()[0])
        if producer not in aborting:
            continue
        if attributes & CONTROL:
            batch = data[places[index] : places[index] + PREFIX_BYTES + length]
            if count and _aborts(batch, where, base):
                aborting.discard(producer)
        else:
            hidden[index] = attributes & TRANSACTIONAL
    return hidden


_ABORTING_FIELDS: Final = [
    "base_offset",
    "length",
    "attributes",
    "last_offset_delta",
    "producer_id",
    "record_count",
]


def _aborts(batch: bytes, where: str, base: Offset) -> bool:
    try:
        marker = read_marker(batch)
    except CorruptMessage as error:
        raise _corrupt(where, base, str(error)) from error
    return marker is not None and not marker.commits


def _open(
    data: bytes, where: str, places: Sequence[int], headers: Headers
) -> tuple[bytes, list[int], list[int]]:
    """Check and unpack batches until it is enough: the bytes, and where in them each lies."""
    is_plain = not (headers["attributes"] & CODEC_MASK).any()
    view, parts = memoryview(data), list[bytes | memoryview]()
    begins, ends = list[int](), list[int]()
    size = records = 0
    for at, header in zip(places, headers[_OPEN_FIELDS].tolist(), strict=True):
        base, length, crc, attributes, count = header
        stop = at + PREFIX_BYTES + length
        if crc32c(view[at + CRC_FROM : stop]) != crc:
            raise _corrupt(where, base, "the checksum does not match the batch")
        payload: bytes | memoryview = view[at + HEADER_BYTES : stop]
        if codec := attributes & CODEC_MASK:
            try:
                payload = decompress(Codec(codec), payload, size_max=BATCH_BYTES_MAX)
            except CorruptMessage as error:
                raise _corrupt(where, base, str(error)) from error
        if len(payload) > BATCH_BYTES_MAX:
            raise _corrupt(where, base, f"it holds over {BATCH_BYTES_MAX} bytes")
        begins.append(at + HEADER_BYTES if is_plain else size)
        ends.append(begins[-1] + len(payload))
        parts.append(payload)
        size += len(payload)
        records += count
        if size >= BYTES_MAX or records >= RECORDS_MAX:
            break
    return data if is_plain else b"".join(parts), begins, ends


_OPEN_FIELDS: Final = ["base_offset", "length", "crc", "attributes", "record_count"]


def _corrupt(where: str, base: Any, what: str) -> CorruptMessage:
    return CorruptMessage(f"{where} at offset {base}: {what}")
