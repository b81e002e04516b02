"""Hashes of many byte strings at once, the same in every process.

A string's hash is the sum, modulo 2**64, of a random number for each of its bytes times one for the
byte's place. Two strings that differ by accident have the same hash with a chance of about 2**-60;
nobody is kept from making such strings on purpose, so nothing here is for secrets.

Rule: no loop runs over the strings.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED: Final = 20261116
CHUNK_BYTES: Final = 4 * 1024 * 1024
"""So much is hashed at a time: eight bytes of memory are taken for each."""

Hashes = npt.NDArray[np.uint64]

_random = np.random.default_rng(SEED)
_OF_BYTE: Final = _random.integers(0, 2**64, 256, np.uint64)
_OF_SIZE: Final = int(_random.integers(0, 2**64, 1, np.uint64)[0]) | 1
_BASE: Final = int(_random.integers(0, 2**64, 1, np.uint64)[0]) * 4 + 3
NULL: Final = np.uint64(0x9E3779B97F4A7C15)
"""The hash of what is not there."""


def hash_each(values: pa.Array) -> Hashes:
    """A hash of each; of a null, NULL."""
    binary = values.cast(pa.large_binary())
    _, offsets, body = binary.buffers()
    edges = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(body, np.uint8) if body is not None else np.zeros(0, np.uint8)
    sizes = np.diff(edges)
    hashes = sizes.astype(np.uint64) * np.uint64(_OF_SIZE % 2**64)
    begin = 0
    while begin < len(sizes):
        # As many as fit, but one at least, however long it is.
        fits = np.searchsorted(edges, edges[begin] + CHUNK_BYTES, side="right") - 1
        end = int(min(max(fits, begin + 1), len(sizes)))
        hashes[begin:end] += _sums(data, edges[begin : end + 1])
        begin = end
    if binary.null_count:
        hashes[np.asarray(binary.is_null())] = NULL
    return hashes


def hash_lists(hashes: Hashes, lengths: npt.NDArray[np.int64]) -> Hashes:
    """A hash of each list, of the hashes of what is in it; lists lie one after the other."""
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return _weigh(hashes, edges) + lengths.astype(np.uint64) * np.uint64(_OF_SIZE % 2**64)


def mix(*parts: Hashes) -> Hashes:
    """One hash of several, in their order."""
    mixed = np.zeros_like(parts[0])
    for part in parts:
        mixed = (mixed ^ part) * np.uint64(_BASE % 2**64)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _sums(data: npt.NDArray[np.uint8], edges: npt.NDArray[np.int64]) -> Hashes:
    first = edges[0]
    return _weigh(_OF_BYTE[data[first : edges[-1]]], edges - first)


def _weigh(numbers: Hashes, edges: npt.NDArray[np.int64]) -> Hashes:
    """Sums of what lies between edges, each number multiplied by what its place gives it."""
    sizes = np.diff(edges)
    if not len(numbers):
        return np.zeros(len(sizes), np.uint64)
    powers = np.full(int(sizes.max()), _BASE % 2**64, np.uint64)
    powers[0] = 1
    places = np.arange(len(numbers)) - np.repeat(edges[:-1], sizes)
    total = np.zeros(len(numbers) + 1, np.uint64)
    np.cumsum(numbers * np.multiply.accumulate(powers)[places], out=total[1:])
    sums: Hashes = total[edges[1:]] - total[edges[:-1]]
    return sums
