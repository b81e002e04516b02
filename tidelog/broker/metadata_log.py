"""The cluster's metadata: a log like any other, and the image that it adds up to.

Rule 1: a record is applied once it is committed, never before; a restart sees the same.
Rule 2: one decision at a time: each is made on an image that holds all earlier ones.

A single node keeps the log by itself. The quorum will put it on several; those who read the image
or ask for a change will not notice.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord, decode, encode
from tidelog.errors import BrokerError, StorageError
from tidelog.host import Bytes, Clock
from tidelog.model import METADATA_TOPIC, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import Record, decode_batch, encode_batch, iterate_batches

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
_READ_BYTES: Final = 8 * 1024 * 1024

R = TypeVar("R", bound=MetadataRecord)


class _Commit:
    """Awaits the fate of one metadata batch."""

    def __init__(self) -> None:
        self.deadline = float("inf")
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(self, error: BrokerError | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class MetadataLog:
    """Reads the image from the metadata partition, and changes it by appending to it."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self.image = ClusterImage()

    def replay(self, read: Callable[[int], Bytes]) -> None:
        """Fold the whole log; `read` returns whole batches from an offset on. At start only."""
        offset = self.partition.log.start
        while offset < self.partition.log.end:
            began_at = offset
            for header, batch in iterate_batches(read(offset)):
                if header.base_offset != offset:
                    break  # a hole: what lies behind it must not be applied
                for record in decode_batch(batch):
                    assert record.value is not None
                    self.image.apply(decode(record.value))
                offset = header.next_offset
            if offset == began_at:
                raise StorageError(
                    f"{self.partition.name} is damaged at offset {offset}; restore the directory "
                    "from a backup. `tidelog log verify` shows the damage"
                )

    async def change(self, decide: Callable[[ClusterImage], R]) -> R:
        """Decide on the newest image, commit the decision, apply it, and return it."""
        async with self._one_at_a_time:
            record = decide(self.image)
            await self._commit(record)
            self.image.apply(record)
            return record

    async def _commit(self, record: MetadataRecord) -> None:
        batch = encode_batch([Record(value=encode(record), timestamp_ms=self._clock.wall_ms())])
        commit = _Commit()
        *_, done = self.partition.append(
            batch, acks=-1, waiter=commit, pins_bytes=len(batch), internal=True
        )
        if not done:
            await commit.done
