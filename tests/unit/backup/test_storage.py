import errno
import io
from pathlib import Path

import pytest

from tidelog.backup.problems import BackupError, Damaged
from tidelog.backup.storage import LocalStorage, RemoteStorage, open_storage


@pytest.fixture(params=["local", "remote"])
def storage(request, tmp_path):
    if request.param == "local":
        yield open_storage(str(tmp_path / "new" / "place"))
        return
    fsspec = pytest.importorskip("fsspec")
    yield open_storage("memory://backups/of-a-test")
    fsspec.filesystem("memory").store.clear()


def write(storage, name, data):
    with storage.create(name) as output:
        output.write(data)


def test_a_file_is_there_once_it_is_finished(storage):
    output = storage.create("a/b")
    output.write(b"one, ")
    output.write(memoryview(b"two"))
    assert storage.names("") == []

    output.finish()

    assert storage.names("") == storage.names("a") == ["a/b"]
    assert storage.read("a/b") == b"one, two"
    assert storage.unfinished("") == []


def test_a_file_that_was_not_finished_is_none(storage):
    def fail():
        with storage.create("a/b") as output:
            output.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert storage.names("") == storage.unfinished("") == []


class FullDisk(io.FileIO):
    """A file that can be made, and nothing written to."""

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def full(tmp_path, monkeypatch):
    real = Path.open

    def open_full(path, mode="r", *more):
        made = mode == "wb"
        return io.BufferedWriter(FullDisk(path, mode)) if made else real(path, mode, *more)

    monkeypatch.setattr(Path, "open", open_full)
    return LocalStorage(tmp_path)


def test_a_full_disk_leaves_nothing_of_a_file_that_cannot_be_finished(full):
    with pytest.raises(OSError, match="No space"):
        write(full, "a/b", b"little")

    assert full.names("") == full.unfinished("") == []


def test_a_full_disk_leaves_nothing_of_a_file_that_is_given_up(full):
    output = full.create("a/b")
    output.write(b"little")

    output.abandon()

    assert full.names("") == full.unfinished("") == []


def test_what_a_killed_run_left_can_be_told_apart(storage):
    write(storage, "a/whole", b"x")
    half = storage.create("a/half")
    half.write(b"x")

    assert storage.names("a") == ["a/whole"]
    (left,) = storage.unfinished("")
    storage.remove(left)
    assert storage.unfinished("") == []
    half.abandon()


def test_folders_that_are_not_there_are_empty(storage):
    assert storage.names("nowhere") == []


def test_what_is_missing_is_said_to_be_damage(storage):
    with pytest.raises(Damaged, match="missing"):
        storage.read("a/b")


def test_what_is_removed_is_gone_and_may_be_removed_twice(storage):
    write(storage, "a/b", b"x")

    storage.remove("a/b")
    storage.remove("a/b")

    assert storage.names("") == []


def test_one_run_at_a_time_changes_a_directory(tmp_path):
    one, other = LocalStorage(tmp_path / "new"), LocalStorage(tmp_path / "new")

    with one.claim(), pytest.raises(BackupError, match="another run"), other.claim():
        pass

    with other.claim():
        pass  # the first has left


def test_the_lock_is_no_file_of_a_backup(tmp_path):
    storage = LocalStorage(tmp_path)

    with storage.claim():
        assert storage.names("chunks") == storage.names("manifests") == []


def test_an_url_needs_what_reaches_it(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("tidelog.backup.storage.import_module", missing)

    with pytest.raises(BackupError, match="fsspec"):
        open_storage("s3://bucket/path")


def test_a_scheme_that_nobody_knows_is_refused():
    pytest.importorskip("fsspec")
    with pytest.raises(BackupError, match="nosuch"):
        RemoteStorage("nosuch://x")


def test_file_urls_are_directories(tmp_path):
    assert isinstance(open_storage(f"file://{tmp_path}"), LocalStorage)


@pytest.mark.parametrize("name", ["../victim", "a/../../victim", "/victim", "a//b", ""])
def test_nothing_outside_is_read_written_or_removed(storage, name):
    for call in (storage.read, storage.create, storage.remove):
        with pytest.raises(Damaged, match="no file of a backup"):
            call(name)
