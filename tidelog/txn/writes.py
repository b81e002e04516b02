"""What a shard has sent to its log and not heard of again.

Rule 1: writes are numbered in the order in which they are to be appended.
Rule 2: the log commits in order: a write that is stored settles all before it.
Rule 3: a write is one batch: all that it says becomes true at once, or nothing does.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.errors import (
    BrokerError,
)
from tidelog.shards.effects import Answer, Append, Moment
from tidelog.txn.events import Change
from tidelog.txn.records import DecisionWritten, TransactionWritten, Written, encode
from tidelog.txn.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Write:
    """Records on their way to the log, and what becomes true with them."""

    number: int
    changes: tuple[tuple[Transaction, Change], ...]
    decision: DecisionWritten | None
    answer: Answer | None
    """What is said when it is stored, beside what the changes say."""

    def records(self) -> Iterator[Written]:
        """What it says to the log, the decision first."""
        if self.decision is not None:
            yield self.decision
        for transaction, change in self.changes:
            yield TransactionWritten(transactional_id=transaction.id, value=change.record)

    def answers(self) -> Iterator[Answer]:
        """All that is said when it is stored."""
        for _, change in self.changes:
            yield from change.answers
        if self.answer is not None:
            yield self.answer


class Writes:
    """The writes in flight, the oldest first."""

    def __init__(self) -> None:
        self._writes: deque[Write] = deque()
        self._next = 0

    def __len__(self) -> int:
        return len(self._writes)

    def __iter__(self) -> Iterator[Write]:
        return iter(self._writes)

    def append(
        self,
        at: Moment,
        *changes: tuple[Transaction, Change],
        decision: DecisionWritten | None = None,
        answer: Answer | None = None,
    ) -> Append:
        """One more write; the effect that sends it on its way."""
        write = Write(number=self._next, changes=changes, decision=decision, answer=answer)
        self._next += 1
        self._writes.append(write)
        records = tuple([encode(written, at.wall_ms) for written in write.records()])
        return Append(write=write.number, records=records)

    def take_stored(self, number: int) -> Iterator[Write]:
        """`number` and all before it, in the order of the log."""
        assert number < self._next, "only what was appended can be stored"
        while self._writes and self._writes[0].number <= number:
            yield self._writes.popleft()

    def take_failed(self, number: int) -> Write | None:
        """`number` alone, if it was not settled before."""
        for index, write in enumerate(self._writes):
            if write.number == number:
                del self._writes[index]
                return write
        return None

    def give_up(self, error: BrokerError) -> list[Answer]:
        """Nobody will hear of these any more but that."""
        said = [answer for write in self._writes for answer in write.answers()]
        self._writes.clear()
        return [Answer(to=answer.to, result=error) for answer in said]
