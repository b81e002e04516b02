"""Checksums of what a view keeps. SQLite's pages carry none, and a device may change any bit.

Rule 1: every row that is read bears its own checksum, over all of its columns.
Rule 2: that a key is absent is shown by a row, too. The keys are chained: a row of `chain` names a
        key and the next one, so a key between the two is absent. A list is complete if each of its
        keys is the next one of that before it.
Rule 3: what does not check out is `Rotten`, and so is what has another type than was written. The
        view is made again from the log, which has checksums of its own.
"""

# entries := key, value, version, timestamp, expires, sum    see copies/views/kv.py
# chain   := key, next, sum    one row for each key, and one for HEAD; next is NULL in the last

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from crc32c import crc32c

CHAIN: Final = """
    CREATE TABLE chain (key BLOB PRIMARY KEY, next BLOB, sum INTEGER NOT NULL) WITHOUT ROWID
"""
HEAD: Final = 0
"""The first of the chain. To SQLite, an integer is less than any blob."""

_NUMBERS: Final = struct.Struct(">qqqq")
_NONE: Final = -1

_BEFORE: Final = "SELECT key, next, sum FROM chain WHERE key < ? ORDER BY key DESC LIMIT 1"
_UP_TO: Final = "SELECT key, next, sum FROM chain WHERE key <= ? ORDER BY key DESC LIMIT 1"
_ADD: Final = "INSERT INTO chain VALUES (?, ?, ?)"
_CHANGE: Final = "UPDATE chain SET next = ?, sum = ? WHERE key = ?"

_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)


class Rotten(sqlite3.DatabaseError):
    """A row is not what was written."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether a database can no longer be believed, rather than be asked another time.

    Our statements are sound, so one that SQLite does not understand tells of tables that are gone.
    """
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # of the module itself: a row that is rotten, or text that is none
        return True
    return (code & 0xFF) not in _PASSING


NONSENSE: Final = (TypeError, ValueError, OverflowError, struct.error)
"""What comes of columns that hold what none of ours can."""


def sum_of(key: bytes, value: bytes, version: int, timestamp_ms: int, expires: int | None) -> int:
    """The checksum of an entry."""
    numbers = _NUMBERS.pack(version, timestamp_ms, _NONE if expires is None else expires, len(key))
    return crc32c(value, crc32c(key, crc32c(numbers)))


def sum_of_position(kind: str, version: int, topic: str, *numbers: int) -> int:
    """The checksum of how far a view is."""
    return crc32c(f"{kind} {version} {topic} {numbers}".encode())


# The chain.


def _sum_of_link(key: Any, following: bytes | None) -> int:
    name = b"" if key.__class__ is int else key
    of_key = _NONE if key.__class__ is int else len(name)
    of_next = _NONE if following is None else len(following)
    return crc32c(following or b"", crc32c(name, crc32c(_NUMBERS.pack(of_key, of_next, 0, 0))))


def _checked(found: tuple[Any, Any, Any] | None) -> tuple[Any, Any]:
    if found is None:
        raise Rotten("the chain of keys has no head")
    key, following, told = found
    try:
        is_sound = _sum_of_link(key, following) == told and (key.__class__ is bytes or key == HEAD)
    except NONSENSE as error:
        raise Rotten(f"the chain of keys is damaged: {error}") from error
    if not is_sound:
        raise Rotten(f"the chain of keys is damaged at {key!r}")
    return key, following


def begin_chain(database: sqlite3.Connection) -> None:
    database.execute(_ADD, (HEAD, None, _sum_of_link(HEAD, None)))


def add_to_chain(database: sqlite3.Connection, keys: Iterable[bytes]) -> None:
    """Let the chain have these keys, whether or not it has some of them."""
    added: list[tuple[Any, Any, int]] = []
    changed: list[tuple[Any, int, Any]] = []
    at: bytes | int = HEAD
    following: bytes | None = b""
    is_new = False
    for key in sorted(keys):
        if following is not None and key >= following:
            if is_new:
                added.append((at, following, _sum_of_link(at, following)))
            at, following = _checked(database.execute(_UP_TO, (key,)).fetchone())
            is_new = False
        if key == at:
            continue
        if is_new:
            added.append((at, key, _sum_of_link(at, key)))
        else:
            changed.append((key, _sum_of_link(at, key), at))
        at, is_new = key, True
    if is_new:
        added.append((at, following, _sum_of_link(at, following)))
    database.executemany(_CHANGE, changed)
    database.executemany(_ADD, added)


def drop_from_chain(database: sqlite3.Connection, keys: Iterable[bytes]) -> None:
    """Take keys out of the chain; some may not be in it."""
    for key in keys:
        at, following = _checked(database.execute(_UP_TO, (key,)).fetchone())
        if at == key:
            before, own = _checked(database.execute(_BEFORE, (key,)).fetchone())
            if own != key:
                raise Rotten(f"the chain of keys is broken before {key!r}")
            database.execute("DELETE FROM chain WHERE key = ?", (key,))
            database.execute(_CHANGE, (following, _sum_of_link(before, following), before))


def check_absent(key: bytes, before: tuple[Any, Any, Any] | None) -> None:
    """Rotten unless the link of the greatest key <= `key` says that there is no such key."""
    at, following = _checked(before)
    if at == key or (following is not None and following <= key):
        raise Rotten(f"the entry of {key!r} is gone")


def in_chain(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """What is joined to links, but to the first, once each was found to follow the one before.

    The first is the link of a key before those that are asked for. Rotten if the rows end before
    the chain does.
    """
    following: Any = HEAD
    for number, row in enumerate(rows):
        key, after = _checked((row[0], row[1], row[2]))
        if number:
            if key != following:
                raise Rotten(f"the chain of keys is broken before {key!r}")
            yield row[3:]
        following = after
    if following is not None:
        raise Rotten(f"the chain of keys ends before {following!r}")
