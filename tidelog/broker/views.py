"""The views of this node's replicas: each follows its log, as far as that is decided.

Rule 1: a view takes what is below the last stable offset and nothing else, on leaders and on
        followers alike; what it has was shown to be true for ever.
Rule 2: folding runs in the disk's threads, a piece at a time; the event loop reads what is there.
        What comes within a moment is folded together, unless somebody waits for it.
Rule 3: a view that the log contradicts is made again: where the log ends earlier, has another
        history, or was compacted past the view, so that deletions may be missing.
Rule 4: a view that begins a life may be older than what it showed in the last one. It is fresh,
        and may be asked without its leader, once it has all that the leader's first word promised.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from tidelog.broker.broker import Broker
from tidelog.errors import BrokerError, NotLeader, RequestTimedOut, StorageError
from tidelog.host import Bytes, Disk, Path
from tidelog.log.committed import committed_batches
from tidelog.log.log import ColdRead
from tidelog.model import INTERNAL_TOPICS, NO_EPOCH, Offset, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import decode_batch, iterate_batches
from tidelog.views.store import Kind, Position, ViewStore

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

    Invariant: what `reader` shows is the fold of a prefix of the log that reaches `applied` at
    least. Owned by the event loop.
    """

    def __init__(self, broker: Broker, partition: Partition, kind: Kind, path: Path) -> None:
        self._broker = broker
        self.partition = partition
        self._store = ViewStore(broker.host.databases, path, kind, partition.topic_id)
        self._position = Position()
        self._waits: list[tuple[Offset, asyncio.Future[None]]] = []
        self._work: asyncio.Future[Any] | None = None
        self._cleaned: Offset = 0
        self._is_open = False
        self._is_busy = False
        self._is_closed = False
        self._is_saved = True
        self._is_wrong = False
        self._gathering: asyncio.TimerHandle | None = None
        """Until when nothing is folded that nobody waits for."""
        self.is_fresh = False
        self.on_applied: Callable[[], None] = lambda: None
        """Called after more was folded."""
        self.opened: asyncio.Task[None] = broker.spawn(self._open())

    def __repr__(self) -> str:
        return f"<View {self.partition.name} applied={self.applied}>"

    @property
    def applied(self) -> Offset:
        return self._position.applied

    @property
    def reader(self) -> sqlite3.Connection:
        """What is committed, as far as it was folded; for the event loop."""
        return self._store.reader

    # Following the log.

    async def _open(self) -> None:
        self._position = await self._run(self._store.open)
        self._is_open = True
        if not self._is_closed:
            self.partition.watch(self.poke)
            self.poke()

    def poke(self) -> None:
        """The watermark has risen, somebody leads now, or waits."""
        if self._is_busy or self._is_closed or not self._is_open:
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
            while not self._is_closed and await self._step():
                pass
        except StorageError as error:
            self._retry(error)
        except FileNotFoundError as error:
            self._retry(error)  # its segment was deleted or compacted meanwhile
        except sqlite3.DatabaseError as error:
            self._is_wrong = not isinstance(error, sqlite3.OperationalError)
            self._retry(error)
        finally:
            self._is_busy = False

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
        _log.warning("%r waits: %s", self, error)
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.poke)

    async def _step(self) -> bool:
        """Fold one piece; whether to go on at once."""
        partition = self.partition
        log = partition.log
        if self._is_wrong or not self._is_of_this_history():
            _log.warning("%r is made again: it is damaged, or of another history", self)
            self._position, self.is_fresh = Position(), False
            self._position = await self._run(self._store.reset)
            self._is_wrong = False
            return True
        at, limit = self._position, partition.last_stable_offset
        offset = max(at.applied, log.start)
        if offset >= limit and log.start <= at.start:
            self._look_fresh()
            return False
        found = log.read(offset, _CHUNK_BYTES, limit) if offset < limit else None
        fold = partial(
            _fold, self._store, self._broker.host.disk, found, log.aborted(offset, limit), offset,
            limit, replace(at, start=log.start),
        )  # fmt: skip
        self._position = await self._run(fold)
        self._is_saved = False
        self._tell()
        if self.applied >= limit and not self._waits:
            self._gather()
            return False
        return True

    def _is_of_this_history(self) -> bool:
        at, log = self._position, self.partition.log
        cleaned = self._broker.cleaner.first_dirty(self.partition.name) or 0
        was_cleaned, self._cleaned = self._cleaned, cleaned
        if at.applied == 0:
            return True
        if at.applied > log.end or (cleaned > was_cleaned and at.applied < min(cleaned, log.end)):
            return False
        if at.epoch == NO_EPOCH or at.applied <= log.start:
            return True
        return log.epochs.epoch_at(at.applied - 1) in (NO_EPOCH, at.epoch)

    def _tell(self) -> None:
        applied = self.applied
        if self._waits:
            reached = [future for offset, future in self._waits if offset <= applied]
            self._waits = [wait for wait in self._waits if wait[0] > applied]
            for future in reached:
                if not future.done():
                    future.set_result(None)
        self._look_fresh()
        self.on_applied()

    def _look_fresh(self) -> None:
        if self.is_fresh:
            return
        partition = self.partition
        if (leader := partition.leader) is not None:
            self.is_fresh = leader.knows_watermark and self.applied >= leader.epoch_start
        elif (follower := partition.follower) is not None and follower.is_aligned:
            stable = partition.log.last_stable(follower.watermark)
            self.is_fresh = self.applied >= stable

    # Waiting.

    async def reached(self, offset: Offset, deadline: float) -> None:
        """Wait until everything below `offset` is folded; RequestTimedOut if that takes longer."""
        if self._is_open and self.applied >= offset:
            return
        left = deadline - self._broker.host.clock.monotonic()
        try:
            async with asyncio.timeout(max(left, 0)):
                await asyncio.shield(self.opened)
                if self.applied < offset:
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waits.append((offset, future))
                    self.poke()
                    await future
        except TimeoutError:
            raise RequestTimedOut(
                f"the view of {self.partition.name} has {self.applied} of {offset}; an open "
                "transaction, or too few replicas in sync, may hold it up"
            ) from None

    # The end.

    async def save(self) -> None:
        """Let a crash cost no more than what is folded from now on."""
        if self._is_saved or self._is_busy or self._is_closed:
            return
        self._is_saved = self._is_busy = True
        try:
            await self._run(self._store.save)
        finally:
            self._is_busy = False
        self.poke()

    def close(self, error: BrokerError) -> None:
        """Fold no more; whoever waits is told `error`."""
        self._is_closed = True
        self._stop_gathering()
        self.partition.unwatch(self.poke)
        for _, future in self._waits:
            if not future.done():
                future.set_exception(error)
        self._waits.clear()

    async def finish(self) -> None:
        """Save and close the file, once nothing is done with it any more."""
        await self._settled()
        await self._broker.host.offload.run(self._store.finish)

    async def drop(self) -> None:
        """The replica is no more, and neither is its view."""
        self.close(NotLeader(leader=None))
        await self._settled()
        await self._broker.host.offload.run(self._store.remove)

    async def _settled(self) -> None:
        while (work := self._work) is not None and not work.done():
            await asyncio.wait([work])


def _fold(
    store: ViewStore,
    disk: Disk,
    found: tuple[Sequence[Bytes], int] | ColdRead | None,
    aborted: Sequence[tuple[ProducerId, Offset]],
    offset: Offset,
    limit: Offset,
    at: Position,
) -> Position:
    """Fold what was read from `offset` on; where the view is then. In a disk's thread."""
    if isinstance(found, ColdRead):
        data: Bytes = found.perform(disk)
    else:
        data = b"" if found is None else b"".join(found[0])
    # Where there is nothing, compaction took it.
    end, epoch = (max(limit, offset), NO_EPOCH) if not data else (offset, at.epoch)
    for header, _ in iterate_batches(data):
        end, epoch = header.next_offset, header.leader_epoch
    records = [
        record
        for _, batch in committed_batches(data, aborted)
        for record in decode_batch(batch)
        if record.offset >= offset
    ]
    to = replace(at, applied=end, epoch=epoch)
    store.apply(records, to)
    return to


class Views:
    """Every view of one kind on this node, by partition."""

    def __init__(self, broker: Broker, kind: Kind, is_wanted: Callable[[Partition], bool]) -> None:
        """`is_wanted`: whether a replica has its view from the beginning, and not when asked."""
        self._broker = broker
        self._kind = kind
        self._is_wanted = is_wanted
        self._views: dict[TopicPartition, View] = {}
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
            self._broker.spawn(self._views.pop(partition.name).drop())
            view = None
        if view is None:
            name = f"{self._kind.name}-{partition.topic_id.hex}-{partition.name.partition}.db"
            path = self._broker.root / DIRECTORY / name
            view = self._views[partition.name] = View(self._broker, partition, self._kind, path)
        return view

    def _look_at(self, partition: Partition) -> None:
        if partition.name.topic not in INTERNAL_TOPICS and self._is_wanted(partition):
            self.of(partition)

    def _on_moved(self, moved: list[tuple[TopicPartition, bool]]) -> None:
        for name, is_led in moved:
            held = next((p for p in self._broker.replicas.of(name.topic) if p.name == name), None)
            known = self._views.get(name)
            if known is not None and known.partition is not held:
                self._broker.spawn(self._views.pop(name).drop())
            if held is None:
                continue
            self._look_at(held)
            if name in self._views:
                self._views[name].poke()
            if is_led:
                self.on_led(held)

    async def _look(self) -> None:
        for partition in self._broker.partitions():
            self._look_at(partition)  # its topic may have been configured meanwhile
        for view in list(self._views.values()):
            await view.save()

    def _stop(self) -> None:
        for view in self._views.values():
            view.close(StorageError("the node is stopping"))

    async def _finish(self) -> None:
        for view in self._views.values():
            await view.finish()
