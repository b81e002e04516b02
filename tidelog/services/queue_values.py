"""What the messages of queues say, read from their log when somebody gets them.

Rule 1: whoever receives one message after the other goes through a batch once. What was read last
        stays open, up to a size: the next message is likely to stand behind it.
Rule 2: nothing here outlives the shard that it was read for. What turned out to be damaged is told
        to whoever heals it, and not kept: a client that asks again has it read again.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.broker.cold_reads import load, suspect
from tidelog.errors import BrokerError, CorruptMessage, OutcomeUnknown
from tidelog.host import Bytes
from tidelog.model import Offset
from tidelog.partition.driver import Partition
from tidelog.records import BatchHeader, Record, iterate_batches, iterate_records

READ_BYTES: Final = 64 * 1024
"""Of a file at once, beyond the first batch: what is old is read in order, too."""
KEPT_BYTES_MAX: Final = 1024 * 1024
"""Of open batches, beyond the last one."""
_ENTRY_BYTES: Final = 500
"""About what Python spends on an open batch beside its bytes."""


class _Open:
    """One batch, read up to some record."""

    __slots__ = ("_records", "_rest", "base", "end", "size")

    def __init__(self, header: BatchHeader, batch: Bytes) -> None:
        self.base = header.base_offset
        self.end = header.next_offset
        self.size = header.size + _ENTRY_BYTES
        self._records: dict[Offset, Record] = {}
        self._rest: Iterator[Record] = iterate_records(batch)

    def find(self, offset: Offset) -> Record | None:
        """The record there; None if compaction took it. CorruptMessage if the batch is damaged."""
        records = self._records
        if (known := records.get(offset)) is not None:
            return known
        for record in self._rest:
            records[record.offset] = record
            if record.offset >= offset:
                break
        return records.get(offset)


class Values:
    """The batches of one partition that were read last.

    Invariant: `_bases` are the keys of `_open`, sorted; these are in the order in which they came.
    Owned by the event loop.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: dict[Offset, _Open] = {}
        self._bases: list[Offset] = []
        self._bytes = 0

    async def at(self, partition: Partition, offsets: Iterable[Offset]) -> dict[Offset, Record]:
        """The records at these offsets, but for those that are gone.

        OutcomeUnknown if the log cannot be read now.
        """
        found: dict[Offset, Record] = {}
        for offset in offsets:
            try:
                batch = self._holding(offset) or await self._read(partition, offset)
                record = None if batch is None else batch.find(offset)
            except BrokerError as error:
                self._forget()
                if isinstance(error, CorruptMessage):
                    suspect(self._broker, partition, offset)
                # It is stored that they were given out: a repeat with the same key gets them.
                raise OutcomeUnknown(f"{partition.name} cannot be read now: {error}") from error
            if record is not None:
                found[offset] = record
        return found

    async def _read(self, partition: Partition, offset: Offset) -> _Open | None:
        """The batch that holds `offset`, from memory or, with some behind it, from the file."""
        read = partition.read(offset, 1, partition.log.end)
        if read.cold is not None:
            read = read._replace(cold=replace(read.cold, bytes_max=READ_BYTES))
        data = await load(self._broker, partition, read)
        for header, one in iterate_batches(data):
            batch = _Open(header, one)
            if header.size == len(data) and header.record_count == 1:
                return batch  # no other message is in it: it need not stay open
            self._keep(batch)
        return self._holding(offset)

    def _holding(self, offset: Offset) -> _Open | None:
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        batch = self._open[self._bases[at]]
        return batch if offset < batch.end else None

    def _keep(self, batch: _Open) -> None:
        self._drop(batch.base)
        self._open[batch.base] = batch
        insort(self._bases, batch.base)
        self._bytes += batch.size
        while self._bytes > KEPT_BYTES_MAX and len(self._open) > 1:
            self._drop(next(iter(self._open)))

    def _drop(self, base: Offset) -> None:
        if (batch := self._open.pop(base, None)) is not None:
            self._bytes -= batch.size
            self._bases.remove(base)

    def _forget(self) -> None:
        self._open.clear()
        self._bases.clear()
        self._bytes = 0
