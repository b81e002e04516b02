"""The response to a Fetch, written by hand: the batches in it are sent from where they lie.

Requests are read by kio: they are small, and its reader is native.
"""

# response  := throttle_ms: int32, error: int16 (7+), session_id: int32 (7+), topic*   (4-17)
# topic     := name: string | id: uuid (13+), partition*
# partition := index: int32, error: int16, high_watermark: int64, last_stable: int64,
#              log_start: int64 (5+), aborted*?, preferred_replica: int32 (11+), records: bytes
# aborted   := producer_id: int64, first_offset: int64
# From version 12 on lengths are uvarints, one more than the length, and every struct ends in tags.

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.host import Bytes
from tidelog.model import NO_NODE, NO_OFFSET, NodeId, Offset, ProducerId
from tidelog.wire.produce import put_count, put_topic, put_uvarint

FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
SESSIONS_FROM: Final = 7
RACKS_FROM: Final = 11
"""Since then consumers may read from followers."""

_HEAD: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqq")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_ABORTED: Final = struct.Struct(">qq")

_JOIN_BELOW_BYTES: Final = 4 * 1024
"""Smaller pieces are joined: copying them is cheaper than handing each to the kernel, or to TLS."""
_JOINED_BYTES: Final = 64 * 1024
"""A joined piece ends here. One that grew on would be moved, and touch new memory; TLS cuts records from a
piece's front, and moves what is left each time."""


@dataclass(slots=True)
class PartitionFetched:
    """What one partition returns: whole batches, or an error."""

    index: int
    error: int = 0
    high_watermark: Offset = NO_OFFSET
    last_stable_offset: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    buffers: Sequence[Bytes] = ()
    size: int = 0
    aborted: Sequence[tuple[ProducerId, Offset]] | None = None
    """Transactions whose records are to be passed over, by their producers and first offsets."""
    preferred_replica: NodeId = NO_NODE
    """Who should be read from instead."""


def encode_response(
    version: int,
    *,
    error: int,
    session_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[PartitionFetched]]],
) -> list[Bytes]:
    """The body of the response as pieces to be sent one after the other."""
    flexible = version >= FLEXIBLE_FROM
    pieces: list[Bytes] = []
    out = bytearray(_HEAD.pack(0, error, session_id) if version >= SESSIONS_FROM else 4)
    put_count(out, len(topics), flexible)
    for topic, partitions in topics:
        put_topic(out, topic, flexible)
        put_count(out, len(partitions), flexible)
        for fetched in partitions:
            out += _PARTITION.pack(
                fetched.index, fetched.error, fetched.high_watermark, fetched.last_stable_offset
            )
            if version >= 5:
                out += _INT64.pack(fetched.log_start)
            if fetched.aborted:
                _put_aborted(out, fetched.aborted, flexible)
            elif flexible:
                out.append(0 if fetched.aborted is None else 1)
            else:
                out += _INT32.pack(-1 if fetched.aborted is None else 0)
            if version >= RACKS_FROM:
                out += _INT32.pack(fetched.preferred_replica)
            if flexible:
                put_uvarint(out, fetched.size + 1)
            else:
                out += _INT32.pack(fetched.size)
            out = _put_records(pieces, out, fetched.buffers)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    pieces.append(out)
    return pieces


def _put_records(pieces: list[Bytes], out: bytearray, buffers: Sequence[Bytes]) -> bytearray:
    """Put `out` and the batches behind it into pieces; what is left is what goes on."""
    small: list[Bytes] = [out]
    joined = len(out)
    for buffer in buffers:
        size = len(buffer)
        if size < _JOIN_BELOW_BYTES:
            small.append(buffer)
            joined += size
            if joined < _JOINED_BYTES:
                continue
        if joined:
            pieces.append(b"".join(small))
        if size >= _JOIN_BELOW_BYTES:
            pieces.append(buffer)
        small, joined = [], 0
    return bytearray().join(small)


def _put_aborted(out: bytearray, aborted: Sequence[tuple[ProducerId, Offset]], flexible: bool) -> None:
    put_count(out, len(aborted), flexible)
    for producer_id, first_offset in aborted:
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out.append(0)
