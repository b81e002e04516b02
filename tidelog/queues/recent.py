"""The answers of the last requests that had an Idempotency-Key, for those who ask again.

Rule 1: what is remembered of requests that wrote something is a fold of the log, in its order, and
        of bounded size: the oldest go.
Rule 2: a request that found nothing writes nothing; it is remembered in memory alone, as many of
        them. So a copy of it that was late on its way does nothing when it comes, long after
        whoever asked was answered by another copy and went on.
"""

from typing import Any, Final

REMEMBERED_MAX: Final = 20_000


class Recent:
    """Outcomes by the hash of their request."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._outcomes: dict[bytes, list[Any]] = {}
        self._max = remembered_max
        self._under_way: dict[bytes, None] = {}
        self._empty: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def get(self, request: bytes) -> list[Any] | None:
        """What came of the request, piece by piece; None if it is not known to be done."""
        if not request:
            return None
        return [None] if request in self._empty else self._outcomes.get(request)

    def note(self, request: bytes, outcome: Any) -> None:
        """A record of the request is stored, which says this."""
        if not request:
            return
        self._under_way.pop(request, None)
        known = self._outcomes.get(request)
        if known is not None:
            known.append(outcome)
            return
        self._outcomes[request] = [outcome]
        if len(self._outcomes) > self._max:
            del self._outcomes[next(iter(self._outcomes))]

    def found_nothing(self, request: bytes) -> None:
        """The request is answered with nothing, and has written nothing."""
        if not request:
            return
        self._under_way.pop(request, None)
        self._empty[request] = None
        if len(self._empty) > self._max:
            del self._empty[next(iter(self._empty))]

    def begin(self, request: bytes) -> bool:
        """The request's records are on their way; False if they are already."""
        if not request:
            return True
        if request in self._under_way:
            return False
        self._under_way[request] = None
        return True

    def failed(self, request: bytes) -> None:
        """They did not come to be; who asks again begins anew."""
        self._under_way.pop(request, None)
