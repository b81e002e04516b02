"""What goes wrong with clusters of tests; the message says what to look at."""

from tidelog.errors import TidelogError


class NotInTime(TidelogError):
    """What was waited for did not happen; the message says how things were at the end."""


class NotRunning(TidelogError):
    """The cluster, or the node, does not run; start it first."""


class StartFailed(TidelogError):
    """A node ended before it was ready; the message says what it said."""
