"""What the client's decisions ask the world to do, as values.

A plan is a generator: it yields effects, is sent what came of them, and returns its result. A flow
is a plan that also emits items, as many as there are. Two drivers perform them, `blocking.py` with
threads and `awaiting.py` with coroutines; neither decides anything.

Rule: an effect that fails comes back as a value (`Lost`), never as an exception.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to one node."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    seconds_max: float
    """How long the node may be silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A node's answer. That of an opened stream has its body yet to come, if it is a 200."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """There was no answer."""

    why: str
    was_sent: bool
    """Whether the node may have got the request."""
    is_ours: bool = False
    """Whether the client itself is the reason: then no other node helps."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; comes back as a Reply or Lost."""

    request: Request


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Apply:
    """Call a function of the user's, which may be a coroutine's in an async client."""

    function: Callable[[Any], Any]
    argument: Any


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose answer is a stream; it takes the place of the flow's former one."""

    request: Request


@dataclass(frozen=True, slots=True)
class Pull:
    """Read on in the stream; comes back as bytes, empty at its end, or Lost."""


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Give the user an item; go on when the next one is wanted."""

    item: T


Effect: TypeAlias = Send | Wait | Apply
Plan: TypeAlias = Generator[Effect, Any, T]
Flow: TypeAlias = Generator[Effect | Open | Pull | Emit[T], Any, None]
