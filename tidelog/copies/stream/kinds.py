"""What a copy of a source keeps: the tables, and what an entry does to them."""

import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from tidelog.copies.stream.protocol import Source
from tidelog.copies.views.kv import KvView
from tidelog.copies.views.store import Kind
from tidelog.model import Offset
from tidelog.queues.records import DeliveryWritten, JobWritten, WorkQueueWritten, about_of, decode
from tidelog.records import Record

_encode: Final = msgspec.json.Encoder().encode


class QueueView:
    """The messages of all work queues of a partition of `__queues`."""

    name = "queue"
    version = 2
    schema = """
        CREATE TABLE messages (
            queue TEXT NOT NULL, sequence INTEGER NOT NULL, id INTEGER NOT NULL,
            value BLOB NOT NULL, attributes TEXT NOT NULL, key TEXT, made_ms INTEGER NOT NULL,
            deliveries INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (queue, sequence)
        );
        CREATE INDEX messages_id ON messages (id);
    """

    def begin(self, database: sqlite3.Connection) -> None:
        """An empty one has no rows."""

    def check(self, database: sqlite3.Connection) -> None:
        """Its rows bear no checksums."""

    def fold(self, database: sqlite3.Connection, records: Iterable[Record]) -> None:
        for record in records:
            match decode(record):
                case JobWritten(place=place, about=None):
                    database.execute("DELETE FROM messages WHERE queue = ? AND sequence = ?", place)
                case JobWritten(place=place):
                    about = about_of(record)
                    database.execute(
                        "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                        (
                            *place,
                            record.offset,
                            record.value,
                            _encode(about.attributes).decode(),
                            about.key,
                            record.timestamp_ms,
                        ),
                    )
                case DeliveryWritten(place=place, value=value) if value is not None:
                    database.execute(
                        "UPDATE messages SET deliveries = ? WHERE queue = ? AND sequence = ?",
                        (value.count, *place),
                    )
                case WorkQueueWritten(name=name, value=None):
                    database.execute("DELETE FROM messages WHERE queue = ?", (name,))
                case WorkQueueWritten(name=name, value=settings) if settings is not None:
                    # What is older was published to another queue of this name.
                    database.execute(
                        "DELETE FROM messages WHERE queue = ? AND sequence < ?",
                        (name, settings.first_sequence),
                    )
                case _:
                    pass

    def trim(self, database: sqlite3.Connection, start: Offset) -> None:
        database.execute("DELETE FROM messages WHERE id < ?", (start,))


def kind_of(source: Source) -> Kind | None:
    """What a copy of the source keeps; None if nothing is kept of it."""
    if source.bucket is not None:
        return KvView()
    return QueueView() if source.queue is not None else None
