"""What some records are, in few numbers: the same however they are ordered, and cut into tasks.

Rule 1: no loop runs over the records, and the cost is far below that of writing them. So not every
        byte is mixed into a record's hash, but four words of each column: its beginning, its
        middle and its end. All of the bytes are summed up beside.
Rule 2: nobody is kept from making other records with the same numbers; accidents do not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

WORD: Final = 8
_ODD: Final = tuple(
    np.uint64(number)
    for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xFF51AFD7ED558CCD)
)
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
"""Stands for a value that is not there, and so is not empty either."""
_SHIFT: Final = np.uint64(32)
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(WORD)] + [2**64 - 1], np.uint64)
"""By how many bytes of a word count."""
_SUM_MAX: Final = 2**64

_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Content:
    """Numbers of some records, to be added up."""

    rows: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    bytes_sum: int = 0
    """Of all keys and values, byte by byte, modulo 2**64."""
    hash_sum: int = 0
    """Of all records, modulo 2**64."""

    def __add__(self, other: "Content") -> "Content":
        return Content(
            self.rows + other.rows,
            self.key_bytes + other.key_bytes,
            self.value_bytes + other.value_bytes,
            (self.bytes_sum + other.bytes_sum) % _SUM_MAX,
            (self.hash_sum + other.hash_sum) % _SUM_MAX,
        )

    @classmethod
    def sum(cls, parts: Iterable["Content"]) -> "Content":
        return sum(parts, cls())


NOTHING: Final = Content()


def content_of(keys: pa.Array, values: pa.Array) -> Content:
    """What these records are."""
    if not len(values):
        return NOTHING
    key_bytes, key_sum, key_words = _column(keys)
    value_bytes, value_sum, value_words = _column(values)
    hashes = _mixed(key_words * _ODD[0] ^ value_words)
    return Content(
        len(values), key_bytes, value_bytes, key_sum + value_sum, int(np.add.reduce(hashes, dtype=np.uint64))
    )


def _column(values: pa.Array) -> tuple[int, int, _Words]:
    """How many bytes, their sum, and a hash of each value."""
    if values.null_count == len(values):
        return 0, 0, np.full(len(values), _NULL, np.uint64)
    binary = values.cast(pa.large_binary())
    _, offsets, body = binary.buffers()
    edges = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    first, last = int(edges[0]), int(edges[-1])
    data = np.empty(last - first + WORD, np.uint8)  # a word may be read from every place
    data[last - first :] = 0
    if body is not None:
        data[: last - first] = np.frombuffer(body, np.uint8)[first:last]
    starts, sizes = edges[:-1] - first, np.diff(edges)
    words = np.ndarray((len(data) - WORD + 1,), "<u8", data, strides=(1,))
    masks = _MASKS[np.minimum(sizes, WORD)]  # what follows a short value is not its own
    ends = np.maximum(sizes - WORD, 0)
    hashes = sizes.astype(np.uint64) * _ODD[1]
    for places, odd in zip((0, np.minimum(ends, WORD), ends >> 1, ends), _ODD, strict=True):
        hashes ^= (words[starts + places] & masks) * odd
        hashes = _mixed(hashes)
    if binary.null_count:
        hashes[np.asarray(binary.is_null())] = _NULL
    total = pc.sum(pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)]))
    return last - first, total.as_py(), hashes


def _mixed(words: _Words) -> _Words:
    mixed = (words ^ words >> _SHIFT) * _ODD[1]
    mixed ^= mixed >> _SHIFT
    return mixed
