"""Which partition a row goes to, for many rows at once.

Rule 1: a key goes where `tidelog.client.partitioner` sends it, and with it every client of Kafka.
Rule 2: rows without a key go to one partition, all of a call. The caller names another when that
        partition's batch is full: few large batches instead of many small ones (KIP-480).
Rule 3: keys are hashed by the word: one turn of a loop for each four bytes that the longest of
        them has. What few long keys have beyond the rest is left to the partitioner.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.client.partitioner import partition_for
from tidelog.spark.varints import Numbers

Partitions: TypeAlias = npt.NDArray[np.int32]
Hashes: TypeAlias = npt.NDArray[np.uint32]

_SEED: Final = 0x9747B28C
_M: Final = np.uint32(0x5BD1E995)
_13, _15, _24 = np.uint32(13), np.uint32(15), np.uint32(24)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)
_TOGETHER_MIN: Final = 24
"""Fewer keys than this are hashed sooner one by one."""


def partitions_of(key: pa.Array, count: int, *, first: int) -> Partitions:
    """The partition of each row; `first`, modulo `count`, for those without a key."""
    assert count > 0, "a topic has at least one partition"
    sticky = first % count
    if count == 1 or key.null_count == len(key):
        return np.full(len(key), sticky, np.int32)
    column = key if pa.types.is_binary(key.type) else key.cast(pa.binary())
    filled = column.fill_null(b"") if column.null_count else column
    places = _of_keys(filled, count)
    if key.null_count:
        places[key.is_null().to_numpy(zero_copy_only=False)] = sticky
    return places


def group_rows(partitions: Partitions, count: int) -> list[tuple[int, Numbers]]:
    """Each partition that has rows, and which ones, in their order."""
    rows = np.bincount(partitions, minlength=count)
    used = np.flatnonzero(rows)
    if len(used) <= 1:
        return [(int(one), np.arange(len(partitions))) for one in used]
    # Sixteen bits are sorted by their digits, in one pass: several times as fast.
    small = partitions.astype(np.uint16) if count <= 2**16 else partitions
    order = np.argsort(small, kind="stable")
    return list(zip(used.tolist(), np.split(order, np.cumsum(rows[used])[:-1]), strict=True))


def _of_keys(key: pa.Array, count: int) -> Partitions:
    _, edges, body = key.buffers()
    ends = np.frombuffer(edges, np.int32)[key.offset : key.offset + len(key) + 1].astype(np.int64)
    begin, size = ends[:-1], np.diff(ends)
    octets = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    # Behind the last key there may be nothing, and a word is read there all the same.
    octets = np.concatenate([octets[: int(ends[-1])], np.zeros(4, np.uint8)])
    words = np.ndarray(len(octets) - 3, "<u4", octets, strides=(1,))

    hashes = (_SEED ^ size).astype(np.uint32)
    whole = size >> 2
    turn, busy = 0, np.flatnonzero(whole)
    while len(busy) >= _TOGETHER_MIN:
        mixed = words[begin[busy] + 4 * turn] * _M
        mixed ^= mixed >> _24
        mixed *= _M
        hashes[busy] = hashes[busy] * _M ^ mixed
        turn += 1
        busy = busy[whole[busy] > turn]
    places = _finished(hashes, words[begin + 4 * whole], size & 3, count)
    for row in busy.tolist():
        places[row] = partition_for(octets[ends[row] : ends[row + 1]].tobytes(), count)
    return places


def _finished(hashes: Hashes, rest: Hashes, rest_bytes: Numbers, count: int) -> Partitions:
    """The partitions: the last bytes of each key mixed in, and the sign dropped."""
    bits = (8 * rest_bytes).astype(np.uint32)
    tail = rest & ((np.uint32(1) << bits) - np.uint32(1))
    mixed: Hashes = np.where(bits > 0, (hashes ^ tail) * _M, hashes)
    mixed = (mixed ^ mixed >> _13) * _M
    mixed ^= mixed >> _15
    return ((mixed & _POSITIVE) % np.uint32(count)).astype(np.int32)
