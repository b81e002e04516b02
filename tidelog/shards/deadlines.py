"""Many deadlines, of which most are moved on before they come.

A heartbeat moves its member's deadline; a heap that followed every move would cost a push each.
Here a move to a later time is one dict entry: the heap keeps the old, earlier time, and when that
comes up the key is put back at its true one. So each key costs at most one push per deadline that
it lives through.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_ALLOWED: Final = 64
"""The heap is rebuilt when it holds more than twice the keys, and this many on top."""


class Deadlines(Generic[K]):
    """When each key is due.

    Invariant: for every key in `_due`, `_queued` names one heap entry, not later than its deadline.
    """

    __slots__ = ("_due", "_heap", "_queued", "_ticket")

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._ticket = count()  # equal times come up in the order in which they were set

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def due(self, key: K) -> float | None:
        """The deadline of `key`, if it has one."""
        return self._due.get(key)

    def set(self, key: K, due: float) -> None:
        """Make `due` the deadline of `key`, instead of an earlier or later one."""
        self._due[key] = due
        queued = self._queued.get(key)
        if queued is None or due < queued:
            self._push(key, due)

    def cancel(self, key: K) -> None:
        """Forget `key`; its heap entry goes when it comes up, or when too many have gathered."""
        if self._due.pop(key, None) is not None:
            self._queued.pop(key)
            if len(self._heap) > 2 * len(self._due) + _STALE_ALLOWED:
                self._rebuild()

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            queued, _, key = self._heap[0]
            if self._queued.get(key) != queued:
                heappop(self._heap)  # cancelled, or replaced by an earlier entry
            elif (due := self._due[key]) > queued:
                heappop(self._heap)
                self._push(key, due)
            else:
                return due
        return None

    def pop_due(self, now: float) -> K | None:
        """Take the first key whose deadline is not after `now`, the earliest first."""
        due = self.next()
        if due is None or due > now:
            return None
        key = heappop(self._heap)[2]
        del self._due[key], self._queued[key]
        return key

    def _push(self, key: K, due: float) -> None:
        self._queued[key] = due
        heappush(self._heap, (due, next(self._ticket), key))

    def _rebuild(self) -> None:
        self._heap = [(due, next(self._ticket), key) for key, due in self._due.items()]
        self._queued = dict(self._due)
        heapify(self._heap)
