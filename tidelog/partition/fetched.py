"""Batches that a leader sent: whether a follower may append them, and in which memory it keeps them."""

from collections.abc import Iterator
from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.host import Bytes
from tidelog.log.log import Log
from tidelog.model import Epoch, TopicPartition
from tidelog.records import BatchHeader, crc_matches, iterate_batches

COPY_BELOW_BYTES: Final = 4096
"""Smaller batches are copied out of their request, which would otherwise stay in memory whole."""


def kept(batch: bytearray | memoryview, pins_bytes: int) -> Bytes:
    """A batch as a log's tail may keep it; `pins_bytes` is the size of the request that it is of."""
    size = len(batch)
    return bytes(batch) if size < COPY_BELOW_BYTES or size * 2 < pins_bytes else batch


def following(
    data: memoryview, name: TopicPartition, log: Log, epoch: Epoch, *, has_gaps: bool
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches that come next in `log`, to be appended one by one; CorruptMessage at one that cannot.

    `epoch` is the leader's. `has_gaps`: its log was compacted, so that offsets may be missing.
    """
    for header, batch in iterate_batches(data):
        if header.last_offset < log.end:
            continue  # the first batch may begin before the offset that was asked for
        # Neither is under the checksum.
        is_next = (
            header.base_offset == log.end
            or (has_gaps and header.base_offset > log.end)
            or (header.base_offset < log.end and log.may_begin_with(header))
        )
        if not is_next or not log.epochs.latest <= header.leader_epoch <= epoch:
            raise CorruptMessage(
                f"{name}: a batch of {header.base_offset}..{header.last_offset} in epoch "
                f"{header.leader_epoch} cannot follow {log.end} in epoch {log.epochs.latest}"
            )
        if not crc_matches(batch, header):
            raise CorruptMessage(f"{name}: the batch at {header.base_offset} is damaged")
        yield header, batch
