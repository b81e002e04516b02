"""What can go wrong between a copy and the cluster, by name.

Rule: none of them is the end of a copy. It is counted, told by `status()`, and tried again; `wait`
      raises the last one when the time is over. What was copied stays readable.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.errors import TidelogError


class ReplicationError(TidelogError):
    """Copying failed; the message says why, and the copy tries again by itself."""

    code: ClassVar[str] = "SyncFailed"
    """What nodes and copies call it."""


class ConnectionFailed(ReplicationError):
    """No node could be reached, or the connection was lost."""

    code = "ConnectionFailed"


class SyncFailed(ReplicationError):
    """The node, or the disk here, could not do it now."""

    code = "SyncFailed"


class OffsetNotFound(ReplicationError):
    """There is no such offset, or no such source: has it been made?"""

    code = "OffsetNotFound"


class ChecksumMismatch(ReplicationError):
    """What arrived is not what was sent; it was not applied, and is asked for again."""

    code = "ChecksumMismatch"

    def __init__(
        self, message: str, *, expected: int | str | None = None, actual: int | str | None = None
    ) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class LogTruncated(ReplicationError):
    """The log does not go back so far any more; all of it is asked for."""

    code = "LogTruncated"


class ProtocolError(ReplicationError):
    """One side said what the other does not understand; they may be of different versions."""

    code = "ProtocolError"


_BY_CODE: Final[Mapping[str, type[ReplicationError]]] = {
    kind.code: kind
    for kind in (ConnectionFailed, SyncFailed, OffsetNotFound, ChecksumMismatch, LogTruncated, ProtocolError)
}


def error_of(code: str, detail: str) -> ReplicationError:
    """The error that a node has told of."""
    return _BY_CODE.get(code, SyncFailed)(detail)
