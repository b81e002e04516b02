"""What the leader of a partition appends: batches of clients and of this node, markers, backups.

Rule 1: a batch is checked by its header, its checksum and its producer's sequence; its records are not
        unpacked, but for keys in a compacted topic.
Rule 2: `waiter` is told once what was appended is written (acks=1) or committed (acks=-1).
"""

from typing import TYPE_CHECKING, Final

from tidelog.errors import (
    InvalidRequest,
    InvalidTopic,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    StorageError,
)
from tidelog.host import Clock
from tidelog.log.producers import RememberedBatch
from tidelog.log.rounds import Rounds
from tidelog.log.unpacking import UNPACKED_BYTES_MAX, require_keys
from tidelog.model import (
    INTERNAL_TOPICS,
    NO_EPOCH,
    NO_TIMESTAMP,
    ONCE_PRODUCER_MIN,
    Epoch,
    Offset,
    ProducerId,
)
from tidelog.partition.fetched import kept
from tidelog.partition.leader import Leader, Waiter
from tidelog.partition.produced import check_attributes, check_times
from tidelog.partition.restored import check_restored
from tidelog.records import (
    CODEC_MASK,
    BatchHeader,
    Marker,
    check_batch,
    encode_empty,
    encode_marker,
    read_header,
    stamp,
    stamp_append_time,
)

if TYPE_CHECKING:
    from tidelog.partition.driver import Partition

NEW_LEADER_SECONDS: Final = 5.0


class Appender:
    """Appends to one partition while this node leads it; NotLeader otherwise."""

    __slots__ = ("_clock", "_is_internal", "_partition", "_rounds", "spent_epoch")

    def __init__(self, partition: "Partition", clock: Clock, rounds: Rounds) -> None:
        self._partition = partition
        self._clock = clock
        self._rounds = rounds
        self._is_internal = partition.name.topic in INTERNAL_TOPICS
        self.spent_epoch: Epoch = NO_EPOCH
        """Nothing more is appended in this epoch: followers may hold what a full disk has lost."""

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        acks: int,
        waiter: Waiter,
        pins_bytes: int,
        internal: bool = False,
        is_transactional: bool = False,
        is_once: bool = False,
        is_keyed: bool = False,
    ) -> tuple[Offset, int, bool]:
        """Append one batch as a client sent it, or with `internal` as this node made it.

        Returns its base offset, its append time (or NO_TIMESTAMP), and whether `waiter` need not
        be awaited; otherwise `waiter` is told later. `pins_bytes` is the size of the request that
        `batch` keeps in memory. `is_transactional`: its transaction is known to have this
        partition. `is_once`: this node made its producer id of a request's Idempotency-Key; from
        clients such ids are refused, since whoever has written under one has answered the key.
        `is_keyed`: this node encoded it, of records that have keys: it is not unpacked to see that.
        """
        config = self._partition.config
        if self._is_internal and not internal:
            self._partition.leading()
            raise InvalidTopic(f"{self._partition.name.topic} is written by brokers alone")
        leader = self._writing(acks)
        header = check_batch(batch, is_internal=internal)
        if header.producer_id >= ONCE_PRODUCER_MIN and not is_once:
            raise InvalidRequest(
                f"no producer has the id {header.producer_id}: InitProducerId gives out ids; those "
                "from 2^62 on stand for Idempotency-Keys"
            )
        size = len(batch)
        if size > config.max_message_bytes:
            raise MessageTooLarge(size=size, size_max=config.max_message_bytes)
        if header.attributes & ~CODEC_MASK:
            check_attributes(header, is_transactional=is_transactional or internal)
        if config.compacts and not (is_keyed and size <= UNPACKED_BYTES_MAX):
            require_keys(header, batch)
        append_time = NO_TIMESTAMP
        if config.message_timestamp_type == "CreateTime":
            check_times(header, config, self._clock.wall_ms())
        else:
            append_time = self._clock.wall_ms()
        if header.producer_id >= 0:
            repeated = self._check_sequence(leader, header)
            if repeated is not None:
                if append_time != NO_TIMESTAMP:
                    append_time = repeated.timestamp_ms  # as the batch in the log has it
                done = self._wait(leader, acks, repeated.last_offset + 1, waiter)
                return repeated.base_offset, append_time, done
        if append_time != NO_TIMESTAMP:
            stamp_append_time(batch, append_time)
            header = header._replace(max_timestamp=append_time)
        base_offset = self._put(leader, batch, header, pins_bytes)
        return base_offset, append_time, self._wait(leader, acks, self._partition.log.end, waiter)

    def append_empty(
        self, *, producer_id: ProducerId, producer_epoch: int, sequence: int, acks: int, waiter: Waiter
    ) -> tuple[Offset, bool]:
        """Append a batch without records, by which the log knows its producer and nothing more.

        Returns its offset, and whether `waiter` need not be awaited.
        """
        leader = self._writing(acks)
        batch = encode_empty(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            now_ms=self._clock.wall_ms(),
        )
        offset = self._put(leader, batch, read_header(batch), len(batch))
        return offset, self._wait(leader, acks, self._partition.log.end, waiter)

    def append_marker(
        self, marker: Marker, *, producer_id: ProducerId, producer_epoch: int, is_bumped: bool, waiter: Waiter
    ) -> tuple[Offset, bool]:
        """End a producer's transaction here; `waiter` is told when that is committed.

        Returns the marker's offset, and whether it is committed already. `is_bumped`: its epoch is
        the one after the transaction's.
        """
        leader = self._writing(acks=-1)
        self._partition.log.producers.check_marker(producer_id, producer_epoch, marker, is_bumped=is_bumped)
        batch = encode_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, now_ms=self._clock.wall_ms()
        )
        offset = self._put(leader, batch, read_header(batch), len(batch))
        return offset, self._wait(leader, -1, self._partition.log.end, waiter)

    def restore(self, data: bytearray, waiter: Waiter) -> bool:
        """Append batches of a backup at the offsets that they have, all or none of them.

        Whether they are committed already; otherwise `waiter` is told. The first must begin where
        the log ends. What a topic demands of what clients write now (sizes, times, keys) was asked
        when these were written.
        """
        leader, log = self._writing(acks=-1), self._partition.log
        for header, batch in check_restored(memoryview(data), start=log.start, end=log.end):
            self._put(leader, batch, header, len(data))
        return self._wait(leader, -1, log.end, waiter)

    def wait_committed(self, end: Offset, waiter: Waiter) -> bool:
        """Let `waiter` know when everything below `end` is committed; True if it is already.

        Refused where nothing more is committed now, as an append would be.
        """
        if self._partition.leading().high_watermark >= end:
            return True
        return self._wait(self._writing(acks=-1), -1, end, waiter)

    def _writing(self, acks: int) -> Leader:
        """The leader machine, if something may be appended now with these `acks`."""
        leader, log = self._partition.leading(), self._partition.log
        if log.refusal is not None or leader.epoch == self.spent_epoch:
            raise StorageError(log.refusal or "another epoch must begin here")
        if acks == -1:
            needed = max(leader.min_in_sync, self._partition.config.min_insync_replicas)
            if len(leader.in_sync) < needed:
                raise NotEnoughReplicas(in_sync=len(leader.in_sync), needed=needed)
        elif len(leader.replicas) > 1 and not self._partition.has_lease():
            raise NotLeader(leader=None)  # another may lead by now, and would not have this record
        return leader

    def _put(
        self, leader: Leader, batch: bytearray | memoryview, header: BatchHeader, pins_bytes: int
    ) -> Offset:
        """Append a batch that may be; its offset."""
        log = self._partition.log
        base_offset = log.end
        stamp(batch, base_offset, leader.epoch)
        log.append(kept(batch, pins_bytes), header, base_offset, leader.epoch)
        self._rounds.mark(self._partition)
        self._partition.tell_log_watchers()
        return base_offset

    def _check_sequence(self, leader: Leader, header: BatchHeader) -> RememberedBatch | None:
        try:
            return self._partition.log.producers.check(header)
        except OutOfOrderSequence:
            # A client that heard of this leader before the leader did was refused a moment ago,
            # and the batches that it had sent behind come first now. It must begin with the first
            # again; were it told that the order is lost, it would begin another epoch and write
            # twice what the old leader had committed and not answered.
            known = self._partition.log.producers.last_offset(header.producer_id)
            is_new = self._clock.monotonic() - leader.began_at < NEW_LEADER_SECONDS
            if is_new and known < leader.epoch_start and len(leader.replicas) > 1:
                raise NotLeader(leader=self._partition.me) from None
            raise

    def _wait(self, leader: Leader, acks: int, end: Offset, waiter: Waiter) -> bool:
        if acks == 0:
            return True
        wait = leader.wait_written if acks == 1 else leader.wait_committed
        is_done = wait(end, waiter)
        if not is_done:
            self._partition.on_waits(self._partition)
        return is_done
