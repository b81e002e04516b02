"""What the leader of a bucket's partition decides on: its view, and the log beyond it.

Rule: nothing here waits. What a thread must read first is said; whoever asks comes back with it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from tidelog.broker.joint_writes import Gathered
from tidelog.copies.node.fold import readable_records
from tidelog.copies.node.views import View
from tidelog.copies.views.kv import (
    FIRST_DUE,
    Change,
    Due,
    Entry,
    Overlay,
    entry_of,
    find_refused,
    get_entry,
    has_effect,
    next_expiry,
    record_of,
)
from tidelog.errors import BrokerError, ConcurrentTransactions, OffsetNotAvailable, StorageError
from tidelog.host import Bytes
from tidelog.log.reading import Read
from tidelog.log.transactions import find_marker
from tidelog.model import Offset
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.records import Record, crc_matches, iterate_batches
from tidelog.services.kv_work import KvWritten

_READ_BYTES: Final = 1024 * 1024
_OVERLAY_BYTES: Final = 64 * 1024 * 1024
"""Of what is written and not folded yet; whoever wants to write more waits for the view."""


class Decision(NamedTuple):
    """What some changes of a partition come to."""

    records: list[Record]
    """What is to be written; empty where nothing is."""
    existed: tuple[bool | None, ...]
    refused: tuple[tuple[int, Offset | None], ...]
    seen: Offset
    """Once the log is committed up to here, what was decided without a write is true."""


class Asked(NamedTuple):
    """Changes that somebody waits for."""

    changes: Sequence[Change]
    deadline: float
    reply: "asyncio.Future[KvWritten | Decision | None]"
    """What was written, or why nothing was; None: it is to be asked again."""


def tell_all(asked: Sequence[Asked], error: BrokerError | None) -> int:
    """Tell all of them why nothing was decided; how many they are."""
    for one in asked:
        if not one.reply.done():
            if error is None:
                one.reply.set_result(None)
            else:
                one.reply.set_exception(error)
    return len(asked)


class LeaderState:
    """The writes of one partition, in one epoch of this node.

    Invariant: while `is_known`, view and overlay together are the fold of the whole log.
    """

    def __init__(
        self,
        partition: Partition,
        leader: Leader,
        view: View,
        write_together: "Callable[[LeaderState, Sequence[Asked]], int]",
    ) -> None:
        self.partition = partition
        self.leader = leader
        self.log = partition.log
        self.view = view
        self.overlay = Overlay(view.applied)
        self.next_expiry_ms: int | None = None
        self.looked_to: Due = FIRST_DUE
        """How far was looked for keys that expire."""
        self.asked: Gathered[Asked] = Gathered(partial(write_together, self))
        """The changes that came in this turn."""
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


class Decisions:
    """What the changes of one turn come to, each of them on all that come before it.

    Made and used within one turn, with a state that is known.
    """

    def __init__(self, state: LeaderState, base: Offset, now_ms: int) -> None:
        """`base`: where the log ends."""
        self._state = state
        self._end = base
        self._now_ms = now_ms
        self._newest: dict[bytes, Entry] = {}
        self.entries: list[Entry] = []
        """What the log will say, in its order."""

    def decide(self, changes: Sequence[Change]) -> Decision:
        """What these come to; ConcurrentTransactions if that is not known yet."""
        overlay = self._state.overlay
        for change in changes:
            if change.if_version is not None and overlay.is_undecided(change.key):
                raise ConcurrentTransactions(
                    f"an open transaction has written the key {change.key!r}; try again"
                )
        before = [self._current(change.key) if change.asks else None for change in changes]
        refused = find_refused(changes, before)
        existed = tuple(
            [
                (one is not None and one.value is not None) if change.asks else None
                for change, one in zip(changes, before, strict=True)
            ]
        )
        if refused or not has_effect(changes, existed):
            seen = max(self._certain_at(change.key) for change in changes)
            return Decision([], existed, refused, seen)
        return Decision([record_of(change, self._now_ms) for change in changes], existed, refused, 0)

    def keep(self, records: Sequence[Record]) -> None:
        """These are written behind those before."""
        for record in records:
            entry = entry_of(record, self._end)
            self._newest[entry.key] = entry
            self.entries.append(entry)
            self._end += 1

    def _current(self, key: bytes) -> Entry | None:
        return self._newest.get(key) or self._state.current(key)

    def _certain_at(self, key: bytes) -> Offset:
        known = self._newest.get(key)
        return self._state.overlay.certain_at(key) if known is None else known.version + 1
