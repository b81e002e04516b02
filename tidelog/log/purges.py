"""What compaction has taken away for good: tombstones, and markers of transactions.

A replica that was away may hold a value whose tombstone its leader has no more. It would keep the
value for ever. So each replica knows below which offset its log may lack tombstones; a follower
that ends before it begins anew (docs/decisions/017-tombstones.md).

Rule 1: the floor is on the disk before a tombstone below it is gone from the files.
Rule 2: a log that began anew inherits the floor of the leader that it was copied from, before its
        first record.
Rule 3: who began anew in a leader's epoch never had values without their tombstones of what was
        purged before; of that leader, only later purges concern it.
"""

from tidelog.model import Offset


class Purges:
    """The purges of one log.

    Invariant: every tombstone that this log lacks, and had, or the log that it was copied from,
    lies below `floor`.
    """

    __slots__ = ("_later", "count", "floor")

    def __init__(self, floor: Offset = 0) -> None:
        self.begin(floor)

    def __repr__(self) -> str:
        return f"<Purges below {self.floor}, {self.count} in this life>"

    def begin(self, floor: Offset) -> None:
        """The log is copied from one that lacks tombstones below `floor`."""
        self.floor = floor
        self.count = 0
        """How many there were since this process opened the log, or began it anew."""
        self._later: list[tuple[int, Offset]] = []  # counts rise, ends fall

    def add(self, end: Offset) -> None:
        """Some tombstones below `end` are gone."""
        self.count += 1
        self.floor = max(self.floor, end)
        while self._later and self._later[-1][1] <= end:
            self._later.pop()
        self._later.append((self.count, end))

    def since(self, count: int | None) -> Offset:
        """Below which offset tombstones are gone since there were `count` purges; None: ever."""
        if count is None:
            return self.floor
        return next((end for at, end in self._later if at > count), 0)
