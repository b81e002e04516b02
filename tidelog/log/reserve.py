"""Room that is kept for the writes by which a node gets through a full disk.

A node whose disk is full must still note a vote, cut its metadata log, take the record that deletes
a topic, and write checkpoints. The reserve is a file of bytes that nobody reads. Where the disk has
no room, the file shrinks by a piece and the write is tried again.

Rule 1: only small writes come here: promises, checkpoints, the metadata log, and the names that a
        start gives files anew. Records of users never do; they would use the reserve up.
Rule 2: the work that is given to `spend` can be done again after it failed half-way.
Rule 3: a reserve that shrank grows again with the next checkpoint that finds room.
Rule 4: all calls block on the disk, and may come from any thread.
"""

import logging
import threading
from collections.abc import Callable
from hashlib import shake_128
from typing import Final, TypeVar

from tidelog.host import Disk, Path
from tidelog.log.steps import is_full, is_short

_log = logging.getLogger(__name__)

FILE_NAME: Final = ".reserve"
PIECES: Final = 8
"""The reserve is given up in so many pieces, so that one write does not take all of it."""

T = TypeVar("T")


class Reserve:
    """A file that holds room on one disk.

    Invariant: the file holds at most `size` bytes.
    """

    def __init__(self, disk: Disk, directory: Path, size: int) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._size = size
        self._held = 0
        self._lock = threading.Lock()

    @property
    def is_whole(self) -> bool:
        return self._held >= self._size

    def fill(self) -> None:
        """Take what the reserve lacks, or as much of it as the disk has."""
        with self._lock:
            if self._size == 0:
                self._disk.remove(self._path)
            elif not self.is_whole:
                self._fill()

    def _fill(self) -> None:
        # A file system may compress bytes that repeat, and so hold no room for them.
        content = shake_128(b"tidelog reserve").digest(self._size)
        try:
            file = self._disk.open(self._path, create=True)
            try:
                self._held = min(file.size(), self._size)
                file.truncate(self._held)
                piece = max(1, self._size // PIECES)
                while self._held < self._size:
                    more = content[self._held : self._held + piece]
                    file.write(self._held, [more])
                    self._held += len(more)
            finally:
                file.truncate(self._held)  # of a piece that did not fit
                file.close()
        except OSError as error:
            if not is_short(error):
                raise

    def spend(self, work: Callable[[], T]) -> T:
        """Do `work`. While the disk is full, give up a piece of the reserve and do it again."""
        while True:
            try:
                return work()
            except OSError as error:
                if not is_full(error) or not self._release():
                    raise

    def _release(self) -> bool:
        with self._lock:
            if self._held == 0:
                return False
            if self.is_whole:
                _log.warning("the disk is full; small writes go on in what was kept for them")
            self._held = max(0, self._held - max(1, self._size // PIECES))
            file = self._disk.open(self._path)
            try:
                file.truncate(self._held)
            finally:
                file.close()
            return True
