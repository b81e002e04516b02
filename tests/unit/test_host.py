import asyncio
import ctypes
import errno
import gc
import os
import queue
import random
import sqlite3
import threading
from collections import defaultdict
from pathlib import PurePosixPath

import pytest

from tidelog import host
from tidelog.errors import StorageError
from tidelog.host import (
    DiskDatabases,
    Lane,
    Path,
    SystemDatabases,
    SystemDisk,
    ThreadOffload,
    _closer,
    unbroken,
)
from tidelog.simulation.disk import SimulatedDisk


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


def test_who_is_cancelled_in_unbroken_work_waits_for_its_end():
    async def story() -> None:
        thread: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        learned: list[str] = []

        async def work() -> None:
            await thread
            learned.append("what the thread did")

        task = asyncio.create_task(unbroken(work()))
        for _ in range(3):  # however often
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        thread.set_result(None)
        with pytest.raises(asyncio.CancelledError):
            await task

        assert learned == ["what the thread did"]

    asyncio.run(story())


def test_unbroken_work_that_fails_says_so_even_to_who_was_cancelled():
    async def story() -> None:
        thread: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await thread

        task = asyncio.create_task(unbroken(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        thread.set_exception(OSError("the disk failed"))

        with pytest.raises(OSError, match="the disk failed"):
            await task

    asyncio.run(story())


def test_who_was_cancelled_does_not_try_again_what_unbroken_work_was_refused():
    async def story() -> None:
        thread: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await thread

        task = asyncio.create_task(unbroken(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        thread.set_exception(StorageError("no more files can be opened"))

        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_nobody_complains_of_unbroken_work_that_failed_when_its_process_ended():
    complaints: list[dict[str, object]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        thread: asyncio.Future[None] = loop.create_future()

        async def work() -> None:
            await thread

        waiting = unbroken(work())
        waiting.send(None)  # it waits for the task that it made, and never comes back
        await asyncio.sleep(0)
        thread.set_exception(OSError("the disk failed"))
        await asyncio.sleep(0)
        waiting.close()
        await asyncio.sleep(0)

    asyncio.run(story())
    gc.collect()

    assert complaints == []


# Reading what the device has.


def test_a_read_of_the_device_says_what_is_there(tmp_path):
    file = SystemDisk().open(Path(str(tmp_path / "sealed")), create=True)
    file.write(0, [b"tide" * 5000])
    file.datasync()

    assert file.read_device(4, 8) == b"tidetide"
    assert file.read_device(19_998, 10) == b"de"
    assert file.read_device(30_000, 10) == b""


def test_idle_work_is_done_in_a_thread_of_its_own_in_order():
    async def work() -> list[str]:
        offload = ThreadOffload()
        try:
            name = lambda: threading.current_thread().name  # noqa: E731
            return [await offload.run(name, Lane.IDLE) for _ in range(3)]
        finally:
            offload.close()

    assert asyncio.run(work()) == ["idle-0"] * 3


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

    monkeypatch.setattr(host, "_libc", Library())

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


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_a_copy_of_a_database_is_what_it_was_and_has_no_name(tmp_path, kind):
    root = PurePosixPath(tmp_path if kind == "files" else "/data")
    disk = SimulatedDisk(random.Random(1))
    databases = SystemDatabases() if kind == "files" else DiskDatabases(disk)
    database = databases.open(root / "one.db")
    database.writer.execute("CREATE TABLE t (n INTEGER)")
    database.writer.execute("INSERT INTO t VALUES (7)")
    checked = []

    databases.copy(
        database.writer,
        root / "one.copy",
        lambda copy: checked.append(copy.execute("SELECT n FROM t").fetchall()),
    )
    database.writer.execute("INSERT INTO t VALUES (8)")
    with databases.seize(root / "one.copy") as file:
        data = file.read()

    copy = sqlite3.connect(":memory:")
    copy.deserialize(data)
    assert copy.execute("SELECT n FROM t").fetchall() == checked[0] == [(7,)]
    assert not disk.exists(root / "one.copy") and not (tmp_path / "one.copy").exists()
    copy.close()
    database.close()
