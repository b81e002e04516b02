"""What the machine knows of its own log; the bytes are elsewhere.

Rule 1: start <= high_watermark <= end, and synced_end <= end.
Rule 2: the watermark never falls, and nothing below it is ever truncated.
Rule 3: two logs are compared by the epoch of the last record and by where that epoch ends in the
        other one's history, never by watermarks (KIP-101, KIP-279, KIP-595).
Rule 4: the newest set of voters in the log counts, committed or not; when its record is truncated,
        the set before it counts again.
Rule 5: a disk may lose bytes that it had synced, and the log then ends before what this member has
        acknowledged. It votes by what it has acknowledged, not by what is left of it, and it does
        not stand for election until its log is whole again: until it reaches as far, in that epoch
        or in a later one. A later epoch's leader holds all that was committed before.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.log.epochs import OFFSET_MAX, EpochHistory
from tidelog.model import NO_EPOCH, NO_OFFSET, Epoch, Offset
from tidelog.raft.messages import NOWHERE, Commit, Effect, Position, SnapshotId, Truncate
from tidelog.raft.voters import ReplicaKey, VoterSet

UNKNOWN_END: Final = OFFSET_MAX
"""Where a member that does not know what it has acknowledged may have done so, in its epoch."""


class LogView:
    """One copy of the quorum's log, as its ends, its epochs and its sets of voters."""

    __slots__ = (
        "_sets",
        "_start_epoch",
        "acknowledged",
        "end",
        "epochs",
        "high_watermark",
        "is_appending",
        "is_installing",
        "snapshot",
        "start",
        "synced_end",
    )

    def __init__(
        self,
        *,
        start: Offset,
        end: Offset,
        synced_end: Offset,
        high_watermark: Offset,
        epochs: Iterable[tuple[Epoch, Offset]],
        snapshot: SnapshotId | None,
        voters: VoterSet,
        history: Iterable[tuple[Offset, VoterSet]],
        acknowledged: Position = NOWHERE,
    ) -> None:
        self.start = start
        self.end = end
        self.synced_end = synced_end
        self.snapshot = snapshot
        self.high_watermark = max(high_watermark, start, snapshot.end if snapshot else 0)
        self.epochs = EpochHistory(epochs)
        self._start_epoch: Epoch | None = NO_EPOCH if start == 0 else None
        """Of the record before `start`; None if it is not known any more."""
        if snapshot is not None and snapshot.end == start:
            self._start_epoch = snapshot.epoch
        self._sets = [(NO_OFFSET, voters), *history]
        self.is_appending = False
        """Batches of a leader are on their way to the disk."""
        self.is_installing = False
        """A leader's snapshot is on its way."""
        assert start == 0 or snapshot is not None, "what the log lacks is in a snapshot"
        assert self.high_watermark <= end, "what is committed is in the log or before it"
        assert start <= synced_end <= end
        self.acknowledged = max(acknowledged, self.position(synced_end))
        """The greatest end that others may have been told is durable here."""

    def __repr__(self) -> str:
        return (
            f"<LogView {self.start}..{self.end} synced={self.synced_end} "
            f"watermark={self.high_watermark} epochs={list(self.epochs)}>"
        )

    @property
    def last_epoch(self) -> Epoch:
        """Of the last record, deleted or not; NO_EPOCH if there never was one."""
        if len(self.epochs):
            return self.epochs.latest
        return NO_EPOCH if self._start_epoch is None else self._start_epoch

    def position(self, end: Offset) -> Position:
        """How far a log goes that ends at `end` and agrees with this one."""
        if end > self.start:
            return Position(self.epochs.epoch_at(end - 1), end)
        return Position(NO_EPOCH if self._start_epoch is None else self._start_epoch, end)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing of what was acknowledged and could be committed."""
        return Position(self.last_epoch, self.end) >= self.acknowledged

    @property
    def voters(self) -> VoterSet:
        return self._sets[-1][1]

    @property
    def voters_offset(self) -> Offset:
        """Where the record of the newest set is; NO_OFFSET if the log holds none."""
        return self._sets[-1][0]

    @property
    def are_voters_committed(self) -> bool:
        return self.voters_offset < self.high_watermark

    def may_need(self, key: ReplicaKey) -> bool:
        """Whether `key` votes by the newest set, or by an older one that could count again."""
        return any(key in voters for _, voters in self._sets)

    def is_ahead_of(self, last_epoch: Epoch, end: Offset) -> bool:
        """Whether a log that ends so lacks something this one has, or had and acknowledged."""
        mine = max(Position(self.last_epoch, self.end), self.acknowledged)
        return mine > Position(last_epoch, end)

    def end_of(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """The greatest epoch here that is not above `epoch`, and where it ends.

        All records of an epoch before those known are deleted: it ends where the log starts.
        """
        if epoch >= self.last_epoch:
            return self.last_epoch, self.end
        if epoch == NO_EPOCH or not len(self.epochs):
            return epoch, self.start
        return self.epochs.end_of(epoch, self.end)

    def compare(self, offset: Offset, last_epoch: Epoch) -> tuple[Epoch, Offset] | SnapshotId | None:
        """How to bring another log, which ends at `offset`, to agree with this one.

        None if it agrees; (epoch, end) if it must first drop what follows that end of that epoch;
        the snapshot it needs if the two meet nowhere in what is left of this log.
        """
        if offset <= self.start:
            if offset == self.start and last_epoch == self._start_epoch:
                return None
            return self.snapshot  # None only if the log is whole: all logs agree before its start
        known, end = self.end_of(last_epoch)
        if known == last_epoch and offset <= end:
            return None
        return known, end

    # Changes.

    def appended(self, *, epoch: Epoch, start: Offset, end: Offset) -> None:
        """The log has grown; to grow by nothing is how an append fails."""
        assert end >= self.end, "a log shrinks only by Truncate"
        assert epoch >= self.last_epoch, "epochs rise along the log"
        self.is_appending = False
        if end > self.end:
            self.epochs.assign(epoch, start)
            self.end = end

    def synced(self, end: Offset) -> None:
        self.synced_end = max(self.synced_end, min(end, self.end))
        self.acknowledged = max(self.acknowledged, self.position(self.synced_end))

    def caught_up(self) -> None:
        """This log holds, synced, all that its leader's does.

        So it holds all that it can have acknowledged to that leader. Only a member that does not
        know what it acknowledged needs to hear this; see `UNKNOWN_END`.
        """
        if self.acknowledged.end == UNKNOWN_END and self.synced_end == self.end:
            self.acknowledged = self.position(self.end)

    def truncate(self, end: Offset) -> list[Effect]:
        assert end >= self.high_watermark, "what is committed is never truncated"
        assert end < self.end
        self.end = end
        self.synced_end = min(self.synced_end, end)
        self.epochs.cut_end(end)
        while self._sets[-1][0] >= end:
            self._sets.pop()
        # A leader's history goes another way from here, so nothing behind it was committed.
        self.acknowledged = min(self.acknowledged, self.position(end))
        return [Truncate(end)]

    def commit(self, end: Offset) -> list[Effect]:
        """Raise the watermark to `end`, as far as the log goes."""
        end = min(end, self.end)
        if end <= self.high_watermark:
            return []
        self.high_watermark = end
        while len(self._sets) > 1 and self._sets[1][0] < end:
            del self._sets[0]  # nothing can revert to it any more
        return [Commit(end)]

    def found(self, offset: Offset, voters: VoterSet) -> None:
        """The log holds a set of voters at `offset`."""
        while self._sets and self._sets[-1][0] >= offset:
            self._sets.pop()
        self._sets.append((offset, voters))

    def taken(self, snapshot: SnapshotId, start: Offset) -> None:
        """A snapshot of what is committed was made here; the log before `start` is deleted."""
        assert snapshot.end <= self.high_watermark, "only what is committed is in a snapshot"
        assert self.start <= start <= snapshot.end, "what the log lacks is in a snapshot"
        if start > self.start:
            self._start_epoch = self.epochs.epoch_at(start - 1)
            self.start = start
            self.epochs.cut_start(start)
            if start == self.end:
                self.epochs = EpochHistory()  # its last entry would name an epoch without records
        self.snapshot = snapshot

    def installed(self, snapshot: SnapshotId, voters: VoterSet) -> list[Effect]:
        """A leader's snapshot has taken the place of all that was here."""
        assert snapshot.end >= self.high_watermark, "what is committed is never lost"
        self.is_installing = False
        self.start = self.end = self.synced_end = snapshot.end
        self._start_epoch = snapshot.epoch
        self.epochs = EpochHistory()
        self.snapshot = snapshot
        if self.acknowledged.end <= snapshot.end:  # all of that was decided, in one way or another
            self.acknowledged = self.position(snapshot.end)
        self._sets = [(NO_OFFSET, voters)]
        return self.commit(snapshot.end)
