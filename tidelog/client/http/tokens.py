"""How far a client has seen each bucket, so that reads at any replica never go back.

A node's token is `PARTITION:OFFSET:BUCKET`: who has it, has seen that partition up to there, of the
bucket that is told by its id. A local read that is given one waits until its replica has got so
far; where the bucket is another, it is a strong one.

Rule: a token only ever rises, until the bucket is made anew.
"""

import threading
from typing import Final

_SEPARATOR: Final = ":"


class Tokens:
    """The newest token of each partition of each bucket; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[int, tuple[int, str]]] = {}
        """Of each partition, the offset and the bucket's id."""

    def note(self, bucket: str, token: object) -> None:
        """Something was seen there; what is no token of ours is passed over."""
        if not isinstance(token, str):
            return
        partition, _, rest = token.partition(_SEPARATOR)
        offset, _, bucket_id = rest.partition(_SEPARATOR)
        if not (partition.isdecimal() and offset.isdecimal()):
            return
        with self._lock:
            seen = self._seen.setdefault(bucket, {})
            known, known_id = seen.get(int(partition), (0, bucket_id))
            if known_id == bucket_id:
                seen[int(partition)] = (max(known, int(offset)), bucket_id)
            else:
                seen[int(partition)] = (int(offset), bucket_id)

    def has(self, bucket: str) -> bool:
        return bool(self._seen.get(bucket))

    def of(self, bucket: str, partition: int) -> str | None:
        """What to give a local read of this partition."""
        seen = self._seen.get(bucket, {}).get(partition)
        if seen is None:
            return None
        offset, bucket_id = seen
        return _SEPARATOR.join((str(partition), str(offset), *filter(None, (bucket_id,))))

    def forget(self, bucket: str) -> None:
        """The bucket is gone; another of its name counts from the beginning."""
        with self._lock:
            self._seen.pop(bucket, None)
