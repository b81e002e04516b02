"""A copy's files: where they are, and how they change.

Rule 1: what is applied and the offset that it leads to are one transaction (`views.store`).
Rule 2: a snapshot is received beside the copy, checked as a whole, and put in its place by SQLite's
        own backup, in one transaction: who reads sees the old one or the new one, and so does
        whoever comes after a crash.
Rule 3: one process writes a copy; any number of them read it.
"""

# directory := PARTITION.db*, replica.json, lock          for a path that does not end in ".db"
#            | NAME.db, NAME.PARTITION.db*, NAME.json, NAME.lock      beside each other, otherwise
# json      := {"replica_id", "source", "partitions", "topic_id"}

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final
from uuid import UUID

import msgspec

from tidelog.client.http.values import Change
from tidelog.copies.embedded.cache import Recent
from tidelog.copies.embedded.changes import Difference
from tidelog.copies.embedded.errors import ChecksumMismatch, ProtocolError, ReplicationError, SyncFailed
from tidelog.copies.stream.protocol import Snapshot, Source
from tidelog.copies.views.store import Kind, Position, ViewStore
from tidelog.errors import CorruptMessage
from tidelog.host import SystemDatabase, SystemDatabases
from tidelog.model import NO_EPOCH
from tidelog.records import Record

SUFFIX: Final = ".db"
INCOMING: Final = ".incoming"
_META: Final = "SELECT kind, version, topic, applied, epoch, start FROM meta"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy remembers of itself."""

    replica_id: str
    source: Source
    partitions: int = 0
    """0 before it has heard of them."""
    topic_id: str = ""
    """Of what it has that many."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a copy keeps its files."""

    path: Path

    @property
    def _is_file(self) -> bool:
        return self.path.suffix == SUFFIX

    @property
    def directory(self) -> Path:
        return self.path.parent if self._is_file else self.path

    def file(self, partition: int) -> Path:
        if not self._is_file:
            return self.path / f"{partition}{SUFFIX}"
        return self.path if partition == 0 else self.path.with_suffix(f".{partition}{SUFFIX}")

    @property
    def about(self) -> Path:
        return self.path.with_suffix(".json") if self._is_file else self.path / "replica.json"

    @property
    def lock(self) -> Path:
        return self.path.with_suffix(".lock") if self._is_file else self.path / "lock"

    def read_about(self) -> About | None:
        try:
            return msgspec.json.decode(self.about.read_bytes(), type=About)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def write_about(self, about: About) -> None:
        aside = self.about.with_name(self.about.name + ".tmp")
        aside.write_bytes(msgspec.json.encode(about))
        os.replace(aside, self.about)


class Lock:
    """Keeps others from writing the same copy; the kernel takes it back from who dies."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise SyncFailed(
                f"another replica writes {path.with_suffix('')}; give this one another path, or read that one"
            ) from None

    def release(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What a file says of itself."""

    kind: str
    version: int
    topic: str
    position: Position

    def is_of(self, kind: Kind) -> bool:
        return (self.kind, self.version) == (kind.name, kind.version)


def read_meta(path: Path) -> Meta | None:
    """None if there is no such file, or if it is no copy; sqlite3.Error if it cannot be asked."""
    if not path.exists():
        return None
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        found = connection.execute(_META).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    finally:
        connection.close()
    if found is None:
        return None
    kind, version, topic, applied, epoch, start = found
    position = Position(applied=applied, epoch=epoch, start=start)
    return Meta(kind=kind, version=version, topic=topic, position=position)


class _Damaged(Exception):
    """A file is no sound database."""


class _Databases(SystemDatabases):
    """Where a store makes nothing anew by itself: its copy would be empty, and seem whole."""

    def open(self, path: PurePosixPath) -> SystemDatabase:
        try:
            return super().open(path)
        except sqlite3.OperationalError as error:
            raise OSError(str(error)) from error

    def remove(self, path: PurePosixPath) -> None:
        raise _Damaged


class Copy:
    """One partition's file, as its writer has it.

    Invariant: if `is_whole`, the file is the fold of the log of `topic` up to `position.applied`.
    Owned by one task; `load` may run in another thread meanwhile.
    """

    def __init__(
        self, path: Path, kind: Kind, source: Source, recent: Recent | None = None, *, tells: bool = False
    ) -> None:
        """`tells`: whether somebody wants to know what a snapshot changes."""
        self._recent = recent or Recent()
        self.path = path
        self._pure_path = PurePosixPath(path)
        self._kind = kind
        self._source = source
        self._tells = tells
        self._difference: Difference | None = None
        self._databases = _Databases()
        self._store: ViewStore | None = None
        self._incoming: _Incoming | None = None
        self.topic = ""
        """The id of the topic that it is of, in hex; empty if it is of none."""
        self.position = Position()
        self.on_removed: Callable[[], None] = lambda: None
        """Called when the file is gone, so that nobody reads it on."""

    @property
    def is_whole(self) -> bool:
        return bool(self.topic)

    @property
    def applied(self) -> int:
        return self.position.applied

    # From start to end.

    def open(self) -> None:
        """Take up what is there. What is of another kind, or damaged, is thrown away."""
        self._aside.unlink(missing_ok=True)
        try:
            found = read_meta(self.path)
        except sqlite3.OperationalError as error:
            raise SyncFailed(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError:
            found = None
        try:
            if found is None or not found.is_of(self._kind):
                raise _Damaged
            self._adopt(found.topic)
        except _Damaged:
            self.discard()

    def discard(self) -> None:
        """Throw everything away, and begin anew."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self.topic, self.position = "", Position()
        SystemDatabases().remove(self._pure_path)
        self.on_removed()

    @property
    def _aside(self) -> Path:
        return self.path.with_name(self.path.name + INCOMING)

    def _adopt(self, topic: str) -> ViewStore:
        store = ViewStore(self._databases, self._pure_path, self._kind, UUID(topic))
        self.position, self.topic = store.open(), topic
        self._store = store
        return store

    def close(self) -> None:
        self.abandon()
        if self._store is not None:
            self._store.close()
            self._store = None

    # Entries.

    def apply(self, records: Sequence[Record], to: Position) -> None:
        """Fold records, and be at `to` from now on; SyncFailed if the disk does not take them."""
        assert self.is_whole, "only what is whole can be gone on with"
        assert to.applied >= self.position.applied, "a copy never goes back"
        trims = to.start > self.position.start
        keys = None if trims else [record.key for record in records if record.key is not None]
        try:
            # It is not open where a snapshot could not be put in its place, and the disk was full.
            store = self._store or self._adopt(self.topic)
            with self._recent.changing(keys):
                store.apply(records, to)
        except _Damaged:
            self.discard()
            raise SyncFailed(f"{self.path} is damaged") from None
        except (sqlite3.Error, OSError) as error:
            is_damaged = isinstance(error, sqlite3.DatabaseError)
            if is_damaged and not isinstance(error, sqlite3.OperationalError):
                self.discard()
            raise SyncFailed(f"{self.path}: {error}") from error
        except (CorruptMessage, OverflowError) as error:
            raise ProtocolError(f"what came for {self.path} makes no sense: {error}") from error
        self.position = to

    # A snapshot.

    def begin(self, about: Snapshot) -> None:
        """Make room for a snapshot."""
        self.abandon()
        try:
            self._incoming = _Incoming(self._aside, about)
        except OSError as error:
            raise SyncFailed(f"{self._aside}: {error}") from error

    def add(self, piece: bytes) -> int:
        """Take the next bytes of the snapshot; how many there are now."""
        assert self._incoming is not None, "it was begun"
        return self._incoming.add(piece)

    def load(self) -> ReplicationError | None:
        """Put the snapshot in the copy's place; or say why it cannot be, and nothing has changed.

        It may take seconds, and may run in another thread.
        """
        incoming, self._incoming = self._incoming, None
        assert incoming is not None, "it was begun"
        try:
            incoming.check(self._kind)
            with self._recent.changing(None):
                self._replace_by(incoming)
        except ReplicationError as error:
            return error
        except _Damaged:
            self.discard()
            return SyncFailed(f"{self.path} is damaged")
        except (sqlite3.Error, OSError) as error:
            return SyncFailed(f"{self.path}: {error}")
        finally:
            incoming.remove()
        return None

    def _replace_by(self, incoming: "_Incoming") -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        try:
            if self._tells:
                old = self.path if self.topic else None
                self._difference = Difference(self._source, incoming.path, old)
            source = sqlite3.connect(incoming.path)
            database = self._databases.open(self._pure_path)
            try:
                source.backup(database.writer)
                # Who reads holds it up, and nobody waits for that: it is done later.
                database.writer.execute("PRAGMA busy_timeout = 0")
                database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                source.close()
                database.close()
            topic = incoming.about.topic_id
        except (sqlite3.Error, OSError):
            if self.topic:
                self._adopt(self.topic)
            raise
        self._adopt(topic)

    def changes(self) -> Iterator[list[Change]]:
        """What the snapshot that was put in place has changed, some at a time."""
        difference, self._difference = self._difference, None
        if difference is not None:
            with closing(difference):
                yield from difference.pages(self.applied)

    def abandon(self) -> None:
        """Forget a snapshot of which the rest will not come."""
        if self._difference is not None:
            self._difference.close()
            self._difference = None
        if self._incoming is not None:
            self._incoming.remove()
            self._incoming = None


class _Incoming:
    """A snapshot that is being received, in a file of its own."""

    def __init__(self, path: Path, about: Snapshot) -> None:
        self.path = path
        self.about = about
        self._file: BinaryIO = path.open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def add(self, piece: bytes) -> int:
        try:
            self._file.write(piece)
        except OSError as error:
            raise SyncFailed(f"{self.path}: {error}") from error
        self._digest.update(piece)
        self._size += len(piece)
        if self._size > self.about.size:
            raise ProtocolError(f"a snapshot of {self.about.size} bytes has more")
        return self._size

    def check(self, kind: Kind) -> None:
        """ChecksumMismatch if it is not what was sent, ProtocolError if it is of another kind."""
        self._file.close()
        actual = self._digest.hexdigest()
        if actual != self.about.sha256:
            raise ChecksumMismatch("a snapshot arrived damaged", expected=self.about.sha256, actual=actual)
        found = read_meta(self.path)
        if found is None or not found.is_of(kind):
            raise ProtocolError(
                "the node keeps such copies in another form; it and this client are of different versions"
            )
        said = (self.about.topic_id, self.about.applied)
        if (found.topic, found.position.applied) != said:
            raise ProtocolError(
                f"a snapshot is of offset {found.position.applied}, and was said to be of {said[1]}"
            )

    def remove(self) -> None:
        self._file.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def take_up(layout: Layout, source: Source, replica_id: str | None, new_id: Callable[[], str]) -> About:
    """What is known of the copy there; SyncFailed if it is of something else."""
    known = layout.read_about()
    if known is None:
        known = About(replica_id=replica_id or new_id(), source=source)
    elif known.source != source:
        raise SyncFailed(
            f"{layout.path} has a copy of {name_of(known.source)}; give {name_of(source)} another path"
        )
    if replica_id is not None and replica_id != known.replica_id:
        known = msgspec.structs.replace(known, replica_id=replica_id)
    layout.write_about(known)
    return known


def name_of(source: Source) -> str:
    kind, name = ("queue", source.queue) if source.bucket is None else ("bucket", source.bucket)
    return f"{kind} {name!r}"


def moved(position: Position, *, applied: int, epoch: int, start: int) -> Position:
    """Where a copy is after what it applies now; where nothing has come the epoch stays."""
    return replace(
        position,
        applied=applied,
        epoch=position.epoch if epoch == NO_EPOCH else epoch,
        start=max(position.start, min(start, applied)),
    )
