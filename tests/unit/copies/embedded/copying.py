"""Nodes at the other end of a copy's stream, as a script; without sockets, threads or clocks."""

import gzip
import hashlib
import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

from tidelog.client.http.core import Core, Settings
from tidelog.client.http.effects import Lost, Reply, Send, Wait
from tidelog.client.http.routes import Routes
from tidelog.client.http.values import Change
from tidelog.copies.embedded.files import Copy
from tidelog.copies.embedded.plan import Aside, Connect, Following, Hear, Say
from tidelog.copies.stream import protocol
from tidelog.copies.stream.kinds import kind_of
from tidelog.copies.stream.protocol import Batch, Heartbeat, HelloAck, Snapshot, Source, SyncStart, entry_of
from tidelog.copies.views.kv import KvView
from tidelog.copies.views.store import Kind, Position, ViewStore
from tidelog.host import SystemDatabases
from tidelog.records import Record, encode_batch

TOPIC = UUID(int=7).hex
OTHER_TOPIC = UUID(int=8).hex
BUCKET = Source(bucket="b")
PIECE = 4096
CLUSTER = b'{"brokers":[{"id":1,"http":"a:1"},{"id":2,"http":"b:1"}],"topics":[]}'

Message = str | bytes | Lost
Session = Sequence[Message] | Lost


def text(message: Any) -> str:
    return protocol.encode(message).decode()


def squeezed(message: Any) -> bytes:
    return protocol.GZIP + gzip.compress(protocol.encode(message))


def hello_ack(current: int, **more: Any) -> str:
    known: dict[str, Any] = {
        "master_id": "node-1",
        "log_oldest_offset": 0,
        "topic": "b",
        "topic_id": TOPIC,
        "partitions": 1,
        "heartbeat_interval_ms": 1000,
        "replica_timeout_ms": 30_000,
    }
    return text(HelloAck(current_offset=current, **(known | more)))


def incremental(offset: int) -> str:
    return text(SyncStart(mode="incremental", from_offset=offset))


def heartbeat(current: int, oldest: int = 0) -> str:
    return text(Heartbeat(current_offset=current, log_oldest_offset=oldest))


def put(key: str, value: bytes | None, offset: int) -> Record:
    return Record(key=key.encode(), value=value, offset=offset, timestamp_ms=1000 + offset)


def frame(*records: Record, current: int = 0, epoch: int = 3, following: int | None = None) -> bytes:
    """Records that follow each other, as a node sends them to who wants bytes."""
    end = records[-1].offset + 1 if following is None else following
    batch = encode_batch(records, base_offset=records[0].offset, leader_epoch=epoch)
    return protocol.BATCHES + protocol.BATCHES_HEAD.pack(end, max(end, current), epoch) + batch


def entries(*records: Record, source: Source = BUCKET, current: int = 0, epoch: int = 3) -> Batch:
    """The same for who wants JSON."""
    end = records[-1].offset + 1
    found = [entry for one in records if (entry := entry_of(one, source)) is not None]
    return Batch(entries=found, next_offset=end, current_offset=max(end, current), epoch=epoch)


def snapshot(
    *records: Record,
    applied: int,
    kind: Kind | None = None,
    topic: str = TOPIC,
    epoch: int = 3,
    says: int | None = None,
) -> list[Message]:
    """A SYNC_START and the pieces of the database that it tells of."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "view.db"
        store = ViewStore(SystemDatabases(), PurePosixPath(path), kind or KvView(), UUID(topic))
        store.open()
        store.apply(records, Position(applied=applied, epoch=epoch))
        aside = Path(directory) / "copy.db"
        store.back_up(PurePosixPath(aside))
        store.close()
        data = aside.read_bytes()
    about = Snapshot(
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        topic_id=topic,
        epoch=epoch,
        applied=applied if says is None else says,
    )
    start = SyncStart(mode="full", from_offset=about.applied, snapshot=about)
    pieces = [protocol.SNAPSHOT + data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    return [text(start), *pieces]


class Stage:
    """One copy of a bucket or a queue, and the sessions that nodes have in store for it."""

    def __init__(
        self,
        path: Path,
        *,
        source: Source = BUCKET,
        given: Sequence[str] = ("http://a:1", "http://b:1"),
        **options: Any,
    ) -> None:
        self.now = 0.0
        self.said: list[Any] = []
        self.called: list[str] = []
        self.slept: list[float] = []
        self.listened: list[float] = []
        self.changes: list[Change] = []
        self.partitions = 0
        self.source = source
        routes = Routes(given, clock=lambda: self.now)
        self.core = Core(routes, Settings(), clock=lambda: self.now, random=lambda: 0.5, new_key=lambda: "k")
        kind = kind_of(source)
        assert kind is not None
        self.copy = Copy(path, kind, source, tells=True)
        self.copy.open()
        self.following = Following(
            self.core,
            source,
            "replica-1",
            self.copy,
            wall=lambda: datetime.fromtimestamp(0, UTC),
            changed=self.changes.extend,
            greeted=self._greeted,
            **options,
        )
        self._plan = self.following.run()
        self._sessions: deque[Session] = deque()
        self._messages: deque[Message] = deque()
        self._effect: Any = None
        self._came: Any = None

    def _greeted(self, ack: HelloAck) -> None:
        self.partitions = ack.partitions

    def play(self, *sessions: Session) -> None:
        """Have these sessions, after the one that is open; the last of them stays open."""
        self._sessions.extend(sessions)
        while self._step():
            pass

    def hear(self, *messages: Message) -> None:
        """Hear more in the session that is open."""
        self._messages.extend(messages)
        self.play()

    def _step(self) -> bool:
        """Perform the effect that is due; False if there is nothing left to perform it with."""
        if self._effect is None:
            self._effect = self._plan.send(self._came)
        came: Any = None
        match self._effect:
            case Connect(url):
                if not self._sessions:
                    return False
                session = self._sessions.popleft()
                self.called.append(url)
                came = session if isinstance(session, Lost) else None
                self._messages = deque(() if isinstance(session, Lost) else session)
            case Hear(seconds):
                if not self._messages and not self._sessions:
                    return False
                self.listened.append(seconds)
                lost = Lost(why="it was closed", was_sent=True)
                came = self._messages.popleft() if self._messages else lost
            case Say(message):
                self.said.append(protocol.decode_from_replica(message))
            case Wait(seconds):
                self.slept.append(seconds)
                self.now += seconds
            case Aside(work):
                came = work()
            case Send():
                came = Reply(status=200, headers={}, body=CLUSTER)
        self._effect, self._came = None, came
        return True

    def close(self) -> None:
        self._plan.close()
        self.copy.close()

    # What there is to see.

    def rows(self, statement: str = "SELECT key, value, version FROM entries ORDER BY key") -> Any:
        connection = sqlite3.connect(self.copy.path)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def of_kind(self, kind: type) -> list[Any]:
        return [one for one in self.said if isinstance(one, kind)]


Make = Callable[..., Stage]
