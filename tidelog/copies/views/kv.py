"""Key-value: the newest value of every key of a compacted topic.

Rule 1: a key's version is the offset of the record that made it what it is; so versions rise, and
        no two writes of a partition share one.
Rule 2: the view has what is committed. What stands in the leader's log beyond it is the overlay's:
        both together are what the next write is decided on.
Rule 3: a key expires when a tombstone of its leader says so. Nothing here looks at a clock.
Rule 4: nothing is told that was not checked (`views.checks`): no entry, no absence of one, no list.
"""

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from tidelog.copies.views.checks import (
    CHAIN,
    NONSENSE,
    Rotten,
    add_to_chain,
    begin_chain,
    check_absent,
    drop_from_chain,
    in_chain,
    sum_of,
)
from tidelog.model import Offset, ProducerId
from tidelog.records import BatchHeader, Marker, Record

EXPIRES_HEADER: Final = "tidelog-expires-at"
"""Milliseconds since 1970, in decimal: from then on the leader may delete the key."""

_SELECT: Final = "SELECT key, value, version, timestamp, expires, sum FROM entries "
_OR_BEFORE: Final = """
    SELECT c.key, c.next, c.sum, e.key, e.value, e.version, e.timestamp, e.expires, e.sum
    FROM (SELECT key, next, sum FROM chain WHERE key <= ?1 ORDER BY key DESC LIMIT 1) c
    LEFT JOIN entries e ON e.key = ?1
"""
_CHAINED: Final = """
    SELECT c.key, c.next, c.sum, e.key, e.value, e.version, e.timestamp, e.expires, e.sum
    FROM chain c LEFT JOIN entries e ON e.key = c.key
    WHERE c.key >= (SELECT key FROM chain WHERE key {} ? ORDER BY key DESC LIMIT 1) ORDER BY c.key
"""
_DUE: Final = "SELECT expires, rowid, key FROM entries WHERE "
# Two statements, each of which the index answers from where it goes on: many may expire at once.
_DUE_THEN: Final = _DUE + "expires = ? AND rowid > ? ORDER BY rowid LIMIT ?"
_DUE_LATER: Final = _DUE + "expires > ? AND expires <= ? ORDER BY expires, rowid LIMIT ?"


class Entry(NamedTuple):
    """What a key is now. `value` None: it was deleted, or expired."""

    key: bytes
    value: bytes | None
    version: Offset
    timestamp_ms: int
    expires_at_ms: int | None


def entry_of(record: Record, version: Offset | None = None) -> Entry:
    """What a record makes of its key; `version` is its offset, if that is not in it yet."""
    assert record.key is not None, "compacted topics take no record without a key"
    expires = None
    for name, value in record.headers:
        if name == EXPIRES_HEADER and value is not None and value.isdigit() and len(value) < 19:
            expires = int(value)
    version = record.offset if version is None else version
    return Entry(record.key, record.value, version, record.timestamp_ms, expires)


class KvView:
    """The tables of a key-value view."""

    name = "kv"
    version = 2
    schema = f"""
        CREATE TABLE entries (
            key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
            timestamp INTEGER NOT NULL, expires INTEGER, sum INTEGER NOT NULL
        );
        CREATE INDEX entries_expires ON entries (expires) WHERE expires IS NOT NULL;
        {CHAIN}
    """

    def begin(self, database: sqlite3.Connection) -> None:
        begin_chain(database)

    def fold(self, database: sqlite3.Connection, records: Iterable[Record]) -> None:
        newest: dict[bytes, Entry] = {}
        for record in records:
            if record.key is not None:  # from before the topic was compacted
                newest[record.key] = entry_of(record)
        there = [entry for entry in newest.values() if entry.value is not None]
        database.executemany(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)",
            [(*entry, sum_of(*entry)) for entry in there],  # type: ignore[arg-type]
        )
        add_to_chain(database, [entry.key for entry in there])
        self._drop(database, [entry.key for entry in newest.values() if entry.value is None])

    def _drop(self, database: sqlite3.Connection, keys: Sequence[bytes]) -> None:
        database.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in keys])
        drop_from_chain(database, keys)

    def trim(self, database: sqlite3.Connection, start: Offset) -> None:
        rows = database.execute(_SELECT + "WHERE version < ?", (start,))  # one value at a time
        self._drop(database, [_entry(row).key for row in rows])

    def check(self, database: sqlite3.Connection) -> None:
        for _ in scan(database, b"", None):
            pass


# Asking, on the event loop.


def get_entry(database: sqlite3.Connection, key: bytes) -> Entry | None:
    try:
        found = database.execute(_SELECT + "WHERE key = ?", (key,)).fetchone()
        if found is None:
            # Asked again, with its neighbour: in one statement, as the view moves on meanwhile.
            row: Any = database.execute(_OR_BEFORE, (key,)).fetchone()
            if row is None or row[3] is None:
                check_absent(key, row and row[:3])
                return None
            found = row[3:]
    except UnicodeDecodeError as error:
        raise Rotten(f"the entry of {key!r} is damaged: {error}") from error
    return _entry(found)


def _entry(row: Sequence[Any]) -> Entry:
    """A row as an entry; Rotten if it is not what was written."""
    try:
        entry = Entry(*row[:5])
        is_sound = sum_of(*entry) == row[5]  # type: ignore[arg-type]
    except NONSENSE as error:
        raise Rotten(f"an entry is damaged: {error}") from error
    if not is_sound:
        raise Rotten(f"the entry of {entry.key!r} is damaged")
    return entry


def scan(database: sqlite3.Connection, prefix: bytes, after: bytes | None) -> Iterator[Entry]:
    """The entries whose keys begin with `prefix`, in order, those beyond `after`."""
    is_beyond = after is not None and after >= prefix
    asked = database.execute(_CHAINED.format("<=" if is_beyond else "<"), (after if is_beyond else prefix,))
    beyond = following(prefix)
    try:
        for row in in_chain(asked):
            entry = _entry(row)
            if beyond is not None and entry.key >= beyond:
                return
            yield entry
    except UnicodeDecodeError as error:
        raise Rotten(f"an entry is damaged: {error}") from error


def following(prefix: bytes) -> bytes | None:
    """The least key beyond all that begin with `prefix`; None if there is none."""
    whole = prefix.rstrip(b"\xff")
    return whole[:-1] + bytes([whole[-1] + 1]) if whole else None


class Due(NamedTuple):
    """A place in the order in which keys expire: a time, and a row of it."""

    expires_at_ms: int
    row: int


FIRST_DUE: Final = Due(-1, -1)


def find_due(
    database: sqlite3.Connection, now_ms: int, after: Due, most: int, bytes_max: int
) -> list[tuple[Due, bytes]]:
    """Keys beyond `after` whose time seems to be up, the oldest first; no value is read.

    So nothing of it is checked: whoever acts on it asks `get_entry` first.
    """
    found: list[tuple[Due, bytes]] = []
    size = 0
    for asked, given in ((_DUE_THEN, after), (_DUE_LATER, (after.expires_at_ms, now_ms))):
        try:
            for expires, row, key in database.execute(asked, (*given, most - len(found))):
                found.append((Due(expires, row), key))
                size += len(key)
                if size > bytes_max:
                    return found
        except NONSENSE as error:
            raise Rotten(f"an entry is damaged: {error}") from error
    return found


def next_expiry(database: sqlite3.Connection) -> int | None:
    """When the next key expires."""
    found = database.execute("SELECT min(expires) FROM entries WHERE expires IS NOT NULL").fetchone()
    return None if found is None else found[0]


# What is not committed yet.


_ENTRY_BYTES: Final = 400
"""About what Python spends on an entry beside its key and value."""


class _Open:
    """What a transaction has written that is not decided."""

    __slots__ = ("entries", "first")

    def __init__(self, first: Offset) -> None:
        self.first = first
        """No entry is below it."""
        self.entries: dict[bytes, Entry] = {}


class Overlay:
    """What the leader's log holds beyond its view: the fold of [start, end).

    Invariant: of each key the newest entry, unless a transaction that is undecided wrote it.
    """

    def __init__(self, start: Offset) -> None:
        self.start = self.end = start
        self._entries: dict[bytes, tuple[Entry, Offset]] = {}
        """Of each key, with the end of what makes it so: of a transaction's entry, its marker's."""
        self._order: deque[tuple[Offset, bytes, int]] = deque()
        self._open: dict[ProducerId, _Open] = {}
        self.size = 0
        """About how many bytes it takes."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Entry | None:
        """What the log says of a key here; a deleted one has no value. None if it says nothing."""
        found = self._entries.get(key)
        return None if found is None else found[0]

    def certain_at(self, key: bytes) -> Offset:
        """Once everything below it is committed, so is what the log says of a key here."""
        found = self._entries.get(key)
        return 0 if found is None else found[1]

    def is_undecided(self, key: bytes) -> bool:
        """Whether a transaction has written the key that may yet end in two ways."""
        return any(key in one.entries for one in self._open.values())

    def fold(self, header: BatchHeader, records: Sequence[Record], marker: Marker | None) -> None:
        """Take the next batch of the log: its records, or the marker that it is."""
        if header.last_offset < self.end:
            return
        if header.is_control:
            ended = self._open.pop(header.producer_id, None)
            if ended is not None:
                self.size -= sum(map(_size, ended.entries.values()))
                if marker is not None and marker.commits:
                    for entry in ended.entries.values():
                        self._note(entry, header.next_offset)
        elif header.is_transactional:
            opened = self._open.setdefault(header.producer_id, _Open(header.base_offset))
            for record in records:
                if record.key is not None:
                    self._note_open(opened, entry_of(record))
        else:
            for record in records:
                if record.key is not None:
                    self._note(entry_of(record), record.offset + 1)
        self.end = header.next_offset

    def take(self, entries: Sequence[Entry], end: Offset) -> None:
        """Take what was appended just now, which ends at `end`, without reading it from the log."""
        for entry in entries:
            self._note(entry, entry.version + 1)
        self.end = end

    def skip(self, end: Offset) -> None:
        """There is nothing before `end`: it was compacted."""
        self.end = max(self.end, end)

    def _note(self, entry: Entry, certain_at: Offset) -> None:
        known = self._entries.get(entry.key)
        if known is None or known[0].version < entry.version:
            self._entries[entry.key] = (entry, certain_at)
            self._order.append((entry.version, entry.key, _size(entry)))
            self.size += _size(entry)

    def _note_open(self, opened: _Open, entry: Entry) -> None:
        if (known := opened.entries.get(entry.key)) is not None:
            self.size -= _size(known)
        opened.entries[entry.key] = entry
        self.size += _size(entry)

    def settle(self, applied: Offset) -> None:
        """The view has everything below `applied`: nothing of it is needed here any more."""
        while self._order and self._order[0][0] < applied:
            version, key, size = self._order.popleft()
            self.size -= size
            known = self._entries.get(key)
            if known is not None and known[0].version == version:
                del self._entries[key]
        # Below it everything is decided, and the marker that says so may be passed over here.
        for producer, opened in [each for each in self._open.items() if each[1].first < applied]:
            left = {key: e for key, e in opened.entries.items() if e.version >= applied}
            gone = sum(map(_size, opened.entries.values())) - sum(map(_size, left.values()))
            opened.entries, opened.first = left, applied
            self.size -= gone
            if not left:
                del self._open[producer]
        self.start = max(self.start, applied)
        self.end = max(self.end, applied)


def _size(entry: Entry) -> int:
    return _ENTRY_BYTES + len(entry.key) + len(entry.value or b"")


# Deciding.


class Change(NamedTuple):
    """A write that somebody wants."""

    key: bytes
    value: bytes | None
    """None deletes the key."""
    expires_at_ms: int | None = None
    if_version: Offset | None = None
    """Only if the key has this version now; ABSENT if it must not be there. None for whatever."""
    ttl_ms: int | None = None
    """How long it is to live from when it is written, by the clock of whoever writes it."""

    @property
    def asks(self) -> bool:
        """Whether it matters what the key is now."""
        return self.if_version is not None or self.value is None


ABSENT: Final = -1


def is_met(change: Change, current: Entry | None) -> bool:
    """Whether what a change demands of its key holds."""
    if change.if_version is None:
        return True
    version = version_of(current)
    return change.if_version == (ABSENT if version is None else version)


def may_be_met(change: Change, settled_to: Offset) -> bool:
    """Whether a demand that does not hold may hold some day.

    A version below `settled_to`, up to where the log is committed, is another's for ever.
    """
    return change.if_version == ABSENT or (change.if_version or 0) >= settled_to


def find_refused(
    changes: Sequence[Change], before: Sequence[Entry | None]
) -> tuple[tuple[int, Offset | None], ...]:
    """The changes whose condition does not hold, and their keys' versions."""
    return tuple(
        (at, version_of(current))
        for at, (change, current) in enumerate(zip(changes, before, strict=True))
        if not is_met(change, current)
    )


def version_of(entry: Entry | None) -> Offset | None:
    """None if the key is not there."""
    return None if entry is None or entry.value is None else entry.version


def has_effect(changes: Sequence[Change], existed: Sequence[bool | None]) -> bool:
    """Whether there is anything to write: a key that is not there need not be deleted."""
    return len(changes) > 1 or changes[0].value is not None or bool(existed[0])


def record_of(change: Change, now_ms: int) -> Record:
    headers: tuple[tuple[str, bytes], ...] = ()
    expires = change.expires_at_ms if change.ttl_ms is None else now_ms + change.ttl_ms
    if expires is not None and change.value is not None:
        headers = ((EXPIRES_HEADER, b"%d" % expires),)
    return Record(key=change.key, value=change.value, headers=headers, timestamp_ms=now_ms)
