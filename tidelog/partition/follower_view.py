"""What a leader knows of one follower, as far as that follower has told.

Rule: all of it counts in one epoch of the leader and in one life of the follower.
"""

from dataclasses import dataclass
from typing import Final

from tidelog.model import NO_OFFSET, Offset

NO_LIFE: Final = -1


@dataclass(slots=True)
class FollowerView:
    """What the leader knows of one follower, in this epoch."""

    level_at: float
    """When it last was level with the leader."""
    held: Offset = NO_OFFSET
    """Everything below it is as safe there as the topic demands."""
    synced: Offset = NO_OFFSET
    """Everything below it is synced there, as far as it has told."""
    broker_epoch: int = NO_LIFE
    """The life that it fetches in; NO_LIFE if it has not fetched yet."""
    offset: Offset = NO_OFFSET
    """Where it last read."""
    end_then: Offset = 0
    """Where the leader's log ended when it did."""
    fetched_at: float = 0.0
    promised: Offset = 0
    """It has promised that its log will begin there, if it comes to lead."""
    held_at: float = 0.0
    """When what it held was last all that the leader had a while before."""
    mark_end: Offset = 0
    """What it must hold for `held_at` to become `mark_at`."""
    mark_at: float = 0.0
    waited_at: float = 0.0
    """When it last waited for what this leader holds back from those who catch up."""
    disk_full: bool = False
    """Whether it has said, since it last read, that its disk has no room for more."""

    def is_late(self, now: float, seconds_max: float) -> bool:
        """Whether it has not kept level, in reading or in holding, for longer than that."""
        return now - min(self.level_at, self.held_at) > seconds_max
