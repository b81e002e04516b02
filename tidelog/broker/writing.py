"""Writes that this node makes for who does not speak Kafka: appended here, answered when committed.

Rule 1: a refusal before the append means that nothing was written. After it, nobody knows but the
        log: that is an `OutcomeUnknown`, with what is known.
Rule 2: a request with an Idempotency-Key is a batch of a producer that writes nothing else. The
        log knows its producers over restarts and failovers; so a repeated request is recognised
        by what recognises a repeated batch, and is answered with the offset that it has.
        The batch's first sequence is a digest of what was asked for: a key that is used for
        something else is known by it. Kafka's clients cannot write as such a producer.
        A request that changed nothing, and could change something if it came again, writes a batch
        without records, whose digest is that of the request and of how it came out.
Rule 3: `copies` adds to what the topic demands and never takes away from it, but for 0: then the
        leader's own file is enough, as with acks=1.
"""

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from tidelog.errors import BrokerError, InvalidRequest, OutcomeUnknown, OutOfOrderSequence, error_of
from tidelog.host import Clock
from tidelog.log.producers import RememberedBatch
from tidelog.log.unpacking import are_keyed
from tidelog.model import NO_PRODUCER, ONCE_PRODUCER_MIN, Offset, ProducerId
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.records import SEQUENCE_MODULUS, Record, encode_batch

_REUSED: Final = "this Idempotency-Key was used for another request"
NO_DIGEST: Final = 0
"""Of a request that says nothing of what it asks for, or was written before any did."""
ONCE_EPOCH: Final = 0
"""Such a producer writes one batch, in one epoch."""


def once_of(key: str | None) -> ProducerId:
    """The producer id that an Idempotency-Key stands for; NO_PRODUCER without one."""
    if key is None:
        return NO_PRODUCER
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return ONCE_PRODUCER_MIN | int.from_bytes(digest, "big") >> 2


def digest_of(asked: bytes) -> int:
    """What a request with an Idempotency-Key is told from others by: 31 bits, never 0."""
    digest = int.from_bytes(blake2b(asked, digest_size=4).digest(), "big")
    return digest % (SEQUENCE_MODULUS - 1) + 1


def batch_of(records: Sequence[Record], once: ProducerId, digest: int = NO_DIGEST) -> bytearray:
    """The batch of a request whose key stands for `once`."""
    if once == NO_PRODUCER:
        return encode_batch(records)
    return encode_batch(records, producer_id=once, producer_epoch=ONCE_EPOCH, base_sequence=digest)


def find_repeated(partition: Partition, once: ProducerId, *digests: int) -> RememberedBatch | None:
    """What an earlier request with this key has written here; refused if it was another.

    `digests` are those that the same request may have, as it came out; NO_DIGEST: any.
    """
    if once == NO_PRODUCER:
        return None
    state = partition.log.producers.get(once)
    if state is None or not state.batches:
        return None
    found = state.batches[-1]
    if NO_DIGEST not in digests and found.first_sequence not in (NO_DIGEST, *digests):
        raise reused()
    return found


def reused(detail: str = "") -> BrokerError:
    """The refusal of a key that an earlier request has had."""
    return error_of(OutOfOrderSequence.code, f"{_REUSED}: {detail}" if detail else _REUSED)


class Fate:
    """Waits for one append; what it is told is the future's result."""

    __slots__ = ("deadline", "future")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.future: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()

    def settled(self, error: BrokerError | None) -> None:
        if not self.future.done():
            self.future.set_result(error)


class Write:
    """One batch that stands in the log of a partition that this node leads."""

    def __init__(self, partition: Partition, clock: Clock, *, copies: int | None, deadline: float):
        self._partition = partition
        self._clock = clock
        self._copies = copies
        self._leader = partition.leading()
        self._fate = Fate(deadline)
        self._is_done = False
        self.offset: Offset
        """Of its first record."""
        self.end: Offset
        self.is_repeat = False
        if copies is not None and copies > len(self._leader.replicas) - 1:
            others = len(self._leader.replicas) - 1
            raise InvalidRequest(
                f"min_replicas_ack is {copies}, but {partition.name} has {others} replicas beside its leader"
            )

    @property
    def _acks(self) -> int:
        return 1 if self._copies == 0 else -1

    def append(
        self, records: Sequence[Record], once: ProducerId = NO_PRODUCER, digest: int = NO_DIGEST
    ) -> Offset:
        """Append; where its first record stands, now or since an earlier request."""
        batch = batch_of(records, once, digest)
        return self.append_batch(batch, len(records), is_keyed=are_keyed(records))

    def append_batch(self, batch: bytearray, count: int, *, is_keyed: bool = False) -> Offset:
        """Append a batch of `count` records; where the first stands."""
        end_before = self._partition.log.end
        self.offset, _, self._is_done = self._partition.appender.append(
            batch, acks=self._acks, waiter=self._fate, pins_bytes=len(batch), is_once=True, is_keyed=is_keyed
        )
        self.is_repeat = self.offset < end_before
        self.end = self.offset + count
        return self.offset

    def append_nothing(self, once: ProducerId, digest: int) -> None:
        """Let the log remember a request that changes nothing: its repeat will not, either."""
        self.offset, self._is_done = self._partition.appender.append_empty(
            producer_id=once, producer_epoch=ONCE_EPOCH, sequence=digest, acks=self._acks, waiter=self._fate
        )
        self.end = self.offset + 1

    def repeat(self, found: RememberedBatch) -> None:
        """Stand for what an earlier request has written."""
        self.is_repeat = True
        self.offset, self.end = found.base_offset, found.last_offset + 1
        if self._acks == -1:
            self._is_done = self._partition.appender.wait_committed(self.end, self._fate)
        else:
            self._is_done = self._leader.wait_written(self.end, self._fate)
            self._partition.on_waits(self._partition)

    async def committed(self) -> Offset:
        """Wait until it is as safe as was asked for; OutcomeUnknown if that is not seen in time."""
        error: BrokerError | None = None
        try:
            async with asyncio.timeout(max(self._fate.deadline - self._clock.monotonic(), 0)):
                if not self._is_done:
                    error = await self._fate.future
                if error is None and self._copies:
                    await self._copied(self._copies)
        except TimeoutError:
            raise self._unknown("it was not committed in time") from None
        if error is not None:
            raise self._unknown(str(error) or type(error).__name__) from error
        return self.offset

    async def _copied(self, copies: int) -> None:
        if self._leader.copies_of(self.end) >= copies:
            return
        fate = Fate(self._fate.deadline)
        self._partition.on_waits(self._partition)
        if not self._leader.wait_copied(self.end, copies, fate):
            error = await fate.future
            if error is not None:
                raise self._unknown(str(error)) from error

    def _unknown(self, why: str) -> OutcomeUnknown:
        return outcome_unknown(self._partition, self._leader, self.offset, self.end, why)


def outcome_unknown(
    partition: Partition, leader: Leader, offset: Offset, end: Offset, why: str
) -> OutcomeUnknown:
    """What to say of records that stand in the log, from `offset` to `end`, and may not stay."""
    is_committed = leader.high_watermark >= end
    facts: dict[str, object] = {
        "partition": partition.name.partition,
        "offset": offset,
        "written": leader.written_end >= end,
        "committed": is_committed,
        "replicas": leader.copies_of(end),
    }
    if is_committed:
        facts["outcome"] = "committed"
    return OutcomeUnknown(
        f"written here, but {why}; it may be committed yet. Look, or ask again with the same Idempotency-Key",
        **facts,
    )
