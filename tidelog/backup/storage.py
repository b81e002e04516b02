"""Where the files of backups are: a directory, or whatever fsspec reaches.

Rule 1: a file is there whole or not at all, and on its disk before anything names it: it is
        written under another name first.
Rule 2: one run at a time changes a directory; it holds a lock. Elsewhere nobody can tell, so a run
        removes what another may still be writing only once it is a day old.
Rule 3: nothing outside of the place is read, written or removed, whatever it is asked for.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self

from tidelog.backup.manifest import is_inside
from tidelog.backup.problems import BackupError, Damaged
from tidelog.host import sync_path

UNFINISHED: Final = ".unfinished"
LOCK: Final = "lock"


class Output:
    """A file on its way. It exists once `finish` has returned."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        """Leave nothing behind; does nothing after `finish`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
            return
        try:
            self.finish()
        except BaseException:
            self.abandon()
            raise


class Storage(Protocol):
    """Files by their names, which are paths with slashes. Calls block; they are for threads."""

    location: str
    is_shared: bool
    """Whether others may write here at the same time."""

    def exists(self) -> bool:
        """Whether the place itself is there; object stores have no places, only files."""
        ...

    def names(self, folder: str) -> list[str]:
        """Every whole file below a folder, in order; none, if there is no such folder."""
        ...

    def unfinished(self, folder: str) -> list[str]:
        """Files that somebody began and did not finish."""
        ...

    def read(self, name: str) -> bytes:
        """All of a file; Damaged if it is not there."""
        ...

    def create(self, name: str) -> Output: ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone already is fine."""
        ...

    def claim(self) -> AbstractContextManager[None]:
        """Be the only one who changes anything here, as far as that can be had."""
        ...


def open_storage(location: str) -> Storage:
    """The storage at a path or an URL; BackupError says what to install."""
    scheme, separator, _ = location.partition("://")
    if separator and scheme != "file":
        return RemoteStorage(location)
    return LocalStorage(Path(location.removeprefix("file://")))


def _checked(name: str) -> str:
    if not is_inside(name):
        raise Damaged(f"{name!r} is no file of a backup")
    return name


class LocalStorage:
    """A directory of this machine."""

    is_shared = False

    def __init__(self, root: Path) -> None:
        self.location = str(root)
        self._root = root

    def exists(self) -> bool:
        return self._root.is_dir()

    def names(self, folder: str) -> list[str]:
        return [name for name in self._files(folder) if not name.endswith(UNFINISHED)]

    def unfinished(self, folder: str) -> list[str]:
        return [name for name in self._files(folder) if name.endswith(UNFINISHED)]

    def _files(self, folder: str) -> list[str]:
        found = []
        for directory, _, files in os.walk(self._root / folder):
            below = Path(directory).relative_to(self._root)
            found += [(below / file).as_posix() for file in files]
        return sorted(found)

    def _path(self, name: str) -> Path:
        return self._root / _checked(name)

    def read(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            raise Damaged(f"{self._root / name} is missing") from None

    def create(self, name: str) -> Output:
        path = self._path(name)
        made = [one for one in (path.parent, *path.parent.parents) if not one.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for one in reversed(made):
            sync_path(one.parent)
        return _LocalOutput(path)

    def remove(self, name: str) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the last of its folder takes the folder along
            path.parent.rmdir()

    @contextmanager
    def claim(self) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(
                    f"another run is at work in {self.location}; wait for it, or use another directory"
                ) from None
            yield


class _LocalOutput(Output):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(path.name + UNFINISHED)
        self._file: BinaryIO = self._unfinished.open("wb")
        self._is_finished = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(data)

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._unfinished.rename(self._path)
        sync_path(self._path.parent)
        self._is_finished = True

    def abandon(self) -> None:
        if not self._is_finished:
            with suppress(OSError):  # a full disk does not take what is still in memory
                self._file.close()
            self._unfinished.unlink(missing_ok=True)


class RemoteStorage:
    """A place that fsspec reaches by an URL, such as s3://bucket/path."""

    is_shared = True

    def __init__(self, location: str) -> None:
        scheme = location.partition("://")[0]
        try:
            fsspec: Any = import_module("fsspec")
            self._files, self._root = fsspec.core.url_to_fs(location)
        except ImportError as error:
            raise BackupError(
                f"{location}: {scheme}:// needs fsspec and what it needs for it ({error}); "
                "install them, or give a directory"
            ) from None
        except ValueError as error:
            raise BackupError(f"{location}: {error}") from None
        self.location = location

    def exists(self) -> bool:
        return True

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{_checked(name)}"

    def names(self, folder: str) -> list[str]:
        return [name for name in self._list(folder) if not name.endswith(UNFINISHED)]

    def unfinished(self, folder: str) -> list[str]:
        return [name for name in self._list(folder) if name.endswith(UNFINISHED)]

    def _list(self, folder: str) -> list[str]:
        root = PurePosixPath("/" + self._root.strip("/"))
        try:
            self._files.invalidate_cache()
            found = self._files.find(f"{self._root.rstrip('/')}/{folder}")
        except FileNotFoundError:
            return []
        return sorted(str(PurePosixPath("/" + one.strip("/")).relative_to(root)) for one in found)

    def read(self, name: str) -> bytes:
        try:
            data: bytes = self._files.cat_file(self._path(name))
            return data
        except FileNotFoundError:
            raise Damaged(f"{self.location.rstrip('/')}/{name} is missing") from None

    def create(self, name: str) -> Output:
        path = self._path(name)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        return _RemoteOutput(self._files, path)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    @contextmanager
    def claim(self) -> Iterator[None]:
        yield


class _RemoteOutput(Output):
    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path
        self._file: Any = files.open(path + UNFINISHED, "wb")
        self._is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(bytes(data))

    def finish(self) -> None:
        self._file.close()
        self._files.mv(self._path + UNFINISHED, self._path)
        self._is_over = True

    def abandon(self) -> None:
        if not self._is_over:
            self._is_over = True
            with suppress(Exception):  # whatever a store says, the run has failed already
                self._file.close()
                self._files.rm_file(self._path + UNFINISHED)
