"""Batches of a backup: whether a leader may append them, at the offsets that they have.

Rule 1: they follow the log's end and each other without a gap. Offsets that a backup does not have
        come as batches without records, as compaction leaves them; so nobody who reads the log, at
        a start or as a follower, takes a hole for damage.
Rule 2: they know nothing of producers. The ids of another cluster will be granted again in this
        one, and a new producer's batch would be taken for one that was repeated; a transaction
        would stay open for ever, since its marker never comes. Only ids that are made of an
        Idempotency-Key stay: nobody else can have them, and a request that is repeated after the
        restore is still known.
Rule 3: all of them, or none.
"""

from collections.abc import Sequence

from tidelog.errors import CorruptMessage, InvalidRecord, OffsetOutOfRange
from tidelog.model import NO_PRODUCER, ONCE_PRODUCER_MIN, Offset
from tidelog.records import (
    CODEC_MASK,
    CONTROL,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    crc_matches,
    iterate_batches,
)


def check_restored(
    data: memoryview, *, start: Offset, end: Offset
) -> Sequence[tuple[BatchHeader, memoryview]]:
    """The batches in `data`, which may follow a log of [start, end); else the sender's error."""
    found: list[tuple[BatchHeader, memoryview]] = []
    size, expected = 0, end
    for header, batch in iterate_batches(data):
        if header.magic != MAGIC or not crc_matches(batch, header):
            raise CorruptMessage(f"the batch at {header.base_offset} does not check out")
        if header.base_offset != expected:
            if found:
                raise InvalidRecord(f"offset {header.base_offset} comes where {expected} should")
            raise OffsetOutOfRange(offset=header.base_offset, start=start, end=end)
        _check_batch(header)
        found.append((header, batch))
        size += header.size
        expected = header.next_offset
    if not found or size != len(data):
        raise CorruptMessage(f"{len(data) - size} of {len(data)} bytes are no whole batch")
    return found


def _check_batch(header: BatchHeader) -> None:
    offset, delta = header.base_offset, header.last_offset_delta
    if not 0 <= header.record_count <= delta + 1:
        raise InvalidRecord(f"{offset}: {header.record_count} records cannot span {delta + 1}")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise InvalidRecord(f"{offset}: codec {header.attributes & CODEC_MASK} is unknown")
    if header.attributes & (CONTROL | TRANSACTIONAL):
        raise InvalidRecord(f"{offset}: a restored batch is of no transaction, and no marker")
    if NO_PRODUCER < header.producer_id < ONCE_PRODUCER_MIN:
        raise InvalidRecord(f"{offset}: producer {header.producer_id} is of another cluster")
