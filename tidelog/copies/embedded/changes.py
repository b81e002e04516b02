"""What became another in a copy: of some records, or between a snapshot and what it replaces.

Rule: a difference is found and kept by SQLite, and told page by page: a copy may be larger than
      memory.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tidelog.client.http.values import Change
from tidelog.copies.embedded.reads import PAGE, key_text, value_of
from tidelog.copies.stream.protocol import Source
from tidelog.copies.views.kv import entry_of
from tidelog.queues.records import JobWritten, decode
from tidelog.records import Record

_ENTRIES: Final = "SELECT key, value, version, expires FROM {schema}.entries"
_MESSAGES: Final = (
    "SELECT CAST(CAST(sequence AS TEXT) AS BLOB) AS key, value, id AS version, NULL AS expires "
    "FROM {schema}.messages WHERE queue = :queue"
)
# A bucket that was made anew may have another value of a key at the very same version.
_CHANGED: Final = """
CREATE TEMP TABLE changed AS
WITH new AS ({new}), old AS ({old})
SELECT key, value, version, expires FROM new
WHERE NOT EXISTS (
    SELECT 1 FROM old
    WHERE old.key = new.key AND old.version = new.version AND old.value = new.value
)
UNION ALL
SELECT key, NULL, :applied, NULL FROM old
WHERE NOT EXISTS (SELECT 1 FROM new WHERE new.key = old.key)
"""


def changes_of(source: Source, records: Sequence[Record]) -> list[Change]:
    """What records change: keys of a bucket, or messages of a queue by their sequence."""
    if source.queue is None:
        return [
            _change(entry.key, entry.value, entry.version, entry.expires_at_ms)
            for entry in (entry_of(record) for record in records if record.key is not None)
        ]
    found = []
    for record in records:
        written = decode(record)
        if isinstance(written, JobWritten) and written.place.queue == source.queue:
            value = None if written.about is None else record.value
            found.append(_change(b"%d" % written.place.sequence, value, record.offset, None))
    return found


class Difference:
    """What a snapshot changes, known before it replaces the old copy and told afterwards."""

    def __init__(self, source: Source, new: Path, old: Path | None) -> None:
        rows = _ENTRIES if source.queue is None else _MESSAGES
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        try:
            self._database.execute("PRAGMA temp_store = FILE")
            self._database.execute("ATTACH ? AS new_copy", (str(new),))
            before = "SELECT NULL AS key, NULL AS value, NULL AS version WHERE 0"
            if old is not None:
                self._database.execute("ATTACH ? AS old_copy", (str(old),))
                before = rows.format(schema="old_copy")
            statement = _CHANGED.format(new=rows.format(schema="new_copy"), old=before)
            self._database.execute(statement, {"queue": source.queue, "applied": -1})
            self._database.execute("DETACH new_copy")
            if old is not None:
                self._database.execute("DETACH old_copy")
        except BaseException:
            self.close()
            raise

    def pages(self, applied: int) -> Iterator[list[Change]]:
        """All of it; what is gone went before `applied`."""
        after = 0
        while True:
            page = self._database.execute(
                "SELECT rowid, key, value, version, expires FROM changed WHERE rowid > ? "
                "ORDER BY rowid LIMIT ?",
                (after, PAGE),
            ).fetchall()
            if not page:
                return
            yield [
                _change(key, value, applied - 1 if value is None else version, expires)
                for _, key, value, version, expires in page
            ]
            after = page[-1][0]

    def close(self) -> None:
        self._database.close()


def deletion_of(key: str, version: int) -> Change:
    """A key is gone."""
    return Change(key=key, value=None, version=version, is_deleted=True, cursor=None, expires_at_ms=None)


def _change(key: bytes, value: bytes | None, version: int, expires: int | None) -> Change:
    return Change(
        key=key_text(key),
        value=None if value is None else value_of(value),
        version=version,
        is_deleted=value is None,
        cursor=None,
        expires_at_ms=expires,
    )
