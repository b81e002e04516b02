"""The follower's half of replication.

Rule 1: nothing here reads a clock, file or socket.
Rule 2: a log is cut only where the leader's history of epochs says that the two differ, never by a
        watermark (KIP-101); and then to the end of the greatest epoch that both have (KIP-279).
Rule 3: nothing is told of what this replica holds or promises before the leader of this epoch has
        found the two logs to agree.

    state      what the leader answers          effect, next state
    ---------  -------------------------------  ------------------------------------------------
    aligning   the logs agree                   tell what is held; following
    aligning   they differ from (epoch, end)    cut, ask again; aligning
                                                (begin anew, if what stays was compacted for the
                                                sake of what goes: only if committed records do)
    any        nothing is in both logs          begin anew at the leader's start; aligning
    any        what is asked for is deleted     the same
    any        tombstones past it are purged    the same: this log may hold values without them
    any        who wrote what is deleted        the same: this log is empty, and does not know it;
                                                if it has batches, note so and ask again
    following  batches                          append, ask for the next; following
    following  they differ                      the same as above: a full disk may have cut the log

Another epoch is another `Follower`.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.log.epochs import EpochHistory
from tidelog.model import NO_EPOCH, NO_OFFSET, Epoch, NodeId, Offset

NO_PURGES: Final = -1


@dataclass(frozen=True, slots=True)
class Cut:
    """Remove everything from `end` on, then ask again."""

    end: Offset


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Remove everything, and begin at `start`: what this log lacks is gone at the leader."""

    start: Offset
    purged: Offset = 0
    """Below it the leader's log may lack tombstones."""
    purges: int = NO_PURGES
    """How many purges the leader counted then."""
    producers: bytes = b""
    """A snapshot of who wrote what is deleted before `start`; empty if the leader does not say."""


@dataclass(frozen=True, slots=True)
class LearnProducers:
    """Note `producers`, a snapshot of who wrote what is deleted before `start`; batches stay."""

    start: Offset
    producers: bytes


LogChange: TypeAlias = Cut | BeginAnew | LearnProducers


class Follower:
    """One partition's follower, in one epoch of its leader.

    Invariant: `told` is what the leader was told of in this epoch, and is held.
    """

    __slots__ = (
        "epoch",
        "is_aligned",
        "leader",
        "level_at",
        "must_tell",
        "purges",
        "told",
        "told_start",
        "told_synced",
        "wanted_start",
        "watermark",
    )

    def __init__(self, *, epoch: Epoch, leader: NodeId) -> None:
        self.epoch = epoch
        self.leader = leader
        self.is_aligned = False
        self.purges = NO_PURGES
        """How many the leader had counted when this log began anew, if it did in this epoch."""
        self.must_tell = True
        """Whether the leader may not know what this replica holds, though nothing has changed."""
        self.told: Offset = -1
        self.told_start: Offset = -1
        self.told_synced = True
        """Whether what was told is synced here, and not only written."""
        self.wanted_start: Offset = NO_OFFSET
        """Where the leader asks this log to begin, once it does itself; NO_OFFSET until it says."""
        self.watermark: Offset = 0
        """The leader's, as it said last; this log may not reach so far."""
        self.level_at: float | None = None
        """When an answer last left nothing lacking of what is committed; None if none has yet."""

    def __repr__(self) -> str:
        state = "following" if self.is_aligned else "aligning with"
        return f"<Follower {state} {self.leader} epoch={self.epoch}>"

    def agreed(self) -> bool:
        """The leader found nothing to differ so far; whether to tell it what is held."""
        self.is_aligned = True
        must_tell, self.must_tell = self.must_tell, False
        if must_tell:
            self.told = self.told_start = -1
        return must_tell

    def differs(
        self, epoch: Epoch, end: Offset, *, mine: EpochHistory, start: Offset, log_end: Offset
    ) -> Cut | BeginAnew:
        """The leader's `epoch`, the greatest not above this log's last, ends at `end`."""
        self.doubt()
        if epoch == NO_EPOCH:  # the leader knows of nothing as old as this log's end
            return BeginAnew(end)
        _, my_end = mine.not_above(epoch, log_end)
        cut = min(end, my_end)
        return Cut(cut) if cut >= start else BeginAnew(end)

    def is_behind(
        self, leader_start: Offset, purged: Offset = 0, purges: int = NO_PURGES, producers: bytes = b""
    ) -> BeginAnew:
        """What this log lacks is deleted, or purged, at the leader."""
        self.doubt()
        return BeginAnew(leader_start, purged, purges, producers)

    def news(self, held: Offset, promised: Offset = NO_OFFSET, *, is_synced: bool = True) -> bool:
        """Whether the leader should be told that everything below `held` is safe here.

        Or that it is synced, of which only the writing was told, or that this log will begin at
        `promised`.
        """
        if not self.is_aligned or self.must_tell:
            return False
        if is_synced and not self.told_synced:
            self.told = -1
        self.told_synced = is_synced
        if held <= self.told and promised <= self.told_start:
            return False
        self.told, self.told_start = max(self.told, held), max(self.told_start, promised)
        return True

    def tell_again(self) -> None:
        """What was told may not have arrived."""
        self.told = self.told_start = -1
        self.must_tell = True

    def doubt(self) -> None:
        """The two logs may differ after all."""
        self.is_aligned = False
        self.tell_again()


def disagreement(
    history: EpochHistory, log_end: Offset, offset: Offset, last_epoch: Epoch
) -> tuple[Epoch, Offset] | None:
    """Where a log that ends at `offset` in `last_epoch` leaves the leader's; None if it does not.

    The answer is the greatest epoch of the leader's not above `last_epoch`, and where it ends.
    """
    if last_epoch == NO_EPOCH:  # an empty log agrees with any that reaches so far
        return (NO_EPOCH, log_end) if offset > log_end else None
    known, end = history.not_above(last_epoch, log_end)
    if known == last_epoch and offset <= end:
        return None
    return known, end
