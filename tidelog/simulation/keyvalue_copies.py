"""Copies of buckets outside of the cluster: the client's own, fed by the replication stream.

A copy is what `EmbeddedReplica` keeps (`copies/embedded/partitions.py`), in SQLite files of its own;
only its sockets and its threads are left out. Its connections are cut, its process ends and comes
back, now and then with a disk that has lost what was written last, or without its files.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| a copy is a fold of the log      | of what is committed, up to where the copy says it is, after  |
|                                  | every step, and after every restart                           |
| a copy never goes back           | while its disk keeps what was written                         |
| who hears of changes has the copy| what is folded of `on_change` is what readers find            |
| a copy gets everything           | in the end it is what the bucket has                          |

Rule 1: its files are real, since SQLite writes them. Nothing of where they are is in the history.
Rule 2: what a crash leaves is what the files held; what a power loss takes is the end of SQLite's
        log. What SQLite has synced (its checkpoints) is never taken.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tidelog.client.http.core import Settings
from tidelog.client.http.effects import Lost, Reply, Request, Send, Wait
from tidelog.client.http.transport import make_core
from tidelog.client.http.values import Change
from tidelog.copies.embedded.cache import Recent
from tidelog.copies.embedded.files import Layout, take_up
from tidelog.copies.embedded.partitions import Kept, Partitions
from tidelog.copies.embedded.plan import Aside, Connect, Hear, Say, Steps
from tidelog.copies.embedded.reads import key_text, number_of, value_of
from tidelog.copies.stream.protocol import Source
from tidelog.errors import TidelogError
from tidelog.model import Offset
from tidelog.simulation.http_door import SWITCHING, Exchange, Said, Started, call
from tidelog.simulation.keyvalue_watch import KeyWatch, read_view
from tidelog.simulation.node_calls import Down, ask_node, raise_error
from tidelog.simulation.world import Client, World

FOLD: Final = "a copy is a fold of the log"
BACK: Final = "a copy never goes back"
HEARD: Final = "who hears of changes has the copy"
ALL: Final = "a copy gets everything"

_PORT: Final = 8080
_TIMEOUT_SECONDS: Final = 5.0
_CUT_SECONDS: Final = 6.0
_LIFE_SECONDS: Final = 5.0
_DOWN_SECONDS: Final = 6.0
_WORK_SECONDS: Final = 0.01
_CHECKPOINT_BYTES: Final = 1000 * 4096
"""From so much of its log on SQLite has synced some of it into the database."""


class _Driver:
    """Performs the effects of one partition's plan."""

    def __init__(self, copier: "Copier") -> None:
        self._copier = copier
        self._world = copier.world
        self._random = copier.random
        self._exchange: Exchange | None = None
        self._cut_at = 0.0

    async def run(self, plan: Steps[None]) -> None:
        came: Any = None
        try:
            while True:
                came = await self._perform(plan.send(came))
        finally:
            plan.close()
            self._close()

    async def _perform(self, effect: object) -> Any:
        match effect:
            case Hear(seconds_max):
                return await self._hear(seconds_max)
            case Say(message):
                assert self._exchange is not None, "it was connected"
                self._exchange.say(message.decode())
            case Connect(url):
                return await self._connect(url)
            case Aside(work):
                await asyncio.sleep(_WORK_SECONDS * self._random.random())
                return work()
            case Wait(seconds):
                self._close()
                await asyncio.sleep(seconds)
            case Send(request):
                return await self._send(request)
            case _:
                raise AssertionError(f"{effect} is no effect of a copy")
        return None

    async def _connect(self, url: str) -> Lost | None:
        self._close()
        try:
            self._exchange = Exchange(self._world, _node_of(url), "WS", urlsplit(url).path)
            answer = await self._exchange.hear(_TIMEOUT_SECONDS)
        except (Down, TimeoutError) as error:
            return Lost(why=str(error), was_sent=False)
        if not isinstance(answer, Started) or answer.status != SWITCHING:
            return Lost(why="it was refused", was_sent=False)
        self._cut_at = self._world.now + 2 * _CUT_SECONDS * self._random.random()
        return None

    async def _hear(self, seconds_max: float) -> str | bytes | Lost:
        assert self._exchange is not None, "it was connected"
        left = seconds_max
        if not self._copier.is_steady:
            left = min(max(self._cut_at - self._world.now, 0), seconds_max)
        try:
            message = await self._exchange.hear(left)
        except TimeoutError:
            return Lost(why="nothing was heard, or it was cut", was_sent=True)
        if not isinstance(message, Said):
            return Lost(why="it was closed", was_sent=True)
        return message.message

    async def _send(self, request: Request) -> Reply | Lost:
        parts = urlsplit(request.url)
        try:
            status, document = await ask_node(
                self._world,
                _node_of(request.url),
                lambda machine: call(machine, request.method, parts.path, query=parts.query),
                request.seconds_max,
            )
        except (TidelogError, TimeoutError) as error:
            return Lost(why=str(error), was_sent=True)
        for broker in document.get("brokers", ()):  # nodes listen at no such address here
            broker["http"] = f"node-{broker['id']}:{_PORT}"
        return Reply(status=status, headers={}, body=msgspec.json.encode(document))

    def _close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None


class Copier:
    """One process that keeps a copy of a bucket, and looks at it."""

    def __init__(
        self, world: World, truth: KeyWatch, name: str, host: Client, bucket: str, *, format: str
    ) -> None:
        self.world = world
        self.name = name
        self.bucket = bucket
        self.random: random.Random = world.fork(name)
        self._truth = truth
        self._host = host
        self._format = format
        self._directory = Path(tempfile.mkdtemp(prefix="tidelog-simulated-copy-"))
        world.on_close.append(partial(shutil.rmtree, self._directory, ignore_errors=True))
        self._partitions: Partitions | None = None
        self._seen: dict[int, tuple[str, Offset]] = {}
        """Of each partition: the topic, and how far the copy was."""
        self._heard: dict[str, Any] = {}
        """Keys and values, as `on_change` has told of them."""
        self.is_steady = False
        """Whether it stays as it is as long as it can."""
        self.looks = 0

    def __repr__(self) -> str:
        return f"<{self.name} of {self.bucket} at {self._seen}>"

    # Its processes.

    async def run(self) -> None:
        while True:
            partitions = self._begin()
            await asyncio.sleep(2 * _LIFE_SECONDS * self.random.random())
            if self.is_steady:
                return  # and leaves it running
            await self._end(partitions)
            is_away = self.random.random() < 0.3
            await asyncio.sleep(_DOWN_SECONDS * self.random.random() if is_away else 0.05)

    def _begin(self) -> Partitions:
        nodes = [f"http://node-{number}:{_PORT}" for number in self.world.machines]
        self.random.shuffle(nodes)
        core = make_core(
            nodes,
            Settings(timeout=_TIMEOUT_SECONDS),
            discover=True,
            clock=lambda: self.world.now,
            random=self.random.random,
        )
        layout = Layout(self._directory)
        about = take_up(layout, Source(bucket=self.bucket), self.name, lambda: self.name)
        partitions = self._partitions = Partitions(
            layout, about, core, Recent(), format=self._format, on_change=self._changed, told=self._look
        )
        self._heard = _kept(partitions)
        self._look()
        partitions.run(self._start)
        return partitions

    def _start(self, plan: Steps[None]) -> "asyncio.Task[None]":
        task = self._host.spawn(_Driver(self).run(plan))
        task.add_done_callback(raise_error)
        return task

    async def _end(self, partitions: Partitions) -> None:
        """End the process; what comes next on its disk."""
        how = self.random.choice(("stops", "crashes", "crashes", "loses power", "loses its files"))
        left = {path: path.read_bytes() for path in sorted(self._directory.iterdir())}
        self._partitions = None
        await partitions.stop()
        partitions.close()
        self.world.trace.note(self.name, how)
        if how == "stops":
            return
        for path in list(self._directory.iterdir()):
            path.unlink()
        if how == "loses its files":
            self._seen = {}
            return
        for path, data in left.items():
            if path.name.endswith("-shm"):
                continue  # memory, which goes with the process
            is_unsynced = path.name.endswith("-wal") and len(data) < _CHECKPOINT_BYTES
            if how == "loses power" and is_unsynced:
                data = data[: self.random.randint(0, len(data))]
                self._seen = {}
            path.write_bytes(data)

    # What it has.

    def _changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.is_deleted:
                self._heard.pop(change.key, None)
            else:
                self._heard[change.key] = change.value

    def _look(self) -> None:
        """Something may be another than before."""
        partitions = self._partitions
        if partitions is None:
            return
        is_moved = False
        for kept in partitions.all:
            copy = kept.copy
            at = (copy.topic, copy.applied)
            if copy.is_whole and copy._store is not None and self._seen.get(kept.number) != at:
                self._look_at(kept)
                is_moved = True
        if is_moved and partitions.is_shown and all(one.copy.is_whole for one in partitions.all):
            found = _readable(partitions)
            self.world.trace.note(self.name, f"has {self._seen}")
            if found != self._heard:
                self.world.fail(HEARD, f"{self}: {self._heard}, and readers find {found}")

    def _look_at(self, kept: Kept) -> None:
        copy, number = kept.copy, kept.number
        assert copy._store is not None
        (applied, start), entries = read_view(copy._store.reader)
        self.looks += 1
        who = f"{self} partition {number} of {copy.topic}"
        if applied != copy.applied:
            self.world.fail(FOLD, f"{who}: its file is at {applied}, and it says {copy.applied}")
        topic, before = self._seen.get(number, ("", 0))
        if topic == copy.topic and applied < before:
            self.world.fail(BACK, f"{who}: from {before} to {applied}")
        self._seen[number] = (copy.topic, applied)
        truth = self._truth.truth_of(copy.topic, number)
        if applied > truth.end:
            self._truth.refresh()
            truth = self._truth.truth_of(copy.topic, number)
        if truth.is_behind or start:
            return
        if applied > truth.end:
            self.world.fail(FOLD, f"{who}: it has {applied}, and {truth.end} is committed")
        wanted = truth.at(applied)
        if entries != wanted:
            self.world.fail(FOLD, f"{who}: {entries}, not {wanted}")

    # At the end.

    def lacks(self, topic_id: str | None = None) -> str | None:
        """What it has not, of the bucket of that id; None if that is nothing."""
        partitions = self._partitions
        if partitions is None or not partitions.is_shown:
            return f"{self} is not there"
        for kept in partitions.all:
            copy = kept.copy
            if not copy.is_whole or topic_id not in (None, copy.topic):
                return f"{self}: {copy.topic} at {copy.applied}, not {topic_id}"
            if copy.applied < (end := self._truth.truth_of(copy.topic, kept.number).end):
                failed = kept.following.last_error
                return f"{self}: {kept.number} is at {copy.applied} of {end}: {failed!r}"
        return None


def _readable(partitions: Partitions) -> dict[str, Any]:
    """What readers of a copy find."""
    reads = partitions.bucket
    found = {key: reads.get(key, reads) for key, _ in list(reads.items())}
    return {key: value for key, value in found.items() if value is not reads}


def _kept(partitions: Partitions) -> dict[str, Any]:
    """What a copy has of the keys that belong where it has them, though it may lack others."""
    found: dict[str, Any] = {}
    count = len(partitions.all)
    for kept in partitions.all:
        if kept.copy.is_whole and kept.copy._store is not None:
            _, entries = read_view(kept.copy._store.reader)
            for key, (_, value) in entries.items():
                if number_of(key, count) == kept.number:
                    found[key_text(key)] = value_of(value)
    return found


def _node_of(url: str) -> int:
    host = urlsplit(url).hostname or ""
    return int(host.removeprefix("node-"))
