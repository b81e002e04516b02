"""What is logged of others that misbehave: of each host a line now and then, whatever it does."""

from typing import Final

from tidelog.host.doors import Clock

SAY_SECONDS: Final = 10.0
HOSTS_MAX: Final = 100


class Complaints:
    """Says which lines of a log are worth writing.

    Invariant: at most `HOSTS_MAX` hosts are remembered, and so many lines are written in `SAY_SECONDS`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_at: dict[str, float] = {}
        self._unsaid = 0

    def about(self, host: str) -> str | None:
        """What to add to a line about this host; None if there shall be none now."""
        now = self._clock.monotonic()
        said_at = self._said_at
        last = said_at.get(host, float("-inf"))
        if len(said_at) >= HOSTS_MAX:  # the earliest is forgotten, but not to say more
            last = max(last, next(iter(said_at.values())))
        if now - last < SAY_SECONDS:
            self._unsaid += 1
            return None
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        self._unsaid = 0
        said_at.pop(host, None)
        if len(said_at) >= HOSTS_MAX:
            del said_at[next(iter(said_at))]
        said_at[host] = now
        return more
