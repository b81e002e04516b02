"""Watches of buckets: who hears of changes, at one node after the other, and what it must hear.

A watcher listens to the server-sent events of a node for a while, leaves or loses it, naps, and
goes on at another node from the last position that it has. Some listen to all keys, some to one.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| a watch tells what is committed  | every event is a committed record of the watcher's bucket     |
| a watch goes on in order         | no event lies before the position that the watcher came from, |
|                                  | and each leads to the position behind it                      |
| a watch leaves no change out     | what it passes over was overwritten since; a key that is gone |
|                                  | is told of to who was told that it was there                  |
| a watch ends for a reason        | that a bucket is gone, or a position, is said only if it is   |
| a watch tells all                | in the end what was folded of it is what the bucket has       |
"""

import asyncio
import random
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tidelog.client.http.sse import Event, Parser
from tidelog.errors import TidelogError
from tidelog.faces.http.streams import read_cursor
from tidelog.model import Offset
from tidelog.simulation.http_door import Exchange, Piece, Started
from tidelog.simulation.keyvalue_watch import KeyWatch, Truth
from tidelog.simulation.world import Client, World
from tidelog.wire.partitioner import partition_for

TOLD: Final = "a watch tells what is committed"
ORDER: Final = "a watch goes on in order"
MISSED: Final = "a watch leaves no change out"
REASON: Final = "a watch ends for a reason"
ALL: Final = "a watch tells all"

_SILENCE_SECONDS: Final = 40.0
_ANSWER_SECONDS: Final = 15.0
_STAY_SECONDS: Final = 2.0
_NAP_SECONDS: Final = 6.0
_PAUSE_SECONDS: Final = 0.2
_NOT_FOUND: Final = 404
_OUTSIDE: Final = 416
_TRY_AGAIN: Final = (503, 504)


class Watcher:
    """One client that hears of a bucket's changes, and what it makes of them."""

    def __init__(
        self,
        world: World,
        truth: KeyWatch,
        name: str,
        host: Client,
        bucket: str,
        *,
        prefix: bytes = b"",
        is_gone: Callable[[str, float], bool] = lambda topic_id, since: False,
        may_be_missing: Callable[[float], bool] = lambda since: False,
    ) -> None:
        """`is_gone`: whether a bucket of this id may have been deleted by now; `may_be_missing`:
        whether there may have been none of the name at a moment since then."""
        self.name = name
        self.bucket = bucket
        self._world = world
        self._truth = truth
        self._host = host
        self._prefix = prefix
        self._is_gone = is_gone
        self._may_be_missing = may_be_missing
        self._random: random.Random = world.fork(name)
        self._cursor: str | None = None
        """None before it begins, and when it has to begin anew."""
        self._topic = ""
        self._positions: dict[int, Offset] = {}
        self.folded: dict[bytes, tuple[Offset, Any]] = {}
        self.is_steady = False
        """Whether it stays where it is as long as it can."""
        self.heard = 0
        self.began_anew = 0

    def __repr__(self) -> str:
        return f"<{self.name} of {self.bucket} at {self._positions} of {self._topic}>"

    # Listening.

    async def run(self) -> None:
        while True:
            try:
                await self._listen(self._random.choice(list(self._world.machines)))
            except (TidelogError, TimeoutError) as error:
                self._note(f"{type(error).__name__}: {error}")
            is_short = self.is_steady or self._random.random() < 0.7
            longest = _PAUSE_SECONDS if is_short else _NAP_SECONDS
            await asyncio.sleep(longest * self._random.random())

    async def _listen(self, node: int) -> None:
        begun, started = self._world.now, self._start()
        query, headers = {"prefix": self._prefix.decode()}, {}
        if self._cursor is not None and self._random.random() < 0.5:
            headers["last-event-id"] = started
        else:
            query["from"] = started
        path = f"/v1/kv/{self.bucket}:watch"
        exchange = Exchange(self._world, node, "GET", path, query=query, headers=headers)
        try:
            answer = await exchange.hear(_ANSWER_SECONDS)
            if not isinstance(answer, Started):
                return
            if answer.status != 200:
                said = await exchange.hear(_ANSWER_SECONDS)
                body = said.body if isinstance(said, Piece) else b""
                self._refused(node, begun, answer.status, body.decode())
                return
            await self._follow(exchange, node, begun, started)
        finally:
            exchange.close()

    def _start(self) -> str:
        return self._cursor or self._random.choice(("start", "start", "now"))

    async def _follow(self, exchange: Exchange, node: int, begun: float, started: str) -> None:
        parser, is_new = Parser(), True
        stays_until = self._world.now + 2 * _STAY_SECONDS * self._random.random()
        while True:
            left = stays_until - self._world.now
            try:
                message = await exchange.hear(_SILENCE_SECONDS if self.is_steady else max(left, 0))
            except TimeoutError:
                return
            if not isinstance(message, Piece) or not message.body:
                return
            for event in parser.feed(message.body):
                if event.kind != "message":
                    document = msgspec.json.decode(event.data)
                    status = document.get("status", 503)
                    self._refused(node, begun, status, event.data)
                    return
                self._hear(event)
            if is_new and parser.last_id is not None:
                is_new = False
                self._begin(parser.last_id, started)

    def _note(self, what: str) -> None:
        self._world.trace.note(self.name, what)

    # What is heard.

    def _refused(self, node: int, begun: float, status: int, why: str) -> None:
        self._note(f"node {node}: {status}")
        if status in _TRY_AGAIN:
            return
        if status == _OUTSIDE:
            if self._truth.may_lack_deletions(self._topic, self._positions):
                self._begin_anew()
                return
        elif status == _NOT_FOUND:
            if self._cursor is None and self._may_be_missing(begun):
                return
            if self._cursor is not None and self._is_gone(self._topic, self._world.now):
                self._begin_anew()
                return
        self._find(REASON, f"it hears {status} from node {node}: {why}")

    def _begin_anew(self) -> None:
        self.began_anew += 1
        self._cursor, self._topic, self._positions, self.folded = None, "", {}, {}

    def _begin(self, cursor: str, started: str) -> None:
        """Take the position that it is told before anything else."""
        found = read_cursor(cursor)
        if self._cursor is not None:
            if (found.topic, found.positions) != (self._topic, self._positions):
                self._find(ORDER, f"it goes on at {found}")
            return
        self._cursor, self._topic, self._positions = cursor, found.topic or "", found.positions
        if started == "start" and any(found.positions.values()):
            self._find(MISSED, f"from the start it is told to begin at {found.positions}")
        for number, position in found.positions.items():
            self.folded |= self._there(self._of(number), position)

    def _of(self, number: int) -> Truth:
        return self._truth.truth_of(self._topic, number)

    def _there(self, truth: Truth, position: Offset) -> dict[bytes, tuple[Offset, Any]]:
        return {
            key: (version, _value(value))
            for key, (version, value) in truth.at(position).items()
            if key.startswith(self._prefix)
        }

    def _hear(self, event: Event) -> None:
        change, cursor = msgspec.json.decode(event.data), read_cursor(event.id or "")
        key, version = change["key"].encode(), change["version"]
        value = None if change.get("deleted") else change["value"]
        if self._cursor is None or cursor.topic != self._topic:
            self._find(TOLD, f"{change} is of {cursor.topic}, and it watches {self._topic}")
            return
        self.heard += 1
        number = partition_for(key, len(cursor.positions))
        before = self._positions.get(number, 0)
        if version < before or cursor.positions.get(number) != version + 1:
            self._find(ORDER, f"{change} comes after {before}, and leads to {cursor.positions}")
        truth = self._of(number)
        records = truth.keys.get(key, [])
        at = bisect_left(records, version, key=lambda each: each.version)
        found = records[at] if at < len(records) else None
        is_there = found is not None and found.version == version
        if not is_there and not truth.is_behind:
            self._find(TOLD, f"{change} was never committed; {truth.end} is")
        elif found is not None and is_there and _value(found.value) != value:
            self._find(TOLD, f"{change} was committed as {found}")
        if not key.startswith(self._prefix):
            self._find(TOLD, f"{change} is not for {self._prefix!r}")
        for other, position in cursor.positions.items():
            self._pass(other, self._positions.get(other, 0), position, heard=(key, version))
        if value is None:
            self.folded.pop(key, None)
        else:
            self.folded[key] = (version, value)
        assert event.id is not None
        self._cursor, self._positions = event.id, cursor.positions

    def _pass(self, number: int, start: Offset, end: Offset, heard: tuple[bytes, Offset]) -> None:
        """See that nothing of a partition is left out that is not overwritten since."""
        for key, records in self._of(number).keys.items():
            if not key.startswith(self._prefix):
                continue
            newest = records[-1]
            if not start <= newest.version < end or (key, newest.version) == heard:
                continue
            if newest.value is not None or key in self.folded:
                self._find(MISSED, f"{key!r} of {number} from {start} to {end}: {newest}")

    def _find(self, name: str, problem: str) -> None:
        self._world.fail(name, f"{self}: {problem}")

    # At the end.

    def lacks(self, topic_id: str | None = None) -> str | None:
        """What it has not heard of, of the bucket of that id; None if that is nothing."""
        if self._cursor is None or topic_id not in (None, self._topic):
            return f"{self} is not at {topic_id}"
        wanted: dict[bytes, tuple[Offset, Any]] = {}
        for number in self._positions:
            truth = self._of(number)
            wanted |= self._there(truth, truth.end)
        return None if self.folded == wanted else f"{self}: {self.folded}, not {wanted}"


def _value(data: bytes | None) -> Any:
    """A value as an event shows it."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return data.decode()
