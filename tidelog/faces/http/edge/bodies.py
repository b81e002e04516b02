"""What bodies that come in may take of a node's memory, all together.

Rule: a large body counts from when it is large until its request is answered. One that finds no room is
      dropped, and its request refused: whoever never ends a body holds up nobody but those with large ones.
"""

from collections.abc import Callable
from typing import Final

LARGE_BYTES: Final = 16 * 1024
"""Smaller ones do not count: they are no more than a connection costs anyway."""


class NoRoom(Exception):
    """The bodies of other requests take all the room that there is."""


class Bodies:
    """How much large bodies take by now."""

    __slots__ = ("_bytes_max", "bytes_held")

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0

    def take(self, size: int) -> bool:
        """Take so much more, if there is room."""
        has_room = self.bytes_held + size <= self._bytes_max()
        if has_room:
            self.bytes_held += size
        return has_room

    def give(self, size: int) -> None:
        self.bytes_held -= size
