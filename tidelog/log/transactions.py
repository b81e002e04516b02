"""Which transactions of a log are decided, and how far everything is.

Rule 1: a transaction is decided once the watermark has passed its marker. Before that, another
        leader may not have the marker, and the transaction may yet end otherwise.
Rule 2: the last stable offset is the least of the watermark and the first offsets of transactions
        that are not decided. It never falls while the log only grows.
Rule 3: all of it is a fold of the log, with the producers' state (see `producers`).
"""

import logging
from collections import deque

from tidelog.errors import CorruptMessage
from tidelog.host import Bytes
from tidelog.log.aborted import AbortedIndex, AbortedTransaction
from tidelog.log.producers import ProducerStates
from tidelog.model import NO_OFFSET, NO_PRODUCER, Offset, ProducerId
from tidelog.records import CONTROL, BatchHeader, Marker, read_marker

_log = logging.getLogger(__name__)


def find_marker(header: BatchHeader, batch: Bytes) -> Marker | None:
    """The marker in a control batch; None if it holds another thing, or nothing any more."""
    if header.producer_id < 0 or not header.record_count:
        return None
    try:
        return read_marker(batch)
    except CorruptMessage as error:
        # Whatever it is: no replica makes anything of it.
        _log.warning("the control batch at %d is passed over: %s", header.base_offset, error)
        return None


class Transactions:
    """What a log knows of transactions beside which are open, which `ProducerStates` knows."""

    __slots__ = ("_ended", "aborted", "has_markers")

    def __init__(self) -> None:
        self._ended: deque[tuple[Offset, Offset, ProducerId]] = deque()
        """First offset, marker and producer of those not known to be decided; offsets rise.

        One that began and ended within another holds up nothing that the other does not.
        """
        self.aborted = AbortedIndex()
        self.has_markers = False
        """Whether a transaction has ever ended here; from then on segments get a `.txnindex`."""

    def note_marker(
        self, producers: ProducerStates, header: BatchHeader, base_offset: Offset, marker: Marker
    ) -> None:
        """Take a marker that is now in the log at `base_offset`."""
        self.has_markers = True
        first = producers.note_marker(header, marker)
        if first is None:
            return
        self._note_ended(first, base_offset, header.producer_id)
        if not marker.commits:
            opened = producers.first_open()
            stable = base_offset + 1 if opened == NO_OFFSET else opened
            self.aborted.add(AbortedTransaction(header.producer_id, first, base_offset, stable))

    def _note_ended(self, first: Offset, marker: Offset, producer_id: ProducerId) -> None:
        ended = self._ended
        while ended and ended[-1][0] >= first:
            ended.pop()
        ended.append((first, marker, producer_id))

    def note_hidden(self, producers: ProducerStates, start: Offset, end: Offset) -> None:
        """Whatever was open at `start` may have ended before `end`, and so may what began there."""
        opened = producers.first_open()
        first = start if opened == NO_OFFSET else min(opened, start)
        self._note_ended(first, end - 1, NO_PRODUCER)

    def ended_across(self, offset: Offset) -> dict[ProducerId, Offset]:
        """The first offsets of transactions that were open at `offset` and ended behind it.

        Of those that may be undecided, and not of one within another: by producer.
        """
        return {
            producer_id: first
            for first, marker, producer_id in self._ended
            if first < offset <= marker and producer_id != NO_PRODUCER
        }

    def last_stable(self, producers: ProducerStates, watermark: Offset) -> Offset:
        """Below it everything is decided."""
        ended = self._ended
        while ended and ended[0][1] < watermark:
            ended.popleft()
        stable = watermark
        if ended and ended[0][0] < stable:
            stable = ended[0][0]
        if 0 <= (opened := producers.first_open()) < stable:
            stable = opened
        return stable


def fold(producers: ProducerStates, transactions: Transactions, header: BatchHeader, batch: Bytes) -> None:
    """Take one batch of a log that is read again; only of a control batch the bytes are needed."""
    if header.producer_id < 0:
        return
    if not header.attributes & CONTROL:
        producers.note(header, header.base_offset)
    elif (marker := find_marker(header, batch)) is not None:
        transactions.note_marker(producers, header, header.base_offset, marker)
