import ctypes
import errno
import os
import queue
import threading
from collections import defaultdict

import pytest

from tidelog.host import Path, SystemDisk
from tidelog.host.disk import _closer


@pytest.fixture
def closes(monkeypatch):
    """The threads in which each descriptor is closed; others may be closed meanwhile."""
    threads: dict[int, queue.SimpleQueue[str]] = defaultdict(queue.SimpleQueue)
    close = os.close

    def noted(fd):
        close(fd)
        threads[fd].put(threading.current_thread().name)

    monkeypatch.setattr(os, "close", noted)
    return threads


def test_nobody_waits_while_the_disk_frees_a_file_that_was_deleted(tmp_path, closes):
    disk, path = SystemDisk(), Path(str(tmp_path / "large"))
    file = disk.open(path, create=True)
    fd = file._fd
    disk.remove(path)

    del file

    assert closes[fd].get(timeout=10) == "close"


def test_a_close_that_fails_does_not_end_those_after_it(tmp_path, closes):
    disk, path = SystemDisk(), Path(str(tmp_path / "large"))
    file = disk.open(path, create=True)
    disk.remove(path)
    _closer.close(10**6)  # no such descriptor

    fd = file._fd
    del file

    assert closes[fd].get(timeout=10) == "close"


def test_a_file_that_is_still_there_is_closed_at_once(tmp_path, closes):
    file = SystemDisk().open(Path(str(tmp_path / "small")), create=True)
    fd = file._fd

    file.close()
    file.close()

    assert closes[fd].get(timeout=10) == threading.current_thread().name
    assert closes[fd].empty()


def test_a_read_of_the_device_says_what_is_there(tmp_path):
    file = SystemDisk().open(Path(str(tmp_path / "sealed")), create=True)
    file.write(0, [b"tide" * 5000])
    file.datasync()

    assert file.read_device(4, 8) == b"tidetide"
    assert file.read_device(19_998, 10) == b"de"
    assert file.read_device(30_000, 10) == b""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_sync_without_room_is_told_as_a_failed_sync(tmp_path, monkeypatch, code):
    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    disk = SystemDisk()
    file = disk.open(Path(tmp_path) / "file", create=True)
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "fsync", fail)

    for sync in (file.datasync, lambda: disk.sync_directory(Path(tmp_path))):
        with pytest.raises(OSError) as caught:
            sync()
        assert caught.value.errno == errno.EIO
        assert os.strerror(code) in str(caught.value)


def test_a_signal_during_a_sync_of_everything_repeats_it(tmp_path, monkeypatch):
    answers = [errno.EINTR, errno.EINTR, 0]

    class Library:
        def syncfs(self, fd: int) -> int:
            ctypes.set_errno(answers.pop(0))
            return -1 if answers else 0

    monkeypatch.setattr("tidelog.host.disk.libc", Library())

    SystemDisk().sync_everything(Path(tmp_path))

    assert answers == []


def test_everything_is_synced_without_another_descriptor_once_it_was_synced(tmp_path, monkeypatch):
    disk, path = SystemDisk(), Path(tmp_path)
    disk.sync_everything(path)

    def no_more(*args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", no_more)

    disk.sync_everything(path)
    with pytest.raises(OSError, match="Too many open files"):
        disk.sync_directory(path)
