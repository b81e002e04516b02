"""Changes a log's files under its partition: cut, begun anew, opened again.

Rule 1: while that goes on nobody leads or follows with the log (`quiet`), and nothing is on its way
        to its files.
Rule 2: afterwards the log is what its files hold, and nothing else.
Rule 3: who is cancelled meanwhile waits until it is so: a stop notes what the log says.
Rule 4: what stops half-way for want of room or descriptors leaves the log as its files are then,
        and is tried again.
Rule 5: what a cut leaves was synced by this process, as far as it told. If it cannot be read it is
        damaged: the replica leaves the in-sync sets before anything of it goes.
Rule 6: a start takes a sealed segment for synced, but not the last one. So before a cut makes a
        sealed segment the last, the durable mark says how much of it was synced: otherwise the
        next start would take rot in it for a torn tail.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.host import Host, unbroken
from tidelog.log.epochs import OFFSET_MAX, EpochHistory
from tidelog.log.log import Log, LogState
from tidelog.log.recovery import open_log
from tidelog.log.rounds import Rounds
from tidelog.log.scan import Before
from tidelog.log.steps import is_short, shortage
from tidelog.log.tail import TailBudget
from tidelog.log.truncation import cut_end, end_after_cut, note_producers, remove_all
from tidelog.model import Offset
from tidelog.partition.follower import BeginAnew, LearnProducers

if TYPE_CHECKING:
    from tidelog.partition.driver import Partition

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


class Mending:
    """What may happen to one partition's files beside appending to them."""

    __slots__ = ("_budget", "_host", "_partition", "_reopening", "_rounds", "changing")

    def __init__(self, partition: "Partition", host: Host, rounds: Rounds, budget: TailBudget) -> None:
        self._partition = partition
        self._host = host
        self._rounds = rounds
        self._budget = budget
        self.changing = asyncio.Lock()
        self._reopening: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the log is about to be another one."""
        return self._reopening is not None or self.changing.locked()

    @property
    def is_changing(self) -> bool:
        """Whether the files may not be what the log says."""
        return self.changing.locked()

    async def quiet(self) -> None:
        """Wait until the log is what its files hold."""
        while self.is_busy:
            if self._reopening is not None:
                with suppress(Exception):  # the node hears of it elsewhere
                    await asyncio.shield(self._reopening)
            async with self.changing:
                pass

    # What a leader's history asks of a follower.

    async def cut(self, end: Offset, note: Callable[[Offset, Offset], None]) -> None:
        """Remove everything from `end` on.

        `note` notes, durably, past which offset nothing is promised any more, and below which one
        everything is synced that only a segment's being sealed has told so far.
        """
        partition = self._partition
        _log.warning("%s is cut from %d to %d", partition.name, partition.log.end, end)
        if end < partition.high_watermark and partition.log.damaged_at is None:
            _log.error(
                "%s loses committed records: the leader has none from %d on, %d was the watermark",
                partition.name,
                end,
                partition.high_watermark,
            )

        log, disk = partition.log, self._host.disk
        # What was synced and is not cut stays: if it cannot be read then, that is no torn tail.
        kept = min(end, log.promised_end)

        def work() -> LogState:
            nonlocal kept
            epochs = EpochHistory(log.epochs)
            epochs.cut_end(end)
            end_left = end_after_cut(disk, partition.path, end, log.end)
            kept = min(kept, end_left)
            is_unsealed = log.segments[0].base < end <= log.segments[-1].base
            note(end_left, kept if is_unsealed else 0)
            cut_end(disk, partition.path, end, epochs, log.end)
            return self._open(log.start, kept, end)

        await self._change(work, lambda: self._open(log.start, kept))

    async def begin_anew(self, change: BeginAnew, note: Callable[[BeginAnew], None]) -> None:
        """Forget everything and begin where it says; `note` notes so durably."""
        partition, start = self._partition, change.start
        is_damaged = partition.log.damaged_at is not None
        why = "it is damaged" if is_damaged else "what it has would not become what its leader has"
        _log.warning("%s starts over at %d: %s", partition.name, start, why)

        is_done = False

        def work() -> LogState:
            nonlocal is_done
            note(change)
            remove_all(self._host.disk, partition.path, EpochHistory())
            if change.producers:
                note_producers(self._host.disk, partition.path, start, change.producers)
            state = self._open(start)
            state.is_anew = is_done = True
            if change.producers:  # nobody is asked again for what this node cannot read
                state.lacks_producers = False
            return state

        old_start, old_end = partition.log.start, partition.log.end

        def look() -> LogState:
            state = self._open(old_start)
            state.is_anew = state.end < old_end  # some of it is gone already
            return state

        await self._change(work, look)
        if is_done:  # else a full disk has kept it from being done
            partition.purges.begin(max(partition.purges.floor, change.purged))
            if partition.follower is not None:
                partition.follower.purges = change.purges

    async def learn(self, change: LearnProducers) -> None:
        """Note who wrote what is deleted before the first batch, and open the log again."""
        partition = self._partition
        _log.warning("%s learns who wrote what is deleted before %d", partition.name, change.start)
        look = partial(self._open, partition.log.start, partition.log.promised_end)

        def work() -> LogState:
            note_producers(self._host.disk, partition.path, change.start, change.producers)
            return look()

        await self._change(work, look)

    async def _change(self, work: Callable[[], LogState], look: Callable[[], LogState]) -> None:
        """Let a thread do `work`, or `look` what it has left if the disk is too full for it."""
        async with self.changing:
            # So that nobody appends, rolls or compacts.
            self._partition.log.refusal = "it is being cut"
            await unbroken(self._change_files(work, look))

    async def _change_files(self, work: Callable[[], LogState], look: Callable[[], LogState]) -> None:
        partition = self._partition
        await self._settle()
        try:
            state = await self._host.offload.run(work)
        except OSError as error:
            if not is_short(error):
                raise
            _log.error("%s is not brought in line: %s", partition.name, shortage(error))
            partition.find_short(error)
            state = await self._open_again(look)
        partition.take_log(self._log(state))

    # A full disk.

    def reopen(self, fail: Callable[[BaseException], None]) -> None:
        """Bring the log back as its files have it: a full disk kept the rest from them."""
        if self._reopening is None:
            task = asyncio.get_running_loop().create_task(self._reopen(fail))
            self._reopening = task

    async def _reopen(self, fail: Callable[[BaseException], None]) -> None:
        partition = self._partition
        try:
            async with partition.files, self.changing:
                await self._settle()
                start, promised_end = partition.log.start, partition.log.promised_end
                state = await self._open_again(partial(self._open, start, promised_end))
                self._reopening = None
                partition.take_log(self._log(state))
        except Exception as error:
            if partition.leader or partition.follower:  # else its topic was deleted meanwhile
                fail(error)
        finally:
            self._reopening = None

    async def _open_again(self, look: Callable[[], LogState]) -> LogState:
        """Open the log as its files are; wait for as long as something is short."""
        while True:
            try:
                return await self._host.offload.run(look)
            except OSError as error:
                if not is_short(error):
                    raise
                _log.warning("%s is not opened yet: %s", self._partition.name, shortage(error))
            await asyncio.sleep(_RETRY_SECONDS)

    # Together.

    async def _settle(self) -> None:
        """Nothing of this log is on its way to the disk any more."""
        self._partition.log.drop_writes()
        self._rounds.forget(self._partition)
        await self._rounds.written()

    def _open(self, start: Offset, durable_mark: Offset = 0, end_max: Offset = OFFSET_MAX) -> LogState:
        partition = self._partition
        config, log = partition.config, partition.log
        before = Before(
            synced_end=log.synced_end,
            end_max=min(end_max, log.end),
            epochs=log.epochs if partition.is_copy else None,
        )
        return open_log(
            self._host.disk,
            partition.path,
            clean=False,
            start=start,
            durable_mark=durable_mark,
            index_interval_bytes=config.index_interval_bytes,
            has_gaps=config.compacts or partition.is_copy,
            before=before,
            watermark=partition.high_watermark,
        )

    def _log(self, state: LogState) -> Log:
        return Log(self._partition.path, self._partition.config, self._budget, state)
