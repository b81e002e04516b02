"""Heals rot in a compacted log, where another replica has the very batch that rotted.

Each replica compacts by itself, so what another one has at an offset need not be what was here.
But compaction leaves most batches as they are, and makes the same of most others.

Rule 1: a batch that another replica sends was here if its base offset, its length and its checksum
        are still to be read here; or if everything but its first 21 bytes is, and its base offset
        but for one bit.
Rule 2: only bytes of that one batch are written. What lies around it stays as it is.
"""

import errno
from contextlib import closing

from tidelog.host import Bytes, Disk, File
from tidelog.log.scrub import SegmentScrub
from tidelog.records import CRC_AT, CRC_FROM, MAGIC, crc_matches, iterate_batches

_OFFSET_BYTES = 8
_EPOCH_AT = 12


def was_same(found: bytes, batch: bytes) -> bool:
    """Whether `found`, of which some has rotted, was `batch`."""
    if len(found) != len(batch):
        return False
    has_place = found[:_EPOCH_AT] == batch[:_EPOCH_AT]
    if has_place and found[CRC_AT:CRC_FROM] == batch[CRC_AT:CRC_FROM]:
        return True
    base, other = (int.from_bytes(one[:_OFFSET_BYTES], "big") for one in (found, batch))
    return found[CRC_FROM:] == batch[CRC_FROM:] and (base ^ other).bit_count() <= 1


def heal_same(disk: Disk, scrub: SegmentScrub, data: Bytes) -> int:
    """Write the batch that rotted where `scrub` is, if it is one of those in `data`.

    How many bytes were written; they are durable then. It blocks on the disk.
    """
    try:
        file = disk.open(scrub.segment.path())
    except OSError as error:
        if error.errno not in (errno.EIO, errno.ENOENT):
            raise
        return 0
    with closing(file):
        batch = _same_in(file, scrub, data)
        if batch is None:
            return 0
        file.write(scrub.position, [batch])
        file.datasync()
        return len(batch) if _read(file, scrub.position, len(batch)) == batch else 0


def _same_in(file: File, scrub: SegmentScrub, data: Bytes) -> bytes | None:
    """The one of the batches in `data` that lay where `scrub` is."""
    for header, view in iterate_batches(data):
        batch = bytes(view)
        is_sound = header.magic == MAGIC and crc_matches(batch, header)
        if not is_sound or header.base_offset < scrub.offset or header.next_offset > scrub.end:
            continue
        if was_same(_read(file, scrub.position, len(batch)), batch):
            return batch
    return None


def _read(file: File, position: int, size: int) -> bytes:
    """What the device has there; nothing if it cannot be read."""
    try:
        return file.read_device(position, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
