"""Files and directories of a real machine."""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from tidelog.host.doors import Bytes, Path
from tidelog.host.process import libc

_IOV_MAX = 1024  # Linux's limit of buffers per call


class _Closer:
    """Closes files that were deleted, in a thread.

    Their last descriptor is what keeps their bytes: the disk frees these when it is closed, which
    takes half a second for a gigabyte. Files close when nobody refers to them any more, and that
    may be found out anywhere: on the event loop, too.
    """

    def __init__(self) -> None:
        self._fds: SimpleQueue[int] = SimpleQueue()  # may be put to wherever garbage is collected
        self._is_running = False

    def close(self, fd: int) -> None:
        self._fds.put(fd)
        if not self._is_running:
            self._is_running = True
            threading.Thread(target=self._run, daemon=True, name="close").start()

    def _run(self) -> None:
        while True:
            fd = self._fds.get()
            with contextlib.suppress(OSError):  # of a file that is deleted: nothing is lost by it
                os.close(fd)


_closer = _Closer()


@contextlib.contextmanager
def _sync_failures() -> Iterator[None]:
    """Tell a sync for which there was no room as a failed one: its pages may be lost."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(errno.EIO, f"a sync failed: {error.strerror}", error.filename) from error
        raise


class SystemFile:
    """A file descriptor that closes with its last reference.

    A read in a thread keeps the object alive, so dropping a file from a cache never closes a
    descriptor in use.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_cached(self, position: int, size: int) -> bytearray | None:
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS):
                return None
            raise
        if got < size:
            return None  # the rest is on the device, or the file ends here: the caller asks again
        return buffer

    def read_device(self, position: int, size: int) -> bytes:
        # What is written and not synced stays in memory; nobody asks for that.
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)
        try:
            return self.read(position, size)
        finally:
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        assert position >= 0, "to the kernel, -1 is the position that a File does not have"
        for start in range(0, len(buffers), _IOV_MAX):
            some = buffers[start : start + _IOV_MAX]
            size = sum(map(len, some))
            written = os.pwritev(self._fd, some, position)
            if written < size:  # a signal, a full disk, or more than 2 GiB: go on with the rest
                rest = memoryview(b"".join(some))[written:]
                while rest:
                    more = os.pwrite(self._fd, rest, position + written)
                    written += more
                    rest = rest[more:]
            position += size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def datasync(self) -> None:
        with _sync_failures():
            os.fdatasync(self._fd)

    def sync_file_system(self, path: Path) -> None:
        with _sync_failures():
            while libc.syncfs(self._fd) != 0:  # since Linux 5.8 it reports failed write-back
                code = ctypes.get_errno()
                if code != errno.EINTR:  # Python itself repeats only its own calls after a signal
                    raise OSError(code, os.strerror(code), str(path))

    def lock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if os.fstat(fd).st_nlink:
            os.close(fd)
        else:
            _closer.close(fd)

    def __del__(self) -> None:
        self.close()


class SystemDisk:
    def __init__(self) -> None:
        self._roots: dict[Path, SystemFile] = {}
        """Directories of file systems that are synced whole: opened once, as every system call of
        a disk's thread may have to wait for the interpreter afterwards."""

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(os.open(path, flags, 0o600))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def list(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_directory(self, path: Path) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=False)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _sync_failures():
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_everything(self, path: Path) -> None:
        root = self._roots.get(path)
        if root is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            root = self._roots[path] = SystemFile(os.open(path, flags))
        root.sync_file_system(path)

    def lock(self, path: Path) -> SystemFile:
        file = self.open(path, create=True)
        file.lock()
        return file

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize
