"""Which leader wrote which part of the log.

Rule 1: epochs and their start offsets both rise; an entry is made when an epoch's first batch
        arrives, so every entry names an epoch that has records.
Rule 2: followers reconcile by this history alone, never by a watermark (KIP-101, KIP-279).
"""

# leader-epoch-checkpoint := see `checkpoints`

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from tidelog.errors import TidelogError
from tidelog.log.checkpoints import CheckpointDamaged, decode_lines, encode_lines
from tidelog.model import NO_EPOCH, NO_OFFSET, Epoch, Offset

FILE_NAME: Final = "leader-epoch-checkpoint"
EPOCH_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1


class EpochsDamaged(TidelogError):
    """The checkpoint file does not make sense; the history is rebuilt from the log."""


class EpochHistory:
    """The epochs in a log, each with the offset of its first record."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[Epoch, Offset]] = ()) -> None:
        self._entries = list(entries)

    def __iter__(self) -> Iterator[tuple[Epoch, Offset]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def latest(self) -> Epoch:
        return self._entries[-1][0] if self._entries else NO_EPOCH

    def assign(self, epoch: Epoch, start: Offset) -> bool:
        """Note that `epoch` begins at `start`; False if the history knows it already."""
        if epoch <= self.latest:
            return False
        self.cut_end(start)  # an epoch whose records are all deleted leaves an entry at the end
        self._entries.append((epoch, start))
        return True

    def end_of(self, epoch: Epoch, log_end: Offset) -> tuple[Epoch, Offset]:
        """The greatest epoch not above `epoch`, and the offset where it ends.

        (NO_EPOCH, NO_OFFSET) when `epoch` is not known yet. Of an epoch before all known ones the
        records are deleted: it is said to end where the history begins, as Kafka says it.
        """
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        end = log_end
        for known, start in reversed(self._entries):
            if known <= epoch:
                return known, end
            end = start
        return epoch, end

    def not_above(self, epoch: Epoch, log_end: Offset) -> tuple[Epoch, Offset]:
        """The greatest epoch here that is not above `epoch`, and where it ends.

        As `end_of`, for replicas, who may know of later epochs than this log has records of.
        (NO_EPOCH, where the history begins) if there is none: what was before is deleted.
        """
        if epoch >= self.latest:
            return self.latest, log_end
        known, end = self.end_of(epoch, log_end)
        if self._entries[0][0] > epoch:
            return NO_EPOCH, self._entries[0][1]
        return known, end

    def epoch_at(self, offset: Offset) -> Epoch:
        """The epoch of the record at `offset`."""
        for epoch, start in reversed(self._entries):
            if start <= offset:
                return epoch
        return NO_EPOCH

    def cut_end(self, end: Offset) -> bool:
        """Forget epochs that begin at or after `end`; True if any did."""
        before = len(self._entries)
        while self._entries and self._entries[-1][1] >= end:
            self._entries.pop()
        return len(self._entries) != before

    def cut_start(self, start: Offset) -> bool:
        """Forget epochs that ended at or before `start`; the one that holds it now begins there."""
        keep = 0
        while keep + 1 < len(self._entries) and self._entries[keep + 1][1] <= start:
            keep += 1
        changed = keep > 0
        del self._entries[:keep]
        if self._entries and self._entries[0][1] < start:
            self._entries[0] = (self._entries[0][0], start)
            changed = True
        return changed

    def encode(self) -> bytes:
        return encode_lines(f"{epoch} {start}" for epoch, start in self._entries)

    @classmethod
    def decode(cls, data: bytes) -> "EpochHistory":
        try:
            lines = decode_lines(data)
            entries = [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]
        except (ValueError, CheckpointDamaged) as error:
            raise EpochsDamaged(f"not a leader epoch checkpoint: {error}") from error
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries))
        possible = all(0 <= e < EPOCH_MAX and 0 <= o <= OFFSET_MAX for e, o in entries)
        if not (rising and possible):
            raise EpochsDamaged("the leader epoch checkpoint does not rise")
        return cls(entries)
