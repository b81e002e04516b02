"""How far a client has seen each bucket, so that reads at any replica never go back.

A node's token is `PARTITION:OFFSET`: who has it, has seen that partition up to there. A local read
that is given one waits until its replica has got so far.

Rule: a token only ever rises, until the bucket is made anew.
"""

import threading
from typing import Final

_SEPARATOR: Final = ":"


class Tokens:
    """The newest token of each partition of each bucket; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[int, int]] = {}

    def note(self, bucket: str, token: object) -> None:
        """Something was seen there; what is no token of ours is passed over."""
        if not isinstance(token, str):
            return
        partition, _, offset = token.partition(_SEPARATOR)
        if not (partition.isdecimal() and offset.isdecimal()):
            return
        with self._lock:
            seen = self._seen.setdefault(bucket, {})
            seen[int(partition)] = max(seen.get(int(partition), 0), int(offset))

    def has(self, bucket: str) -> bool:
        return bool(self._seen.get(bucket))

    def of(self, bucket: str, partition: int) -> str | None:
        """What to give a local read of this partition."""
        offset = self._seen.get(bucket, {}).get(partition)
        return None if offset is None else f"{partition}{_SEPARATOR}{offset}"

    def forget(self, bucket: str) -> None:
        """The bucket is gone; another of its name counts from the beginning."""
        with self._lock:
            self._seen.pop(bucket, None)
