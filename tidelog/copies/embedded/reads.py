"""Reading a copy: a few microseconds for a key, from any thread, while it is being written.

Rule 1: each thread has connections of its own, so that nobody waits for anybody.
Rule 2: no read stays open: who goes through a whole copy reads it page by page, and what is written
        meanwhile may be seen or not.
Rule 3: what was never whole cannot be asked: an empty answer would look like an empty bucket.
"""

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tidelog.client.http.values import Entry
from tidelog.copies.embedded.cache import Recent
from tidelog.copies.embedded.errors import SyncFailed
from tidelog.copies.embedded.values import QueuedMessage
from tidelog.copies.views.kv import Entry as StoredEntry
from tidelog.copies.views.kv import scan
from tidelog.wire.partitioner import partition_for

T = TypeVar("T")

PAGE: Final = 1000
_UNKNOWN: Final = b"unknown"
"""Told from any value by what it is, not by what it says."""
MAPPED_BYTES: Final = 256 * 1024 * 1024
_BUSY_SECONDS_MAX: Final = 30.0

_VALUE: Final = "SELECT value FROM entries WHERE key = ?"
_VERSION: Final = "SELECT version FROM entries WHERE key = ?"
_MESSAGE: Final = (
    "SELECT id, sequence, value, attributes, key, made_ms, deliveries FROM messages WHERE queue = ?"
)

_decode: Final = msgspec.json.Decoder().decode
_decode_attributes: Final = msgspec.json.Decoder(dict[str, str]).decode


class Gone(SyncFailed):
    """The bucket was made anew, and has no such partition."""


class _Held:
    """A thread's connection, which goes with the thread."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            uri=True,
            timeout=_BUSY_SECONDS_MAX,
            check_same_thread=False,
            isolation_level=None,
        )
        self.connection.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")

    def close(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # somebody is asking it right now
            self.connection.close()

    def __del__(self) -> None:
        if hasattr(self, "connection"):
            self.close()


class File:
    """One partition's file, as its readers have it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._threads = threading.local()
        self._held: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_gone = False

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """What it says to this thread; SyncFailed if there is nothing to ask."""
        while True:
            connection = self.connection
            try:
                return question(connection)
            except sqlite3.ProgrammingError:
                if connection is self.connection:
                    raise
                # It became another file meanwhile.

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's own."""
        try:
            found: sqlite3.Connection = self._threads.held.connection
        except AttributeError:
            found = self._connect()
        return found

    def _connect(self) -> sqlite3.Connection:
        with self._lock:
            if self._is_gone:
                raise Gone("this partition is not there any more")
            if self._is_closed:
                raise SyncFailed("this copy is closed")
            try:
                held = _Held(self.path)
                held.connection.execute("SELECT applied FROM meta").fetchone()
            except sqlite3.OperationalError as error:
                raise SyncFailed(
                    f"{self.path} was never in sync, so there is nothing to read yet; call wait() "
                    f"first ({error})"
                ) from None
            self._held.add(held)
        self._threads.held = held
        return held.connection

    def reconnect(self) -> None:
        """The file is another one now: let every thread open it anew."""
        with self._lock:
            held = list(self._held)
            self._threads = threading.local()
        for one in held:
            one.close()

    def close(self) -> None:
        self._is_closed = True
        self.reconnect()

    def retire(self) -> None:
        """The partition is not there any more; who reads looks at what is."""
        self._is_gone = True
        self.reconnect()


def value_of(data: bytes) -> Any:
    """Bytes as Python has them: JSON, or else a str, or bytes if they are no text."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


class BucketReads:
    """What can be asked of a bucket's copy."""

    def __init__(self, files: tuple[File, ...], recent: Recent | None = None) -> None:
        """`recent` is told of all changes, by whoever writes the copy; without it all is read."""
        self.files = files
        self._recent = recent

    def get(self, key: str, default: Any = None) -> Any:
        data, recent = key_bytes(key), self._recent
        if recent is None:
            value = self._of(data, _VALUE)
        else:
            value = recent.values.get(data, _UNKNOWN)
            if value is _UNKNOWN:
                stamp = recent.stamp
                value = self._of(data, _VALUE)
                recent.note(data, value, stamp)
        return default if value is None else value_of(value)

    def version(self, key: str) -> int | None:
        found: int | None = self._of(key_bytes(key), _VERSION)
        return found

    def _of(self, key: bytes, statement: str) -> Any:
        """The one column of a key; None if there is none."""
        found = self._ask(
            lambda files: files[number_of(key, len(files))].ask(
                lambda database: database.execute(statement, (key,)).fetchone()
            )
        )
        return None if found is None else found[0]

    def _ask(self, question: Callable[[tuple[File, ...]], T]) -> T:
        while True:
            files = self.files
            try:
                return question(files)
            except Gone:
                if files is self.files:
                    raise

    def scan(self, prefix: str = "") -> Iterator[Entry]:
        begins = key_bytes(prefix)
        of_each = (_pages(number, file, begins) for number, file in enumerate(self.files))
        for number, found in merge(*of_each, key=lambda one: one[1].key):
            yield Entry(
                key=key_text(found.key),
                value=value_of(found.value or b""),
                version=found.version,
                expires_at_ms=found.expires_at_ms,
                token=f"{number}:{found.version + 1}",
            )

    def items(self) -> Iterator[tuple[str, Any]]:
        for entry in self.scan():
            yield entry.key, entry.value

    def count(self) -> int:
        return self._ask(lambda files: sum(file.ask(_count) for file in files))


def number_of(key: bytes, count: int) -> int:
    """In which of so many partitions a key is."""
    return 0 if count == 1 else partition_for(key, count)


def _pages(number: int, file: File, prefix: bytes) -> Iterator[tuple[int, StoredEntry]]:
    after: bytes | None = None
    while True:
        try:
            page = file.ask(partial(_page, prefix, after))
        except Gone:
            return  # and so is what it had
        for one in page:
            yield number, one
        if len(page) < PAGE:
            return
        after = page[-1].key


def _page(prefix: bytes, after: bytes | None, database: sqlite3.Connection) -> list[StoredEntry]:
    with closing(scan(database, prefix, after)) as found:  # type: ignore[type-var]
        return list(islice(found, PAGE))


def _count(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT count(*) FROM entries").fetchone()[0])


class QueueReads:
    """What can be asked of a work queue's copy."""

    def __init__(self, queue: str, files: tuple[File, ...]) -> None:
        self._queue = queue
        self.files = files

    def _execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        asked = (self._queue, *values)
        return self.files[0].ask(lambda database: database.execute(statement, asked).fetchall())

    def message(self, message_id: int) -> QueuedMessage | None:
        found = self._execute(f"{_MESSAGE} AND id = ?", message_id)
        return _message(found[0]) if found else None

    def scan(self) -> Iterator[QueuedMessage]:
        after = -1
        while True:
            page = self._execute(f"{_MESSAGE} AND sequence > ? ORDER BY sequence LIMIT ?", after, PAGE)
            for one in page:
                yield _message(one)
            if len(page) < PAGE:
                return
            after = page[-1][1]

    def count(self) -> int:
        return int(self._execute("SELECT count(*) FROM messages WHERE queue = ?")[0][0])


def _message(found: tuple[Any, ...]) -> QueuedMessage:
    message_id, sequence, value, attributes, key, made_ms, deliveries = found
    return QueuedMessage(
        id=message_id,
        sequence=sequence,
        value=value_of(value),
        attributes=_decode_attributes(attributes),
        key=key,
        published_at_ms=made_ms,
        delivery_count=deliveries,
    )
