"""A bucket that is deleted and made anew, while clients, watches and copies use it.

One operator makes the bucket, lets it live for a while, deletes it, and makes it again under the
same name, at whichever node is up. Clients put, get and delete its keys over HTTP, with conditions,
tokens and Idempotency-Keys of whenever; a watch and a copy follow it through all of its lives.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| what is gone stays gone          | who asks when a bucket is known to be deleted is told nothing |
|                                  | of it: no value, no version, no acknowledgement; nor is who   |
|                                  | reads locally with a token of a later one                     |
| what is acknowledged is written  | to some bucket of the name, at that version                   |
| what is there is found           | nobody is told that there is no bucket, from when an operator |
|                                  | was told that there is to when it is to be deleted            |
| (the rules of `registers`)       | of each life by itself                                        |
| (of watches and of copies)       | in the end both are what the last life has                    |

Rule 1: a bucket's life is known by its topic's id. It is certainly over when a request to delete
        whatever has the name, asked for after the id was first seen, was answered.
Rule 2: a request that an operator got no answer to may be carried out at any later moment. From
        then on, for a while, nobody is blamed for what there is or is not.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidelog.errors import TidelogError
from tidelog.model import Offset
from tidelog.simulation import registers
from tidelog.simulation.http_door import Exchange, Unanswered
from tidelog.simulation.keyvalue_watch import KeyWatch
from tidelog.simulation.node_calls import Down
from tidelog.simulation.registers import ABSENT, NEVER, NOTHING, Logged, Registers, Shown
from tidelog.simulation.world import World

GONE: Final = "what is gone stays gone"
WRITTEN: Final = "what is acknowledged is written"
FOUND: Final = "what is there is found"
ANSWERED: Final = "who asks for a key is answered"

BUCKET: Final = "anew"
_KEYS: Final = ("a", "b", "c")
_CHANGE_SECONDS: Final = 40.0
_ASK_SECONDS: Final = 5.0
_VAGUE_SECONDS: Final = 35.0
"""How long a request that was not answered may be on its way."""
_LOST_SECONDS: Final = 10.0
"""The same, if its node has ended: what that had sent may yet arrive."""
_LIFE_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.2
_TRY_AGAIN: Final = (503, 504)


@dataclass(slots=True)
class _Life:
    """One bucket of the name, as its operator has made it."""

    number: int
    topic_id: str = ""
    made: int = NEVER
    """When the operator was told that it is there."""
    made_at: float = 0.0
    """The same, in seconds."""
    drop_asked: int = NEVER
    is_vague: bool = False
    """Whether somebody else's request may have made or deleted it."""

    @property
    def label(self) -> str:
        return f"{BUCKET} {self.number}"


class Remade:
    """The bucket, its operator and its clients."""

    def __init__(self, world: World, truth: KeyWatch, making: Mapping[str, Any]) -> None:
        """`making` is the body of the requests that make it, but for the partitions."""
        self._world = world
        self._truth = truth
        self._making = making
        self.registers = Registers()
        self._tick = self.registers.tick
        self.lives: list[_Life] = []
        self._over: dict[str, int] = {}
        """Of each topic that is certainly deleted: since when."""
        self._first_seen: dict[str, int] = {}
        self._vague_until = 0.0
        self.is_steady = False
        """Whether the bucket that is there stays."""
        self.operations = 0

    # Asking.

    async def _ask(
        self,
        generator: random.Random,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        seconds: float = _ASK_SECONDS,
    ) -> tuple[int, Any]:
        node = generator.choice(list(self._world.machines))
        exchange = Exchange(
            self._world,
            node,
            method,
            path,
            query=query,
            headers=headers,
            body=b"" if body is None else msgspec.json.encode(body),
        )
        try:
            status, document = await exchange.document(seconds)
        finally:
            exchange.close()
        version = (document or {}).get("version")
        self._world.trace.note("anew", f"{method} {path} at node {node}: {status} {version}")
        if status >= 400 and status not in (404, 409, *_TRY_AGAIN):
            self._world.fail(ANSWERED, f"{method} {path} at node {node}: {status} {document}")
        return status, document

    # The operator.

    async def remake(self, name: str) -> None:
        generator = self._world.fork(name)
        while True:
            life = _Life(len(self.lives))
            self.lives.append(life)
            body = {**self._making, "partitions": generator.choice((1, 1, 2))}
            await self._insist(name, generator, "PUT", body)
            life.topic_id = self._look_up()
            life.is_vague = self._world.now < self._vague_until
            life.made, life.made_at = self._tick(), self._world.now
            self._world.trace.note(name, f"makes {life}")
            await asyncio.sleep(2 * _LIFE_SECONDS * generator.random())
            if self.is_steady:
                return
            self._note_topics()
            known = set(self._first_seen) - set(self._over)
            life.drop_asked = self._tick()
            await self._insist(name, generator, "DELETE", None)
            now = self._tick()
            self._over |= dict.fromkeys(known, now)
            self._world.trace.note(name, f"deletes {life}")
            self.operations += 1
            if generator.random() < 0.5:
                await asyncio.sleep(_PAUSE_SECONDS * generator.random())

    async def _insist(self, name: str, generator: random.Random, method: str, body: Any) -> None:
        while True:
            try:
                status, _ = await self._ask(
                    generator, method, f"/v1/kv/{BUCKET}", body=body, seconds=_CHANGE_SECONDS
                )
            except Down:
                pass  # nobody was asked
            except (Unanswered, TimeoutError) as error:
                self._world.trace.note(name, f"{method}: {type(error).__name__}: {error}")
                is_over = isinstance(error, Unanswered)
                self._doubt(_LOST_SECONDS if is_over else _VAGUE_SECONDS)
            else:
                if status < 300 or (method == "DELETE" and status == 404):
                    return
                self._doubt(_VAGUE_SECONDS)
            await asyncio.sleep(_PAUSE_SECONDS * generator.random())

    def _doubt(self, seconds: float) -> None:
        """What was asked for may be done within that time."""
        self._vague_until = max(self._vague_until, self._world.now + seconds)
        self.lives[-1].is_vague = True

    def _images(self) -> list[str]:
        found = []
        for machine in self._world.machines.values():
            if machine.is_up:
                topic = machine.node.broker.image.topics.get(BUCKET)
                if topic is not None:
                    found.append(topic.id.hex)
        return found

    def _note_topics(self) -> None:
        for topic_id in (*self._images(), *self._truth.topics_of(BUCKET)):
            self._first_seen.setdefault(topic_id, self._tick())

    def _look_up(self) -> str:
        """The id of the topic that was made, as somebody knows it who is not known to be wrong."""
        self._note_topics()
        new = [topic_id for topic_id in self._images() if topic_id not in self._over]
        return max(new, key=lambda topic_id: self._first_seen[topic_id], default="")

    # What is certain.

    def _now(self) -> _Life | None:
        """The life that is certainly there."""
        if not self.lives or self._world.now < self._vague_until:
            return None
        life = self.lives[-1]
        is_there = life.made != NEVER and life.drop_asked == NEVER and not life.is_vague
        return life if is_there else None

    def is_there_since(self, life: _Life | None) -> bool:
        """Whether a life that was there is there still."""
        return life is not None and self._now() is life

    def may_be_missing(self, since: float) -> bool:
        """For a watcher, which begins with whatever has the name."""
        life = self._now()
        return life is None or life.made_at >= since

    def may_be_gone(self, topic_id: str, now: float) -> bool:
        """For a watcher, which goes on with a topic that it knows."""
        life = self._now()
        return life is None or life.topic_id != topic_id

    def is_whole(self) -> bool:
        """At the end: whether its last life is there, for all nodes."""
        found = set(self._images())
        return bool(self.lives) and self.lives[-1].made != NEVER and found == {self.topic_id}

    @property
    def topic_id(self) -> str:
        """Of its last life."""
        return self.lives[-1].topic_id

    # Its clients.

    async def use(self, name: str) -> None:
        session = _Session(self, name)
        acts = (
            (0.35, session.put),
            (0.1, session.delete),
            (0.25, session.get),
            (0.2, session.get_local),
            (0.1, session.repeat),
        )
        while True:
            (_, act), *_ = session.random.choices(acts, [weight for weight, _ in acts])
            try:
                await act()
            except (TidelogError, TimeoutError) as error:
                self._world.trace.note(name, f"{type(error).__name__}: {error}")
            await asyncio.sleep(_PAUSE_SECONDS * session.random.random())

    # Judging.

    def lives_with(self, key: str, version: Offset, value: bytes) -> list[str]:
        """The topics in which a key had this version and this value."""
        return [
            topic_id
            for topic_id in self._truth.topics_of(BUCKET)
            for truth in self._truth.truths_of(topic_id)
            for one in truth.keys.get(key.encode(), ())
            if (one.version, one.value) == (version, value)
        ]

    def judge_shown(
        self, who: str, since: int, key: str, version: Offset, value: bytes, *, is_write: bool
    ) -> None:
        """What somebody was told who asked, or had been told of something, at `since`."""
        topics = self.lives_with(key, version, value)
        if not topics:
            if not self._truth.is_behind(BUCKET):
                what = "was told that it has written" if is_write else "was shown"
                problem = f"{who} {what} {key} {version} {value!r}, which no {BUCKET} has"
                self._world.fail(WRITTEN, problem)
        elif all(self._over.get(topic_id, NEVER) < since for topic_id in topics):
            when = {topic_id: self._over[topic_id] for topic_id in topics}
            problem = f"{who}, since {since}, is told of {key} {version} {value!r} of {when}"
            self._world.fail(GONE, problem)

    def judge(self) -> None:
        """At the end: each life that is known by itself."""
        log = {
            (life.label, key): [Logged(one.version, one.value) for one in records]
            for life in self.lives
            if life.topic_id
            for truth in self._truth.truths_of(life.topic_id)
            for key, records in truth.keys.items()
        }
        known = {life.label for life in self.lives if life.topic_id}
        history = self.registers
        history.writes = [one for one in history.writes if one.key[0] in known]
        history.reads = [one for one in history.reads if one.key[0] in known]
        if anomalies := registers.check(history, log):
            self._world.fail(anomalies[0].rule, f"{BUCKET}: {anomalies[0]}")


class _Session:
    """One client, over all lives of the bucket."""

    def __init__(self, remade: Remade, name: str) -> None:
        self._remade = remade
        self.name = name
        self.random: random.Random = remade._world.fork(name)
        self._written = 0
        self._tokens: dict[str, tuple[str, int]] = {}
        """Of each key: the newest token, and when its write was asked for."""
        self._versions: dict[str, Offset] = {}
        self._done: list[tuple[str, str, bytes]] = []
        """Idempotency-Keys of writes, with the key and the value."""

    def _key(self) -> str:
        return self.random.choice(_KEYS)

    async def _ask(self, method: str, key: str, **more: Any) -> tuple[int, Any]:
        path = f"/v1/kv/{BUCKET}/{key}"
        life, remade = self._remade._now(), self._remade
        status, document = await remade._ask(self.random, method, path, **more)
        is_bucket = status == 404 and "token" not in (document or {})
        if is_bucket and remade.is_there_since(life):
            remade._world.fail(FOUND, f"{self.name}: {method} {path}: {document} in {life}")
        return status, document

    # Writing.

    async def put(self) -> None:
        self._written += 1
        key, value = self._key(), f"{self.name}/{self._written}"
        expects = self._versions.get(key, ABSENT) if self.random.random() < 0.4 else None
        once = f"{self.name} {self._written}" if self.random.random() < 0.6 else None
        await self._put(key, value, expects, once)

    async def _put(self, key: str, value: str, expects: Offset | None, once: str | None) -> None:
        remade, data = self._remade, msgspec.json.encode(value)
        life = remade._now()
        label = "" if life is None else life.label
        since = remade._tick()
        writing = remade.registers.begin_write(self.name, (label, key.encode()), data, expects=expects)
        body = {"value": value} if expects is None else {"value": value, "if_version": expects}
        status, document = await self._ask(
            "PUT",
            key,
            body=body,
            headers={} if once is None else {"idempotency-key": once},
            query={"sync_timeout_ms": "2000"},
        )
        is_sure = remade.is_there_since(life)
        if status == 200:
            version = document["version"]
            remade.judge_shown(self.name, since, key, version, data, is_write=True)
            self._versions[key], self._tokens[key] = version, (document["token"], since)
            if once is not None and expects is None:
                self._done.append((once, key, data))
            if is_sure:
                writing.ok(version)
            remade.operations += 1
        elif status == 409:
            found = document.get("version")
            self._versions[key] = ABSENT if found is None else found
            if is_sure and document.get("repeated"):  # that is the version now
                writing.fail()
            elif is_sure:
                writing.refused(self._versions[key])
        elif status in (404, 503) and once is None and is_sure:
            writing.fail()

    async def repeat(self) -> None:
        """Ask once more for what was done, perhaps to another bucket of the name."""
        if not self._done:
            return
        remade = self._remade
        once, key, data = self.random.choice(self._done)
        since = remade._tick()
        status, document = await self._ask(
            "PUT",
            key,
            body={"value": msgspec.Raw(data)},
            headers={"idempotency-key": once},
            query={"sync_timeout_ms": "2000"},
        )
        if status == 200:
            version = document["version"]
            remade.judge_shown(self.name, since, key, version, data, is_write=True)

    async def delete(self) -> None:
        remade, key = self._remade, self._key()
        life = remade._now()
        label = "" if life is None else life.label
        writing = remade.registers.begin_write(self.name, (label, key.encode()), None)
        status, document = await self._ask("DELETE", key, query={"sync_timeout_ms": "2000"})
        if status == 200 and remade.is_there_since(life):
            if document["deleted"]:
                writing.ok(document["version"])
                self._versions[key] = ABSENT
            else:
                writing.needless()

    # Reading.

    async def get(self) -> None:
        remade, key = self._remade, self._key()
        life = remade._now()
        since = remade._tick()
        reading = remade.registers.begin_read(self.name, ("" if life is None else life.label, key.encode()))
        status, document = await self._ask("GET", key)
        if status == 200:
            version, data = document["version"], msgspec.json.encode(document["value"])
            remade.judge_shown(self.name, since, key, version, data, is_write=False)
            self._versions[key] = version
            if remade.is_there_since(life):
                reading.ok(Shown(version, data))
        elif status == 404 and "token" in document and remade.is_there_since(life):
            reading.ok(NOTHING)

    async def get_local(self) -> None:
        """With a token of its own write, at any node: not of a bucket that was gone by then."""
        remade, key = self._remade, self._key()
        token, since = self._tokens.get(key, ("", -1))
        query = {"consistency": "local"}
        if token:
            query["token"] = token
        status, document = await self._ask("GET", key, query=query)
        if status == 200:
            version, data = document["version"], msgspec.json.encode(document["value"])
            who = f"{self.name} with token {token}"
            remade.judge_shown(who, since, key, version, data, is_write=False)
