"""One piece of a log taken into a view, in a disk's thread.

Rule 1: a piece is taken whole, with the offset that it leads to, or not at all.
Rule 2: where records are missing, nothing is taken unless the caller has said that they may be: a
        view that has older ones would keep what was deleted.
Rule 3: bytes that are not what was written are never taken; what nobody can read, though it was
        written so, is passed over.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidelog.copies.views.store import Position, ViewStore
from tidelog.errors import CorruptMessage, StorageError
from tidelog.host import Disk
from tidelog.log.committed import committed_batches
from tidelog.log.epochs import EpochHistory
from tidelog.log.reading import Read
from tidelog.model import Offset, ProducerId
from tidelog.records import BatchHeader, Record, crc_matches, decode_batch, iterate_batches

_log = logging.getLogger(__name__)


class Folded(NamedTuple):
    """What became of a view."""

    position: Position
    has_gaps: bool
    """Whether records are missing there: they were compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Takes what was read from `offset` on; for a disk's thread."""

    store: ViewStore
    disk: Disk
    found: Read
    aborted: Sequence[tuple[ProducerId, Offset]]
    offset: Offset
    epochs: EpochHistory
    """The log's own. What a batch says may have rotted: its checksum does not cover the epoch."""
    at: Position
    may_have_gaps: bool

    def perform(self) -> Folded | None:
        """Where the view is then; None, and nothing was done, if there are gaps and must not be."""
        data = self.found.load_sound(self.disk)
        end, has_gaps = self.offset, False
        if not data and self.offset < self.found.limit:  # compaction took it all
            end, has_gaps = self.found.limit, True
        for header, _ in iterate_batches(data):
            has_gaps |= header.base_offset > end or header.lacks_records
            end = header.next_offset
        if has_gaps and not self.may_have_gaps:
            return None
        records = [
            record
            for header, batch in committed_batches(data, self.aborted)
            for record in readable_records(header, batch)
            if record.offset >= self.offset
        ]
        epoch = self.epochs.epoch_at(end - 1) if end > self.offset else self.at.epoch
        to = replace(self.at, applied=end, epoch=epoch)
        self.store.apply(records, to)
        return Folded(to, has_gaps)


def readable_records(header: BatchHeader, batch: memoryview) -> list[Record]:
    """The records of a sound batch; none if its producer has written what nobody can read."""
    try:
        return decode_batch(batch)
    except CorruptMessage as error:
        if not crc_matches(batch, header):
            raise StorageError(str(error)) from error
        _log.warning("the batch at %d is passed over: %s", header.base_offset, error)
        return []
