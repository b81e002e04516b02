"""Where an archive's files lie: this machine's disks, or whatever else pyiceberg can reach.

Rule 1: a local file is on its disk, not merely in memory, before anything names it: the data, and
        what the catalog writes about it. A log may be trimmed on the word of these files.
Rule 2: credentials are pyiceberg's properties, and are given to tasks by value; nothing is read
        from a task's own surroundings.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from tidelog.host import sync_path

DEPTH: Final = 7
"""WAREHOUSE/NAMESPACE/TABLE/data/ID/partition=N, and where the warehouse lies."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A way to files, by their locations. It can be pickled."""

    properties: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return "Storage(...)"  # there may be secrets inside

    @classmethod
    def of(cls, properties: Properties) -> "Storage":
        return cls(tuple(sorted((name, str(value)) for name, value in properties.items())))

    def find(self, location: str) -> tuple[fs.FileSystem, str]:
        """The filesystem of a location, and its path there."""
        properties = dict(self.properties)
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        return PyArrowFileIO(properties).fs_by_scheme(scheme, netloc), path

    def list_files(self, directory: str, suffix: str) -> list[str]:
        """The locations of all files below a directory; none, if it does not exist."""
        filesystem, path = self.find(directory)
        below = fs.FileSelector(path, allow_not_found=True, recursive=True)
        prefix = directory.removesuffix(path)
        return [
            prefix + found.path
            for found in filesystem.get_file_info(below)
            if found.type == fs.FileType.File and found.path.endswith(suffix)
        ]

    def remove(self, locations: Iterable[str]) -> None:
        """Remove files that nothing names; one that is gone already is fine."""
        for location in locations:
            filesystem, path = self.find(location)
            try:
                filesystem.delete_file(path)
            except FileNotFoundError:
                pass


def sync_file(path: str) -> None:
    """Have a local file on its disk, its name in its directory, and so on up the warehouse."""
    sync_files([path])


def sync_files(paths: Iterable[str]) -> None:
    """The same for many, which share directories: each of these is synced once."""
    files = [Path(path) for path in paths]
    for one in {*files, *(above for file in files for above in file.parents[:DEPTH])}:
        with suppress(PermissionError):  # who may not read a directory did not make it
            sync_path(one)


class SyncedIO(PyArrowFileIO):
    """pyiceberg's way to files, with Rule 1."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)

    def new_output(self, location: str) -> PyArrowFile:
        found = super().new_output(location)
        if not isinstance(found._filesystem, fs.LocalFileSystem):
            return found
        return _SyncedFile(
            location=found.location, path=found._path, fs=found._filesystem, buffer_size=found._buffer_size
        )


class _SyncedFile(PyArrowFile):
    """A local file that is on its disk once it is closed."""

    def create(self, overwrite: bool = False) -> Any:
        return _SyncedStream(super().create(overwrite), self._path)


class _SyncedStream:
    """An output stream of pyarrow that syncs when it is closed."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> "_SyncedStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            sync_file(self._path)
