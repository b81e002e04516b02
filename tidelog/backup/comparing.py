"""What a log has after a restore, held against its backup: record by record.

Rule 1: where a batch of the log has the same bytes as that of the backup, its records are the same
        and need not be unpacked. Any other is compared record by record.
Rule 2: a log that is compacted meanwhile may lack what a later record of the same key, or a
        deletion whose time had come, has made void; nothing else. That later record may lie behind
        the end of the backup.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from tidelog.backup.problems import Differs
from tidelog.model import Offset
from tidelog.records import HEADER_BYTES, TRANSACTIONAL, BatchHeader, Record, decode_batch, iterate_batches

_FIELDS: Final = ("key", "value", "headers", "timestamp_ms")


class Comparison:
    """One partition. `take` what is read of its log, in order, then `finish`. Its calls block."""

    def __init__(
        self,
        where: str,
        expected: Iterable[tuple[BatchHeader, memoryview]],
        *,
        start: Offset,
        end: Offset,
        may_lack: bool = False,
    ) -> None:
        """`expected` are the backup's batches; what lies outside of [start, end) is not compared.

        `may_lack`: the log may have been compacted.
        """
        self._where = where
        self._batches = (
            (header, batch)
            for header, batch in expected
            if header.record_count and header.last_offset >= start
        )
        self._next: tuple[BatchHeader, memoryview] | None = None
        self._records: deque[Record] = deque()
        self._start = start
        self._end = end
        self._may_lack = may_lack
        self._void: dict[bytes | None, Offset] = {}
        """Keys of records that are lacking, until a later record of the key is found."""
        self._later: set[bytes | None] = set()
        """Keys of records behind the end."""
        self.records = 0
        """How many were found as they should be."""
        self.lacking = 0
        """How many were compacted away."""

    def take(self, data: bytes) -> None:
        """Compare whole batches of the log; Differs says where they differ."""
        for header, batch in iterate_batches(data):
            if header.base_offset >= self._end:
                if self._may_lack and not header.is_control:
                    self._later.update(record.key for record in decode_batch(batch))
                continue
            is_inside = header.last_offset >= self._start and header.base_offset < self._end
            if header.is_control or not header.record_count or not is_inside:
                continue
            expected = None if self._records or self._void else self._peek()
            if expected is not None and _are_same(expected, (header, batch)):
                self._next = None
                self.records += header.record_count
            else:
                for record in decode_batch(batch):
                    if record.offset >= self._start:
                        self._match(record)

    def finish(self) -> None:
        """There is no more in the log."""
        while (record := self._take_record()) is not None:
            self._lacks(record)
        for key in self._later:
            self._void.pop(key, None)
        if self._void:
            offset = min(self._void.values())
            raise Differs(f"{self._where}: the record at offset {offset} is missing")

    def _match(self, found: Record) -> None:
        while (wanted := self._take_record()) is not None and wanted.offset < found.offset:
            self._lacks(wanted)
        if wanted is None or wanted.offset > found.offset:
            raise Differs(f"{self._where}: offset {found.offset} is not in the backup")
        for name in _FIELDS:
            if getattr(wanted, name) != getattr(found, name):
                raise Differs(f"{self._where}: offset {found.offset} has another {name}")
        self._void.pop(wanted.key, None)
        self.records += 1

    def _lacks(self, wanted: Record) -> None:
        if not self._may_lack or wanted.key is None:
            raise Differs(f"{self._where}: the record at offset {wanted.offset} is missing")
        self.lacking += 1
        if wanted.value is None:
            self._void.pop(wanted.key, None)
        else:
            self._void[wanted.key] = wanted.offset

    def _peek(self) -> tuple[BatchHeader, memoryview] | None:
        if self._next is None:
            self._next = next(self._batches, None)
        return self._next

    def _take_record(self) -> Record | None:
        """The backup's next record."""
        while not self._records:
            expected = self._peek()
            if expected is None:
                return None
            self._next = None
            self._records.extend(
                record for record in decode_batch(expected[1]) if record.offset >= self._start
            )
        return self._records.popleft()


def _are_same(one: tuple[BatchHeader, memoryview], other: tuple[BatchHeader, memoryview]) -> bool:
    """Whether two batches hold the same records at the same offsets and times."""
    return _shape(one[0]) == _shape(other[0]) and one[1][HEADER_BYTES:] == other[1][HEADER_BYTES:]


def _shape(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset,
        header.length,
        header.attributes & ~TRANSACTIONAL,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.record_count,
    )
