"""What a shard has asked its log to store, and what it answers when that is done.

Rule 1: writes are numbered in the order in which they are to be appended; the log commits in order,
        so a write that is stored settles all before it.
Rule 2: what is to become true with a write happens when it is stored, and what was taken for it is
        given back when it fails.
Rule 3: a request that was done before, by its key, is answered as it was then.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidelog.errors import BrokerError, CoordinatorLoadInProgress, OutcomeUnknown
from tidelog.model import NO_OFFSET, Offset
from tidelog.queues.recent import Recent
from tidelog.records import Record
from tidelog.shards.effects import Answer, Append, Moment, Token

Effects: TypeAlias = list[Answer | Append]
Then: TypeAlias = Callable[[Offset, Moment], Effects]
Otherwise: TypeAlias = Callable[[BrokerError, Moment], Effects]


@dataclass(slots=True, eq=False)
class _Write:
    number: int
    then: Then
    otherwise: Otherwise
    reply: Token | None
    base_offset: Offset = NO_OFFSET


class Ledger:
    """The writes of one shard that are on their way, the oldest first."""

    def __init__(self) -> None:
        self.recent = Recent()
        self._refusal: BrokerError | None = CoordinatorLoadInProgress("the queues are being read")
        self._writes: deque[_Write] = deque()
        self._next_write = 0

    def _give_up(self, error: BrokerError) -> Effects:
        """Who has asked for a write does not know what becomes of it."""
        told: Effects = [
            Answer(to=write.reply, result=OutcomeUnknown(str(error)))
            for write in self._writes
            if write.reply is not None
        ]
        self._writes.clear()
        return told

    def _write(
        self,
        records: Sequence[Record],
        then: Then,
        otherwise: Otherwise,
        reply: Token | None = None,
    ) -> Append:
        write = _Write(self._next_write, then, otherwise, reply)
        self._next_write += 1
        self._writes.append(write)
        return Append(write=write.number, records=tuple(records))

    def appended(self, number: int, offset: Offset) -> None:
        """The log has given this write its place."""
        for write in reversed(self._writes):
            if write.number == number:
                write.base_offset = offset
                return

    def stored(self, number: int, at: Moment) -> Effects:
        """The log has committed this write, so all earlier ones too."""
        effects: Effects = []
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            effects += write.then(write.base_offset, at)
        return effects

    def store_failed(self, number: int, error: BrokerError, at: Moment) -> Effects:
        """This write is not in the log and never will be."""
        for write in list(self._writes):
            if write.number == number:
                self._writes.remove(write)
                return write.otherwise(error, at)
        return []

    def _ask(
        self, reply: Token, request: bytes, begin: Callable[[], Effects]
    ) -> tuple[Effects, list[Any] | None]:
        """Begin a request, unless it was done, or is under way: then what came of it."""
        if self._refusal is not None:
            return [Answer(to=reply, result=self._refusal)], None
        done = self.recent.get(request)
        if done is not None:
            return [], done
        if not self.recent.begin(request):
            busy = CoordinatorLoadInProgress("the same request is under way; ask again")
            return [Answer(to=reply, result=busy)], None
        try:
            return begin(), None
        except BrokerError as error:
            self.recent.failed(request)
            return [Answer(to=reply, result=error)], None

    def _failing(self, reply: Token, request: bytes) -> Otherwise:
        def otherwise(error: BrokerError, at: Moment) -> Effects:
            self.recent.failed(request)
            return [Answer(to=reply, result=error)]

        return otherwise
