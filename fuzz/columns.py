"""Batches, damaged and lying, into what decodes them by the column.

What must hold: only errors that a reader can be told of; no more memory than a batch may take; and
the same rows as by the reader that goes record by record, or an error from both.
"""

# case := the bytes of an answer to a fetch: batches, and perhaps a part of one

import tracemalloc
from random import Random
from typing import Final
from unittest.mock import patch

import pyarrow as pa

from fuzz.batches import any_batch, lying_batch, random_batch, reseal
from fuzz.mutate import mutate
from fuzz.runner import Broken
from tidelog.errors import BrokerError, CorruptMessage, UnsupportedForMessageFormat
from tidelog.records import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    PREFIX,
    PREFIX_BYTES,
    BatchHeader,
    Record,
    decode_batch,
    encode_batch,
    iterate_batches,
    stamp,
)
from tidelog.spark import unpacking
from tidelog.spark.columns import ARROW
from tidelog.spark.decode import decode

SIZE_MAX: Final = 256 * 1024
MEMORY_BYTES_MAX: Final = 100 * SIZE_MAX
END: Final = 2**62
MICROS_MAX: Final = (2**63 - 1) // 1000 * 1000


class ColumnsFuzzer:
    name = "columns"

    def __init__(self) -> None:
        _by_column(bytes(encode_batch([Record()])))  # what is imported then is not counted
        tracemalloc.start(1)

    def make(self, random: Random) -> bytes:
        data, offset = bytearray(), random.choice((0, 0, 7, 2**40))
        for _ in range(random.choice((1, 1, 2, 4))):
            batch = self._batch(random)
            if len(batch) >= HEADER_BYTES and random.random() < 0.95:
                stamp(batch, offset, 0)
            offset += random.choice((5, 5, 9, 1))
            data += batch
        return mutate(random, bytes(data)) if random.random() < 0.05 else bytes(data)

    def _batch(self, random: Random) -> bytearray:
        match random.randrange(40):
            case 0:
                return _large_batch(random)
            case 1:
                return reseal(bytearray(mutate(random, bytes(_large_batch(random)))))
            case number if number < 12:
                return random_batch(random)
            case number if number < 16:
                return bytearray(any_batch(random))
            case _:
                return lying_batch(random)

    def check(self, case: bytes) -> int:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with patch.object(unpacking, "BATCH_BYTES_MAX", SIZE_MAX):  # so that bombs stay small
            by_column = _by_column(case)
        _, peak = tracemalloc.get_traced_memory()
        if peak - before > MEMORY_BYTES_MAX + 8 * len(case):
            raise Broken(f"{len(case)} bytes took {peak - before} bytes of memory")
        expected = _record_by_record(case)
        if by_column is not None and by_column != expected:
            raise Broken(f"by column: {by_column}\nrecord by record: {expected}")
        if by_column is None and expected is not None:
            raise Broken("refused by column, and read record by record")
        return 1


def _large_batch(random: Random) -> bytearray:
    """A batch of enough records that guesses are made where they begin."""
    value = random.randbytes(random.choice((0, 30, 100)))
    headers = random.choice(((), (("h", b"1"),)))
    count = random.choice((50, 700, 2100))
    records = [Record(key=b"%d" % n, value=value[n % 9 :], headers=headers) for n in range(count)]
    return encode_batch(records)


Row = tuple[int, int, int, bytes | None, bytes | None, object]


def _by_column(case: bytes) -> list[Row] | None:
    """The rows; None if they were refused as they may be."""
    rows: list[Row] = []
    at = 0
    while True:
        try:
            decoded = decode(case, topic="t", partition=0, start=at, end=END, aborted=(), wanted=tuple(ARROW))
        except (CorruptMessage, UnsupportedForMessageFormat):
            return None
        decoded.batch.validate(full=True)
        columns = dict(zip(decoded.batch.schema.names, decoded.batch.columns, strict=True))
        rows += zip(
            columns["offset"].to_pylist(),
            columns["timestamp"].cast(pa.int64()).to_pylist(),
            columns["timestampType"].to_pylist(),
            columns["key"].to_pylist(),
            columns["value"].to_pylist(),
            columns["headers"].to_pylist(),
            strict=True,
        )
        if decoded.next_offset == at:
            return rows
        at = decoded.next_offset


def _record_by_record(case: bytes) -> list[Row] | None:
    """The rows; None if the batches are such that a reader may refuse them."""
    rows: list[Row] = []
    size, after = 0, 0
    for header, batch in iterate_batches(case):
        if header.base_offset >= END:
            return rows
        size += len(batch)
        if not _is_plausible(header, after):
            return None
        after = header.next_offset
        if header.is_control or not header.record_count:
            continue
        try:
            records = decode_batch(batch, size_max=SIZE_MAX)
        except BrokerError:
            return None
        append = header.attributes >> 3 & 1
        rows += [_row(record, append) for record in records]
    rest = case[size:]
    if len(rest) <= MAGIC_AT:
        return rows
    base, length = PREFIX.unpack_from(rest)
    is_cut_off = rest[MAGIC_AT] == MAGIC and length >= HEADER_BYTES - PREFIX_BYTES
    return rows if base >= END or is_cut_off else None


def _is_plausible(header: BatchHeader, after: int) -> bool:
    return (
        header.magic == MAGIC
        and after <= header.base_offset < 2**61
        and header.last_offset_delta >= 0
        and 0 <= header.record_count <= unpacking.BATCH_RECORDS_MAX
        and header.attributes & 7 <= 4
    )


def _row(record: Record, append: int) -> Row:
    micros = max(-MICROS_MAX, min(MICROS_MAX, 1000 * record.timestamp_ms))
    headers = [{"key": key, "value": value} for key, value in record.headers] or None
    return record.offset, micros, append, record.key, record.value, headers
