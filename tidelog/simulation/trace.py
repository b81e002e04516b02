"""What happened, line by line, and the hash of it.

Rule: the hash is of the lines, whether or not anybody keeps them; two runs with the same hash did
the same things at the same times.
"""

import hashlib
from collections import deque
from typing import Final, Protocol

TAIL_LINES: Final = 60


class HasNow(Protocol):
    now: float


class Trace:
    """Lines of `<virtual time> <who> <what>`; only the last few are kept unless asked."""

    def __init__(self, clock: HasNow, *, keep: bool = False) -> None:
        self._clock = clock
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: deque[str] = deque(maxlen=None if keep else TAIL_LINES)
        self._at = (clock.now, f"{clock.now:.6f}")
        """The newest time at which something was noted, and its text."""
        self.muted = False

    def note(self, who: str, what: str) -> None:
        if self.muted:
            return
        now, text = self._at
        if now != self._clock.now:
            now = self._clock.now
            text = f"{now:.6f}"
            self._at = (now, text)
        line = f"{text} {who} {what}\n"
        self._hash.update(line.encode())
        self._lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def lines(self) -> list[str]:
        """All lines if they are kept, otherwise the last few."""
        return [line[:-1] for line in self._lines]

    def tail(self, count: int = TAIL_LINES) -> list[str]:
        return self.lines()[-count:]
