import os
import threading

import pytest

from tidelog.host import Path, SystemDisk


@pytest.fixture
def closes(monkeypatch):
    """The names of the threads in which descriptors are closed, and a signal for each."""
    names: list[str] = []
    closed = threading.Semaphore(0)
    close = os.close

    def noted(fd):
        names.append(threading.current_thread().name)
        close(fd)
        closed.release()

    monkeypatch.setattr(os, "close", noted)
    return names, closed


def test_nobody_waits_while_the_disk_frees_a_file_that_was_deleted(tmp_path, closes):
    names, closed = closes
    disk, path = SystemDisk(), Path(str(tmp_path / "large"))
    file = disk.open(path, create=True)
    disk.remove(path)

    del file

    assert closed.acquire(timeout=10)
    assert names == ["close"]


def test_a_file_that_is_still_there_is_closed_at_once(tmp_path, closes):
    names, _ = closes
    file = SystemDisk().open(Path(str(tmp_path / "small")), create=True)

    file.close()
    file.close()

    assert names == [threading.current_thread().name]
