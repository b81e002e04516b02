"""Whether this node's disk has room, and files can be opened, for everybody who must know.

    state     trigger                                               next state
    --------  ----------------------------------------------------  ----------
    has room  a write or another change was refused for want of it  full
    full      there is room enough, and every log takes writes      has room

Rule: the controller hears of it with the next heartbeat, which is sent at once.
"""

import logging
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)

FREE_BYTES_ENOUGH: Final = 16 * 1024 * 1024
"""A disk that was full counts as full until this much is free, beside what a log needs."""


class DiskRoom:
    """The state of the disk that holds the data directory."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.is_full = False

    def ran_out(self) -> None:
        """Something did not fit."""
        if not self.is_full:
            self.is_full = True
            _log.error(
                "the disk is full, or no more files can be opened: other nodes lead what they can; "
                "free some space"
            )
            self._on_change()

    def has_again(self, free_bytes: int) -> None:
        """Every log takes writes, and so much is free."""
        if self.is_full and free_bytes > FREE_BYTES_ENOUGH:
            self.is_full = False
            _log.warning("the disk has room again")
            self._on_change()
