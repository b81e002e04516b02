"""What the leader of a bucket's partition decides on: its view, and the log beyond it.

Rule: nothing here waits. What a thread must read first is said; whoever asks comes back with it.
"""

from contextlib import suppress
from functools import partial
from typing import Final

from tidelog.copies.node.fold import readable_records
from tidelog.copies.node.views import View
from tidelog.copies.views.kv import FIRST_DUE, Due, Entry, Overlay, get_entry, next_expiry
from tidelog.errors import OffsetNotAvailable, StorageError
from tidelog.host import Bytes
from tidelog.log.reading import Read
from tidelog.log.transactions import find_marker
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.records import crc_matches, iterate_batches

_READ_BYTES: Final = 1024 * 1024
_OVERLAY_BYTES: Final = 64 * 1024 * 1024
"""Of what is written and not folded yet; whoever wants to write more waits for the view."""


class LeaderState:
    """The writes of one partition, in one epoch of this node.

    Invariant: while `is_known`, view and overlay together are the fold of the whole log.
    """

    def __init__(self, partition: Partition, leader: Leader, view: View) -> None:
        self.partition = partition
        self.leader = leader
        self.log = partition.log
        self.view = view
        self.overlay = Overlay(view.applied)
        self.next_expiry_ms: int | None = None
        self.looked_to: Due = FIRST_DUE
        """How far was looked for keys that expire."""
        self.settle()

    @property
    def is_over(self) -> bool:
        """Whether another epoch has begun, or the log was opened anew and may lack its end."""
        return self.partition.leader is not self.leader or self.partition.log is not self.log

    @property
    def is_known(self) -> bool:
        """Whether view and overlay are all of the log, and the overlay is not too large."""
        view = self.view
        return view.is_whole and view.applied >= self.overlay.start and not self.is_full

    @property
    def is_full(self) -> bool:
        return self.overlay.size > _OVERLAY_BYTES

    def settle(self) -> None:
        self.overlay.settle(self.view.applied)
        with suppress(OffsetNotAvailable):  # it is being made again: another time
            self.next_expiry_ms = self.view.ask(next_expiry)

    def fold(self, data: Bytes) -> None:
        for header, batch in iterate_batches(data):
            if header.last_offset < self.overlay.end:
                continue
            if not crc_matches(batch, header):
                raise StorageError(f"the batch at {header.base_offset} is damaged")
            if header.is_control:
                self.overlay.fold(header, (), find_marker(header, batch))
            else:
                self.overlay.fold(header, readable_records(header, batch), None)

    def catch_up(self) -> Read | None:
        """Fold what the log holds in memory; what a thread must read first, if there is any."""
        log = self.log
        while self.overlay.end < log.end:
            found = self.partition.read(max(self.overlay.end, log.start), _READ_BYTES, log.end)
            if found.cold is not None:
                return found
            for data in found.buffers:
                self.fold(data)
        return None

    def current(self, key: bytes) -> Entry | None:
        """What the key is, committed or not."""
        return self.overlay.get(key) or self.view.ask(partial(get_entry, key=key))
