"""Records written and read for who does not speak Kafka, at whichever node it asks.

Rule 1: what a request has for one partition is of one batch, and is written as a whole or not at all.
Rule 2: what can be seen to be wrong is refused before any partition is written to.
Rule 3: only what is decided is shown, unless somebody asks for more: nothing above the last stable
        offset, and nothing of transactions that were aborted. Who asks past the log's end is told so
        only by a leader that is sure to be it: a deposed one may lack what others have shown.
Rule 4: the leader handles whole batches. They are packed and unpacked by the node that was asked,
        away from its event loop if there is much of it.
Rule 5: who waits for records costs the leader a watcher for a few seconds at a time; so a leader
        that falls silent is left soon, and a client that goes leaves nothing behind.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import msgspec

from tidelog.broker.cold_reads import load
from tidelog.broker.lead_confirmation import Confirming
from tidelog.broker.offset_search import find_offset
from tidelog.broker.serving import Work, side_by_side
from tidelog.broker.topics import create_topic
from tidelog.broker.writing import NO_DIGEST, Write, find_repeated, reused
from tidelog.controller.decisions import NewTopic
from tidelog.controller.image import TopicImage
from tidelog.errors import (
    BrokerError,
    CorruptMessage,
    FencedLeaderEpoch,
    InvalidPartitions,
    LeaderNotAvailable,
    MessageTooLarge,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    TopicAlreadyExists,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.host import Bytes
from tidelog.log.committed import committed_batches
from tidelog.model import (
    INTERNAL_TOPICS,
    NO_EPOCH,
    NO_OFFSET,
    NO_PRODUCER,
    Epoch,
    Offset,
    ProducerId,
    TopicPartition,
)
from tidelog.partition.driver import Partition
from tidelog.records import Record, iterate_batches, iterate_records
from tidelog.services.joint_records import JointRecords, Written
from tidelog.services.packing import NewRecord, Packed, Placed, failure_of, pack

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

T = TypeVar("T")

MIB: Final = 1024 * 1024
LATEST: Final[Offset] = -1
"""Asks for what comes from now on."""
EARLIEST: Final[Offset] = -2
"""Asks for all that there is."""

ASIDE_BYTES: Final = 16 * 1024
"""More than this is packed and unpacked in a thread: it would keep the loop for a millisecond."""
ANSWER_BYTES_MAX: Final = 64 * MIB
"""The most that is sent to another node at once; a larger batch cannot be read over HTTP."""
_UNPACKED_BYTES_MAX: Final = 16 * MIB
_UNPACKED_TIMES_MAX: Final = 16
"""What a batch may grow to when it is unpacked: so much, or so many times its size."""
_SLICE_SECONDS: Final = 3.0
"""For how long a leader is asked to wait at a time."""
_PATIENCE_SECONDS: Final = 2.0
"""How much longer it may take to answer, before somebody else is asked."""
_FAILOVER_SECONDS: Final = 10.0
"""For how long nobody may lead before a reader is told."""
_PASSING_SECONDS: Final = 1.0
"""For how long a reader that does not wait passes over what it may not see."""
_PASSING: Final = (
    LeaderNotAvailable,
    NotLeader,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    UnknownTopicId,
    OffsetNotAvailable,
    OutcomeUnknown,
)


class ProduceWork(Work, frozen=True, kw_only=True):
    """One batch to be written."""

    batch: bytes
    count: int
    once: ProducerId = NO_PRODUCER
    copies: int | None = None
    digest: int = NO_DIGEST
    """Of what was asked for, where that has an Idempotency-Key."""
    looks: bool = False
    """Write nothing: only look for what an earlier request with the same key has written."""


def has_written(partition: Partition, work: ProduceWork) -> bool:
    """Whether an earlier request has written what this work would."""
    try:
        found = find_repeated(partition, work.once, work.digest)
    except OutOfOrderSequence:
        return False  # other records of it, by another number of partitions
    return found is not None and found.offset_delta + 1 == work.count


class Purges(msgspec.Struct, frozen=True, array_like=True):
    """How often a leader had purged deletions from its log, in its epoch."""

    epoch: Epoch
    count: int


class ReadWork(Work, frozen=True, kw_only=True):
    """Some batches to be read, or waited for."""

    is_read: ClassVar[bool] = True
    offset: Offset = EARLIEST
    time_ms: int | None = None
    """Begin with the first record since then; `offset` does not count."""
    wait_seconds: float = 0.0
    bytes_max: int
    records_max: int
    committed_only: bool = True
    since: Purges | None = None
    """Only deletions that were purged since then concern the reader; None: all."""


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader has from an offset on: whole batches, of which some may not be for show."""

    topic: str
    """The id of the topic, in hex: another one may have its name now."""
    offset: Offset
    """What was asked for, as a number; the first batch may begin before it."""
    end: Offset
    """Where the next read begins, if all of these are used."""
    high_watermark: Offset
    log_start: Offset
    data: bytes = b""
    aborted: tuple[tuple[ProducerId, Offset], ...] = ()
    is_outside: bool = False
    """The log does not hold `offset`."""
    has_gaps: bool = False
    """Compaction took some of what lay from there on; of what is gone some may be deletions."""
    purged: Offset = 0
    """Below it deletions may be gone for good: who has seen values from before it may lack some."""
    purges: Purges | None = None
    epoch_before: Epoch = NO_EPOCH
    """Of the last batch before them that was passed over, as it is not for show; if any was."""

    @property
    def epoch(self) -> Epoch:
        """Of the last batch before `end`; NO_EPOCH if none was seen."""
        epoch = self.epoch_before
        for header, _ in iterate_batches(self.data):
            epoch = header.leader_epoch
        return epoch

    def shown(self) -> Iterator[memoryview]:
        """The batches with records at or after `offset` that may be seen."""
        for header, batch in committed_batches(self.data, self.aborted):
            if header.last_offset >= self.offset and header.record_count:
                yield batch

    def unpack(self, records_max: int, bytes_max: int) -> tuple[list[Record], Offset]:
        """Records, at least one if there is any, and the offset to go on with."""
        records: list[Record] = []
        size = 0
        for batch in self.shown():
            unpacked_max = max(_UNPACKED_BYTES_MAX, _UNPACKED_TIMES_MAX * len(batch))
            try:
                for record in iterate_records(batch, start=self.offset, size_max=unpacked_max):
                    size += len(record.key or b"") + len(record.value or b"")
                    if records and (len(records) >= records_max or size > bytes_max):
                        return records, record.offset
                    records.append(record)
            except CorruptMessage:
                if not records:
                    raise
                return records, records[-1].offset + 1
        return records, self.end


class ReadOutside(OffsetOutOfRange):
    """The log does not hold the offset; begin at `log_start`, or wait at `high_watermark`."""

    def __init__(self, batches: Batches) -> None:
        self.log_start, self.high_watermark = batches.log_start, batches.high_watermark
        self.topic = batches.topic
        super().__init__(offset=batches.offset, start=self.log_start, end=self.high_watermark)


class RecordService:
    """Writes to and reads from partitions that this node or another leads."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._turn = broker.host.random.getrandbits(30)
        self._joint = JointRecords(broker)
        self._confirming = Confirming(broker)
        broker.serving.offer(ProduceWork, self._produce_here)
        broker.serving.offer(ReadWork, self._read_here)

    async def topic(
        self, name: str, *, partition: int = 0, create: bool = False, newest: bool = False
    ) -> TopicImage:
        """The topic, if it has that partition; UnknownTopicOrPartition only if that is certain.

        With `create`, a topic that is missing is made where settings allow that.
        With `newest`, it is certain to be as it was decided by now: for who would refuse something
        for its id or its partitions.
        """
        broker = self._broker
        found = broker.image.topics.get(name)
        if found is not None and partition < len(found.partitions) and not newest:
            return found
        # Another node may have made it just now, and told its client so.
        await broker.metadata.caught_up()
        found = broker.image.topics.get(name)
        is_possible = broker.config.auto_create_topics_enable and name not in INTERNAL_TOPICS
        if found is None and create and is_possible:
            with suppress(TopicAlreadyExists):
                await create_topic(broker, NewTopic(name=name, config={}))
            found = broker.image.topics.get(name)
        if found is None:
            raise UnknownTopicOrPartition(name)
        if partition >= len(found.partitions):
            raise UnknownTopicOrPartition(TopicPartition(name, partition))
        return found

    async def aside(self, size: int, work: Callable[[], T]) -> T:
        """Do what takes time by `size`, in bytes: here if it is little, else in a thread."""
        return work() if size <= ASIDE_BYTES else await self._broker.host.offload.run(work)

    # Writing.

    async def produce(
        self,
        topic: str,
        records: Sequence[NewRecord],
        *,
        once: ProducerId = NO_PRODUCER,
        copies: int | None = None,
        seconds_max: float,
        creates: bool = True,
    ) -> list[Placed]:
        """Write records; where each of them stands, in order. `creates`: the topic, if need be.

        `once` stands for a request's key (`once_of`): repeated, it writes nothing, and has the same answer.
        `copies`: how many replicas beside the leader must hold them. A partition that fails alone
        raises its error; of several, PartlyWritten has what is known.
        """
        found = await self.topic(topic, create=creates)
        config = self._broker.topic_config(found)
        size = 64 * len(records)
        if size <= ASIDE_BYTES:
            size += sum(len(one.value or b"") + len(one.key or b"") for one in records)
        now_ms, keyless = self._broker.host.clock.wall_ms(), self._keyless(once)
        work = partial(pack, len(found.partitions), config, records, once, keyless, now_ms)
        batches = await self.aside(size, work)
        if once != NO_PRODUCER and found.sizes:
            pack_for = partial(
                pack, config=config, records=records, once=once, keyless=keyless, now_ms=now_ms
            )
            batches = await self._as_before(
                topic, found.sizes, batches, pack_for, once=once, size=size, seconds_max=seconds_max
            )
        results = await side_by_side(
            *(
                self._write(TopicPartition(topic, number), batch, once, copies, seconds_max)
                for number, batch in batches.items()
            )
        )
        if any(isinstance(result, BrokerError) for result in results):
            raise failure_of(
                batches, [one if isinstance(one, BrokerError) else one.offset for one in results]
            )
        placed: dict[int, Placed] = {}
        for (number, batch), result in zip(batches.items(), results, strict=True):
            assert isinstance(result, Written)
            offset = result.offset
            placed.update((at, Placed(number, offset + delta)) for delta, at in enumerate(batch.numbers))
        return [placed[at] for at in range(len(records))]

    async def _as_before(
        self,
        topic: str,
        sizes: Sequence[int],
        batches: dict[int, Packed],
        pack_for: Callable[[int], dict[int, Packed]],
        *,
        once: ProducerId,
        size: int,
        seconds_max: float,
    ) -> dict[int, Packed]:
        """The batches as an earlier request with the same key had them, if one is found.

        Before partitions were added to the topic, records may have gone to others than now. Records
        that an earlier attempt is still writing there are not found.
        """
        wanted = {number: batch.numbers for number, batch in batches.items()}
        for count in dict.fromkeys(reversed(sizes)):
            try:
                earlier = await self.aside(size, partial(pack_for, count))
            except InvalidPartitions:
                continue  # it names partitions that were not there
            if {number: batch.numbers for number, batch in earlier.items()} == wanted:
                continue
            asked = await side_by_side(
                *(
                    self._write(TopicPartition(topic, number), batch, once, None, seconds_max, looks=True)
                    for number, batch in earlier.items()
                )
            )
            for one in asked:
                if isinstance(one, BrokerError):
                    raise one
            if any(isinstance(one, Written) and one.is_repeat for one in asked):
                return earlier
        return batches

    def _keyless(self, once: ProducerId) -> int:
        """Whose turn it is to have the records without a key.

        A repeated request finds the same partition, whichever node is asked.
        """
        if once != NO_PRODUCER:
            return once
        self._turn += 1
        return self._turn

    async def _write(
        self,
        place: TopicPartition,
        batch: Packed,
        once: ProducerId,
        copies: int | None,
        seconds_max: float,
        *,
        looks: bool = False,
    ) -> Written | BrokerError:
        if not batch.data and copies is None:
            written = await self._joint.write(place, batch.records, seconds_max)
            if written is not None:
                return written
        work = ProduceWork(
            batch=b"" if looks else batch.sealed(),
            count=len(batch.records),
            once=once,
            copies=copies,
            digest=batch.digest,
            looks=looks,
        )
        try:
            return await self._broker.serving.call(
                place, work, Written, seconds_max=seconds_max, is_repeatable=once != NO_PRODUCER
            )
        except BrokerError as error:
            return error

    async def _produce_here(self, partition: Partition, work: ProduceWork, deadline: float) -> Written:
        write = Write(partition, self._broker.host.clock, copies=work.copies, deadline=deadline)
        if work.looks:
            return Written(offset=NO_OFFSET, is_repeat=has_written(partition, work))
        found = find_repeated(partition, work.once, work.digest)
        if found is None:
            write.append_batch(bytearray(work.batch), work.count)
        elif found.offset_delta + 1 == work.count:
            write.repeat(found)
        else:
            count = found.offset_delta + 1
            raise reused(f"that had {count} records for {partition.name}, not {work.count}")
        return Written(offset=await write.committed(), is_repeat=write.is_repeat)

    # Reading.

    async def read(
        self,
        topic: str,
        partition: int,
        *,
        offset: Offset = EARLIEST,
        time_ms: int | None = None,
        wait_seconds: float = 0.0,
        bytes_max: int = MIB,
        records_max: int = 100,
        committed_only: bool = True,
        since: Purges | None = None,
    ) -> Batches:
        """What a partition has from `offset` on, or from a time on, as soon as it has something.

        Empty if nothing came within `wait_seconds`. Raises ReadOutside.
        """
        await self.topic(topic, partition=partition)
        place = TopicPartition(topic, partition)
        now = self._broker.host.clock.monotonic
        deadline = now() + wait_seconds
        pass_until = now() + max(wait_seconds, _PASSING_SECONDS)
        work = ReadWork(
            offset=offset,
            time_ms=time_ms,
            bytes_max=bytes_max,
            records_max=records_max,
            committed_only=committed_only,
            since=since,
        )
        has_gaps, epoch, purged = False, NO_EPOCH, 0
        while True:
            wait = min(max(deadline - now(), 0.0), _SLICE_SECONDS)
            found = await self._ask(place, msgspec.structs.replace(work, wait_seconds=wait))
            if found.is_outside:
                raise ReadOutside(found)
            if has_gaps or epoch != NO_EPOCH or purged:
                has_gaps, purged = has_gaps | found.has_gaps, max(purged, found.purged)
                found = msgspec.structs.replace(found, has_gaps=has_gaps, epoch_before=epoch, purged=purged)
            if next(found.shown(), None) is not None:
                return found
            limit = pass_until if found.end > found.offset else deadline
            if now() >= limit:
                return found
            has_gaps, epoch, purged = found.has_gaps, found.epoch, found.purged
            work = msgspec.structs.replace(work, offset=found.end, time_ms=None)

    async def peek(self, place: TopicPartition, offset: Offset) -> Batches:
        """The batch that holds an offset, for show or not, or whatever comes after it."""
        return await self._ask(place, ReadWork(offset=offset, bytes_max=1, records_max=1))

    async def _ask(self, place: TopicPartition, work: ReadWork) -> Batches:
        """The leader's answer, whoever that comes to be."""
        now = self._broker.host.clock.monotonic
        give_up = now() + work.wait_seconds + _FAILOVER_SECONDS
        while True:
            try:
                return await self._broker.serving.call(
                    place,
                    work,
                    Batches,
                    is_repeatable=True,
                    seconds_max=work.wait_seconds + _PATIENCE_SECONDS,
                )
            except _PASSING:
                if now() >= give_up:
                    raise

    async def _read_here(self, partition: Partition, work: ReadWork, deadline: float) -> Batches:
        broker = self._broker
        leader, end = partition.leading(), partition.visible_end()
        offset = work.offset
        if work.time_ms is not None:
            found = await find_offset(broker, partition, work.time_ms, work.committed_only)
            offset = found.offset if found.offset >= 0 else LATEST
            end = partition.visible_end()
        if offset == EARLIEST:
            offset = partition.log.start
        elif offset == LATEST:
            offset = min(end, partition.last_stable_offset) if work.committed_only else end
        now = broker.host.clock.monotonic
        give_up = min(deadline, now() + work.wait_seconds)
        while True:
            batches = await self._look(partition, work, offset)
            if batches.is_outside and offset > partition.log.end:  # one that leads by now may have more
                await self._confirming.confirm(partition, leader, deadline)
            left = give_up - now()
            if batches.end > offset or batches.is_outside or left <= 0:
                return batches
            await _watermark_moves(partition, left)

    async def _look(self, partition: Partition, work: ReadWork, offset: Offset) -> Batches:
        """What there is now."""
        log, leader = partition.log, partition.leader
        high_watermark = limit = partition.visible_end()
        aborted = None
        if work.committed_only:
            limit = min(limit, partition.last_stable_offset)
            aborted = log.transactions.aborted.snapshot()
        batches = Batches(
            topic=partition.topic_id.hex,
            offset=offset,
            end=offset,
            log_start=log.start,
            high_watermark=high_watermark,
        )
        try:
            found = partition.read(offset, min(work.bytes_max, ANSWER_BYTES_MAX), limit)
        except OffsetOutOfRange:
            return msgspec.structs.replace(batches, is_outside=True)
        data = await load(self._broker, partition, found)
        if len(data) > ANSWER_BYTES_MAX:
            raise MessageTooLarge(size=len(data), size_max=ANSWER_BYTES_MAX)
        data, end, has_gaps = _some(data, offset, work.records_max)
        if not data:  # offsets that compaction took are passed over
            end = max(offset, found.limit)
            has_gaps = end > offset
        # Asked last: a purge is noted before anything goes.
        purges, count, epoch = partition.purges, None, NO_EPOCH
        if leader is not None and leader is partition.leader:
            epoch = leader.epoch
            if work.since is not None and work.since.epoch == epoch:
                count = work.since.count
        return msgspec.structs.replace(
            batches,
            data=data,
            end=end,
            has_gaps=has_gaps,
            purged=purges.since(count),
            purges=Purges(epoch, purges.count),
            aborted=tuple(aborted.find(offset, end) if aborted else ()),
        )


def _some(data: Bytes, offset: Offset, records_max: int) -> tuple[bytes, Offset, bool]:
    """As many of the batches as it takes for so many records from `offset` on.

    Where they end, and whether compaction took some of them.
    """
    size = count = 0
    end = offset
    has_gaps = False
    for header, batch in iterate_batches(data):
        if count >= records_max:
            break
        has_gaps |= header.base_offset > end or header.lacks_records
        count += min(header.record_count, header.next_offset - offset)
        size += len(batch)
        end = max(header.next_offset, offset)
    return bytes(memoryview(data)[:size]), end, has_gaps


async def _watermark_moves(partition: Partition, seconds_max: float) -> None:
    """Wait until the watermark rises, or this node leads no more, but not longer."""
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look() -> None:
        if not moved.done():
            moved.set_result(None)

    partition.watch(look)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await moved
    finally:
        partition.unwatch(look)
