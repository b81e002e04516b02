"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only changes.

Rule 1: a session is a convenience. It may be dropped at any time; the client starts another.
Rule 2: a request belongs to a session only with the next epoch; anything else is refused, because
        the two sides no longer agree on what is in it.

    id   epoch   what is meant
    ---  ------  ------------------------------------------------------------
    0    -1      a full fetch, no session
    0    0       a full fetch that opens a session
    n    0       the same, and session n is over
    n    -1      a full fetch, and session n is over
    n    e > 0   the changes since epoch e - 1 of session n
"""

import random
from collections.abc import Iterable
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from tidelog.model import NO_OFFSET, Epoch, Offset

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
FIRST_EPOCH: Final = 0

Key: TypeAlias = tuple[str | UUID, int]


class Interest:
    """One partition that a client fetches, and what it was last told of it."""

    __slots__ = ("bytes_max", "epoch", "key", "offset", "told_log_start", "told_stable", "told_watermark")

    def __init__(self, key: Key, offset: Offset, bytes_max: int, epoch: Epoch) -> None:
        self.key = key
        self.offset = offset
        self.bytes_max = bytes_max
        self.epoch = epoch
        self.told_watermark = NO_OFFSET
        self.told_log_start = NO_OFFSET
        self.told_stable = NO_OFFSET

    def update(self, newer: "Interest") -> None:
        self.offset, self.bytes_max, self.epoch = newer.offset, newer.bytes_max, newer.epoch


class Session:
    """The partitions of one client, in the order in which they are served."""

    __slots__ = ("epoch", "id", "interests", "uses_ids")

    def __init__(self, session_id: int, uses_ids: bool, interests: dict[Key, Interest]) -> None:
        self.id = session_id
        self.epoch = 1
        self.uses_ids = uses_ids
        self.interests = interests

    def serve_later(self, interest: Interest) -> None:
        """Put a partition that got its share behind the others, so that none starves."""
        if self.interests.pop(interest.key, None) is not None:
            self.interests[interest.key] = interest


class Sessions:
    """All sessions of a node, the least recently used first."""

    def __init__(self, count_max: int, partitions_max: int, generator: random.Random) -> None:
        self._count_max = count_max
        self._partitions_max = partitions_max
        self._random = generator
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        interests: Iterable[Interest],
        forgotten: Iterable[Key],
        *,
        uses_ids: bool,
    ) -> tuple[Session | None, bool, list[Interest]]:
        """The session, whether only changes go into its answer, and all partitions to serve."""
        if epoch in (FINAL_EPOCH, FIRST_EPOCH):
            self._sessions.pop(session_id, None)
            named = {interest.key: interest for interest in interests}
            session = self._open(named, uses_ids) if epoch == FIRST_EPOCH else None
            return session, False, list(named.values())
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {session_id}")
        if session.epoch != epoch:
            raise InvalidFetchSessionEpoch(f"epoch {epoch}, {session.epoch} was expected")
        if session.uses_ids != uses_ids:
            raise FetchSessionTopicIdError("a session uses topic ids or names, not both")
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        self._sessions[session_id] = self._sessions.pop(session_id)
        for interest in interests:
            known = session.interests.get(interest.key)
            if known is not None:
                known.update(interest)
            elif len(session.interests) < self._partitions_max:
                session.interests[interest.key] = interest
        for key in forgotten:
            session.interests.pop(key, None)
        return session, True, list(session.interests.values())

    def _open(self, interests: dict[Key, Interest], uses_ids: bool) -> Session | None:
        if not interests or self._count_max == 0 or len(interests) > self._partitions_max:
            return None
        if len(self._sessions) >= self._count_max:
            del self._sessions[next(iter(self._sessions))]
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = Session(session_id, uses_ids, interests)
        self._sessions[session_id] = session
        return session
