"""The records of a batch, as far as it takes to compare them with those of another replica.

Rule 1: only an equal record has the same hash, whatever batch it lies in, however that is packed.
Rule 2: no loop runs over records.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.records import BatchHeader, decode_batch
from tidelog.spark.audit.hashing import Hashes, hash_each, hash_lists, mix
from tidelog.spark.decode import decode

CONTENT: Final = pa.struct(
    [("offset", pa.int64()), ("key", pa.int64()), ("content", pa.int64()), ("is_tombstone", pa.bool_())]
)
"""`key` is a hash; null of a record without one, and of a marker. `content` is a hash of all."""

WANTED: Final = ("offset", "timestamp", "key", "value", "headers")


def contents_of(header: BatchHeader, batch: memoryview) -> pa.StructArray:
    """The records of a whole batch; CorruptMessage if it cannot be unpacked."""
    if header.is_control:
        return _of_marker(batch)
    rows = decode(
        batch,
        topic="batch",
        partition=0,
        start=header.base_offset,
        end=header.next_offset,
        aborted=(),
        wanted=WANTED,
    ).batch
    key, value, headers = (rows.column(name) for name in ("key", "value", "headers"))
    pairs = headers.flatten()
    of_pairs = mix(hash_each(pairs.field(0)), hash_each(pairs.field(1)))
    lengths = np.asarray(headers.value_lengths().fill_null(0)).astype(np.int64)
    key_hashes = hash_each(key)
    times = np.asarray(rows.column("timestamp").cast(pa.int64())).astype(np.uint64)
    whole = mix(key_hashes, hash_each(value), hash_lists(of_pairs, lengths), times)
    keys = pa.array(_signed(key_hashes), mask=np.asarray(key.is_null()))
    return _struct(rows.column("offset"), keys, whole, value.is_null())


def _of_marker(batch: memoryview) -> pa.StructArray:
    """The end of a transaction is one record, which has no key of anybody."""
    records = decode_batch(batch)
    fields = ([one.key for one in records], [one.value for one in records])
    return _struct(
        pa.array([one.offset for one in records], pa.int64()),
        pa.nulls(len(records), pa.int64()),
        mix(*(hash_each(pa.array(field, pa.binary())) for field in fields)),
        pa.array([one.value is None for one in records], pa.bool_()),
    )


def _struct(offsets: pa.Array, keys: pa.Array, whole: Hashes, is_tombstone: pa.Array) -> pa.StructArray:
    arrays = [offsets, keys, pa.array(_signed(whole)), is_tombstone]
    return pa.StructArray.from_arrays(arrays, fields=list(CONTENT))


def _signed(hashes: Hashes) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return hashes.view(np.int64)
