"""What a shard has sent to its log and not heard of again.

Rule 1: writes are numbered in the order in which they are to be appended.
Rule 2: the log commits in order: a write that is stored settles all before it.
Rule 3: a write carries one change, a value. It becomes true when the write is stored, and is taken
        back when it fails; nothing else may make it true.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog.model import NO_OFFSET, Offset
from tidelog.records import Record
from tidelog.shards.effects import Append, Writer

C = TypeVar("C")


@dataclass(slots=True, eq=False)
class Write(Generic[C]):
    """One batch on its way to the log, and what becomes true with it."""

    number: int
    change: C
    base_offset: Offset = NO_OFFSET
    """Where it stands in the log, once that is known."""


class Ledger(Generic[C]):
    """The writes in flight, the oldest first."""

    def __init__(self) -> None:
        self._writes: deque[Write[C]] = deque()
        self._next = 0

    def __len__(self) -> int:
        return len(self._writes)

    def __iter__(self) -> Iterator[Write[C]]:
        return iter(self._writes)

    def append(self, change: C, records: Sequence[Record], writer: Writer | None = None) -> Append:
        """One more write; the effect that sends it on its way."""
        write = Write(self._next, change)
        self._next += 1
        self._writes.append(write)
        return Append(write=write.number, records=tuple(records), writer=writer)

    def note(self, number: int, base_offset: Offset) -> None:
        """The log has given `number` its place, and will commit it unless it fails."""
        at = len(self._writes) - (self._next - number)  # unless a later one has failed
        if not (0 <= at < len(self._writes) and self._writes[at].number == number):
            at = next((i for i, write in enumerate(self._writes) if write.number == number), -1)
        if at >= 0:
            self._writes[at].base_offset = base_offset

    def take_stored(self, number: int) -> Iterator[Write[C]]:
        """`number` and all before it, in the order of the log."""
        assert number < self._next, "only what was appended can be stored"
        while self._writes and self._writes[0].number <= number:
            yield self._writes.popleft()

    def take_before(self, offset: Offset) -> Iterator[Write[C]]:
        """All that stand before `offset`, in the order of the log."""
        while self._writes and NO_OFFSET < self._writes[0].base_offset < offset:
            yield self._writes.popleft()

    def take_failed(self, number: int) -> Write[C] | None:
        """`number` alone, if it was not settled before."""
        for index, write in enumerate(self._writes):
            if write.number == number:
                del self._writes[index]
                return write
        return None

    def give_up(self) -> list[C]:
        """The changes of which nobody will hear any more."""
        changes = [write.change for write in self._writes]
        self._writes.clear()
        return changes

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        numbers = [write.number for write in self._writes]
        assert numbers == sorted(set(numbers))
        placed = [w.base_offset for w in self._writes if w.base_offset != NO_OFFSET]
        assert placed == sorted(set(placed))
