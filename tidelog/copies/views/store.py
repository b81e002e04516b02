"""A view on disk: a database, and how far it follows its log.

Rule 1: what changes and the offset that it changes to are one transaction. A crash leaves the fold
        of an earlier prefix of the log, whole.
Rule 2: a view belongs to one topic and to one history. What is of another kind, topic or history,
        or cannot be read, is thrown away and made again.
Rule 3: where a view is bears a checksum, and so does all that its kind keeps (`views.checks`). What
        the tables are is compared with what was made when a view is opened.
Rule 4: `apply` and `open` run in a disk's thread, one at a time; the event loop reads.
"""

# meta := kind, schema version, topic id, applied (everything below is folded), the epoch of the
#         last record folded, start (what lay below was deleted), sum (of all of these), one row

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from tidelog.copies.views.checks import Rotten, is_damage, sum_of_position
from tidelog.host import Database, Databases, Path
from tidelog.model import NO_EPOCH, Epoch, Offset
from tidelog.records import Record

_META: Final = """
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 0), kind TEXT NOT NULL, version INTEGER NOT NULL,
    topic TEXT NOT NULL, applied INTEGER NOT NULL, epoch INTEGER NOT NULL, start INTEGER NOT NULL,
    sum INTEGER NOT NULL
)
"""
_WHERE: Final = "SELECT kind, version, topic, applied, epoch, start, sum FROM meta"


class Kind(Protocol):
    """What a kind of view keeps of its records."""

    name: str
    version: int
    """Raised when the tables, or what is made of a record, change: older views are made again."""
    schema: str

    def begin(self, database: sqlite3.Connection) -> None:
        """Make what an empty view has, inside a transaction."""
        ...

    def check(self, database: sqlite3.Connection) -> None:
        """Read everything; Rotten if something is not what was written."""
        ...

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


def position_in(database: sqlite3.Connection) -> Position:
    """Where a view is, as its readers see it: its file may be ahead of what was heard of it."""
    _, _, _, applied, epoch, start = _read_meta(database)
    return Position(applied=applied, epoch=epoch, start=start)


def applied_in(database: sqlite3.Connection) -> Offset:
    """How far a view is, as its readers see it."""
    return position_in(database).applied


def _read_meta(database: sqlite3.Connection) -> tuple[str, int, str, Offset, Epoch, Offset]:
    try:
        rows: list[Any] = database.execute(_WHERE).fetchmany(2)
    except UnicodeDecodeError as error:
        raise Rotten(f"where the view is cannot be told: {error}") from error
    if len(rows) != 1 or sum_of_position(*rows[0][:6]) != rows[0][6]:
        raise Rotten(f"where the view is cannot be told: {rows}")
    kind, version, topic, applied, epoch, start = rows[0][:6]
    return kind, version, topic, applied, epoch, start


def _statements(kind: "Kind") -> list[str]:
    """What makes the tables of a view."""
    return [_META, *filter(str.strip, kind.schema.split(";"))]


def _check_tables(database: sqlite3.Connection, kind: "Kind") -> None:
    """See that the tables are what was made. SQLite believes what is written of them, rotten or
    not: without its primary key, a row that should be replaced is added."""
    try:
        rows = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    except UnicodeDecodeError as error:
        raise Rotten(f"the tables are damaged: {error}") from error
    found = sorted(" ".join(str(sql).split()) for (sql,) in rows)
    if found != sorted(" ".join(statement.split()) for statement in _statements(kind)):
        raise Rotten(f"the tables are damaged: {found}")


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
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
        return self.reset()

    def _position(self) -> Position | None:
        kind, version, topic, applied, epoch, start = _read_meta(self._database.writer)
        if (kind, version, topic) != (self._kind.name, self._kind.version, self._topic.hex):
            return None
        _check_tables(self._database.writer, self._kind)
        return Position(applied=applied, epoch=epoch, start=start)

    def reset(self) -> Position:
        """Throw away what there is and begin anew, with nothing folded."""
        self.close()
        self._databases.remove(self._path)
        self._database = self._databases.open(self._path)
        self.is_open = True
        writer = self._database.writer
        writer.execute("BEGIN IMMEDIATE")
        for statement in _statements(self._kind):
            writer.execute(statement)
        self._kind.begin(writer)
        self._note(Position())
        writer.execute("COMMIT")
        return Position()

    def _note(self, at: Position) -> None:
        row = (self._kind.name, self._kind.version, self._topic.hex, at.applied, at.epoch, at.start)
        self._database.writer.execute(
            "INSERT OR REPLACE INTO meta VALUES (0, ?, ?, ?, ?, ?, ?, ?)", (*row, sum_of_position(*row))
        )

    def apply(self, records: Iterable[Record], to: Position) -> None:
        """Fold `records`; from now on the view is at `to`. All of it happens, or nothing."""
        writer = self._database.writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            self._kind.fold(writer, records)
            if to.start > _read_meta(writer)[5]:
                self._kind.trim(writer, to.start)
            self._note(to)
            writer.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                writer.execute("ROLLBACK")
            raise

    def back_up(self, path: Path) -> Position:
        """Copy the database into a file, while others read it; how far that is.

        Rotten if the copy is not what was written: nobody may get it.
        """
        self._databases.copy(self._database.writer, path, self._kind.check)
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
