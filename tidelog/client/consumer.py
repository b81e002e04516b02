"""Batches in, records out.

Rule 1: a partition's records come in the order of their offsets, each once.
Rule 2: control batches take offsets but hold nothing for people. With `read_committed`, neither
        does what an aborted transaction wrote.
"""

from collections.abc import Iterator, Mapping

from tidelog.client.kafka import Fetched, KafkaClient
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.model import Offset
from tidelog.records import Record, decode_batch, iterate_batches

CONTROL_ABORT = b"\x00\x00\x00\x00"
"""A control record's key: version 0, type 0 (abort); type 1 is commit."""
POLL_BYTES = 4 * 1024 * 1024


class Consumer:
    """Reads some partitions of one topic from given offsets on. Owned by one task."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        positions: Mapping[int, Offset],
        *,
        read_committed: bool = False,
    ) -> None:
        self.positions = dict(positions)
        """The next offset to be read, by partition; set one to seek, delete one to stop it."""
        self._client = client
        self._topic = topic
        self._read_committed = read_committed

    async def poll(self, *, wait_ms_max: int = 500) -> list[tuple[int, list[Record]]]:
        """The next records of every partition that has some; [] when nothing came in time.

        Raises Refused with code 1 if a position was deleted by retention.
        """
        fetched = await self._client.fetch(
            self._topic,
            self.positions,
            wait_ms_max=wait_ms_max,
            bytes_max=POLL_BYTES,
            partition_bytes_max=max(65536, POLL_BYTES // max(1, len(self.positions))),
            read_committed=self._read_committed,
        )
        return [(one.partition, found) for one in fetched if (found := list(self._read(one)))]

    def _read(self, fetched: Fetched) -> Iterator[Record]:
        where = f"{self._topic}-{fetched.partition}"
        position = self.positions[fetched.partition]
        aborted = sorted(fetched.aborted, key=lambda transaction: transaction[1])
        aborting: set[int] = set()
        at = -1
        for header, batch in iterate_batches(fetched.records):
            at = header.last_offset
            while aborted and aborted[0][1] <= at:
                aborting.add(aborted.pop(0)[0])
            if at < position:
                continue  # an index points before the position, never behind it
            try:
                records = decode_batch(batch)
            except CorruptMessage as error:
                raise CorruptMessage(f"{where} at {header.base_offset}: {error}") from error
            if header.is_control:
                if records and records[0].key == CONTROL_ABORT:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                yield from (record for record in records if record.offset >= position)
            self.positions[fetched.partition] = header.next_offset
        if fetched.records and at < 0:
            raise TidelogError(
                f"{where}: the batch at {position} came cut off; a broker must send a first batch "
                "whole, so report this"
            )
