"""How much queues remember, and for how long."""

from dataclasses import dataclass
from typing import Final

SWEPT_MAX: Final = 300
"""Messages that one write of a sweep deletes or moves, and one turn of the clock sees to."""
DELETED_MAX: Final = 1000
"""Keys that one write deletes of what nobody uses any more."""
SEQUENCES_AT_ONCE: Final = 65_536
"""Of messages that the log is told of before they come, so that it seldom has to be."""
POINTER_MESSAGES_MAX: Final = 10_000_000
"""Of one queue with pointers; each costs eight bytes of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of queues, of one partition each."""

    request_window_ms: int = 600_000
    """How long a request is known again by its key."""
    requests_bytes_max: int = 16 * 1024 * 1024
    """What the requests that are known may take of memory; beyond it the oldest go."""
    receive_bytes_max: int = 1024 * 1024
    """Of all messages in one answer, unless it is a single one."""
    pointer_retention_ms: int = -1
    """A client that has read nothing for so long is forgotten; -1: never."""
