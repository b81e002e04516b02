"""What a shard has sent to its log and not heard of again.

Rule: what becomes true with a write is said here; when it is settled, in `shards/ledger.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from tidelog.errors import BrokerError, InvalidCommitOffsetSize, MessageTooLarge
from tidelog.groups.events import Change, Emptied, NewAssignment, Replacement, Result
from tidelog.groups.group import Group
from tidelog.groups.offsets import Offsets
from tidelog.groups.records import (
    CommittedOffset,
    GroupWritten,
    MemberWritten,
    OffsetWritten,
    Written,
    encode,
)
from tidelog.model import NO_OFFSET, Offset, TopicPartition
from tidelog.shards import ledger
from tidelog.shards.effects import Answer, Append, Moment, Token, Writer
from tidelog.shards.ledger import Ledger
from tidelog.shards.refusals import as_coordinator

TOMBSTONES_BYTES_MAX: Final = 256 * 1024
"""Deletions are cut into writes of about this size, whatever the log takes at once."""

_NO_OFFSETS: Final[Mapping[TopicPartition, CommittedOffset | None]] = {}


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """A group, its offsets, and what the log has of it."""

    group: Group
    offsets: Offsets = field(default_factory=Offsets)
    has_record: bool = False
    """The log holds a record of the group itself, which a deletion must undo."""
    renamed: set[str] = field(default_factory=set)
    """Static members of which the log holds a record of their own, which the group's next one
    undoes."""
    writes: int = 0
    """Writes in flight."""

    @property
    def holds_nothing(self) -> bool:
        """Nothing would be lost if the group were forgotten."""
        has_state = self.has_record or self.writes or self.offsets
        return self.group.is_vacant and not has_state


@dataclass(slots=True, kw_only=True, eq=False)
class Waiter:
    """Somebody who is told when the last of some writes is settled."""

    reply: Token
    result: Result = None
    writes: int = 0

    def settled(self, error: BrokerError | None) -> list[Answer]:
        """One of the writes is stored, or failed; one failure is the answer."""
        self.writes -= 1
        if isinstance(error, MessageTooLarge):
            self.result = InvalidCommitOffsetSize(str(error))
        elif error is not None:
            self.result = as_coordinator(error, "group")
        return [] if self.writes else [Answer(to=self.reply, result=self.result)]


@dataclass(slots=True, kw_only=True, eq=False)
class Write:
    """Records on their way to the log, and what becomes true with them."""

    entry: Entry
    offsets: Mapping[TopicPartition, CommittedOffset | None]
    change: Change | None
    removes_group: bool
    waiter: Waiter | None
    writer: Writer | None
    """In whose transaction it is written."""
    undone: tuple[str, ...] = ()
    """Static members whose own records say nothing more."""
    base_offset: Offset = NO_OFFSET
    """Where it stands in the log, once it is known."""

    def records(self) -> Iterator[Written]:
        """What it says to the log."""
        group_id = self.entry.group.id
        for place, value in self.offsets.items():
            yield OffsetWritten(group_id=group_id, place=place, value=value)
        match self.change:
            case Replacement(renamed=renamed):
                assert renamed.member.instance_id is not None, "only static members have a name"
                yield MemberWritten(group_id=group_id, instance_id=renamed.member.instance_id, value=renamed)
            case NewAssignment(record=record) | Emptied(record=record):
                yield GroupWritten(group_id=group_id, value=record)
            case None if self.removes_group:
                yield GroupWritten(group_id=group_id, value=None)
            case None:
                pass
            case _:
                assert_never(self.change)
        for instance_id in self.undone:
            yield MemberWritten(group_id=group_id, instance_id=instance_id, value=None)


class Writes:
    """The writes in flight, the oldest first.

    Invariant: an entry's `writes` and its offsets' `in_flight` count what is in here.
    """

    def __init__(self) -> None:
        self._ledger: Ledger[Write] = Ledger()

    def __len__(self) -> int:
        return len(self._ledger)

    def __iter__(self) -> Iterator[Write]:
        return (write.change for write in self._ledger)

    def append(
        self,
        entry: Entry,
        at: Moment,
        *,
        offsets: Mapping[TopicPartition, CommittedOffset | None] = _NO_OFFSETS,
        change: Change | None = None,
        removes_group: bool = False,
        waiter: Waiter | None = None,
        writer: Writer | None = None,
    ) -> Append:
        """One more write; the effect that sends it on its way."""
        undone: tuple[str, ...] = ()
        if isinstance(change, Replacement):
            entry.renamed.add(change.renamed.member.instance_id or "")
        elif change is not None or removes_group:
            undone = tuple(sorted(entry.renamed))
            entry.renamed.clear()
        write = Write(
            entry=entry,
            offsets=offsets,
            change=change,
            removes_group=removes_group,
            waiter=waiter,
            writer=writer,
            undone=undone,
        )
        entry.writes += 1
        entry.offsets.begin(offsets)
        if waiter is not None:
            waiter.writes += 1
        records = [encode(written, at.wall_ms) for written in write.records()]
        return self._ledger.append(write, records, writer)

    def delete(
        self,
        entry: Entry,
        places: Iterable[TopicPartition],
        at: Moment,
        *,
        removes_group: bool = False,
        waiter: Waiter | None = None,
    ) -> list[Append]:
        """Tombstones for offsets, and as the last that of the group itself."""
        cuts: list[dict[TopicPartition, CommittedOffset | None]] = [{}]
        size = 0
        for place in places:
            size += len(entry.group.id) + len(place.topic)
            if size > TOMBSTONES_BYTES_MAX:
                cuts.append({})
                size = 0
            cuts[-1][place] = None
        appends = [self.append(entry, at, offsets=cut, waiter=waiter) for cut in cuts[:-1]]
        last = self.append(entry, at, offsets=cuts[-1], removes_group=removes_group, waiter=waiter)
        return [*appends, last]

    def newest_offsets(self) -> dict[str, dict[TopicPartition, CommittedOffset | None]]:
        """By group: the offsets in flight, each as it is written last."""
        newest: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
        for write in self:
            if write.offsets:
                newest.setdefault(write.entry.group.id, {}).update(write.offsets)
        return newest

    def note(self, number: int, base_offset: Offset) -> None:
        """The log has given `number` its place, and will commit it unless it fails."""
        self._ledger.note(number, base_offset)

    def take_before(self, offset: Offset) -> Iterator[Write]:
        """All that stand before `offset`, in the order of the log."""
        return map(self._taken, self._ledger.take_before(offset))

    def take_stored(self, number: int) -> Iterator[Write]:
        """`number` and all before it, in the order of the log."""
        return map(self._taken, self._ledger.take_stored(number))

    def take_failed(self, number: int) -> Write | None:
        """`number` alone, if it was not settled before."""
        failed = self._ledger.take_failed(number)
        return None if failed is None else self._taken(failed)

    @staticmethod
    def _taken(settled: ledger.Write[Write]) -> Write:
        write = settled.change
        write.base_offset = settled.base_offset
        write.entry.writes -= 1
        write.entry.offsets.end(write.offsets)
        return write

    def give_up(self, error: BrokerError) -> list[Answer]:
        """Nobody will hear of these any more but that."""
        waiters = {write.waiter: None for write in self._ledger.give_up()}
        return [Answer(to=waiter.reply, result=error) for waiter in waiters if waiter]

    def assert_invariants(self, entries: Iterable[Entry]) -> None:
        """Check everything at length; for tests and simulations."""
        self._ledger.assert_invariants()
        known = list(entries)
        assert all(any(write.entry is entry for entry in known) for write in self)
        for entry in known:
            mine = [write for write in self if write.entry is entry]
            assert entry.writes == len(mine)
            assert entry.offsets.in_flight.total() == sum(len(write.offsets) for write in mine)
