"""The metadata log on this node's disk, as the quorum needs it: grown, cut, emptied, trimmed.

Rule 1: the log holds what was decided and what may be; only the quorum's machine knows the border.
Rule 2: the durable mark is lowered, durably, before anything is cut. Otherwise the next start
        would take the cut for damage.
Rule 3: records are decoded once, when they come; they wait here until they are committed.
Rule 4: a cut is waited for, even by who is cancelled. Otherwise a stop would note as durable, and
        leave as clean, what is gone. To open the log again takes nothing away that was synced, and
        the machine, which believes in the rest, must hear of it in the same turn.
Rule 5: on a full disk the reserve takes what is written here; where that is spent, too, a cut waits
        for room. Files go before it is noted that they are gone.
Rule 6: where there are other voters, damage is cut off, and what follows is fetched from them. What
        this disk may have acknowledged is noted first (`acknowledged`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tidelog.config import TopicConfig
from tidelog.controller.records import LeaderChanged, MetadataRecord, decode, encode
from tidelog.errors import CorruptMessage, StorageError
from tidelog.host import Bytes, Host, unbroken
from tidelog.log.directory import DataDirectory
from tidelog.log.epochs import EpochHistory
from tidelog.log.log import Log, LogState
from tidelog.log.reading import Read
from tidelog.log.recovery import open_log
from tidelog.log.retention import remove_segments
from tidelog.log.rounds import Rounds
from tidelog.log.scan import Before
from tidelog.log.steps import DiskFull, is_short, refusal
from tidelog.log.tail import TailBudget
from tidelog.log.truncation import cut_end, remove_all
from tidelog.model import METADATA_TOPIC, METADATA_TOPIC_ID, Epoch, Offset, TopicPartition
from tidelog.records import (
    BatchHeader,
    Record,
    check_batch,
    decode_batch,
    encode_batch,
    iterate_batches,
    stamp,
)

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)

CONFIG: Final = TopicConfig(
    retention_ms=-1, max_message_bytes=64 * 1024 * 1024, segment_bytes=16 * 1024 * 1024
)
"""Always synced; deleted only below a snapshot."""

_READ_BYTES: Final = 8 * 1024 * 1024
FULL_DISK_SECONDS: Final = 1.0
"""How long to wait before a full disk is tried again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """The records of one batch; the next batch begins at `end`."""

    start: Offset
    end: Offset
    epoch: Epoch
    records: list[MetadataRecord]


class Fetched(NamedTuple):
    """A batch as the leader has it, and what it holds."""

    entry: Entry
    header: BatchHeader
    batch: Bytes


class QuorumLog:
    """A log of metadata records, and those of them that wait to be committed.

    Invariant: `waiting` holds what lies in the log from the last taken entry on, in order.
    Owned by the event loop.
    """

    syncs = True
    awaits_written = False
    catches_up = False

    def __init__(
        self,
        host: Host,
        rounds: Rounds,
        directory: DataDirectory,
        budget: TailBudget,
        *,
        on_synced: Callable[[Offset], None],
        on_disk_full: Callable[[DiskFull], None],
        segment_bytes: int = CONFIG.segment_bytes,
        before_mending: Callable[[], None] | None = None,
    ) -> None:
        """`before_mending` is called, in a disk's thread, before damage is cut off. Without it
        nobody has what is damaged here, and nothing is cut.
        """
        self._host = host
        self._rounds = rounds
        self._directory = directory
        self._budget = budget
        self._tell_synced = on_synced
        self._tell_full = on_disk_full
        self._before_mending = before_mending
        self._config = replace(CONFIG, segment_bytes=segment_bytes)
        self.path = directory.path(METADATA_PARTITION)
        self.name = METADATA_PARTITION
        self.high_watermark: Offset = 0
        """As the machine last said."""
        self.waiting: deque[Entry] = deque()
        self._waits_for_room = False
        self.log: Log

    # Opening.

    async def open(self, start: Offset) -> None:
        """Open what is on disk; `start` is where the newest snapshot ends, or 0."""
        state = await self._host.offload.run(partial(self._open, start, self._directory.was_clean))
        while True:
            self._take(state)
            if self.log.refusal is not None:
                raise StorageError(
                    f"{self.log.refusal}. Restore the directory from a backup, or start with an "
                    "empty one: the quorum will send what it lacks"
                )
            if self.log.start > start:
                raise StorageError(
                    f"{METADATA_PARTITION} begins at offset {self.log.start}, and no snapshot "
                    f"holds what was before (the newest ends at {start}); start with an empty "
                    "directory, or restore it from a backup"
                )
            damaged_at = await self._host.offload.run(self._load_waiting)
            if damaged_at is None:
                return
            if self._before_mending is None:
                raise StorageError(
                    f"{METADATA_PARTITION} is damaged at offset {damaged_at}; start with an empty "
                    "directory, or restore it from a backup. `tidelog log verify` shows the damage"
                )
            # A clean start has not looked at all that the cut looks at: it may find more damage.
            work = partial(self._mend, damaged_at, self.log.start, self.log.epochs, start)
            state = await self._host.offload.run(work)

    def _open(self, start: Offset, clean: bool) -> LogState:
        directory = self._directory
        directory.claim(METADATA_PARTITION, METADATA_TOPIC_ID)
        known = directory.log_starts.get(METADATA_PARTITION, 0)
        work = partial(
            open_log,
            self._host.disk,
            self.path,
            clean=clean,
            start=known,
            durable_mark=directory.durable_marks.get(METADATA_PARTITION, 0),
            index_interval_bytes=CONFIG.index_interval_bytes,
        )
        state = directory.reserve.spend(work)
        if state.damaged_at is not None and self._before_mending is not None:
            return self._mend(state.damaged_at, state.start, state.epochs, start)
        return self._fit(state, start)

    def _fit(self, state: LogState, start: Offset) -> LogState:
        """Begin anew where the newest snapshot ends, if it and the log do not meet."""
        if state.start > start and self._before_mending is not None:  # its snapshot is rotten
            self._before_mending()
            return self._begin_at(start)
        # A snapshot came, and the crash before the log was emptied for it; or damage was cut off
        # that the snapshot has, too.
        if state.end < start:
            return self._begin_at(start)
        return state

    def _mend(self, damaged_at: Offset, log_start: Offset, epochs: EpochHistory, start: Offset) -> LogState:
        """Cut damage off, and all behind it: the quorum sends it again."""
        assert self._before_mending is not None
        self._before_mending()
        _log.error(
            "%s is damaged at offset %d; what follows is fetched again from the other voters",
            METADATA_PARTITION,
            damaged_at,
        )
        kept = EpochHistory(epochs)
        kept.cut_end(damaged_at)
        self._directory.lower_mark(METADATA_PARTITION, damaged_at)
        cut_end(self._host.disk, self.path, damaged_at, kept)
        return self._fit(self._open_at(log_start), start)

    def _begin_at(self, start: Offset) -> LogState:
        self._empty(start)
        return self._open_at(start)

    def _open_at(self, start: Offset, before: Before | None = None) -> LogState:
        return open_log(
            self._host.disk,
            self.path,
            clean=False,
            start=start,
            durable_mark=0 if before is None else before.synced_end,
            index_interval_bytes=CONFIG.index_interval_bytes,
            before=before,
        )

    def _take(self, state: LogState) -> None:
        self.log = Log(self.path, self._config, self._budget, state)
        self.log.reserve = self._directory.reserve

    def _load_waiting(self) -> Offset | None:
        """Decode the whole log; whoever applied some of it already skips that.

        Where it is damaged, if it is.
        """
        self.waiting.clear()
        log = self.log
        offset = log.start
        check = EpochCheck()
        while offset < log.end:
            began_at = offset
            try:
                for entry, _, _ in _entries(self._read(offset)):
                    if entry.start > offset or not check.takes(entry):
                        break  # a hole: what lies behind it must not be applied
                    self.waiting.append(entry)
                    offset = entry.end
            except (CorruptMessage, StorageError):
                return offset
            if offset == began_at:
                return offset
        return None

    def _read(self, offset: Offset) -> Bytes:
        return self.log.read(offset, _READ_BYTES, self.log.end).load_unchecked(self._host.disk)

    # Looking.

    @property
    def end(self) -> Offset:
        return self.log.end

    async def read(self, offset: Offset, bytes_max: int) -> bytes:
        """Whole batches from `offset` on, at least one if there is any.

        CorruptMessage if the disk has not kept them.
        """
        end = self.log.end
        read = self.log.read(offset, bytes_max, end)
        if read.cold is None:
            return bytes(read.joined)
        return await self._host.offload.run(partial(self._read_cold, read, offset, end))

    def _read_cold(self, read: Read, offset: Offset, end: Offset) -> bytes:
        data = bytes(read.load_unchecked(self._host.disk))
        entries = entries_in(data)
        if offset < end and (not entries or entries[0].start > offset):
            raise CorruptMessage(f"nothing can be read at offset {offset}")
        return data

    def take_committed(self, high_watermark: Offset) -> Iterator[Entry]:
        """What was committed since the last call, in order."""
        waiting = self.waiting
        while waiting and waiting[0].end <= high_watermark:
            yield waiting.popleft()

    # Growing.

    def append(self, records: list[MetadataRecord], epoch: Epoch) -> Entry:
        """Append records of this leader, as one batch: all of them will count, or none."""
        now_ms = self._host.clock.wall_ms()
        batch = encode_batch([Record(value=encode(r), timestamp_ms=now_ms) for r in records])
        start = self.log.end
        stamp(batch, start, epoch)
        header = check_batch(batch)
        entry = Entry(start, start + header.last_offset_delta + 1, epoch, records)
        self._append(bytes(batch), header, entry)
        return entry

    def append_fetched(self, fetched: Iterable[Fetched]) -> list[Entry]:
        """Append what the leader sent; it was checked."""
        entries = []
        for entry, header, batch in fetched:
            if entry.end <= self.log.end:
                continue  # the answer to a request that was sent twice
            assert entry.start == self.log.end, "the machine asks from the end"
            self._append(bytes(batch), header, entry)
            entries.append(entry)
        return entries

    def _append(self, batch: bytes, header: BatchHeader, entry: Entry) -> None:
        self.log.append(batch, header, entry.start, entry.epoch)
        self.waiting.append(entry)
        self._rounds.mark(self)

    # Rounds report back.

    def on_written(self, end: Offset) -> None:
        """Only what is synced counts."""

    def on_synced(self, end: Offset) -> None:
        self._tell_synced(end)

    def on_disk_full(self, full: DiskFull) -> None:
        self.log.drop_writes()
        self.log.refusal = refusal(full.error)
        self._tell_full(full)

    # Cutting.

    async def truncate(self, end: Offset) -> None:
        """Remove everything from `end` on, durably. The log may turn out to be damaged."""
        epochs = EpochHistory(self.log.epochs)
        epochs.cut_end(end)
        before = Before(min(self.log.synced_end, end), end, epochs)

        def cut() -> LogState:
            self._directory.lower_mark(METADATA_PARTITION, end)
            cut_end(self._host.disk, self.path, end, epochs)
            return self._open_at(self.log.start, before)

        await self._change(cut, end)

    async def restart_at(self, start: Offset) -> None:
        """Forget everything: a snapshot holds all below `start`."""
        await self._change(partial(self._begin_at, start), 0)

    async def reopen(self) -> None:
        """Bring the log back as its files have it: a full disk kept the rest from them.

        It may turn out to be damaged.
        """
        log = self.log
        before = Before(log.synced_end, log.end, EpochHistory(log.epochs))
        work = partial(self._open_at, log.start, before)
        while not await self._replace(work, before.synced_end):
            await self._wait()

    async def trim(self, start: Offset) -> None:
        """Delete what a snapshot holds, below `start`."""
        gone = self.log.advance_start(start)
        if not gone:
            return
        self._rounds.mark(self)
        await self._rounds.written()  # a sealed segment's steps must not follow its removal
        first_kept = self.log.segments[0].base

        def remove() -> None:
            # One by one: the start is noted once they are gone, and until then what is left of the
            # log must have no gap.
            remove_segments(self._host.disk, gone, first_kept, singly=True)
            try:
                self._directory.raise_start(METADATA_PARTITION, start)
            except OSError as error:
                if not is_short(error):
                    raise
                _log.warning("the next checkpoint notes where the metadata log begins: %s", error)

        while not await self._remove(remove):
            await self._wait()
        self.log.removed(gone)

    async def _remove(self, work: Callable[[], None]) -> bool:
        """Remove files by `work`; False if something is short, and it must be done again."""
        async with self._directory.noting:
            try:
                await self._host.offload.run(work)
            except OSError as error:
                if not is_short(error):
                    raise
                return False
        return True

    def _empty(self, start: Offset) -> None:
        self._directory.lower_mark(METADATA_PARTITION, 0)
        remove_all(self._host.disk, self.path, EpochHistory())
        self._directory.raise_start(METADATA_PARTITION, start)

    async def _settle(self) -> None:
        """Nothing of this log is on its way to the disk any more."""
        self.log.drop_writes()
        self._rounds.forget(self)
        await self._rounds.written()

    async def _change(self, work: Callable[[], LogState], kept_end: Offset) -> None:
        """Change the files by `work`, whoever is cancelled; all below `kept_end` stays."""
        try:
            while not await unbroken(self._replace(work, kept_end)):
                await self._wait()
        except asyncio.CancelledError:
            if self._waits_for_room:  # half done: nothing may be called clean any more
                self._rounds.fail(StorageError("the disk is full; the next start will recover"))
            raise

    async def _wait(self) -> None:
        await asyncio.sleep(FULL_DISK_SECONDS)

    async def _replace(self, work: Callable[[], LogState], kept_end: Offset) -> bool:
        """Put what `work` finds in the place of this log; False if the disk has no room for it."""
        await self._settle()
        async with self._directory.noting:
            try:
                state = await self._host.offload.run(partial(self._directory.reserve.spend, work))
            except OSError as error:
                if not is_short(error):
                    self._rounds.fail(error)  # half done: nothing may be called clean any more
                    raise
                if not self._waits_for_room:
                    _log.warning("the metadata log waits until the disk has room: %s", error)
                self._waits_for_room = True
                # A checkpoint of the meantime must not promise what may be gone already.
                self.log.synced_end = max(min(self.log.synced_end, kept_end), self.log.start)
                return False
            self.log.tail.clear()
            self._take(state)
            self._waits_for_room = False
            waiting = self.waiting
            while waiting and (waiting[-1].end > state.end or waiting[0].start < state.start):
                waiting.pop()
            return True


class EpochCheck:
    """Whether batches are of the epochs that they say: that is not under their checksums.

    A leader's first record in its epoch names it. (Logs from before there were quorums have no
    such records: the check begins with the first.)
    """

    def __init__(self) -> None:
        self._epoch: Epoch | None = None

    def takes(self, entry: Entry) -> bool:
        named = next((r for r in entry.records if isinstance(r, LeaderChanged)), None)
        if named is not None:
            self._epoch = named.epoch
        return self._epoch is None or entry.epoch == self._epoch


def entries_in(data: Bytes) -> list[Entry]:
    """What batches hold; CorruptMessage if they do not check out."""
    return [entry for entry, _, _ in fetched_in(data)]


def fetched_in(data: Bytes) -> Iterator[Fetched]:
    """What batches hold, one after the other; CorruptMessage where one does not check out."""
    check = EpochCheck()
    for fetched in _entries(data):
        if not check.takes(entry := fetched.entry):
            raise CorruptMessage(f"offset {entry.start} cannot be of epoch {entry.epoch}")
        yield fetched


def _entries(data: Bytes) -> Iterator[Fetched]:
    for header, batch in iterate_batches(data):
        check_batch(batch)
        records = []
        for record in decode_batch(batch):
            if record.value is None:
                raise CorruptMessage("a metadata record without a value")
            records.append(decode(record.value))
        entry = Entry(header.base_offset, header.next_offset, header.leader_epoch, records)
        yield Fetched(entry, header, batch)
