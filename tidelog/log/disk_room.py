"""Whether this node's disk has room, and files can be opened, for everybody who must know.

    state     trigger                                               next state
    --------  ----------------------------------------------------  ----------
    well      a write or another change was refused for want of     short
              room, or of descriptors
    short     there is room enough, files can be opened, and every  well
              log takes writes

Rule 1: the controller hears of it with the next heartbeat, which is sent at once.
Rule 2: either makes other nodes lead; but an operator can do something about the one that it is.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from tidelog.errors import StorageError
from tidelog.host import Offload
from tidelog.log.steps import ALLOW_FILES, FREE_SPACE, is_full, is_short, shortage

_log = logging.getLogger(__name__)

T = TypeVar("T")

FREE_BYTES_ENOUGH: Final = 16 * 1024 * 1024
"""A disk that was full counts as full until this much is free, beside what a log needs."""

_FULL: Final = f"the disk is full: other nodes lead what they can; {FREE_SPACE}"
_NO_FILES: Final = f"no more files can be opened: other nodes lead what they can; {ALLOW_FILES}"


class DiskRoom:
    """The state of the disk that holds the data directory, and of the process that uses it."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.is_full = False
        """Whether the disk had no room."""
        self.lacks_files = False
        """Whether a file could not be opened, though the disk may have room."""

    @property
    def is_short(self) -> bool:
        """Whether other nodes should lead, for either reason."""
        return self.is_full or self.lacks_files

    @property
    def warning(self) -> str | None:
        """What an operator should know; None if there is nothing."""
        said = [_FULL] * self.is_full + [_NO_FILES] * self.lacks_files
        return "; ".join(said) or None

    def ran_out(self, error: OSError) -> None:
        """Something did not fit, or could not be opened."""
        if is_full(error) and not self.is_full:
            self.is_full = True
            _log.error("%s", _FULL)
            self._on_change()
        elif not is_full(error) and not self.lacks_files:
            self.lacks_files = True
            _log.error("%s", _NO_FILES)
            self._on_change()

    def has_again(self, free_bytes: int) -> None:
        """Every log takes writes, files can be opened, and so much is free."""
        if self.is_short and free_bytes > FREE_BYTES_ENOUGH:
            what = "the disk has room again" if self.is_full else "files can be opened again"
            self.is_full = self.lacks_files = False
            _log.warning("%s", what)
            self._on_change()


class ChangeDisk(Protocol):
    """Changes files in a disk's thread; refuses on a full disk, ends the node on any other failure."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class DiskChanges:
    """Changes files in a disk's thread. What is short is refused, any other failure is fatal."""

    def __init__(self, offload: Offload, room: DiskRoom, on_fatal: Callable[[BaseException], None]) -> None:
        self._offload = offload
        self._room = room
        self._on_fatal = on_fatal

    async def __call__(self, work: Callable[[], T]) -> T:
        try:
            return await self._offload.run(work)
        except OSError as error:
            if is_short(error):
                self._room.ran_out(error)
                raise StorageError(shortage(error)) from error
            self._on_fatal(error)
            raise
