"""Catalogs and stores that are away for a while.

Rule 1: what may be there again is tried again, ever more rarely, and what is waited for is said.
Rule 2: whoever asks for a stop is not made to wait, too.
Rule 3: only what can be repeated is: a commit whose end nobody knows is looked for first.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, TypeVar

from tidelog.errors import TidelogError

logger = logging.getLogger(__name__)

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
WAIT_SECONDS_MAX: Final = 2 * 3600.0
THROTTLED: Final = ("ThrottlingException", "Throttling", "TooManyRequestsException", "SlowDown")

T = TypeVar("T")


class StoppedWaiting(TidelogError):
    """Somebody asked for a stop while a catalog or a store was away; the next run goes on."""


class Away(TidelogError):
    """A catalog or a store cannot be reached at the moment; try again."""


def is_away(error: BaseException) -> bool:
    """Whether an error says that somebody cannot be reached, and not that something is wrong."""
    if isinstance(error, (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError)):
        return False
    return isinstance(error, (OSError, Away, *_others())) or _is_overloaded(error)


def _is_overloaded(error: BaseException) -> bool:
    """Whether an AWS service answers that it is overloaded."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return False
    told = answer.get("ResponseMetadata") or {}
    code = str((answer.get("Error") or {}).get("Code"))
    return int(told.get("HTTPStatusCode") or 0) >= 500 or code in THROTTLED


def _others() -> tuple[type[BaseException], ...]:
    """The errors of those libraries that are installed."""
    from pyiceberg.exceptions import CommitStateUnknownException, ServerError, ServiceUnavailableError

    found: list[type[BaseException]] = [CommitStateUnknownException, ServerError, ServiceUnavailableError]
    for module, name in (
        ("sqlalchemy.exc", "OperationalError"),
        ("botocore.exceptions", "HTTPClientError"),
        ("botocore.exceptions", "ConnectionError"),
        ("thrift.transport.TTransport", "TTransportException"),
    ):
        with suppress(ImportError):
            found.append(getattr(import_module(module), name))
    return tuple(found)


@contextmanager
def told_as_away(what: str) -> Iterator[None]:
    """Say that somebody is away as one of our errors, whatever library has found it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TidelogError) or not is_away(error):
            raise
        raise Away(f"{what} cannot be reached: {_first_line(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long somebody is waited for who is away."""

    stop: threading.Event = field(default_factory=threading.Event)
    first_seconds: float = FIRST_SECONDS
    seconds_max: float = WAIT_SECONDS_MAX

    def __reduce__(self) -> "tuple[Callable[..., Patience], tuple[float, float]]":
        """On its way to a Spark Connect server, which runs batches itself: nobody here stops it."""
        return _patience, (self.first_seconds, self.seconds_max)

    def until_there(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`, which is repeated while somebody is away."""
        pause, deadline = self.first_seconds, time.monotonic() + self.seconds_max
        while True:
            try:
                return work()
            except Exception as error:
                if not is_away(error) or time.monotonic() > deadline:
                    raise
                logger.warning(
                    "waiting for %s, which cannot be reached; it is tried again in %g s: %s",
                    what,
                    pause,
                    _first_line(error),
                )
            if self.stop.wait(pause):
                raise StoppedWaiting(f"stopped while {what} could not be reached")
            pause = min(pause * 2, LONGEST_SECONDS)


def _patience(first_seconds: float, seconds_max: float) -> Patience:
    return Patience(first_seconds=first_seconds, seconds_max=seconds_max)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
