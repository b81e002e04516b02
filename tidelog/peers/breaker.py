"""Whether a peer may be tried now: the circuit breaker of one link.

Rule 1: nothing here reads a clock, draws a random number or waits; both come as arguments.
Rule 2: while it is open nobody waits for the peer: whoever asks fails at once.
Rule 3: half-open, one try is under way and no second one begins.

    state      trigger                                      then
    ---------  -------------------------------------------  ---------------------------------
    closed     `begin`: a try, at any time                  closed, and the try may go
    closed     `succeeded`: the try found the peer          closed
    closed     `failed`: it did not                         open, for 0.05 s at most
    closed     `abandoned`: nobody knows                    closed
    open       `begin`, before its time                     open, and the try may not go
    open       `begin`, in its time                         half-open, and the try may go
    open       `hurry`: somebody must know now              open, and its time has come
    half-open  `begin`                                      half-open, and the try may not go
    half-open  `succeeded`                                  closed
    half-open  `failed`                                     open, for twice as long, 1 s at most
    half-open  `abandoned`                                  open, and its time has come

`hurry` changes nothing elsewhere. A lost connection (`lost`) leaves the breaker closed: so the
first try after it goes at once, and only if that fails does the breaker open. Neither does a
request without an answer open it: a peer may be slow, and the connection to it sound.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

BACKOFF_SECONDS: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 1.0


class BreakerState(Enum):
    """Whether tries go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerStatus:
    """What a health page shows of the way to one peer. Times are of the monotonic clock."""

    state: BreakerState
    since: float
    """When it came into this state."""
    open_since: float | None
    """When it opened, however often it was half-open since; None while it is closed."""
    retry_at: float | None
    """When the next try may go; None unless it is open."""
    attempts: int
    failures: int
    """Of the attempts."""
    consecutive_failures: int
    times_opened: int
    """From closed; a failure while half-open is not counted again."""
    connections_lost: int
    requests_failed: int
    """Requests that got no answer, for whatever reason: refused while open, too late, lost on the
    way, or failed at the peer."""
    last_error: str | None


class Breaker:
    """The circuit breaker of one peer.

    Invariant: it is closed exactly while no try has failed since the last one that succeeded.
    Invariant: the wait before the next try is at least half, and at most all, of the backoff.
    Owned by one link.
    """

    __slots__ = (
        "_attempts",
        "_backoff",
        "_connections_lost",
        "_consecutive_failures",
        "_failures",
        "_last_error",
        "_open_since",
        "_requests_failed",
        "_retry_at",
        "_since",
        "_state",
        "_times_opened",
    )

    def __init__(self, *, now: float) -> None:
        self._state = BreakerState.CLOSED
        self._since = now
        self._open_since: float | None = None
        self._retry_at = now
        self._backoff = BACKOFF_SECONDS
        self._attempts = 0
        self._failures = 0
        self._consecutive_failures = 0
        self._times_opened = 0
        self._connections_lost = 0
        self._requests_failed = 0
        self._last_error: str | None = None

    def __repr__(self) -> str:
        return (
            f"<breaker {self._state.value} since {self._since:.3f}, "
            f"{self._consecutive_failures} failures in a row>"
        )

    @property
    def state(self) -> BreakerState:
        return self._state

    def status(self) -> BreakerStatus:
        return BreakerStatus(
            state=self._state,
            since=self._since,
            open_since=self._open_since,
            retry_at=self._retry_at if self._state is BreakerState.OPEN else None,
            attempts=self._attempts,
            failures=self._failures,
            consecutive_failures=self._consecutive_failures,
            times_opened=self._times_opened,
            connections_lost=self._connections_lost,
            requests_failed=self._requests_failed,
            last_error=self._last_error,
        )

    # One try, from its beginning to its end.

    def begin(self, now: float) -> bool:
        """Whether a try may go now. If so it has begun, and one of the three below ends it."""
        if self._state is BreakerState.HALF_OPEN:
            return False
        if self._state is BreakerState.OPEN:
            if now < self._retry_at:
                return False
            self._enter(BreakerState.HALF_OPEN, now)
        self._attempts += 1
        return True

    def succeeded(self, now: float) -> float | None:
        """The peer was reached; for how many seconds it had not been, if it closes now."""
        assert self._state is not BreakerState.OPEN, "a try begins before it ends"
        self._consecutive_failures = 0
        self._backoff = BACKOFF_SECONDS
        if self._open_since is None:
            return None
        seconds_open = now - self._open_since
        self._open_since = None
        self._enter(BreakerState.CLOSED, now)
        return seconds_open

    def failed(self, now: float, error: str, *, draw: float) -> bool:
        """The peer was not reached; whether it opens now, having been closed.

        `draw` is random, from 0 up to 1: peers that lost each other together part in time.
        """
        assert self._state is not BreakerState.OPEN, "a try begins before it ends"
        self._failures += 1
        self._consecutive_failures += 1
        self._last_error = error
        self._retry_at = now + self._backoff * (0.5 + draw / 2)
        # Doubled step by step: 2 to the power of a day's failures is more than a float can hold.
        self._backoff = min(2 * self._backoff, BACKOFF_SECONDS_MAX)
        self._enter(BreakerState.OPEN, now)
        if self._open_since is not None:
            return False
        self._open_since = now
        self._times_opened += 1
        return True

    def abandoned(self, now: float) -> None:
        """The try ended without telling anything of the peer: another may go."""
        assert self._state is not BreakerState.OPEN, "a try begins before it ends"
        if self._state is BreakerState.HALF_OPEN:
            self._retry_at = now
            self._enter(BreakerState.OPEN, now)

    # What happens besides.

    def hurry(self, now: float) -> None:
        """Let the next try go without waiting for its time."""
        self._retry_at = min(self._retry_at, now)

    def lost(self, error: str) -> None:
        """A connection that had been made broke."""
        self._connections_lost += 1
        self._last_error = error

    def request_failed(self) -> None:
        """A request got no answer."""
        self._requests_failed += 1

    def _enter(self, state: BreakerState, now: float) -> None:
        self._state = state
        self._since = now
