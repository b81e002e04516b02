"""Nothing that a view's file says is believed unless it bears its checksum."""

import random
import sqlite3
from pathlib import Path
from uuid import UUID

import pytest

from tidelog.copies.views.checks import Rotten, is_damage
from tidelog.copies.views.kv import FIRST_DUE, Entry, KvView, find_due, get_entry, scan
from tidelog.copies.views.store import Position, ViewStore, applied_in
from tidelog.host import DiskDatabases
from tidelog.host import Path as PurePath
from tidelog.records import Record
from tidelog.simulation.disk import SimulatedDisk

TOPIC = UUID(int=7)
PATH = PurePath("/views/kv.db")


def key_of(number: int) -> bytes:
    return b"key-%04d" % number


def record(offset: int, key: bytes, value: bytes | None) -> Record:
    return Record(offset=offset, timestamp_ms=1000 + offset, key=key, value=value, headers=())


class Kept:
    """A view, and what it must show."""

    def __init__(self) -> None:
        self.store = ViewStore(DiskDatabases(SimulatedDisk(random.Random(0))), PATH, KvView(), TOPIC)
        self.store.open()
        self.end = 0
        self.wanted: dict[bytes, tuple[bytes, int]] = {}

    def fold(self, *writes: tuple[bytes, bytes | None], start: int = 0) -> None:
        records = [record(self.end + n, key, value) for n, (key, value) in enumerate(writes)]
        self.end += len(records)
        self.store.apply(records, Position(applied=self.end, epoch=0, start=start))
        for each in records:
            assert each.key is not None
            self.wanted.pop(each.key, None)
            if each.value is not None:
                self.wanted[each.key] = (each.value, each.offset)
        self.wanted = {key: found for key, found in self.wanted.items() if found[1] >= start}

    @property
    def database(self) -> sqlite3.Connection:
        return self.store.reader


def shown(entry: Entry | None) -> tuple[bytes | None, int] | None:
    return None if entry is None else (entry.value, entry.version)


def test_what_is_put_deleted_and_trimmed_in_any_order_is_shown_whole():
    choices = random.Random(1)
    kept = Kept()
    for _ in range(150):
        writes = [
            (key_of(choices.randrange(60)), None if choices.random() < 0.4 else b"v" * choices.randrange(50))
            for _ in range(choices.choice((0, 1, 1, 7)))
        ]
        start = kept.end // 2 if choices.random() < 0.05 else 0
        kept.fold(*writes, start=start)

        assert {e.key: (e.value, e.version) for e in scan(kept.database, b"", None)} == kept.wanted
        for number in range(61):
            found = get_entry(kept.database, key_of(number))
            assert shown(found) == kept.wanted.get(key_of(number))
        KvView().check(kept.database)


@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_of_the_file_changes_what_is_shown(seed):
    choices = random.Random(seed)
    kept = Kept()
    kept.fold(*((key_of(number), b"%04d" % number * 10) for number in range(0, 400, 2)))
    kept.fold(*((key_of(number), None) for number in range(0, 400, 20)))
    whole = kept.database.serialize()
    noticed = 0
    heads = [divmod(bit, 8) for bit in range(seed, 100 * 8, 4)]
    others = [(choices.randrange(len(whole)), choices.randrange(8)) for _ in range(300)]
    for place, bit in heads + others:
        rotten = bytearray(whole)
        rotten[place] ^= 1 << bit
        database = sqlite3.connect(":memory:")
        asked = [key_of(choices.randrange(401)) for _ in range(20)]
        try:
            database.deserialize(bytes(rotten))
            assert applied_in(database) == kept.end
            for key in asked:
                assert shown(get_entry(database, key)) == kept.wanted.get(key)
            found = {e.key: (e.value, e.version) for e in scan(database, b"", None)}
            assert found == kept.wanted
        except sqlite3.DatabaseError as error:
            noticed += is_damage(error)
        finally:
            database.close()
    assert noticed > 30


def test_a_rotten_value_a_lost_entry_and_a_lost_link_are_found():
    for statement in (
        "UPDATE entries SET value = CAST('9000000' AS BLOB) WHERE key = ?",
        "UPDATE entries SET version = version + 1 WHERE key = ?",
        "UPDATE entries SET value = 'text' WHERE key = ?",
        "DELETE FROM entries WHERE key = ?",
    ):
        kept = Kept()
        kept.fold(*((key_of(number), b"1000000") for number in range(5)))
        kept.database.execute(statement, (key_of(2),))

        with pytest.raises(Rotten):
            get_entry(kept.database, key_of(2))
        with pytest.raises(Rotten):
            list(scan(kept.database, b"key", None))
        assert shown(get_entry(kept.database, key_of(1))) == (b"1000000", 1)


def test_a_key_that_is_chained_no_more_is_missed_by_lists():
    for after in (None, key_of(1), key_of(2)):
        kept = Kept()
        kept.fold(*((key_of(number), b"1") for number in range(5)))
        kept.database.execute("DELETE FROM chain WHERE key = ?", (key_of(3),))

        with pytest.raises(Rotten):
            list(scan(kept.database, b"", after))


def test_who_has_rotted_does_not_expire():
    kept = Kept()
    kept.fold((b"k", b"1"))
    kept.database.execute("UPDATE entries SET expires = 5")

    (due,) = find_due(kept.database, 1000, FIRST_DUE, 10, 1000)  # a hint; whoever acts on it asks
    with pytest.raises(Rotten):
        get_entry(kept.database, due[1])


def test_keys_are_found_in_the_order_of_their_times_a_few_at_a_time_and_none_twice():
    kept = Kept()
    kept.fold(*((key_of(number), b"1") for number in range(20)))
    for number in range(20):
        wanted = None if number == 3 else 100 + number // 8
        kept.database.execute("UPDATE entries SET expires = ? WHERE key = ?", (wanted, key_of(number)))

    found, after = [], FIRST_DUE
    while some := find_due(kept.database, 101, after, 3, 1000):
        assert len(some) <= 3
        found += [key for _, key in some]
        after = some[-1][0]

    assert found == [key_of(number) for number in range(16) if number != 3]
    assert len(find_due(kept.database, 101, FIRST_DUE, 10, bytes_max=8)) == 2


def test_where_a_view_is_bears_a_checksum_too():
    kept = Kept()
    kept.fold((b"k", b"1"))
    kept.database.execute("UPDATE meta SET applied = 2")

    with pytest.raises(Rotten):
        applied_in(kept.database)


def test_a_view_whose_tables_have_rotted_is_made_again():
    """A flipped bit of `PRIMARY` is no error to SQLite: rows are added then, not replaced."""
    kept = Kept()
    kept.fold((b"k", b"1"))
    kept.database.execute("PRAGMA writable_schema = ON")
    changed = kept.database.execute(
        "UPDATE sqlite_master SET sql = replace(sql, 'PRIMARY', 'PRIMIRY') WHERE name = 'meta'"
    )
    kept.store.finish()

    assert changed.rowcount == 1
    assert kept.store.open() == Position()


def test_a_view_is_in_one_place():
    kept = Kept()
    kept.fold((b"k", b"1"))
    kept.database.execute("CREATE TABLE twice AS SELECT * FROM meta")
    kept.database.execute("INSERT INTO twice SELECT * FROM twice")
    kept.database.execute("DROP TABLE meta")
    kept.database.execute("ALTER TABLE twice RENAME TO meta")

    with pytest.raises(Rotten):
        applied_in(kept.database)


def test_nobody_gets_a_copy_of_what_has_rotted(tmp_path: Path):
    kept = Kept()
    kept.fold((b"k", b"1"))
    kept.database.execute("UPDATE entries SET value = CAST('2' AS BLOB)")

    with pytest.raises(Rotten):
        kept.store.back_up(PurePath(tmp_path / "copy.db"))


def test_want_of_room_or_of_descriptors_is_no_damage(tmp_path: Path):
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(tmp_path / "nowhere" / "view.db")
    assert not is_damage(caught.value)

    database = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError) as caught:
        database.execute("SELECT value FROM entries")
    assert is_damage(caught.value), "its tables are gone"
