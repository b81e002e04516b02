"""What requests of Kafka clients take of a node's memory, at all its listeners together."""

from typing import Protocol

from tidelog.host.complaints import Complaints


class Reader(Protocol):
    """A connection that may have to wait before it reads on."""

    def consider_reading(self) -> None: ...


class Intake:
    """How much of the node's memory requests take, at all its listeners, and who waits for it to shrink.

    Whole requests count until they are answered; large ones also while they come in, apart, so
    that whoever never finishes one holds up nobody but others of its kind.
    """

    def __init__(self, bytes_max: int, complaints: Complaints) -> None:
        self.complaints = complaints
        self._bytes_max = bytes_max
        self._waiting: dict[Reader, None] = {}
        self._coming: dict[Reader, int] = {}  # the oldest first
        self.bytes_held = 0
        self.bytes_coming = 0
        self.connections = 0

    def take(self, size: int) -> None:
        self.bytes_held += size

    def give(self, size: int) -> None:
        self.bytes_held -= size
        if self._waiting and not self.is_full:
            self._wake()

    def is_coming(self, connection: Reader, size: int) -> None:
        """A large request takes `size` bytes by now and is not whole; 0 if it is, or is gone."""
        before = self._coming.get(connection, 0)
        self.bytes_coming += size - before
        if size:
            self._coming[connection] = size
        else:
            self._coming.pop(connection, None)
            if self._waiting:
                self._wake()

    def may_come(self, connection: Reader) -> bool:
        """Whether more of its large request has room. The oldest always has: it will end."""
        return (
            self.bytes_coming <= self._bytes_max
            or connection not in self._coming
            or connection is next(iter(self._coming))
        )

    def wait(self, connection: Reader) -> None:
        self._waiting[connection] = None

    def forget(self, connection: Reader) -> None:
        self._waiting.pop(connection, None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.consider_reading()

    @property
    def is_full(self) -> bool:
        return self.bytes_held > self._bytes_max
