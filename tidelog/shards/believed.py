"""How late it is at least, though the wall clock may have jumped.

Rule: the wall clock counts only as far as it has been for a whole while of the monotonic one. So a
      clock that is ahead for less than that makes nothing older than it is, and one that is back
      counts at once.
"""

from collections import deque
from typing import Final

from tidelog.shards.effects import Moment

PATIENCE_MS: Final = 24 * 60 * 60 * 1000
"""The longest while. A coordinator that has just begun lets nothing go that was kept for longer."""
_PARTS: Final = 16
"""Into how many it is divided: so many looks are remembered, and not more."""


class BelievedTime:
    """By how much the wall clock was ahead of the monotonic one, at least, lately."""

    __slots__ = ("_at", "_known")

    def __init__(self) -> None:
        self._at = Moment(0.0, 0)
        self._known: deque[tuple[float, float]] = deque()
        """When a part of the while began, and the least by which the wall clock was ahead in it."""

    def look(self, at: Moment) -> None:
        """So the clocks are now."""
        known, ahead_ms = self._known, at.wall_ms - at.now * 1000
        if not known or (at.now - known[-1][0]) * 1000 >= PATIENCE_MS / _PARTS:
            known.append((at.now, ahead_ms))
        else:
            known[-1] = (known[-1][0], min(known[-1][1], ahead_ms))
        while len(known) > 1 and known[1][0] <= at.now - PATIENCE_MS / 1000:
            known.popleft()
        self._at = at

    def is_past(self, moment_ms: int, after_ms: int) -> bool:
        """Whether a moment is past, `after_ms` after something: that is how long a wrong clock
        must have been so to be believed, up to PATIENCE_MS."""
        if self._at.wall_ms < moment_ms:
            return False
        since = self._at.now - min(after_ms, PATIENCE_MS) / 1000
        if not self._known or self._known[0][0] > since:
            return False
        parts = list(self._known)
        ends = [began for began, _ in parts[1:]] + [self._at.now]
        ahead_ms = min(least for (_, least), end in zip(parts, ends, strict=True) if end >= since)
        return self._at.now * 1000 + ahead_ms >= moment_ms
