"""The views of this node's replicas: each follows its log, as far as that is decided.

Rule 1: a view takes what is below the last stable offset and nothing else, on leaders and on
        followers alike; what it has was shown to be true for ever.
Rule 2: folding runs in the disk's threads, a piece at a time; the event loop reads what is there.
        What comes within a moment is folded together, unless somebody waits for it.
Rule 3: a view that the log contradicts is made again: where the log ends earlier, has another
        history, or was compacted before it was folded, so that deletions may be missing. So is one
        whose file has rotted, as soon as anybody is to be shown any of it (`views.checks`).
Rule 4: a view that begins a life may be older than what it showed in the last one. It is fresh,
        and may be asked without its leader, once it has all that a leader has promised since.
Rule 5: nothing that befalls a view's file is the end of the node: the log has everything.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from tidelog.broker.broker import Broker
from tidelog.copies.node.fold import Fold
from tidelog.copies.views.checks import is_damage
from tidelog.copies.views.store import Kind, Position, ViewStore, applied_in
from tidelog.errors import BrokerError, NotLeader, OffsetNotAvailable, RequestTimedOut, StorageError
from tidelog.host import Path, in_turns
from tidelog.log.epochs import EpochHistory
from tidelog.log.log import Log
from tidelog.model import INTERNAL_TOPICS, NO_EPOCH, Offset, TopicPartition
from tidelog.partition.driver import Partition

_log = logging.getLogger(__name__)

T = TypeVar("T")

DIRECTORY: Final = "views"
_CHUNK_BYTES: Final = 1024 * 1024
_SAVE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_GATHER_SECONDS: Final = 0.01
"""A transaction costs nearly as much for one record as for a hundred."""


class View:
    """One replica's view, and whoever waits for it.

    Invariant: what `ask` shows is the fold of a prefix of the log that reaches `applied` at least.
    Owned by the event loop.
    """

    def __init__(
        self,
        broker: Broker,
        partition: Partition,
        kind: Kind,
        path: Path,
        before: "asyncio.Task[None] | None" = None,
    ) -> None:
        """`before`: what must be done first, as it removes the files of an earlier view."""
        self._broker = broker
        self.partition = partition
        self._store = ViewStore(broker.host.databases, path, kind, partition.topic_id)
        self._position = Position()
        self._waits: dict[asyncio.Future[None], Offset] = {}
        self._work: asyncio.Future[Any] | None = None
        self._log: Log | None = None
        """Of which the view is a fold, as far as that was looked at."""
        self._made_of: tuple[Log, int] | None = None
        """In this life it was made of this log from its start, after so many compactions of it."""
        self._whole_at: Offset = 0
        """Before it has that, it may lack what was overwritten and compacted since."""
        self._is_busy = False
        self._closed_by: BrokerError | None = None
        self._is_saved = True
        self._is_wrong = False
        self._gathering: asyncio.TimerHandle | None = None
        """Until when nothing is folded that nobody waits for."""
        self._said = ""
        self.doubts = 0
        """How often it ceased to be fresh; who found it to be so before, knows nothing."""
        self.is_fresh = False
        self.on_applied: Callable[[], None] = lambda: None
        """Called after more was folded."""
        self._is_open = False
        broker.spawn(self._open(before))

    def __repr__(self) -> str:
        return f"<View {self.partition.name} applied={self.applied}>"

    @property
    def applied(self) -> Offset:
        return self._position.applied

    @property
    def is_whole(self) -> bool:
        """Whether it may be asked: it is a fold of the log that there is."""
        return (
            self._is_open
            and self._closed_by is None
            and not self._is_wrong
            and self._log is self.partition.log
            and self.applied >= self._whole_at
        )

    @property
    def reader(self) -> sqlite3.Connection:
        """For who looks on, and whom nothing is shown."""
        return self._store.reader

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """What the view says to it, here and now; OffsetNotAvailable if it cannot be asked."""
        self._check()
        try:
            return question(self._store.reader)
        except sqlite3.Error as error:
            self._suspect(error)
            self.poke()
            raise OffsetNotAvailable(f"the view of {self.partition.name}: {error}") from error

    def _check(self) -> None:
        if self._closed_by is not None:
            raise self._closed_by
        if not self.is_whole:
            self.poke()
            raise OffsetNotAvailable(f"the view of {self.partition.name} is being made")

    @property
    def shown(self) -> Offset:
        """How far it goes by now, as `ask` shows it: the file may be ahead of what was heard."""
        return self.ask(applied_in) if self._is_busy else self.applied

    # Following the log.

    async def _open(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        while self._closed_by is None and not self._is_open:
            try:
                self._position = await self._run(self._store.open)
                # The log may have begun anew after this was saved, without tombstones.
                self._is_wrong |= 0 < self._position.applied < self.partition.purges.floor
                self._is_open = True
            except (OSError, sqlite3.Error) as error:
                self._warn(error)
                await asyncio.sleep(_RETRY_SECONDS)
        if self._closed_by is None:
            self.partition.watch(self.poke)
            self.poke()

    def poke(self) -> None:
        """The watermark has risen, somebody leads now, or waits."""
        if self._is_busy or self._closed_by is not None or not self._is_open:
            return
        if self._gathering is None or self._waits:
            self._is_busy = True
            self._broker.spawn(self._catch_up())

    async def _run(self, work: Callable[[], T]) -> T:
        """Do something with the file, in a disk's thread; nothing else is done to it meanwhile."""
        self._work = self._broker.host.offload.run(work)
        return await asyncio.shield(self._work)

    async def _catch_up(self) -> None:
        try:
            while self._closed_by is None and await self._step():
                pass
            self._said = ""
        except (BrokerError, OSError) as error:
            self._retry(error)  # among others: its segment was deleted or compacted meanwhile
        except sqlite3.Error as error:
            self._suspect(error)
            self._retry(error)
        finally:
            self._is_busy = False

    def _suspect(self, error: sqlite3.Error) -> None:
        self._is_wrong |= is_damage(error)

    def _gather(self) -> None:
        """Fold no more for a moment, unless somebody waits."""
        self._stop_gathering()
        self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self.poke()

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _retry(self, error: Exception) -> None:
        self._warn(error)
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.poke)

    def _warn(self, error: Exception) -> None:
        if self._said != str(error):
            self._said = str(error)
            _log.warning("%r waits: %s", self, error)

    async def _step(self) -> bool:
        """Fold one piece; whether to go on at once."""
        partition = self.partition
        log = partition.log
        is_other = log.is_anew and log is not self._log and self._position.applied > 0
        if self._is_wrong or is_other or not _is_of(self._position, log):
            self._log = log
            await self._make_again("it is damaged, or of another history")
            return True
        self._log = log
        at, limit = self._position, partition.last_stable_offset
        offset = max(at.applied, log.start)
        if offset >= limit and log.start <= at.start:
            self._tell()
            return False
        state = self._state_of_log()
        if offset == log.start:
            self._made_of = state
        folded = await self._run(
            Fold(
                store=self._store,
                disk=self._broker.host.disk,
                found=log.read(offset, _CHUNK_BYTES, limit, has_gaps=True),
                aborted=log.aborted(offset, limit),
                offset=offset,
                epochs=EpochHistory(log.epochs),
                at=replace(at, start=log.start),
                may_have_gaps=state == self._made_of,
            ).perform
        )
        if folded is None or (folded.has_gaps and state != self._state_of_log()):
            await self._make_again("the log was compacted before it was folded")
            return True
        if folded.has_gaps:
            self._doubt()
        self._position = folded.position
        self._is_saved = False
        self._tell()
        self.on_applied()
        if self.applied >= limit and not self._waits:
            self._gather()
            return False
        return True

    def _state_of_log(self) -> tuple[Log, int]:
        return self.partition.log, self.partition.log.swaps

    async def _make_again(self, why: str) -> None:
        _log.warning("%r is made again: %s", self, why)
        self._position, self._is_wrong = Position(), True  # until that was done, it is tried again
        self._doubt()
        self._position = await self._run(self._store.reset)
        self._is_wrong = False

    def _doubt(self) -> None:
        """What is folded now was compacted: before all of that is, it may show what never was."""
        partition, self.is_fresh = self.partition, False
        self.doubts += 1
        watermark = partition.high_watermark
        if (follower := partition.follower) is not None and follower.is_aligned:
            watermark = max(watermark, follower.watermark)
        self._whole_at = max(self._whole_at, partition.log.last_stable(watermark))

    def _tell(self) -> None:
        if not self.is_whole:
            return
        for future in [future for future, offset in self._waits.items() if offset <= self.applied]:
            del self._waits[future]
            if not future.done():
                future.set_result(None)
        leader = self.partition.leader
        if leader is not None and leader.knows_watermark and self.applied >= leader.epoch_start:
            self.is_fresh = True

    # Waiting.

    async def reached(self, offset: Offset, deadline: float) -> None:
        """Wait until everything below `offset` is folded; RequestTimedOut if that takes longer."""
        if self.is_whole and self.applied >= offset:
            return
        if self._closed_by is not None:
            raise self._closed_by
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits[future] = offset
        self.poke()
        try:
            async with asyncio.timeout(max(deadline - self._broker.host.clock.monotonic(), 0)):
                await future
        except TimeoutError:
            raise RequestTimedOut(
                f"the view of {self.partition.name} has {self.applied} of {offset}; an open "
                "transaction, or too few replicas in sync, may hold it up"
            ) from None
        finally:
            self._waits.pop(future, None)

    # The end.

    async def save(self) -> None:
        """Let a crash cost no more than what is folded from now on."""
        if self.partition.log.start > self._position.start:
            self.poke()  # nobody else tells that the log begins later
        if self._is_saved or self._is_busy or self._is_wrong or not self._is_open:
            return
        if self._closed_by is not None:
            return
        self._is_saved = self._is_busy = True
        try:
            await self._run(self._store.save)
        except (OSError, sqlite3.Error) as error:
            self._is_saved = False
            self._warn(error)
        finally:
            self._is_busy = False
        self.poke()

    async def backup(self, path: Path) -> Position:
        """Copy the view, as it is at one moment, into a file; how far it is there.

        OffsetNotAvailable if it cannot be asked: another replica's may be.
        """
        while self._is_busy and (under_way := self._work) is not None:
            await asyncio.wait([under_way])
            await asyncio.sleep(0)
        self._check()
        self._is_busy = True
        self._work = work = self._broker.host.offload.run(partial(self._store.back_up, path))
        # Who asked may leave before; nothing else is done to the file until it is done.
        work.add_done_callback(self._backed_up)
        return await asyncio.shield(work)

    def _backed_up(self, work: "asyncio.Future[Position]") -> None:
        if not work.cancelled():
            error = work.exception()  # seen, though nobody may be there to be told
            if isinstance(error, sqlite3.Error):
                self._suspect(error)
        self._is_busy = False
        self.poke()

    def close(self, error: BrokerError) -> None:
        """Fold no more; whoever waits is told `error`."""
        self._closed_by = error
        self._stop_gathering()
        self.partition.unwatch(self.poke)
        for future in self._waits:
            if not future.done():
                future.set_exception(error)
        self._waits.clear()

    async def finish(self) -> None:
        """Save and close the file, once nothing is done with it any more."""
        await self._end(self._store.finish)

    async def drop(self) -> None:
        """The replica is no more, and neither is its view."""
        self.close(NotLeader(leader=None))
        await self._end(self._store.remove)

    async def _end(self, work: Callable[[], None]) -> None:
        while (under_way := self._work) is not None and not under_way.done():
            await asyncio.wait([under_way])
        try:
            await self._broker.host.offload.run(work)
        except (OSError, sqlite3.Error) as error:
            _log.warning("%r is left unchanged: %s", self, error)


def _is_of(at: Position, log: Log) -> bool:
    """Whether a view that got so far can be a fold of this log."""
    if at.applied > log.end:
        return False
    if at.applied == 0 or at.epoch == NO_EPOCH or at.applied <= log.start:
        return True
    return log.epochs.epoch_at(at.applied - 1) in (NO_EPOCH, at.epoch)


class Views:
    """Every view of one kind on this node, by partition."""

    def __init__(self, broker: Broker, kind: Kind, is_wanted: Callable[[Partition], bool]) -> None:
        """`is_wanted`: whether a replica has its view from the beginning, and not when asked."""
        self._broker = broker
        self._kind = kind
        self._is_wanted = is_wanted
        self._views: dict[TopicPartition, View] = {}
        self._drops: dict[str, asyncio.Task[None]] = {}
        """Views whose files are being removed, by their names."""
        self._is_swept = False
        self.on_led: Callable[[Partition], None] = lambda partition: None
        """Called when this node begins to lead a partition, whether or not it has a view."""
        broker.on_moved(self._on_moved)
        broker.on_stop(self._stop)
        broker.on_closing(self._finish)
        broker.repeat(_SAVE_SECONDS, self._look)
        for partition in broker.partitions():
            self._look_at(partition)

    def of(self, partition: Partition) -> View:
        """The view of a replica of this node, which is made if it is not there yet."""
        view = self._views.get(partition.name)
        if view is not None and view.partition is not partition:
            self._drop(view)
            view = None
        if view is None:
            name = self._file_name(partition)
            path, before = self._broker.root / DIRECTORY / name, self._drops.get(name)
            view = View(self._broker, partition, self._kind, path, before)
            self._views[partition.name] = view
        return view

    def all(self) -> list[View]:
        return list(self._views.values())

    def _file_name(self, partition: Partition) -> str:
        return f"{self._kind.name}-{partition.topic_id.hex}-{partition.name.partition}.db"

    def _drop(self, view: View) -> None:
        del self._views[view.partition.name]
        self._begin_drop(self._file_name(view.partition), view.drop())

    def _begin_drop(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._drops[name] = self._broker.spawn(work)
        task.add_done_callback(partial(self._dropped, name))

    def _dropped(self, name: str, task: "asyncio.Task[None]") -> None:
        if self._drops.get(name) is task:
            del self._drops[name]

    def _look_at(self, partition: Partition) -> None:
        if partition.name.topic not in INTERNAL_TOPICS and self._is_wanted(partition):
            self.of(partition)

    def _on_moved(self, moved: list[tuple[TopicPartition, bool]]) -> None:
        for name, is_led in moved:
            held = self._broker.replicas.named(name)
            known = self._views.get(name)
            if known is not None and known.partition is not held:
                self._drop(known)
            if held is None:
                continue
            self._look_at(held)
            if name in self._views:
                self._views[name].poke()
            if is_led:
                self.on_led(held)

    def _look_again_at(self, partition: Partition) -> None:
        """Its topic may have been configured meanwhile."""
        if not self._broker.replicas.holds(partition):
            return
        is_known = partition.name in self._views
        self._look_at(partition)
        if not is_known and partition.name in self._views and partition.leader is not None:
            self.on_led(partition)  # who leads it is to watch over it from now on

    async def _look(self) -> None:
        await in_turns(self._broker.partitions(), self._look_again_at)
        if not self._is_swept:
            self._is_swept = True
            await self._sweep()
        for view in list(self._views.values()):
            await view.save()

    async def _sweep(self) -> None:
        """Remove what is left of views whose replicas went while this node was away."""
        host, directory = self._broker.host, self._broker.root / DIRECTORY
        names = await host.offload.run(partial(host.disk.list, directory))
        held = {self._file_name(partition) for partition in self._broker.partitions()}
        for name in names:
            is_view = name.startswith(f"{self._kind.name}-") and name.endswith(".db")
            if is_view and name not in held and name not in self._drops:
                self._begin_drop(name, self._forget(directory / name))

    async def _forget(self, path: Path) -> None:
        host = self._broker.host
        try:
            await host.offload.run(partial(host.databases.remove, path))
        except OSError as error:
            _log.warning("%s is left unchanged: %s", path, error)

    def _stop(self) -> None:
        for view in self._views.values():
            view.close(StorageError("the node is stopping"))

    async def _finish(self) -> None:
        for view in self._views.values():
            await view.finish()
