"""What bodies and messages that come in may take of a node's memory, all together.

Rule: a large body counts from when it is large until its request is answered, a large message until it is
      whole. What finds no room is dropped, and its sender refused: whoever never ends a body holds up
      nobody but those with large ones.
"""

from collections.abc import Callable
from typing import Final

LARGE_BYTES: Final = 16 * 1024
"""Smaller ones do not count: they are no more than a connection costs anyway."""


class NoRoom(Exception):
    """The bodies of other requests take all the room that there is."""


class Bodies:
    """How much all of them take by now."""

    __slots__ = ("_bytes_max", "bytes_held")

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0

    def take(self, size: int) -> bool:
        """Take so much more, if there is room; less than nothing gives it back."""
        has_room = size <= 0 or self.bytes_held + size <= self._bytes_max()
        if has_room:
            self.bytes_held += size
        return has_room


class Share:
    """What one of them takes of it."""

    __slots__ = ("_bodies", "_counted")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._counted = 0

    def hold(self, size: int) -> bool:
        """Let it be so large; if there is no room, it holds nothing."""
        counted = size if size > LARGE_BYTES else 0
        has_room = self._bodies.take(counted - self._counted)
        if not has_room:
            self._bodies.take(-self._counted)
        self._counted = counted if has_room else 0
        return has_room
