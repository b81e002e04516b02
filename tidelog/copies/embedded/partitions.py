"""The partitions of a copy: as many as its bucket has, also when that was made anew.

Rule 1: a topic's partitions only become more. Where a node tells of another topic, the bucket was
        made anew: what it does not have any more is let go, and whoever was told of the former
        topic asks again, so that all of them come to agree.
Rule 2: what is added is shown to readers when all of it is whole, unless nothing was whole before:
        a bucket without some partitions would look like one without their keys.
Rule 3: a file has one writer. It is removed once that one is done, and nobody begins there before.
Rule 4: who hears of changes hears of each key what readers find from then on, in whichever
        partition it is now.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TypeAlias

import msgspec

from tidelog.client.http.core import Core
from tidelog.client.http.values import Change
from tidelog.copies.embedded.cache import Recent
from tidelog.copies.embedded.changes import deletion_of
from tidelog.copies.embedded.errors import SyncFailed
from tidelog.copies.embedded.files import About, Copy, Layout
from tidelog.copies.embedded.plan import Following, Steps
from tidelog.copies.embedded.reads import PAGE, BucketReads, File, QueueReads, key_bytes, number_of
from tidelog.copies.stream.kinds import kind_of
from tidelog.copies.stream.protocol import HelloAck

_log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[Sequence[Change]], None]
Start: TypeAlias = Callable[[Steps[None]], "asyncio.Task[None]"]


@dataclass(frozen=True, slots=True)
class Kept:
    """One partition: who writes it, and how it is read."""

    number: int
    following: Following
    file: File

    @property
    def copy(self) -> Copy:
        return self.following.copy


class Partitions:
    """Every partition of one copy.

    Changed by the thread that copies; others may look at `all` and `is_shown`.
    """

    def __init__(
        self,
        layout: Layout,
        about: About,
        core: Core,
        recent: Recent,
        *,
        format: str,
        on_change: OnChange | None,
        told: Callable[[], None],
    ) -> None:
        """`told`: called when something is another than before."""
        self._layout = layout
        self.about = about
        self._core = core
        self._recent = recent
        self._format = format
        self._on_change = on_change
        self._told = told
        self.bucket = BucketReads((), recent)
        self.queue = QueueReads(about.source.queue or "", ())
        self.all: tuple[Kept, ...] = ()
        self._start: Start | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}
        """Those that are let go, until their files are gone."""
        try:
            self._grow(max(about.partitions, 1))
        except BaseException:
            self.close()
            raise

    @property
    def is_shown(self) -> bool:
        """Whether it has heard of its partitions, and readers have all of them."""
        count = self.about.partitions
        return count > 0 and len(self.all) == len(self.bucket.files) == count

    # From start to end.

    def run(self, start: Start) -> None:
        """Keep them from now on, in tasks of the running loop."""
        self._start = start
        self._start_all()

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._leaving.values(), return_exceptions=True)

    def close(self) -> None:
        """Once they are not kept any more: nobody reads them on, and their files are at rest."""
        with self._recent.changing(None):
            for kept in self.all:
                kept.file.close()
        for kept in self.all:  # who writes closes last, and leaves one file of each
            kept.copy.close()

    def _start_all(self) -> None:
        if self._start is not None:
            for kept in self.all:
                if kept.number not in self._tasks:
                    self._tasks[kept.number] = self._start(kept.following.run())

    # How many there are.

    def _greeted(self, ack: HelloAck) -> None:
        """A node has said which topic it is, and how many partitions that has."""
        about = self.about
        count = 1 if about.source.queue is not None else ack.partitions
        if ack.topic_id == about.topic_id:
            count = max(count, about.partitions)  # it may not have heard of the others yet
        else:
            self._shrink(count)
            for kept in self.all:
                kept.following.doubt(ack.topic_id)
        now = msgspec.structs.replace(about, topic_id=ack.topic_id, partitions=count)
        if now != about:
            self._layout.write_about(now)
            self.about = now
        try:
            self._grow(count)
        finally:
            self._start_all()

    def _grow(self, count: int) -> None:
        for number in range(len(self.all), count):
            if number in self._leaving:
                raise SyncFailed(f"{self._layout.file(number)}: what was there is being removed")
            self.all = (*self.all, self._made(number))
        self._show()

    def _made(self, number: int) -> Kept:
        source = msgspec.structs.replace(self.about.source, partition=number)
        kind, tells = kind_of(source), self._on_change is not None
        assert kind is not None, "buckets and queues are kept"
        copy = Copy(self._layout.file(number), kind, source, self._recent, tells=tells)
        copy.open()
        replica_id = self.about.replica_id
        following = Following(
            self._core,
            source,
            replica_id if number == 0 else f"{replica_id}/{number}",
            copy,
            format=self._format,
            wall=lambda: datetime.now(UTC),
            changed=partial(self._changed, number) if tells else None,
            told=self._heard,
            greeted=self._greeted,
        )
        file = File(self._layout.file(number))
        copy.on_removed = file.reconnect
        return Kept(number, following, file)

    def _shrink(self, count: int) -> None:
        """Keep no more than so many."""
        gone, self.all = self.all[count:], self.all[:count]
        self._show()
        for kept in gone:
            if self._on_change is not None and kept.copy.is_whole:
                self._tell_gone(kept)
            kept.file.retire()
            task = self._tasks.pop(kept.number)
            self._leaving[kept.number] = asyncio.ensure_future(self._let_go(kept, task))

    async def _let_go(self, kept: Kept, task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.wait([task])
        try:
            kept.copy.discard()
        except OSError as error:
            _log.warning("%s is left unchanged: %s", kept.copy.path, error)
        finally:
            del self._leaving[kept.number]

    # What is shown, and told.

    def _heard(self) -> None:
        self._show()
        self._told()

    def _show(self) -> None:
        shown, kept = self.bucket.files, self.all
        if len(shown) == len(kept):
            return
        was_whole = bool(shown) and all(one.copy.is_whole for one in kept[: len(shown)])
        if len(shown) > len(kept) or not was_whole or all(one.copy.is_whole for one in kept):
            with self._recent.changing(None):
                self.bucket.files = self.queue.files = tuple(one.file for one in kept)

    def _changed(self, number: int, changes: Sequence[Change]) -> None:
        assert self._on_change is not None
        told = [one for one in changes if not self._is_elsewhere(number, one)]
        try:
            if told:
                self._on_change(told)
        except Exception:
            _log.exception("on_change of %s failed", self._layout.path)

    def _is_elsewhere(self, number: int, change: Change) -> bool:
        """Whether a key that this partition has no more is in another one: that one tells of it."""
        if not change.is_deleted or self.about.source.queue is not None:
            return False
        other = self.all[number_of(key_bytes(change.key), len(self.all))]
        if other.number == number or not other.copy.is_whole:
            return False
        try:
            return BucketReads((other.file,)).version(change.key) is not None
        except (SyncFailed, sqlite3.Error):
            return False  # it is loaded again, and tells of everything

    def _tell_gone(self, kept: Kept) -> None:
        """What a partition had that is let go."""
        version = kept.copy.applied - 1
        entries = BucketReads((kept.file,)).scan()
        keys: Iterator[str] = (entry.key for entry in entries)
        try:
            while page := list(islice(keys, PAGE)):
                self._changed(kept.number, [deletion_of(key, version) for key in page])
        except (SyncFailed, sqlite3.Error) as error:
            _log.warning("%s: what it had is not known: %s", kept.copy.path, error)
