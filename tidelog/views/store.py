"""A view on disk: a database, and how far it follows its log.

Rule 1: what changes and the offset that it changes to are one transaction. A crash leaves the fold
        of an earlier prefix of the log, whole.
Rule 2: a view belongs to one topic and to one history. What is of another kind, topic or history,
        or cannot be read, is thrown away and made again.
Rule 3: `apply` and `open` run in a disk's thread, one at a time; the event loop reads.
"""

# meta := kind, schema version, topic id, applied (everything below is folded), the epoch of the
#         last record folded, start (what lay below was deleted), one row

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from tidelog.host import Database, Databases, Path
from tidelog.model import NO_EPOCH, Epoch, Offset
from tidelog.records import Record

_META: Final = """
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 0), kind TEXT NOT NULL, version INTEGER NOT NULL,
    topic TEXT NOT NULL, applied INTEGER NOT NULL, epoch INTEGER NOT NULL, start INTEGER NOT NULL
)
"""


class Kind(Protocol):
    """What a kind of view keeps of its records."""

    name: str
    version: int
    """Raised when the tables, or what is made of a record, change: older views are made again."""
    schema: str

    def fold(self, database: sqlite3.Connection, records: Iterable[Record]) -> None:
        """Take records, in the order of the log, inside a transaction."""
        ...

    def trim(self, database: sqlite3.Connection, start: Offset) -> None:
        """Forget what only records below `start` told."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a view is."""

    applied: Offset = 0
    epoch: Epoch = NO_EPOCH
    start: Offset = 0


def applied_in(database: sqlite3.Connection) -> Offset:
    """How far a view is, as its readers see it: its file may be ahead of what was heard of it."""
    found: Any = database.execute("SELECT applied FROM meta").fetchone()
    return int(found[0])


class ViewStore:
    """One view's database."""

    def __init__(self, databases: Databases, path: Path, kind: Kind, topic: UUID) -> None:
        self._databases = databases
        self._path = path
        self._kind = kind
        self._topic = topic
        self._database: Database
        self.is_open = False

    @property
    def reader(self) -> sqlite3.Connection:
        """For the event loop, which only reads."""
        return self._database.reader

    def open(self) -> Position:
        """Open what is there, or begin anew."""
        try:
            self._database = self._databases.open(self._path)
            self.is_open = True
            found = self._position()
            if found is not None:
                return found
        except sqlite3.DatabaseError:
            pass
        return self.reset()

    def _position(self) -> Position | None:
        found = self._database.writer.execute(
            "SELECT applied, epoch, start FROM meta WHERE kind = ? AND version = ? AND topic = ?",
            (self._kind.name, self._kind.version, self._topic.hex),
        ).fetchone()
        return None if found is None else Position(applied=found[0], epoch=found[1], start=found[2])

    def reset(self) -> Position:
        """Throw away what there is and begin anew, with nothing folded."""
        self.close()
        self._databases.remove(self._path)
        self._database = self._databases.open(self._path)
        self.is_open = True
        writer = self._database.writer
        writer.execute("BEGIN IMMEDIATE")
        writer.execute(_META)
        for statement in filter(str.strip, self._kind.schema.split(";")):
            writer.execute(statement)
        writer.execute(
            "INSERT INTO meta VALUES (0, ?, ?, ?, 0, ?, 0)",
            (self._kind.name, self._kind.version, self._topic.hex, NO_EPOCH),
        )
        writer.execute("COMMIT")
        return Position()

    def apply(self, records: Iterable[Record], to: Position) -> None:
        """Fold `records`; from now on the view is at `to`. All of it happens, or nothing."""
        writer = self._database.writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            self._kind.fold(writer, records)
            if to.start > self._start(writer):
                self._kind.trim(writer, to.start)
            writer.execute(
                "UPDATE meta SET applied = ?, epoch = ?, start = ?",
                (to.applied, to.epoch, to.start),
            )
            writer.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                writer.execute("ROLLBACK")
            raise

    @staticmethod
    def _start(writer: sqlite3.Connection) -> Offset:
        found: Any = writer.execute("SELECT start FROM meta").fetchone()
        return int(found[0])

    def back_up(self, path: Path) -> Position:
        """Copy the database into a file, while others read it; how far that is."""
        target = sqlite3.connect(path)
        try:
            self._database.writer.backup(target)
            # One file, without a log beside it, is what is sent.
            target.execute("PRAGMA journal_mode = DELETE")
        finally:
            target.close()
        found = self._position()
        assert found is not None, "it was opened"
        return found

    def save(self) -> None:
        self._database.save()

    def finish(self) -> None:
        """Save and close it."""
        if self.is_open:
            try:
                self._database.save()
            finally:
                self.close()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._database.close()

    def remove(self) -> None:
        """Close it, and leave nothing."""
        self.close()
        self._databases.remove(self._path)
