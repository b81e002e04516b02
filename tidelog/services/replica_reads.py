"""A log as its leader has it, up to its very end, for who holds a replica and asks over HTTP.

Rule 1: only who holds a replica may ask: what is past the watermark may be undone, and is shown to
        nobody else.
Rule 2: nothing is acknowledged by it. A follower of ours fetches from `follower_sessions.py`, and
        tells what it holds; who reads here moves no watermark.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from tidelog.broker.cold_reads import load
from tidelog.broker.serving import Work
from tidelog.errors import MessageTooLarge, PolicyViolation
from tidelog.model import NodeId, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import Record, iterate_batches, iterate_records

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

BYTES_MAX: Final = 1024 * 1024
"""Of batches in one answer, beyond the first."""
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
RECORDS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of keys and values in one answer, beyond the first record's."""
SECONDS_MAX: Final = 10.0


class ReadForReplica(Work, frozen=True, kw_only=True):
    """Some batches, for a follower that is somewhere else."""

    follower: NodeId
    offset: Offset


class LeadersBatches(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader has from an offset on; the first batch may begin before it."""

    offset: Offset
    end: Offset
    """Where the next read begins, if all of these are used."""
    leader_end: Offset
    data: bytes

    def unpack(self, records_max: int) -> tuple[list[Record], Offset]:
        """Some records, whatever became of their transactions, and where to go on."""
        records: list[Record] = []
        size = 0
        for header, batch in iterate_batches(self.data):
            if header.is_control or header.last_offset < self.offset:
                continue
            for record in iterate_records(batch, start=self.offset, size_max=UNPACKED_BYTES_MAX):
                size += len(record.key or b"") + len(record.value or b"")
                if records and (len(records) >= records_max or size > RECORDS_BYTES_MAX):
                    return records, record.offset
                records.append(record)
        return records, self.end


class ReplicaReads:
    """Reads for replicas, at any node."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        broker.serving.offer(ReadForReplica, self._read_here)

    async def read(self, place: TopicPartition, follower: NodeId, offset: Offset) -> LeadersBatches:
        """What the leader has; PolicyViolation if `follower` holds no replica."""
        work = ReadForReplica(follower=follower, offset=offset)
        return await self._broker.serving.call(
            place, work, LeadersBatches, seconds_max=SECONDS_MAX, is_repeatable=True
        )

    async def _read_here(self, partition: Partition, work: ReadForReplica, deadline: float) -> LeadersBatches:
        leader = partition.leading()
        if work.follower not in leader.replicas:
            raise PolicyViolation(
                f"node {work.follower} is not a replica of {partition.name}: "
                f"{', '.join(map(str, leader.replicas))} are"
            )
        data = await load(self._broker, partition, partition.read(work.offset, BYTES_MAX, partition.log.end))
        if len(data) > BATCH_BYTES_MAX:
            raise MessageTooLarge(size=len(data), size_max=BATCH_BYTES_MAX)
        end = work.offset
        for header, _ in iterate_batches(data):
            end = max(end, header.next_offset)
        return LeadersBatches(offset=work.offset, end=end, leader_end=partition.log.end, data=bytes(data))
