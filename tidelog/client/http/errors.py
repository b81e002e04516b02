"""What can go wrong for who uses the HTTP client, by name.

Rule 1: an error is chosen by the answer's status and carries the problem document that came.
Rule 2: a write of which nobody knows whether it happened is an `OutcomeUnknown`, and nothing else
        is; every other error of a write means that it did not happen, nor will by an attempt that
        was lost on its way. Of records for several partitions that were refused for one,
        `problem["records"]` tells what became of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from tidelog.errors import TidelogError

ABOUT: Final = frozenset({"type", "title", "status", "detail", "request_id", "code"})
"""What a problem document says of the answer, rather than of what became of the request."""


class BadAddress(TidelogError, ValueError):
    """An address is not one; the message shows how one looks."""


class TidelogHTTPError(TidelogError):
    """A node refused what was asked of it, or none answered; the message says what to do.

    `problem` is the document of the last answer (RFC 9457), empty if there was none.
    """

    status_usual: ClassVar[int] = 0

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        problem: Mapping[str, Any] | None = None,
        attempts: Sequence[str] = (),
        is_repeat: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = self.status_usual if status is None else status
        """Of the answer; what the class stands for, if there was no answer."""
        self.problem = dict(problem or {})
        self.attempts = tuple(attempts)
        """What became of the attempts before the last one, in order."""
        self.is_repeat = is_repeat
        """Whether an earlier attempt of this call may have been carried out."""

    @property
    def detail(self) -> str:
        return str(self.problem.get("detail", self))

    @property
    def request_id(self) -> str | None:
        """Under which the node's log may have more."""
        found = self.problem.get("request_id")
        return None if found is None else str(found)


class BadRequest(TidelogHTTPError):
    """The request is wrong in itself; change it, for it will be refused again."""

    status_usual = 400


class NotFound(TidelogHTTPError):
    """There is no such topic, partition, bucket, key or group."""

    status_usual = 404


class Conflict(TidelogHTTPError):
    """It is not as the request supposed: read again, decide again."""

    status_usual = 409

    @property
    def version(self) -> int | None:
        """The key's version now; None if it is absent, or if this is not about a key."""
        found = self.problem.get("version")
        return found if isinstance(found, int) else None


class TooLarge(TidelogHTTPError):
    """The request has more bytes than the node or the topic takes; send less at once."""

    status_usual = 413


class OutOfRange(TidelogHTTPError):
    """The offset is not in the log; read without one to begin with the oldest record."""

    status_usual = 416


class QueueFull(TidelogHTTPError):
    """The queue takes no more now; wait until some of it is done."""

    status_usual = 429


class Unavailable(TidelogHTTPError):
    """No node could do it now. Nothing was written; ask again later."""

    status_usual = 503


class OutcomeUnknown(TidelogHTTPError):
    """The write may have happened, or may happen yet.

    Look, or repeat it with the same `idempotency_key`: then it happens once.
    """

    status_usual = 504

    def __init__(self, message: str, *, idempotency_key: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.idempotency_key = idempotency_key

    @property
    def known(self) -> dict[str, Any]:
        """What a node knew: `outcome`, and maybe `offset`, `written`, `committed`, `replicas`."""
        found = {name: fact for name, fact in self.problem.items() if name not in ABOUT}
        return {"outcome": "unknown"} | found

    @property
    def is_committed(self) -> bool:
        """Whether it did happen, and only the replicas that were asked for were not all seen."""
        return bool(self.known["outcome"] == "committed")


_BY_STATUS: Final[Mapping[int, type[TidelogHTTPError]]] = {
    400: BadRequest,
    404: NotFound,
    405: BadRequest,
    409: Conflict,
    413: TooLarge,
    415: BadRequest,
    416: OutOfRange,
    422: BadRequest,
    429: QueueFull,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_of(status: int, problem: Mapping[str, Any], what: str, **facts: Any) -> TidelogHTTPError:
    """The error that an answer stands for; `what` was asked."""
    kind = _BY_STATUS.get(status, TidelogHTTPError)
    detail = problem.get("detail") or f"the answer was {status}"
    return kind(f"{what}: {detail}", status=status, problem=problem, **facts)
