"""Looks at answers that wait for the election of a leader, while whole clusters run under faults.

| invariant                 | meaning                                                              |
|---------------------------|----------------------------------------------------------------------|
| held answers go out       | no answer waits longer than `DOUBT_SECONDS_MAX` while its node runs  |

Rule 1: time in which a node is paused does not count: nothing of it runs.
Rule 2: the bound is kept by a clock. Where a fault makes clocks run fast or slow, nothing is judged.
"""

from typing import Final

from tidelog.broker.leader_doubts import DOUBT_SECONDS_MAX
from tidelog.simulation.world import World

HELD: Final = "held answers go out"

_CHECK_EVERY_EVENTS: Final = 32
_LATE_SECONDS: Final = 0.05
"""What comes due is not seen at once."""


class HeldAnswerWatch:
    """Notes since when each node's oldest held answer has been the oldest."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._oldest: dict[int, tuple[object, float]] = {}
        world.invariant(HELD, self._check, every=_CHECK_EVERY_EVENTS)

    def _check(self) -> str | None:
        now = self._world.now
        for machine in self._world.machines.values():
            doubts = getattr(getattr(machine.node, "broker", None), "leader_doubts", None)
            oldest = next(iter(doubts.waiting), None) if doubts is not None else None
            if oldest is None or machine.is_paused or not machine.is_up:
                self._oldest.pop(machine.number, None)
                continue
            seen, since = self._oldest.setdefault(machine.number, (oldest, now))
            if seen is not oldest:
                self._oldest[machine.number] = oldest, now
                continue
            assert machine.process is not None, "it is up"
            seconds = now - max(since, machine.process.woke_at)  # nobody may have looked during a pause
            if seconds > DOUBT_SECONDS_MAX + _LATE_SECONDS and not self._world.faults["skew_clock"]:
                return f"{machine.name} has held an answer for {seconds:.3f} s"
        return None
