"""Group commit: how appended bytes reach the disk without the event loop waiting for it.

Rule 1: three lanes, each with at most one thread at work. The write lane empties every log's
        steps; a sync lane makes what was written durable. The next round of a lane starts when
        the last one ends, with all that came meanwhile: the busier the node, the larger its rounds.
        Logs that catch up have a sync lane of their own: much to sync, and nobody who waits for it.
        A log is in one sync lane at a time, so that no sync is counted before an earlier one.
Rule 2: a small write is synced by the same thread, if the sync lane is free, nobody waits for the
        write alone and nothing was left unsynced before: one hand-over less. A large one leaves
        the sync to the other lane, so that the next write can run beside it.
Rule 3: a few dirty files are synced each, many by one sync of the whole file system.
Rule 4: a failed sync, or a failed write where nothing was short, is fatal. Nothing is retried.
Rule 5: a directory for which there is no descriptor is synced with the whole file system, of which
        the disk keeps one since the node's start.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from tidelog.errors import StorageError
from tidelog.host import File, Host, Lane, Path
from tidelog.log.log import Log, WriteJob
from tidelog.log.steps import DiskFull, Written, is_short
from tidelog.model import Offset

SYNC_EACH_MAX: Final = 2
"""Above this many dirty files and directories one `syncfs` is cheaper than a sync of each. It waits
for what others have written, too, such as the node's views: for two files p99 doubles by that."""

SYNC_AT_ONCE_BYTES: Final = 64 * 1024
"""A log's share of a round that is so small that it takes longer to hand over than to write."""

UNSYNCED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Logs that need no sync get one after this much, so that sealing a segment never stalls."""


T = TypeVar("T")


class LogOwner(Protocol):
    """Who owns a log and wants to hear of its rounds. The log may be replaced between rounds."""

    log: Log

    @property
    def syncs(self) -> bool:
        """Whether its writes count only once they are synced."""
        ...

    @property
    def awaits_written(self) -> bool:
        """Whether somebody waits for a write, synced or not."""
        ...

    @property
    def catches_up(self) -> bool:
        """Whether nobody waits for its syncs, of which there may be many."""
        ...

    def on_written(self, end: Offset) -> None: ...

    def on_synced(self, end: Offset) -> None: ...

    def on_disk_full(self, full: DiskFull) -> None: ...


class _SyncLane:
    """Who is to be synced next, and who is synced now."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.waiting: dict[LogOwner, None] = {}
        self.at_work: frozenset[LogOwner] = frozenset()
        self.is_busy = False


class Rounds:
    """The lanes of one node."""

    def __init__(self, host: Host, root: Path, on_fatal: Callable[[BaseException], None]) -> None:
        self._host = host
        self._root = root
        self._on_fatal = on_fatal
        self._to_write: dict[LogOwner, None] = {}
        self._urgent = _SyncLane(Lane.SYNC)
        self._patient = _SyncLane(Lane.SYNC_PATIENTLY)
        self._writing = False
        self._failed = False
        self._lost: Exception | None = None  # set by a disk's thread
        self._idle = asyncio.Event()
        self._idle.set()
        self._write_waits: list[tuple[int, asyncio.Future[None]]] = []
        self.write_rounds = 0
        self.sync_rounds = 0

    def mark(self, member: LogOwner) -> None:
        """The member's log has steps to perform."""
        self._to_write[member] = None
        if not self._writing:
            self._writing = True
            self._idle.clear()
            # At the end of this turn of the loop, so that requests read together go together.
            asyncio.get_running_loop().call_soon(self._start_writing)

    def sync(self, member: LogOwner) -> None:
        """What the member's log has written must become durable, though nothing is written now."""
        if self._failed:
            return
        self._idle.clear()
        self._want_sync(member)
        self._start_syncs()

    def forget(self, member: LogOwner) -> None:
        """The member's log is gone; a round under way may still report, but starts no other."""
        self._to_write.pop(member, None)
        for lane in (self._urgent, self._patient):
            lane.waiting.pop(member, None)

    async def drained(self) -> None:
        """Wait until nothing is left to write or to sync; only once nobody appends any more.

        StorageError if the disk has failed: then nothing may be called clean.
        """
        await self._idle.wait()
        self._refuse_if_failed()

    async def written(self) -> None:
        """Wait until everything marked so far is written.

        StorageError if the disk has failed: what relies on it, such as the removal of a segment
        whose successor was to be made, must not go on.
        """
        if self._writing:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # The round under way, and the one after it if something waits for that.
            self._write_waits.append((self.write_rounds + bool(self._to_write), future))
            await future
        self._refuse_if_failed()

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise StorageError("the disk has failed; the next start will recover")

    def _start_writing(self) -> None:
        members, self._to_write = self._to_write, {}
        work = [(member, job) for member in members if (job := member.log.take_writes()) is not None]
        if not work or self._failed:
            self._writing = False
            self._release_writers(self.write_rounds + 1)
            self._rest()
            return
        jobs = [job for _, job in work]
        self.write_rounds += 1
        if not self._urgent.is_busy and all(
            job.size < SYNC_AT_ONCE_BYTES
            and member.syncs
            and not member.awaits_written
            and job.log.is_synced
            and member not in self._patient.at_work
            for member, job in work
        ):
            self._urgent.is_busy = True
            self.sync_rounds += 1
            perform, end = partial(self._write_and_sync, jobs), self._end_both
        else:
            perform, end = partial(self._write, jobs), self._end_writing
        self._host.offload.run(partial(self._watch, perform), Lane.WRITE).add_done_callback(
            lambda future: self._guard(future, partial(end, work))
        )

    # In a disk's thread.

    def _watch(self, perform: Callable[[], T]) -> T:
        """Note a failure at once: the other lane's next sync of that file would call it a success.

        The kernel tells of lost pages only once. When a sync fails in one thread, whatever the
        other one syncs from then on counts for nothing, even before the loop has heard of it.
        """
        self._check()
        try:
            return perform()
        except Exception as error:
            self._lost = error
            raise

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _write(self, jobs: list[WriteJob]) -> list[Written | DiskFull]:
        disk = self._host.disk
        return [job.perform(disk, self._check) for job in jobs]

    def _write_and_sync(self, jobs: list[WriteJob]) -> list[Written | DiskFull]:
        outcomes = self._write(jobs)
        self._sync([target for job in jobs for target in job.unsynced()])
        return outcomes

    def _sync(self, targets: Sequence[File | Path]) -> None:
        if len(targets) > SYNC_EACH_MAX:
            self._host.disk.sync_everything(self._root)
            return
        for target in targets:
            if isinstance(target, Path):
                self._sync_directory(target)
            else:
                target.datasync()

    def _sync_directory(self, path: Path) -> None:
        try:
            self._host.disk.sync_directory(path)
        except FileNotFoundError:
            pass  # its topic was deleted meanwhile
        except OSError as error:
            if not is_short(error):
                raise
            self._host.disk.sync_everything(self._root)

    # Back on the loop.

    def _end_writing(self, work: list[tuple[LogOwner, WriteJob]], outcomes: list[Written | DiskFull]) -> None:
        for (member, job), outcome in zip(work, outcomes, strict=True):
            if self._note_written(member, job, outcome):
                log = job.log
                if member.syncs or log.unsynced_bytes > UNSYNCED_BYTES_MAX:
                    self._want_sync(member)
                member.on_written(outcome.end)
        self._start_syncs()
        self._next_write()

    def _end_both(self, work: list[tuple[LogOwner, WriteJob]], outcomes: list[Written | DiskFull]) -> None:
        self._urgent.is_busy = False
        for (member, job), outcome in zip(work, outcomes, strict=True):
            if self._note_written(member, job, outcome):
                job.log.begin_sync()  # nothing is left of it
                job.log.synced(outcome.end)
                member.on_written(outcome.end)
                member.on_synced(outcome.end)
        self._start_syncs()  # what was wanted meanwhile
        self._next_write()

    def _note_written(self, member: LogOwner, job: WriteJob, outcome: Written | DiskFull) -> bool:
        """Tell the log; whether its owner is still to be told."""
        if member.log is not job.log:
            return False  # replaced meanwhile
        job.log.wrote(job, outcome.end)
        if isinstance(outcome, DiskFull):
            member.on_disk_full(outcome)
            return False
        return True

    def _next_write(self) -> None:
        self._release_writers(self.write_rounds)
        self._writing = False
        if self._to_write:
            self._writing = True
            self._start_writing()
        else:  # some may wait for a round that will not come: its logs were forgotten
            self._release_writers(self.write_rounds + 1)
        self._rest()

    def _release_writers(self, ended: int) -> None:
        while self._write_waits and self._write_waits[0][0] <= ended:
            _, future = self._write_waits.pop(0)
            if not future.done():
                future.set_result(None)

    def _want_sync(self, member: LogOwner) -> None:
        here, there = self._urgent, self._patient
        if member.catches_up:
            here, there = there, here
        if member in there.at_work or member in there.waiting:
            here = there
        here.waiting[member] = None

    def _start_syncs(self) -> None:
        for lane in (self._urgent, self._patient):
            if lane.waiting and not lane.is_busy:
                self._start_syncing(lane)

    def _start_syncing(self, lane: _SyncLane) -> None:
        members, lane.waiting = lane.waiting, {}
        work: list[tuple[LogOwner, Log, Offset]] = []
        targets: list[File | Path] = []
        for member in members:
            unsynced, end = member.log.begin_sync()
            work.append((member, member.log, end))
            targets += unsynced
        lane.at_work = frozenset(members)
        lane.is_busy = True
        self.sync_rounds += 1
        perform = partial(self._sync, targets)
        self._host.offload.run(partial(self._watch, perform), lane.lane).add_done_callback(
            lambda future: self._guard(future, partial(self._end_syncing, lane, work))
        )

    def _end_syncing(self, lane: _SyncLane, work: list[tuple[LogOwner, Log, Offset]], _: None) -> None:
        lane.is_busy = False
        lane.at_work = frozenset()
        self._start_syncs()
        for member, log, end in work:
            log.synced(end)
            if member.log is log:
                member.on_synced(end)
        self._rest()

    def _guard(self, future: "asyncio.Future[T]", end: Callable[[T], None]) -> None:
        """End a round. Whatever goes wrong in it, the node must not go on as if it had not."""
        if future.cancelled():
            return
        lost = future.exception() or self._lost
        if self._failed:  # after a failure nobody is told of a success, nor of another failure
            return
        try:
            if lost is not None:
                raise lost
            end(future.result())
        except Exception as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Stop for good, and end the process."""
        self._failed = True
        self._writing = self._urgent.is_busy = self._patient.is_busy = False
        self._idle.set()
        self._release_writers(self.write_rounds + 1)
        self._on_fatal(error)

    def _rest(self) -> None:
        syncs = any(lane.is_busy or lane.waiting for lane in (self._urgent, self._patient))
        if not (self._writing or syncs or self._to_write):
            self._idle.set()
