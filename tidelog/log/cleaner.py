"""Which logs are compacted, when, and how far; and the loop that sees it through.

Rule 1: only whole sealed segments below the last stable offset are cleaned, never the active one.
Rule 2: the decision is pure (`plan`), the work blocks in a disk's thread in small slices
        (`compaction`), and the log changes on the event loop in one step (`replace_segments`).
Rule 3: a pass that cannot go on leaves the log as it was. What it has written is removed, and the
        next pass begins anew; what it has swapped in stays.
Rule 4: whoever works on the files of sealed segments from turn to turn holds the owner's lock
        `files`: a slice, a swap, retention, a log that is opened again, a topic's removal.

A log is divided by offsets, as Kafka's is:

    log start            first dirty               end of the plan       active segment
        |  clean: no key twice |  dirty: not seen yet   |  too young, or not     |
        |                      |                        |  committed yet         |

`cleaner-offset-checkpoint` keeps the first dirty offsets. One that is lost or lies too low costs a
longer pass, nothing else. One that lies too high, as that of a deleted topic does for a new one of
its name, or that of a log before it was cut, brings deleted keys back: what it calls clean is not,
and loses tombstones before values.
"""

import asyncio
import errno
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from tidelog.config import TopicConfig
from tidelog.host import Disk, Host, Path
from tidelog.log.compaction import Cleaned, Compaction, SegmentDamaged
from tidelog.log.directory import FIRST_DIRTY, DataDirectory
from tidelog.log.log import Log
from tidelog.log.purges import Purges
from tidelog.log.retention import load_ages
from tidelog.log.rounds import Rounds
from tidelog.log.segment import Segment
from tidelog.log.steps import is_short
from tidelog.log.swap import commit_swap, discard_cleaned, finish_swap
from tidelog.model import NO_TIMESTAMP, Offset, TopicPartition
from tidelog.records import HEADER_BYTES, read_header

_log = logging.getLogger(__name__)

NEVER_MS: Final = 2**63 - 1
"""The default of `max.compaction.lag.ms`."""

_SLICE_BYTES: Final = 4 * 1024 * 1024
_NAP_SECONDS: Final = 1.0
"""How long a wait for the pace may last before a change of the pace is noticed."""
_FREE_BYTES_MIN: Final = 64 * 1024 * 1024
"""Left to those who write records: cleaning stops before the disk is full."""

T = TypeVar("T")


class Owner(Protocol):
    """Who owns a log that is compacted. The log may be replaced while it is cleaned."""

    @property
    def name(self) -> TopicPartition: ...
    @property
    def log(self) -> Log: ...
    @property
    def config(self) -> TopicConfig: ...
    @property
    def last_stable_offset(self) -> Offset: ...
    @property
    def files(self) -> asyncio.Lock: ...
    @property
    def purges(self) -> Purges: ...
    def purge_limit(self) -> Offset:
        """From where on replicas have yet to copy tombstones."""
        ...


# Deciding.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """How far a log can be cleaned now, and how much there is to gain."""

    first_dirty: Offset
    end: Offset
    """The base of the first segment that is not cleaned."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether a record has been dirty for longer than `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    def is_due(self, policy: TopicConfig) -> bool:
        ratio_min = policy.min_cleanable_dirty_ratio
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > ratio_min)


def plan(
    segments: Sequence[Segment],
    *,
    start: Offset,
    log_end: Offset,
    first_dirty: Offset | None,
    limit: Offset,
    now_ms: int,
    policy: TopicConfig,
) -> CompactionPlan:
    """What of a log can be cleaned: `segments` are all it has, the last one being active.

    `first_dirty` is what the last pass noted, `limit` the last stable offset. The segments' times
    must be known as far as the policy's lags ask for them.
    """
    if first_dirty is None or not start <= first_dirty <= log_end:
        first_dirty = start  # nothing is known, or the log was cut at either end
    clean_bytes = dirty_bytes = 0
    end, is_overdue = segments[0].base, False
    for segment, following in pairwise(segments):
        is_dirty = following.base > first_dirty
        # Of segments that were clean before, none is too young to be cleaned again.
        is_young = is_dirty and segment.max_timestamp_ms > now_ms - policy.min_compaction_lag_ms
        if following.base > limit or (policy.min_compaction_lag_ms > 0 and is_young):
            break
        end = following.base
        if is_dirty:
            dirty_bytes += segment.size
            is_overdue |= 0 <= segment.first_timestamp_ms < now_ms - policy.max_compaction_lag_ms
        else:
            clean_bytes += segment.size
    return CompactionPlan(
        first_dirty=first_dirty,
        end=end,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        is_overdue=is_overdue,
    )


class Pace:
    """Spreads work over time so that a rate holds on average."""

    def __init__(self, bytes_per_second_max: int) -> None:
        self.bytes_per_second_max = bytes_per_second_max
        self._seconds_per_byte = 1 / bytes_per_second_max if bytes_per_second_max > 0 else 0.0
        self._paid_until = 0.0

    def wait_seconds(self, size: int, now: float) -> float:
        """How long to wait after `size` bytes, before the next."""
        self._paid_until = max(self._paid_until, now) + size * self._seconds_per_byte
        return self._paid_until - now


# Doing.


class _Abandoned(Exception):
    """The log changed under the pass, or is gone: begin anew another time."""


class Cleaner:
    """Compacts the logs of one node, one at a time.

    Owned by the event loop.
    """

    def __init__(
        self,
        host: Host,
        rounds: Rounds,
        directory: DataDirectory,
        *,
        first_dirty: Mapping[TopicPartition, Offset],
        key_bytes_max: int,
        bytes_per_second_max: int,
    ) -> None:
        """`first_dirty` is the checkpoint as it was found; a rate of 0 is no limit."""
        self._host = host
        self._rounds = rounds
        self._directory = directory
        self._first_dirty = dict(first_dirty)
        self._noted = dict(first_dirty)
        self.key_bytes_max = key_bytes_max
        self.pace = Pace(bytes_per_second_max)
        self._running: asyncio.Future[Any] | None = None
        self.uncleanable: dict[TopicPartition, str] = {}
        """Logs that are left alone until the next start, each with the reason."""

    def configure(self, *, key_bytes_max: int, bytes_per_second_max: int) -> None:
        """Go on within these limits: the rate from the next slice on, the memory from the next log.

        Who waits because of an old rate waits no longer.
        """
        self.key_bytes_max = key_bytes_max
        if bytes_per_second_max != self.pace.bytes_per_second_max:
            self.pace = Pace(bytes_per_second_max)

    def forget(self, name: TopicPartition) -> None:
        """The partition is deleted; another may come to bear its name."""
        self._first_dirty.pop(name, None)
        self.uncleanable.pop(name, None)

    def unnote(self, name: TopicPartition) -> None:
        """Forget, durably, how far a log was cleaned that is about to be cut.

        It may grow past that offset again, and what lies below would be taken for clean. Blocks on
        the disk; only while the directory's `noting` is held.
        """
        if name in self._noted:
            left = {other: at for other, at in self._noted.items() if other != name}
            self._directory.write_checkpoint(FIRST_DIRTY, left)
            self._noted = left

    def first_dirty(self, name: TopicPartition) -> Offset | None:
        """From where on the log has not been cleaned; None if that is not known."""
        return self._first_dirty.get(name)

    async def clean_due(self, owners: Sequence[Owner]) -> bool:
        """Clean every log that is dirty enough, the dirtiest first; whether there was any.

        `owners` are those whose policy is to compact. Call it again at once when it returns True:
        a log may have had more keys than memory, and others have become dirty meanwhile.
        """
        due = []
        for owner in owners:
            found = await self._plan(owner)
            if found is not None and found.is_due(owner.config):
                due.append((found.dirty_ratio, owner))
        progressed = False
        for _, owner in sorted(due, key=lambda each: each[0], reverse=True):
            progressed |= await self._clean(owner)
        await self._note(owners)
        return progressed

    async def _plan(self, owner: Owner) -> CompactionPlan | None:
        log, config = owner.log, owner.config
        if log.refusal is not None or owner.name in self.uncleanable or len(log.segments) < 2:
            return None
        if config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < NEVER_MS:
            try:
                await self._run(partial(load_times, self._host.disk, list(log.segments[:-1])))
            except OSError as error:
                if is_short(error):
                    raise
                _log.error("%s is not compacted this time: %s", owner.name, error)
                return None
        return plan(
            log.segments,
            start=log.start,
            log_end=log.end,
            first_dirty=self._first_dirty.get(owner.name),
            limit=owner.last_stable_offset,
            now_ms=self._host.clock.wall_ms(),
            policy=config,
        )

    async def _clean(self, owner: Owner) -> bool:
        """One pass over a log; whether it got any further."""
        found = await self._plan(owner)  # anew: those before it may have taken hours
        if found is None or not found.is_due(owner.config):
            return False
        log, config = owner.log, owner.config
        started = self._host.clock.monotonic()
        work = Compaction(
            disk=self._host.disk,
            segments=[segment for segment in log.segments if segment.base < found.end],
            first_dirty=found.first_dirty,
            limit=found.end,
            producers=log.producers.last_offsets(),
            now_ms=self._host.clock.wall_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            index_interval_bytes=config.index_interval_bytes,
            key_bytes_max=self.key_bytes_max,
            marked_epochs=log.producers.marked_epochs(),
            aborted=log.transactions.aborted.between(0, log.end),
            has_markers=log.transactions.has_markers,
            purge_limit=owner.purge_limit(),
        )
        # The steps that seal a segment must not follow its replacement.
        await self._rounds.written()
        is_done = await self._pass(owner, log, work)
        await self._run(work.forget_keys)  # here, a million keys would hold up everyone
        if not is_done:
            return False
        self._report(owner.name, found, work, self._host.clock.monotonic() - started)
        return work.end > found.first_dirty

    async def _pass(self, owner: Owner, log: Log, work: Compaction) -> bool:
        """Map, clean, and note how far; False if that came to nothing."""
        try:
            await self._drive(owner, log, work.segments, work.map_keys())
            for group in work.groups() if work.end > work.first_dirty else ():
                await self._clean_group(owner, log, work, group)
            _check(owner, log)  # a deleted topic leaves nothing to its namesake
            self._first_dirty[owner.name] = work.end
        except _Abandoned:
            _log.info("%s changed while it was compacted; later", owner.name)
            return False
        except OSError as error:
            if is_short(error) or owner.name in self.uncleanable:
                raise  # room is missing for all logs, or a swap was interrupted
            _log.error("%s is not compacted this time: %s", owner.name, error)
            return False
        except Exception as error:  # KIP-346: one log must not stop the cleaning of all others
            self.uncleanable[owner.name] = str(error) or repr(error)
            is_bug = not isinstance(error, SegmentDamaged)
            _log.error("%s is not compacted any more: %s", owner.name, error, exc_info=is_bug)
            return False
        return True

    async def _clean_group(self, owner: Owner, log: Log, work: Compaction, group: Sequence[Segment]) -> None:
        done: list[Cleaned] = []
        try:
            await self._drive(owner, log, group, work.clean(group, done.append))
            for cleaned in done:
                await self._swap(owner, log, cleaned)
        except Exception:
            await self._discard(log, group)
            raise
        if not done:
            await self._discard(log, group)

    async def _discard(self, log: Log, group: Sequence[Segment]) -> None:
        base = group[0].base
        await self._run(partial(discard_cleaned, self._host.disk, log.directory, base))

    async def _drive(self, owner: Owner, log: Log, segments: Sequence[Segment], work: Iterator[int]) -> None:
        """Perform `work` on `segments` slice by slice, as fast as the pace allows."""
        disk, clock = self._host.disk, self._host.clock
        is_done = False
        while not is_done:
            async with owner.files:
                _check(owner, log, segments)
                size, is_done = await self._run(partial(_perform, disk, log.directory, work))
            pace = self.pace
            wait_seconds = pace.wait_seconds(size, clock.monotonic())
            while wait_seconds > 0 and pace is self.pace:
                await asyncio.sleep(min(wait_seconds, _NAP_SECONDS))
                wait_seconds -= _NAP_SECONDS

    async def _swap(self, owner: Owner, log: Log, cleaned: Cleaned) -> None:
        disk, new = self._host.disk, cleaned.segment
        async with owner.files:
            _check(owner, log, cleaned.old)
            if cleaned.purged_end:
                await self._note_purge(owner, cleaned.purged_end)
            try:
                await self._run(partial(commit_swap, disk, log.directory, new.base))
                log.replace_segments(cleaned.old, new, cleaned.gone)
                await self._run(partial(finish_swap, disk, log.directory, new.base, cleaned.end))
            except OSError as error:
                # A start knows what to do with any state of the files, a running log does not.
                self.uncleanable[owner.name] = f"a swap was interrupted: {error}"
                raise
            new.offsets = new.times = None  # from now on they are in their files

    async def _note_purge(self, owner: Owner, end: Offset) -> None:
        async with self._directory.noting:  # what a new topic forgets must not be noted after it
            await self._run(partial(self._directory.note_purge, owner.name, end))
        owner.purges.add(end)

    async def _run(self, work: Callable[[], T]) -> T:
        """Wait for a thread's work. If that is cancelled, `finish` waits for it."""
        future = self._host.offload.run(work)
        self._running = future
        return await asyncio.shield(future)

    async def finish(self) -> None:
        """Wait for the thread at work, which goes on when the task that cleans is cancelled."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def _note(self, owners: Sequence[Owner]) -> None:
        """Write the checkpoint if it has changed, without those that are not compacted any more."""
        names = {owner.name for owner in owners}
        async with self._directory.noting:  # what a new topic forgets must not be noted after it
            offsets = {name: at for name, at in self._first_dirty.items() if name in names}
            if offsets != self._noted:
                self._first_dirty, self._noted = dict(offsets), offsets
                await self._run(partial(self._directory.write_checkpoint, FIRST_DIRTY, offsets))

    def _report(self, name: TopicPartition, found: CompactionPlan, work: Compaction, seconds: float) -> None:
        tally = work.tally
        _log.info(
            "%s: compacted offsets %d to %d in %.1f s; %d of %d records are left, %d of %d bytes",
            name,
            found.first_dirty,
            work.end - 1,
            seconds,
            tally.records_kept,
            tally.records_read,
            tally.bytes_written,
            tally.bytes_read,
        )
        if tally.keyless or work.unreadable:
            _log.warning(
                "%s: dropped %d records without a key, kept %d batches that cannot be unpacked",
                name,
                tally.keyless,
                work.unreadable,
            )


def _perform(disk: Disk, directory: Path, work: Iterator[int]) -> tuple[int, bool]:
    """A slice of `work`: how many bytes it moved, and whether that was the end."""
    if disk.free_bytes(directory) < _FREE_BYTES_MIN:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
    size = 0
    for moved in work:
        size += moved
        if size >= _SLICE_BYTES:
            return size, False
    return size, True


def _check(owner: Owner, log: Log, segments: Sequence[Segment] = ()) -> None:
    """Raise _Abandoned unless the log is the owner's, in order, and has all of `segments`."""
    if owner.log is not log or log.refusal is not None:
        raise _Abandoned
    if not segments:
        return
    at = bisect_left(log.segments, segments[0].base, key=lambda segment: segment.base)
    if log.segments[at : at + len(segments)] != list(segments):
        raise _Abandoned


def load_times(disk: Disk, segments: Sequence[Segment]) -> None:
    """Read the first and the greatest times of sealed segments that are not known yet. Blocks."""
    load_ages(disk, list(segments))
    for segment in segments:
        if segment.first_timestamp_ms == NO_TIMESTAMP and segment.size:
            header = segment.open(disk).read(0, HEADER_BYTES)
            if len(header) == HEADER_BYTES:
                segment.first_timestamp_ms = read_header(header).max_timestamp
