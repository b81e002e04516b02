"""Batches on their way back into a log.

Rule 1: records stay as they are: offsets, times, keys, values, headers, and how they are packed.
Rule 2: producers and transactions are forgotten (`tidelog.partition.restored` says why). Only the
        producer that an Idempotency-Key stands for stays: what was written for a request is known
        when the request comes again.
Rule 3: there are no holes: offsets without a record come as a batch without records.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from crc32c import crc32c

from tidelog.log.index import RELATIVE_MAX
from tidelog.model import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE, NO_TIMESTAMP, ONCE_PRODUCER_MIN, Offset
from tidelog.records import (
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
)

FILLER_OFFSETS_MAX: Final = RELATIVE_MAX
"""A batch's offsets are counted from its first in 31 bits, and so are a segment's."""


def restorable(header: BatchHeader, batch: Buffer) -> Buffer:
    """The batch without its producer and transaction; itself, if it has none."""
    is_anonymous = not NO_PRODUCER < header.producer_id < ONCE_PRODUCER_MIN
    if is_anonymous and not header.is_transactional:
        return batch
    plain = bytearray(batch)
    header = header._replace(
        attributes=header.attributes & ~TRANSACTIONAL,
        producer_id=NO_PRODUCER,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
    )
    HEADER.pack_into(plain, 0, *header)
    _seal(plain)
    return plain


def fillers(start: Offset, end: Offset, time_ms: int) -> Iterator[bytes]:
    """Batches without records that take the offsets [start, end)."""
    while start < end:
        count = min(end - start, FILLER_OFFSETS_MAX)
        batch = bytearray(HEADER_BYTES)
        HEADER.pack_into(
            batch,
            0,
            start,
            HEADER_BYTES - PREFIX_BYTES,
            NO_EPOCH,
            MAGIC,
            0,
            0,
            count - 1,
            time_ms,
            time_ms,
            NO_PRODUCER,
            NO_EPOCH,
            NO_SEQUENCE,
            0,
        )
        _seal(batch)
        yield bytes(batch)
        start += count


def _seal(batch: bytearray) -> None:
    batch[CRC_AT:CRC_FROM] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")


def without_holes(
    batches: Iterable[tuple[BatchHeader, Buffer]], *, position: Offset, start: Offset, end: Offset
) -> Iterator[Buffer]:
    """What brings a log from `position` to `end`.

    `start`: what lies below it is not wanted. A batch that `position` divides comes whole, and is
    refused where it is sent: such a log is not of this backup.
    """
    time_ms = NO_TIMESTAMP
    for header, batch in batches:
        if header.last_offset < max(start, position):
            time_ms = header.max_timestamp
            continue
        # A filler is no younger than what follows: searches by time and segments go by it.
        yield from fillers(position, header.base_offset, header.max_timestamp)
        yield restorable(header, batch)
        position, time_ms = header.next_offset, header.max_timestamp
    yield from fillers(position, end, time_ms)
