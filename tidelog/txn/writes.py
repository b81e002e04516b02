"""What a shard has sent to its log and not heard of again.

Rule: a write is one batch: all that it says becomes true at once, or nothing does. When it is
      settled, `shards/ledger.py` says.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.errors import BrokerError
from tidelog.shards.effects import Answer, Append, Moment
from tidelog.shards.ledger import Ledger
from tidelog.txn.events import Change
from tidelog.txn.records import DecisionWritten, TransactionWritten, Written, encode
from tidelog.txn.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Write:
    """Records on their way to the log, and what becomes true with them."""

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
        self._ledger: Ledger[Write] = Ledger()

    def __len__(self) -> int:
        return len(self._ledger)

    def __iter__(self) -> Iterator[Write]:
        return (write.change for write in self._ledger)

    def append(
        self,
        at: Moment,
        *changes: tuple[Transaction, Change],
        decision: DecisionWritten | None = None,
        answer: Answer | None = None,
    ) -> Append:
        """One more write; the effect that sends it on its way."""
        write = Write(changes=changes, decision=decision, answer=answer)
        records = [encode(written, at.wall_ms) for written in write.records()]
        return self._ledger.append(write, records)

    def take_stored(self, number: int) -> Iterator[Write]:
        """`number` and all before it, in the order of the log."""
        return (write.change for write in self._ledger.take_stored(number))

    def take_failed(self, number: int) -> Write | None:
        """`number` alone, if it was not settled before."""
        write = self._ledger.take_failed(number)
        return None if write is None else write.change

    def give_up(self, error: BrokerError) -> list[Answer]:
        """Nobody will hear of these any more but that."""
        said = [answer for write in self._ledger.give_up() for answer in write.answers()]
        return [Answer(to=answer.to, result=error) for answer in said]
