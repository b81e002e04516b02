"""Which groups await the end of whose transaction.

Rule: a marker costs as much as its own transaction has written, however many groups there are.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.groups.records import CommittedOffset
from tidelog.groups.writes import Entry, Write
from tidelog.model import NO_OFFSET, Offset, ProducerId, TopicPartition


class Completion(NamedTuple):
    """A marker in the log: whose transaction it ends, how, and where it stands."""

    producer_id: ProducerId
    commits: bool
    offset: Offset


class Transactions:
    """The open transactions that have written offsets into a shard's log.

    Invariant: a group with pending offsets of a producer is named here under that producer.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._open: dict[ProducerId, dict[str, None]] = {}
        """The groups that a producer's open transaction has written to, in that order."""

    def clear(self) -> None:
        self._open.clear()

    def hold(
        self,
        entry: Entry,
        producer_id: ProducerId,
        place: TopicPartition,
        value: CommittedOffset,
        log_offset: Offset,
    ) -> None:
        """The log says so, if the producer's transaction commits."""
        entry.offsets.hold(producer_id, place, value, log_offset)
        self._open.setdefault(producer_id, {})[entry.group.id] = None

    def apply(self, write: Write) -> None:
        """The log holds the offsets of `write`."""
        for index, (place, value) in enumerate(write.offsets.items()):
            is_placed = write.base_offset != NO_OFFSET
            offset = write.base_offset + index if is_placed else NO_OFFSET
            if write.writer is None:
                write.entry.offsets.apply(place, value, offset)
            else:
                assert value is not None, "nothing is deleted in a transaction"
                assert is_placed, "the driver tells where it appends"
                self.hold(write.entry, write.writer.producer_id, place, value, offset)

    def complete(
        self, producer_id: ProducerId, *, commits: bool, before: Offset | None = None
    ) -> list[Entry]:
        """Decide what a producer has pending `before` its marker; the groups that this concerns."""
        names = self._open.pop(producer_id, {})
        entries = [self._entries[name] for name in names if name in self._entries]
        for entry in entries:
            entry.offsets.complete(producer_id, commits=commits, before=before)
            if producer_id in entry.offsets.pending:
                self._open.setdefault(producer_id, {})[entry.group.id] = None
        return entries

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        for group_id, entry in self._entries.items():
            entry.offsets.assert_invariants()
            for producer_id in entry.offsets.pending:
                assert group_id in self._open[producer_id]
