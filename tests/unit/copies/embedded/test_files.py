import sqlite3
import threading
from pathlib import Path, PurePosixPath
from typing import Any, cast
from uuid import UUID

import pytest

from tests.unit.copies.embedded.copying import BUCKET, TOPIC, Message, put, snapshot
from tidelog.client import SyncFailed
from tidelog.copies.embedded.cache import Recent
from tidelog.copies.embedded.files import Copy, Layout, Lock, read_meta, take_up
from tidelog.copies.embedded.reads import BucketReads, File, QueueReads, value_of
from tidelog.copies.stream.kinds import QueueView
from tidelog.copies.stream.protocol import Source, decode_from_node
from tidelog.copies.views.kv import KvView
from tidelog.copies.views.store import Kind, Position, ViewStore
from tidelog.host import SystemDatabases
from tidelog.queues.records import About, PlaceOf, job_record
from tidelog.records import Record


def opened(path: Path, recent: Recent | None = None) -> Copy:
    copy = Copy(path, KvView(), BUCKET, recent)
    copy.open()
    return copy


def load(copy: Copy, sent: list[Message]) -> object:
    start, *pieces = cast(list[bytes], sent)
    copy.begin(decode_from_node(start).snapshot)
    for piece in pieces:
        copy.add(piece[1:])
    return copy.load()


def fill(path: Path, *records: Record, kind: Kind | None = None) -> Path:
    """A file as a copy leaves it."""
    store = ViewStore(SystemDatabases(), PurePosixPath(path), kind or KvView(), UUID(TOPIC))
    store.open()
    store.apply(records, Position(applied=len(records)))
    store.close()
    return path


# Where files are.


def test_a_copy_is_one_file_or_a_directory_of_them():
    of_file, of_directory = Layout(Path("x/config.db")), Layout(Path("x/config"))

    assert [str(of_file.file(n)) for n in (0, 2)] == ["x/config.db", "x/config.2.db"]
    assert [str(of_directory.file(n)) for n in (0, 2)] == ["x/config/0.db", "x/config/2.db"]
    assert of_file.directory == Path("x") and of_directory.directory == Path("x/config")
    assert len({of_file.about, of_file.lock, of_directory.about, of_directory.lock}) == 4


def test_a_copy_keeps_its_name_and_is_never_taken_for_another_s(tmp_path):
    layout = Layout(tmp_path / "config.db")

    first = take_up(layout, BUCKET, None, lambda: "made-up")
    again = take_up(layout, BUCKET, None, lambda: "another")

    assert first.replica_id == again.replica_id == "made-up"
    assert take_up(layout, BUCKET, "given", lambda: "").replica_id == "given"
    with pytest.raises(SyncFailed, match=r"has a copy of bucket 'b'; give queue 'q' another path"):
        take_up(layout, Source(queue="q"), None, lambda: "")


def test_one_process_writes_a_copy(tmp_path):
    lock = Lock(tmp_path / "x.lock")

    with pytest.raises(SyncFailed, match="another replica writes"):
        Lock(tmp_path / "x.lock")
    lock.release()

    Lock(tmp_path / "x.lock").release()


# What is there.


def test_a_file_that_is_no_copy_is_thrown_away(tmp_path):
    path = tmp_path / "config.db"
    for content in (b"no database" * 1000, b""):
        path.write_bytes(content)
        copy = opened(path)
        assert not copy.is_whole
        assert load(copy, snapshot(put("k", b"1", 0), applied=1)) is None
        assert copy.applied == 1
        copy.close()


def test_a_copy_of_another_kind_is_thrown_away(tmp_path):
    path = fill(tmp_path / "config.db", kind=QueueView())

    copy = opened(path)

    assert not copy.is_whole and not path.exists()


def test_what_a_crash_left_of_a_snapshot_is_removed(tmp_path):
    path = fill(tmp_path / "config.db", put("k", b"1", 0))
    left = tmp_path / "config.db.incoming"
    left.write_bytes(b"half")

    copy = opened(path)

    assert copy.is_whole and not left.exists()
    copy.close()


def test_a_full_disk_changes_nothing(tmp_path, monkeypatch):
    copy, sent = opened(fill(tmp_path / "config.db", put("k", b"1", 0))), snapshot(applied=9)
    opens = iter([sqlite3.OperationalError("database or disk is full")])
    real = SystemDatabases.open

    def full_once(self: SystemDatabases, path: PurePosixPath) -> object:
        for error in opens:
            raise error
        return real(self, path)

    monkeypatch.setattr(SystemDatabases, "open", full_once)

    failed = load(copy, sent)

    assert isinstance(failed, SyncFailed) and "full" in str(failed)
    assert (copy.is_whole, copy.applied) == (True, 1)
    copy.apply([put("k", b"2", 1)], Position(applied=2))
    copy.close()
    assert read_meta(copy.path).position.applied == 2  # type: ignore[union-attr]


def test_a_disk_that_stays_full_is_gone_on_with_once_it_is_not(tmp_path, monkeypatch):
    copy, sent = opened(fill(tmp_path / "config.db", put("k", b"1", 0))), snapshot(applied=9)
    real, is_full = SystemDatabases.open, True

    def open_if_not_full(self: SystemDatabases, path: PurePosixPath) -> object:
        if is_full:
            raise sqlite3.OperationalError("database or disk is full")
        return real(self, path)

    monkeypatch.setattr(SystemDatabases, "open", open_if_not_full)

    assert isinstance(load(copy, sent), SyncFailed)
    with pytest.raises(SyncFailed, match="full"):
        copy.apply([put("k", b"2", 1)], Position(applied=2))
    is_full = False
    copy.apply([put("k", b"2", 1)], Position(applied=2))

    assert (copy.is_whole, copy.applied) == (True, 2)
    copy.close()
    assert read_meta(copy.path).position.applied == 2  # type: ignore[union-attr]


def test_a_copy_that_is_found_damaged_is_begun_anew_and_read_anew(tmp_path):
    path = fill(tmp_path / "config.db", *(put(f"k{n}", b"x" * 500, n) for n in range(100)))
    copy, file = opened(path), File(path)
    copy.on_removed = file.reconnect
    assert BucketReads((file,)).count() == 100
    with path.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xff" * 40960)

    with pytest.raises(SyncFailed):
        copy.apply([put(f"k{n}", b"new", 100 + n) for n in range(100)], Position(applied=200))

    assert not copy.is_whole
    assert load(copy, snapshot(put("k", b"1", 0), applied=201)) is None
    assert BucketReads((file,)).get("k") == 1
    file.close()
    copy.close()


# Reading.


def test_readers_see_the_old_copy_until_the_new_one_is_whole(tmp_path):
    path = fill(tmp_path / "config.db", put("k", b"1", 0), put("old", b"1", 1))
    copy, reads = opened(path), BucketReads((File(path),))
    assert reads.get("k") == 1
    cursor = reads.files[0].connection.execute("SELECT key FROM entries ORDER BY key")
    assert cursor.fetchone() == (b"k",)

    assert load(copy, snapshot(put("k", b"2", 5), applied=9)) is None

    assert cursor.fetchone() == (b"old",)  # a read that was under way goes on as it began
    cursor.close()
    assert (reads.get("k"), reads.get("old")) == (2, None)
    assert copy.applied == 9
    reads.files[0].close()
    copy.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["config.db"]


def test_every_thread_reads_by_itself_while_a_copy_is_written(tmp_path):
    path = fill(tmp_path / "config.db", put("k", b"0", 0))
    recent = Recent()
    copy, reads = opened(path, recent), BucketReads((File(path),), recent)
    seen: list[list[Any]] = [[], [], []]
    over = threading.Event()

    def read(values: list[Any]) -> None:
        while not over.is_set():
            values.append(reads.get("k"))

    threads = [threading.Thread(target=read, args=(values,)) for values in seen]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        copy.apply([put("k", b"%d" % number, number)], Position(applied=number + 1))
        assert reads.get("k") == number
    over.set()
    for thread in threads:
        thread.join()

    assert all(values == sorted(values) and values for values in seen)
    reads.files[0].close()
    copy.close()


def test_a_value_is_json_or_text_or_bytes(tmp_path):
    values = {"j": b'{"a":[1.5,null]}', "t": b"plain text", "b": b"\xff", "n": b"null"}
    records = [put(key, value, n) for n, (key, value) in enumerate(values.items())]
    reads = BucketReads((File(fill(tmp_path / "c.db", *records)),))

    assert [reads.get(key) for key in values] == [{"a": [1.5, None]}, "plain text", b"\xff", None]
    assert (reads.get("none", "default"), reads.version("none")) == ("default", None)
    assert reads.version("t") == 1
    assert value_of(b"[" * 100_000) == "[" * 100_000
    reads.files[0].close()


def test_keys_of_all_partitions_are_scanned_in_order_page_by_page(tmp_path, monkeypatch):
    monkeypatch.setattr("tidelog.copies.embedded.reads.PAGE", 3)
    ways = [File(tmp_path / f"{n}.db") for n in range(3)]
    for number, file in enumerate(ways):
        keys = [f"k{n:02}" for n in range(30) if n % 3 == number]
        fill(file.path, *(put(key, b"1", n) for n, key in enumerate(keys)))
    reads = BucketReads(tuple(ways))

    found = list(reads.scan("k"))

    assert [entry.key for entry in found] == [f"k{n:02}" for n in range(30)]
    assert found[4].token == "1:2"
    assert [entry.key for entry in reads.scan("k2")] == [f"k2{n}" for n in range(10)]
    assert dict(reads.items()).keys() == {entry.key for entry in found}
    assert reads.count() == 30
    for file in ways:
        file.close()


def test_what_was_never_in_sync_cannot_be_read(tmp_path):
    reads = BucketReads((File(tmp_path / "c.db"),))

    with pytest.raises(SyncFailed, match="never in sync"):
        reads.get("k")

    fill(tmp_path / "c.db", put("k", b"1", 0))
    assert reads.get("k") == 1
    reads.files[0].close()
    with pytest.raises(SyncFailed, match="closed"):
        reads.get("k")


def test_a_path_may_be_any_text(tmp_path):
    path = fill(tmp_path / "a b?c#d%20é.db", put("k", b"1", 0))
    reads = BucketReads((File(path),))

    assert reads.get("k") == 1
    reads.files[0].close()


def test_messages_of_one_queue_are_read_oldest_first(tmp_path, monkeypatch):
    monkeypatch.setattr("tidelog.copies.embedded.reads.PAGE", 2)
    records = [
        Record(key=made.key, value=made.value, headers=made.headers, offset=n, timestamp_ms=5)
        for n in range(6)
        for made in [
            job_record(PlaceOf("q" if n % 2 else "other", n), b"%d" % n, About({"a": "b"}, "k"), now_ms=5)
        ]
    ]
    reads = QueueReads("q", (File(fill(tmp_path / "c.db", *records, kind=QueueView())),))

    found = list(reads.scan())

    assert [message.value for message in found] == [1, 3, 5]
    assert (found[0].attributes, found[0].key, found[0].published_at_ms) == ({"a": "b"}, "k", 5)
    assert reads.count() == 3
    third = reads.message(3)
    assert third is not None and third.sequence == 3
    assert reads.message(2) is None
    reads.files[0].close()


# What was read lately.


def test_what_is_about_to_change_is_forgotten_first_and_not_noted_meanwhile():
    recent = Recent()
    recent.note(b"a", b"1", recent.stamp)
    recent.note(b"b", b"1", recent.stamp)
    before = recent.stamp

    with recent.changing([b"a"]):
        assert recent.values == {b"b": b"1"}
        during = recent.stamp
        recent.note(b"a", b"old", during)
        assert b"a" not in recent.values
    recent.note(b"a", b"old", before)
    recent.note(b"a", b"old", during)

    assert recent.values == {b"b": b"1"}
    recent.note(b"a", b"new", recent.stamp)
    assert recent.values[b"a"] == b"new"
    with recent.changing(None):
        assert recent.values == {}


def test_what_is_noted_is_bounded_in_number_and_in_bytes():
    recent = Recent(count_max=3, bytes_max=100)

    for number in range(5):
        recent.note(b"%d" % number, None, recent.stamp)
    assert list(recent.values) == [b"2", b"3", b"4"]
    recent.note(b"5", b"x" * 99, recent.stamp)
    assert list(recent.values) == [b"5"]
    recent.note(b"6", b"x" * 100_000, recent.stamp)
    assert list(recent.values) == [b"5"]


def test_a_bucket_made_anew_tells_of_another_value_at_the_very_same_version(tmp_path):
    copy = Copy(
        fill(tmp_path / "config.db", put("k", b"1", 0), put("same", b"2", 1)), KvView(), BUCKET, tells=True
    )
    copy.open()
    other = UUID(int=UUID(TOPIC).int + 1).hex

    assert load(copy, snapshot(put("k", b"7", 0), put("same", b"2", 1), applied=2, topic=other)) is None

    assert [(one.key, one.value) for page in copy.changes() for one in page] == [("k", 7)]
    copy.close()
