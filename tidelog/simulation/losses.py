"""What elections by force may lose, and what they have lost.

An operator may say that a replica leads which lacks committed records (`promote --force`, `elect
unclean`), and a topic may say so of itself (`unclean.leader.election.enable`). Its log is the truth
from then on. What that excuses is this, and nothing else:

| rule                             | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| nobody loses who did not ask     | only partitions for which it was said that they may           |
| what the new leader has stays    | lost is what it lacks, or has of another epoch, or has not    |
|                                  | synced when it begins to lead                                 |
| what comes later stays           | all that is committed in its epoch or after it, unless the    |
|                                  | next such election loses it                                   |
| acknowledged was committed       | at that offset, by whoever led then                           |
| a reader is told                 | OffsetForLeaderEpoch shows whoever read what is lost that it  |
|                                  | is, and shows so to nobody else                               |
| a writer is told                 | of a sequence that is out of order, only if what was before   |
|                                  | it may be lost                                                |

A record is known by its offset and the epoch in which it was written: nobody writes that twice.
A leader that was deposed by force and has not heard of it may commit, in its own epoch, what is
lost already. With what is lost, a later log start may be lost: deleted records may come back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidelog.controller.image import PartitionImage
from tidelog.log.epochs import EpochHistory
from tidelog.model import NO_NODE, NO_OFFSET, Epoch, Offset
from tidelog.records import BatchHeader, decode_batch
from tidelog.simulation.history import Operation, Poll, Read, Send


class Cut(NamedTuple):
    """An election by force: who leads since `epoch` has of what was committed what is below."""

    epoch: Epoch
    offset: Offset


@dataclass(slots=True)
class Kept:
    """One partition: what was ever committed, and what is to be found of it."""

    cuts: list[Cut] = field(default_factory=list)
    pending: Epoch | None = None
    """Since when somebody is to lead by force who has not begun to."""
    chain: EpochHistory = field(default_factory=EpochHistory)
    """Which epoch wrote what, of all that is committed and not lost."""
    end: Offset = 0
    """Where that ends."""
    committed: dict[bytes, dict[tuple[Offset, Epoch], None]] = field(default_factory=dict)
    """By value, where each record was that was ever committed, and in which epoch written."""
    batches: dict[tuple[Offset, Epoch], Offset] = field(default_factory=dict)
    """Where each batch of these ended."""
    torn: dict[Epoch, list[tuple[Offset, Offset]]] = field(default_factory=dict)
    """Batches of which the end is lost, and what was before it is deleted."""

    def floor(self, since: Epoch, epoch: Epoch, offset: Offset) -> Offset:
        """How much of what was committed below `offset` in `since` is there in `epoch`."""
        cuts = (cut.offset for cut in self.cuts if since < cut.epoch <= epoch)
        return min(cuts, default=offset) if self.cuts else offset

    def is_deposed(self, epoch: Epoch) -> bool:
        """Whether somebody leads by force since a later epoch."""
        return bool(self.cuts) and epoch < self.cuts[-1].epoch

    def is_there(self, offset: Offset, epoch: Epoch) -> bool:
        """Whether the record that was written there in that epoch is not lost."""
        if offset >= self.end or self.chain.epoch_at(offset) != epoch:
            return False
        return not any(base <= offset < end for base, end in self.torn.get(epoch, ()))


def by_force(before: PartitionImage | None, after: PartitionImage) -> bool:
    """Whether who leads now may lack what was committed; a few who do not look so, too."""
    if before is None or after.leader in (NO_NODE, before.leader):
        return False
    if after.partition_epoch > before.partition_epoch + 1:
        return True  # something was not heard of
    is_alone = after.in_sync == {after.leader} and not after.eligible
    return is_alone and before.in_sync != {after.leader}


def agreement(
    mine: Iterable[tuple[Epoch, Offset]],
    start: Offset,
    end: Offset,
    others: Iterable[tuple[Epoch, Offset]],
    other_end: Offset,
) -> Offset:
    """Up to where two logs have the same records, as far as both know who wrote what."""
    ours, theirs = EpochHistory(mine), EpochHistory(others)
    end = min(end, other_end)
    firsts = {first for history in (ours, theirs) for _, first in history}
    known_from = max([start, *(history_start(h) for h in (ours, theirs))])
    for offset in sorted({known_from, *firsts}):
        if known_from <= offset < end and ours.epoch_at(offset) != theirs.epoch_at(offset):
            return offset
    return end


def history_start(history: EpochHistory) -> Offset:
    return next((first for _, first in history), 0)


class Losses:
    """What is there and what is lost of every partition, by its name."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}

    def of(self, partition: str) -> Kept:
        return self._kept.setdefault(partition, Kept())

    # What the watch sees.

    def committed(
        self,
        partition: str,
        epoch: Epoch,
        batches: Iterable[tuple[BatchHeader, memoryview]],
        end: Offset,
        epochs: Iterable[tuple[Epoch, Offset]],
    ) -> None:
        """Who leads in `epoch`, with a log of these `epochs`, commits all up to `end`.

        `batches` are of it: all that were not committed before, and maybe others.
        """
        kept = self.of(partition)
        for header, batch in batches:
            kept.batches[header.base_offset, header.leader_epoch] = header.next_offset
            for record in decode_batch(batch):
                if record.offset < end:
                    at = record.offset, header.leader_epoch
                    kept.committed.setdefault(record.value or b"", {})[at] = None
        if not kept.is_deposed(epoch) and end > kept.end:
            for written_in, first in epochs:
                if first < end:
                    kept.chain.assign(written_in, first)
            kept.end = end

    def begun(self, partition: str, epoch: Epoch, offset: Offset) -> None:
        """Somebody leads by force, and has what is below `offset` of what was committed."""
        kept = self.of(partition)
        kept.cuts.append(Cut(epoch, offset))
        kept.pending = None
        for (base, written_in), end in kept.batches.items():
            if base < offset < end and kept.is_there(base, written_in):  # an empty log begins there
                kept.torn.setdefault(written_in, []).append((base, end))
        if offset < kept.end:
            kept.chain.cut_end(offset)
            kept.end = offset

    # What clients say.

    def not_committed(self, partition: str, base: Offset, values: Sequence[bytes]) -> str | None:
        """What of a batch that was acknowledged at `base` was never committed there."""
        committed = self.of(partition).committed
        for offset, value in enumerate(values, base):
            if not any(at == offset for at, _ in committed.get(value, ())):
                return f"{partition}: {value[:40]!r} at {offset} was acknowledged, not committed"
        return None

    def surviving(
        self, history: Iterable[Operation], written_in: Mapping[int, Sequence[Epoch]]
    ) -> Iterator[Operation]:
        """The history as if nobody had been told of what is lost.

        `written_in` has the epochs of the records of a poll, by when it was begun. Who sent what is
        lost does not know whether it was written: it may have been, a second time.
        """
        for operation in history:
            match operation:
                case Poll() if operation.invoked in written_in:
                    epochs = written_in[operation.invoked]
                    yield replace(
                        operation, reads=tuple(self._left(read, epochs) for read in operation.reads)
                    )
                case Send(type="ok", offset=int()) if not self._stays(operation):
                    yield replace(operation, type="info", offset=None)
                case _:
                    yield operation

    def _left(self, read: Read, epochs: Sequence[Epoch]) -> Read:
        kept = self.of(read.partition)
        left = [
            (offset, value)
            for offset, value, epoch in zip(read.offsets, read.values, epochs, strict=True)
            # What was never committed is for the checker to find.
            if kept.is_there(offset, epoch) or (offset, epoch) not in kept.committed.get(value, ())
        ]
        return replace(read, offsets=tuple(offset for offset, _ in left), values=tuple(v for _, v in left))

    def _stays(self, send: Send) -> bool:
        assert send.offset is not None
        kept = self.of(send.partition)
        return all(
            any(at == offset and kept.is_there(at, epoch) for at, epoch in kept.committed[value])
            for offset, value in enumerate(send.values, send.offset)
        )


def truncated(epoch: Epoch, told_epoch: Epoch, told_end: Offset, position: Offset) -> bool:
    """Whether who read up to `position`, in the end in `epoch`, has read what is lost."""
    return told_end == NO_OFFSET or told_epoch != epoch or told_end < position
