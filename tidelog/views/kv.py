"""Key-value: the newest value of every key of a compacted topic.

Rule 1: a key's version is the offset of the record that made it what it is; so versions rise, and
        no two writes of a partition share one.
Rule 2: the view has what is committed. What stands in the leader's log beyond it is the overlay's:
        both together are what the next write is decided on.
Rule 3: a key expires when a tombstone of its leader says so. Nothing here looks at a clock.
"""

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.model import Offset, ProducerId
from tidelog.records import BatchHeader, Record, decode_batch, read_marker

EXPIRES_HEADER: Final = "tidelog-expires-at"
"""Milliseconds since 1970, in decimal: from then on the leader may delete the key."""

_SELECT: Final = "SELECT key, value, version, timestamp, expires FROM entries "


class Entry(NamedTuple):
    """What a key is now. `value` None: it was deleted, or expired."""

    key: bytes
    value: bytes | None
    version: Offset
    timestamp_ms: int
    expires_at_ms: int | None


def entry_of(record: Record) -> Entry:
    assert record.key is not None, "compacted topics take no record without a key"
    expires = None
    for name, value in record.headers:
        if name == EXPIRES_HEADER and value is not None and value.isdigit() and len(value) < 19:
            expires = int(value)
    return Entry(record.key, record.value, record.offset, record.timestamp_ms, expires)


class KvView:
    """The tables of a key-value view."""

    name = "kv"
    version = 1
    schema = """
        CREATE TABLE entries (
            key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
            timestamp INTEGER NOT NULL, expires INTEGER
        );
        CREATE INDEX entries_expires ON entries (expires) WHERE expires IS NOT NULL;
    """

    def fold(self, database: sqlite3.Connection, records: Iterable[Record]) -> None:
        newest: dict[bytes, Entry] = {}
        for record in records:
            if record.key is not None:  # from before the topic was compacted
                newest[record.key] = entry_of(record)
        database.executemany(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)",
            [entry for entry in newest.values() if entry.value is not None],
        )
        database.executemany(
            "DELETE FROM entries WHERE key = ?",
            [(entry.key,) for entry in newest.values() if entry.value is None],
        )

    def trim(self, database: sqlite3.Connection, start: Offset) -> None:
        database.execute("DELETE FROM entries WHERE version < ?", (start,))


# Asking, on the event loop.


def get_entry(database: sqlite3.Connection, key: bytes) -> Entry | None:
    found = database.execute(_SELECT + "WHERE key = ?", (key,)).fetchone()
    return None if found is None else Entry(*found)


def scan(database: sqlite3.Connection, prefix: bytes, after: bytes | None) -> Iterator[Entry]:
    """The entries whose keys begin with `prefix`, in order, those beyond `after`."""
    least = prefix if after is None or after < prefix else after
    condition, values = "WHERE key >= ?", [least]
    if after is not None and least == after:
        condition = "WHERE key > ?"
    if (beyond := following(prefix)) is not None:
        condition, values = condition + " AND key < ?", [*values, beyond]
    for found in database.execute(_SELECT + condition + " ORDER BY key", values):
        yield Entry(*found)


def following(prefix: bytes) -> bytes | None:
    """The least key beyond all that begin with `prefix`; None if there is none."""
    whole = prefix.rstrip(b"\xff")
    return whole[:-1] + bytes([whole[-1] + 1]) if whole else None


def expired(database: sqlite3.Connection, now_ms: int, most: int) -> list[tuple[bytes, Offset]]:
    """Keys whose time is up, with their versions, the oldest first."""
    return database.execute(
        "SELECT key, version FROM entries WHERE expires <= ? ORDER BY expires LIMIT ?",
        (now_ms, most),
    ).fetchall()


def next_expiry(database: sqlite3.Connection) -> int | None:
    """When the next key expires."""
    found = database.execute(
        "SELECT min(expires) FROM entries WHERE expires IS NOT NULL"
    ).fetchone()
    return None if found is None else found[0]


# What is not committed yet.


@dataclass(slots=True)
class _Open:
    """What a transaction has written that is not decided."""

    entries: dict[bytes, Entry]


class Overlay:
    """What the leader's log holds beyond its view: the fold of [start, end).

    Invariant: of each key the newest entry, unless a transaction that is undecided wrote it.
    """

    def __init__(self, start: Offset) -> None:
        self.start = self.end = start
        self._entries: dict[bytes, Entry] = {}
        self._order: deque[tuple[Offset, bytes]] = deque()
        self._open: dict[ProducerId, _Open] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Entry | None:
        """What the log says of a key here; a deleted one has no value. None if it says nothing."""
        return self._entries.get(key)

    def is_undecided(self, key: bytes) -> bool:
        """Whether a transaction has written the key that may yet end in two ways."""
        return any(key in one.entries for one in self._open.values())

    def fold(self, header: BatchHeader, batch: memoryview) -> None:
        """Take the next batch of the log."""
        if header.last_offset < self.end:
            return
        if header.is_control:
            ended = self._open.pop(header.producer_id, None)
            marker = read_marker(batch) if header.record_count else None
            if ended is not None and marker is not None and marker.commits:
                for entry in ended.entries.values():
                    self._note(entry)
        elif header.is_transactional:
            entries = self._open.setdefault(header.producer_id, _Open({})).entries
            for record in decode_batch(batch):
                if record.key is not None:
                    entries[record.key] = entry_of(record)
        else:
            for record in decode_batch(batch):
                if record.key is not None:
                    self._note(entry_of(record))
        self.end = header.next_offset

    def _note(self, entry: Entry) -> None:
        known = self._entries.get(entry.key)
        if known is None or known.version < entry.version:
            self._entries[entry.key] = entry
            self._order.append((entry.version, entry.key))

    def settle(self, applied: Offset) -> None:
        """The view has everything below `applied`: nothing of it is needed here any more."""
        while self._order and self._order[0][0] < applied:
            version, key = self._order.popleft()
            known = self._entries.get(key)
            if known is not None and known.version == version:
                del self._entries[key]
        self.start = max(self.start, applied)
        self.end = max(self.end, applied)


# Deciding.


class Change(NamedTuple):
    """A write that somebody wants."""

    key: bytes
    value: bytes | None
    """None deletes the key."""
    expires_at_ms: int | None = None
    if_version: Offset | None = None
    """Only if the key has this version now; ABSENT if it must not be there. None for whatever."""

    @property
    def asks(self) -> bool:
        """Whether it matters what the key is now."""
        return self.if_version is not None or self.value is None


ABSENT: Final = -1


def is_met(change: Change, current: Entry | None) -> bool:
    """Whether what a change demands of its key holds."""
    if change.if_version is None:
        return True
    version = ABSENT if current is None or current.value is None else current.version
    return change.if_version == version


def record_of(change: Change, now_ms: int) -> Record:
    headers: tuple[tuple[str, bytes], ...] = ()
    if change.expires_at_ms is not None and change.value is not None:
        headers = ((EXPIRES_HEADER, b"%d" % change.expires_at_ms),)
    return Record(key=change.key, value=change.value, headers=headers, timestamp_ms=now_ms)
