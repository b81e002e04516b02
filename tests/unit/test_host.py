import os
import queue
import threading
from collections import defaultdict

import pytest

from tidelog.host import Path, SystemDisk, _closer


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
