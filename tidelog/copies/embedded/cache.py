"""What was read of a copy lately, so that a key which is asked for often costs no transaction.

Rule 1: who has seen something new never sees something older afterwards. So what is about to change
        is forgotten before it does, and nothing is noted until it has.
Rule 2: bytes are kept, and are decoded for every reader anew: nobody can change another's value.
Rule 3: it is bounded in number and in bytes; what was noted first goes first.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

COUNT_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024
VALUE_BYTES_MAX: Final = 64 * 1024


class Recent:
    """Values by key; None for a key that is not there. Threads may share it."""

    def __init__(self, count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.values: dict[bytes, bytes | None] = {}
        """To be read by anybody, and changed here alone."""
        self.stamp = 0
        """Another one after every change: who reads notes it first."""
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changes = 0
        """How many changes are under way."""
        self._lock = threading.Lock()

    def note(self, key: bytes, value: bytes | None, stamp: int) -> None:
        """Keep what was read, unless something has changed since `stamp`, or does now."""
        size = len(key) + len(value or b"")
        if size > VALUE_BYTES_MAX:
            return
        with self._lock:
            if stamp != self.stamp or self._changes or key in self.values:
                return
            self.values[key] = value
            self._bytes += size
            while len(self.values) > self._count_max or self._bytes > self._bytes_max:
                self._forget(next(iter(self.values)))

    @contextmanager
    def changing(self, keys: Iterable[bytes] | None) -> Iterator[None]:
        """While these keys change, or any; nothing of them is known from now on."""
        with self._lock:
            self.stamp += 1
            self._changes += 1
            if keys is None:
                self.values.clear()
                self._bytes = 0
            else:
                for key in keys:
                    self._forget(key)
        try:
            yield
        finally:
            with self._lock:
                self.stamp += 1
                self._changes -= 1

    def _forget(self, key: bytes) -> None:
        if key in self.values:
            self._bytes -= len(key) + len(self.values.pop(key) or b"")
